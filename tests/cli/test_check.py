"""`batuta check`: rules, shapes, and the journals of a database."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from batuta import connect
from tests.cli import other_shop, shop
from tests.cli.conftest import SHOP, Cli

FLOW = """
import time
from batuta import activity, workflow

@activity
async def step(n): ...

@workflow
async def flow():
    await step(1)
"""


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `flow_to_check` in the current directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "flow_to_check.py"
    path.write_text(FLOW)
    return path


def add(path: Path, line: str) -> None:
    path.write_text(path.read_text() + f"    {line}\n")


async def complete(url: str, *ids: str) -> None:
    async with connect(url) as client, client.worker(workflows=[shop.total], activities=[shop.add]):
        for id in ids:
            await (await client.start(shop.total, [1, 2], id=id)).result()


def test_clean_code_exits_0(cli: Cli, flow: Path) -> None:
    for target in ("flow_to_check", "flow_to_check:app", "flow_to_check.py", str(flow), str(flow.parent)):
        result = cli("check", target)
        assert (result.exit_code, result.stdout) == (0, "1 workflow in 1 file: 0 errors, 0 warnings\n")


def test_a_fault_exits_1_with_its_place_and_a_fix(cli: Cli, flow: Path) -> None:
    add(flow, "time.time()")
    result = cli("check", "flow_to_check")
    assert result.exit_code == 1
    assert "flow_to_check.py:11:5: W101 time.time()" in result.stdout
    assert "fix: use batuta.now()" in result.stdout


def test_nothing_is_imported_to_check_it(cli: Cli, flow: Path) -> None:
    flow.write_text("raise SystemExit('imported')\n" + FLOW)
    assert cli("check", "flow_to_check").exit_code == 0
    assert "flow_to_check" not in sys.modules


def test_findings_as_json(cli: Cli, flow: Path) -> None:
    add(flow, "time.time()")
    (found,) = json.loads(cli("check", "flow_to_check", "--json").stdout)["findings"]
    assert found["file"] == "flow_to_check.py"
    assert (found["line"], found["column"], found["code"], found["level"]) == (11, 5, "W101", "error")
    assert (found["what"], found["where"]) == ("time.time()", "workflow flow")
    assert found["fix"]


def test_a_warning_is_shown_and_fails_only_a_strict_check(cli: Cli, flow: Path) -> None:
    add(flow, "print('so far')")
    result = cli("check", "flow_to_check")
    assert result.exit_code == 0
    assert "W204" in result.stdout
    assert cli("check", "flow_to_check", "--strict").exit_code == 1


def test_shapes_are_written_and_compared(cli: Cli, flow: Path) -> None:
    words = ("check", "flow_to_check", "--shapes", "workflows.lock")
    assert cli(*words).exit_code == 2
    assert cli(*words, "--update").exit_code == 0
    assert cli(*words).exit_code == 0
    add(flow, "await step(2)")
    result = cli(*words)
    assert result.exit_code == 1
    assert "W601 workflow flow" in result.stdout
    assert "+ activity step" in result.stdout
    assert cli(*words, "--update").exit_code == 0
    assert cli(*words).exit_code == 0


def test_a_gated_change_passes_and_asks_for_an_update(cli: Cli, flow: Path) -> None:
    words = ("check", "flow_to_check", "--shapes", "workflows.lock")
    cli(*words, "--update")
    flow.write_text(flow.read_text().replace("import activity", "import patched, activity"))
    add(flow, "if patched('second'): await step(2)")
    result = cli(*words)
    assert result.exit_code == 0
    assert "gated" in result.stdout
    assert cli(*words, "--strict").exit_code == 1


def test_the_newest_journals_of_each_workflow_are_replayed(cli: Cli, sqlite_url: str) -> None:
    asyncio.run(complete(sqlite_url, "a", "b", "c"))
    result = cli("check", SHOP, "--from", sqlite_url, "--last", "2", "--json")
    assert result.exit_code == 0, result.stdout
    assert json.loads(result.stdout)["replayed"] == 2
    result = cli("check", other_shop.__name__, "--from", sqlite_url)
    assert result.exit_code == 1
    assert "3 journals replayed, 0 ok" in result.stdout
    assert "differs: run c" in result.stdout
    assert "today's code: activity add" in result.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no.such.module"], "no module"),
        (["flow_to_check", "--update"], "--shapes"),
        (["flow_to_check.py", "--from", "sqlite:///x.db"], "give the module"),
        (["empty.py"], "nothing was checked"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_is_a_usage_error(cli: Cli, flow: Path, words: list[str], told: str) -> None:
    (flow.parent / "empty.py").write_text("")
    result = cli("check", *words)
    assert result.exit_code == 2
    assert told in result.stderr
