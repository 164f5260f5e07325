"""Flows in files: checked, tested, pushed, published and exported."""

import json
from pathlib import Path
from typing import Any

import pytest

from batuta.flows.files import FlowCase, flow_cases
from tests.cli.conftest import Cli
from tests.flows.http import SPRINT

EXAMPLES = Path(__file__).parents[2] / "examples" / "flows"


@pytest.mark.parametrize("case", flow_cases(EXAMPLES), ids=str)
async def test_an_example_does_what_its_tests_say(case: FlowCase) -> None:
    await case.check()


def written(folder: Path, name: str, document: Any) -> str:
    file = folder / name
    file.write_text(json.dumps(document))
    return str(file)


def test_every_fault_of_every_file_is_told(cli: Cli, tmp_path: Path) -> None:
    written(tmp_path, "good.json", SPRINT)
    bad = written(tmp_path, "bad.json", SPRINT | {"steps": [{"key": "a", "type": "nope"}], "more": 1})
    result = cli("flows", "validate", str(tmp_path))
    assert result.exit_code == 1
    assert f"{bad}: steps[0].type: unknown step type 'nope'" in result.stdout
    assert f"{bad}: more: unknown field" in result.stdout
    assert "2 files, 1 with faults" in result.stdout
    assert cli("flows", "validate", str(tmp_path / "none.json")).exit_code == 2


def test_a_test_that_fails_says_how(cli: Cli, tmp_path: Path) -> None:
    written(tmp_path, "sprint.json", SPRINT)
    wrong = {"name": "wrong", "payload": {"amount": 5}, "expect": {"path": ["check_overdue"], "status": "FAILED"}}
    written(tmp_path, "sprint.test.json", {"flow": "sprint.json", "tests": [wrong]})
    result = cli("flows", "test", str(tmp_path))
    assert result.exit_code == 1
    assert "status is COMPLETED, not FAILED" in result.stdout
    assert "path is check_overdue > done, not check_overdue" in result.stdout
    written(tmp_path, "sprint.test.json", {"flow": "sprint.json", "tests": [{"nome": "wrong"}]})
    assert cli("flows", "test", str(tmp_path)).exit_code == 2


def test_files_become_drafts_and_versions_and_come_back_as_they_were(cli: Cli, tmp_path: Path) -> None:
    file = written(tmp_path, "sprint.json", SPRINT)
    assert cli("migrate").exit_code == 0

    def pushed(*words: str) -> Any:
        result = cli("flows", "push", file, *words, "--json")
        assert result.exit_code == 0, result.stderr
        [found] = json.loads(result.stdout)["flows"]
        return found["version"], found["done"]

    assert pushed() == (1, "created")
    assert pushed() == (1, "unchanged")
    written(tmp_path, "sprint.json", SPRINT | {"description": "second"})
    assert pushed() == (1, "changed")
    assert pushed("--publish") == (1, "unchanged, published")
    assert pushed("--publish") == (1, "unchanged")
    written(tmp_path, "sprint.json", SPRINT | {"description": "third"})
    assert pushed() == (2, "created")
    assert cli("flows", "publish", SPRINT["name"]).exit_code == 0
    assert cli("flows", "publish", SPRINT["name"]).exit_code == 1
    assert "v2  invoice_overdue  active" in cli("flows", "list").stdout
    assert cli("flows", "export", str(tmp_path / "out")).exit_code == 0
    [exported] = (tmp_path / "out").iterdir()
    assert json.loads(exported.read_text()) == SPRINT | {"description": "third"}


def test_a_flow_that_is_not_there_is_not_exported(cli: Cli, tmp_path: Path) -> None:
    assert cli("migrate").exit_code == 0
    assert cli("flows", "export", str(tmp_path / "out"), "--name", "nobody").exit_code == 3


def test_a_double_for_no_step_fails_its_test_alone(cli: Cli, tmp_path: Path) -> None:
    written(tmp_path, "a.json", SPRINT)
    tests = [
        {"name": name, "doubles": {step: {"output": 1}}, "expect": {}} for name, step in (("x", "no"), ("y", "notify"))
    ]
    written(tmp_path, "a.test.json", {"flow": "a.json", "tests": tests})
    tested = cli("flows", "test", str(tmp_path))
    assert (tested.exit_code, tested.stdout.splitlines()[-1]) == (1, "2 tests, 1 failed")
    assert "doubles for steps that are not there: no" in tested.stdout


def test_what_a_file_no_longer_has_is_taken_from_the_draft(cli: Cli, tmp_path: Path) -> None:
    assert cli("migrate").exit_code == 0
    more = {"description": "first", "trigger": {"topic": "invoices"}}
    file = written(tmp_path, "sprint.json", SPRINT | more)
    assert cli("flows", "push", file).exit_code == 0
    written(tmp_path, "sprint.json", SPRINT)
    assert "changed" in cli("flows", "push", file).stdout
    assert "unchanged" in cli("flows", "push", file).stdout
    assert cli("flows", "export", str(tmp_path / "out")).exit_code == 0
    [exported] = (tmp_path / "out").iterdir()
    assert json.loads(exported.read_text()) == SPRINT


def test_two_files_of_one_flow_are_refused_and_a_byte_order_mark_is_not(cli: Cli, tmp_path: Path) -> None:
    assert cli("migrate").exit_code == 0
    first = tmp_path / "a.json"
    first.write_bytes(b"\xef\xbb\xbf" + json.dumps(SPRINT).encode())
    assert cli("flows", "push", str(first)).exit_code == 0
    written(tmp_path, "b.json", SPRINT)
    refused = cli("flows", "push", str(tmp_path))
    assert refused.exit_code == 2
    assert "are both flow 'Sprint 1 Test'" in refused.stderr


def test_everything_that_is_wrong_with_a_folder_is_told_at_once(cli: Cli, tmp_path: Path) -> None:
    assert cli("migrate").exit_code == 0
    written(tmp_path, "a.json", SPRINT)
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.json").mkdir()
    (tmp_path / "d.json").symlink_to("nowhere")
    written(tmp_path, "e.json", {"name": "e", "steps": []})
    written(tmp_path, "a.test.json", {"flow": "gone.json", "tests": [{"name": "x", "expect": {}}]})
    checked = cli("flows", "validate", str(tmp_path))
    assert (checked.exit_code, checked.stdout.splitlines()[-1]) == (1, "4 files, 3 with faults")
    pushed = cli("flows", "push", str(tmp_path))
    assert pushed.exit_code == 2
    for result, where in ((checked, checked.stdout), (pushed, pushed.stderr)):
        for name in ("b.json: not JSON", "d.json' cannot be read", "e.json: steps: must have at least 2"):
            assert name in where, result
    tested = cli("flows", "test", str(tmp_path))
    assert (tested.exit_code, "gone.json' cannot be read" in tested.stdout) == (1, True)


def test_flows_whose_names_make_one_file_name_are_exported_beside_each_other(cli: Cli, tmp_path: Path) -> None:
    assert cli("migrate").exit_code == 0
    files = [written(tmp_path, f"{n}.json", SPRINT | {"name": name}) for n, name in enumerate(("a b", "a_b", "A b"))]
    assert cli("flows", "push", *files).exit_code == 0
    assert cli("flows", "export", str(tmp_path / "out")).exit_code == 0
    names = [json.loads(file.read_text())["name"] for file in (tmp_path / "out").iterdir()]
    assert sorted(names) == ["A b", "a b", "a_b"]
    (tmp_path / "file").write_text("")
    refused = cli("flows", "export", str(tmp_path / "file" / "out"))
    assert (refused.exit_code, "cannot be written" in refused.stderr) == (2, True)


def test_nothing_is_pushed_when_one_file_is_wrong(cli: Cli, tmp_path: Path) -> None:
    assert cli("migrate").exit_code == 0
    written(tmp_path, "a.json", SPRINT)
    written(tmp_path, "b.json", {"name": "b", "steps": []})
    assert cli("flows", "push", str(tmp_path)).exit_code == 2
    assert "there are no flows" in cli("flows", "list").stdout
    assert cli("flows", "publish", "nope").exit_code == 3


def test_secrets_are_read_from_standard_input_and_never_shown(cli: Cli) -> None:
    assert cli("migrate").exit_code == 0
    kept = cli("flows", "secrets", "set", "crm", "--reason", "new", stdin="s3cr3t-t0ken\n")
    assert (kept.exit_code, kept.stdout) == (0, "kept: write secret://store/crm in a flow\n")
    assert cli("flows", "secrets", "list").stdout == "crm\n"
    log = cli("audit", "list", "--json").stdout
    assert ("set secret" in log, "s3cr3t" in log) == (True, False)
    assert cli("flows", "secrets", "set", "a b", stdin="x").exit_code == 2
    assert cli("flows", "secrets", "set", "crm", stdin="").exit_code == 2
    assert json.loads(cli("flows", "secrets", "delete", "crm", "--json").stdout) == {"name": "crm", "deleted": True}
    assert cli("flows", "secrets", "delete", "crm").exit_code == 3
    assert cli("flows", "secrets", "list").stdout == "there are no secrets\n"
