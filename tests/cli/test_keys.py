"""`batuta keys`, and the other commands on a database whose payloads are encrypted."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SHOP, Cli, Spawn

OK, FAILED, USAGE = 0, 1, 2
K1, K2 = (f"{id}:{base64.b64encode(bytes([number]) * 32).decode()}" for id, number in (("k1", 1), ("k2", 2)))


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of commands in this process: with the first key."""
    monkeypatch.setenv("BATUTA_KEYS", K1)
    monkeypatch.delenv("BATUTA_KEYS_FILE", raising=False)
    return monkeypatch


@pytest.fixture
def done(env: pytest.MonkeyPatch, cli: Cli, spawn: Spawn) -> None:
    """A run that a worker with the key has completed. The worker goes on."""
    assert isinstance(env, pytest.MonkeyPatch)
    spawn("worker", "--app", SHOP, BATUTA_KEYS=K1)
    assert cli("runs", "start", "total", "--input", "[[1, 2]]", "--id", "a", "--wait").stdout.strip().endswith("3")


def told(cli: Cli, *words: str, code: int = OK) -> Any:
    result = cli(*words, "--json")
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def test_a_new_key_is_printed_and_can_be_used(cli: Cli, env: pytest.MonkeyPatch) -> None:
    assert told(cli, "keys", "new", "april")["key"].startswith("april:")
    made = [cli("keys", "new", "march").stdout.strip() for _ in range(2)]
    assert made[0] != made[1]
    assert all(one.startswith("march:") and len(base64.b64decode(one[6:])) == 32 for one in made)
    env.setenv("BATUTA_KEYS", f"{made[0]},{K1}")
    assert [key["id"] for key in told(cli, "keys", "list")["keys"]] == ["march", "k1"]


def test_keys_are_listed_without_the_keys(cli: Cli, env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{K2}\n{K1}\nplain\n")
    env.delenv("BATUTA_KEYS")
    assert "not encrypted" in cli("keys", "list").stdout
    env.setenv("BATUTA_KEYS_FILE", str(file))
    shown = cli("keys", "list").stdout
    assert shown.splitlines()[0].startswith("k2  ")
    assert "plain" in shown
    assert K1[3:] not in shown
    assert K2[3:] not in shown


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"BATUTA_KEYS": K1[3:]}, "key 1 is not of the form"),
        ({"BATUTA_KEYS": "k1:AAAA"}, "key 'k1' must be 32 bytes"),
        ({"BATUTA_KEYS": K1, "BATUTA_KEYS_FILE": "keys"}, "both set"),
        ({"BATUTA_KEYS": "", "BATUTA_KEYS_FILE": "no-such-file"}, "cannot be read"),
        ({"BATUTA_COMPRESS": "perhaps"}, "must be 1 or 0"),
    ],
)
def test_keys_that_cannot_be_used_are_told_without_showing_them(
    cli: Cli, env: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        env.setenv(name, value)
    result = cli("runs", "list")
    assert result.exit_code == USAGE
    assert message in result.stderr
    assert K1[3:] not in result.stderr


def test_an_id_that_cannot_be_a_keys_is_refused(cli: Cli) -> None:
    assert cli("keys", "new", "two words").exit_code == USAGE
    assert cli("keys", "new", "plain").exit_code == USAGE


@pytest.mark.usefixtures("done")
def test_commands_with_the_keys_see_everything(cli: Cli, sqlite_url: str, tmp_path: Path) -> None:
    assert "total" in cli("runs", "show", "a").stdout
    assert told(cli, "replay", "--app", SHOP) == {"replayed": 1, "ok": 1, "runs": []}
    assert told(cli, "verify", "--app", SHOP)["sealed"] == 0
    file = tmp_path / "a.json"
    file.write_text(cli("runs", "journal", "a", "--export").stdout)
    assert told(cli, "replay", "--app", SHOP, str(file))["ok"] == 1
    assert told(cli, "backup", sqlite_url, str(tmp_path / "copy.db"))["holds"]


@pytest.mark.usefixtures("done")
@pytest.mark.parametrize("keys", ["", K2])
def test_commands_without_the_keys_say_so(
    cli: Cli, env: pytest.MonkeyPatch, sqlite_url: str, tmp_path: Path, keys: str
) -> None:
    env.setenv("BATUTA_KEYS", keys)
    assert [run["id"] for run in told(cli, "runs", "list")["runs"]] == ["a"]
    assert "cannot be read" in told(cli, "runs", "show", "a")["error"]
    for words in (("runs", "journal", "a"), ("runs", "journal", "a", "--export")):
        result = cli(*words)
        assert result.exit_code == FAILED, words
        assert "cannot be read" in result.stderr
        assert "k1" in result.stderr
    report = told(cli, "verify", "--patience", "0")
    assert (report["sealed"], report["violations"]) == (1, [])
    assert told(cli, "backup", sqlite_url, str(tmp_path / "copy.db"))["holds"]


@pytest.mark.usefixtures("done")
def test_a_rotation_is_counted_first_and_then_done(cli: Cli, env: pytest.MonkeyPatch) -> None:
    env.setenv("BATUTA_KEYS", f"{K2},{K1}")
    before = told(cli, "keys", "rotate", "--dry-run", code=FAILED)
    assert (before["runs"], before["rewritten"], before["left"]) == (1, 1, 1)
    assert told(cli, "keys", "rotate")["rewritten"] == 1
    assert told(cli, "keys", "rotate")["rewritten"] == 0
    rows = told(cli, "audit", "list")["rows"]
    assert [(row["verb"], row["target"], row["detail"]) for row in rows] == [
        ("rotate keys", "keys", {"keys": ["k2", "k1"]}),  # none for the dry run
    ] * 3
    assert [row["after"] for row in rows] == [None, {"runs": 1}, None]
    env.setenv("BATUTA_KEYS", K2)
    assert told(cli, "runs", "show", "a")["result"] == 3
    assert told(cli, "replay", "--app", SHOP)["ok"] == 1


def test_a_rotation_without_keys_is_refused(cli: Cli, env: pytest.MonkeyPatch) -> None:
    cli("migrate")
    env.delenv("BATUTA_KEYS")
    result = cli("keys", "rotate")
    assert result.exit_code == USAGE
    assert "BATUTA_KEYS" in result.stderr


def test_a_key_in_a_file_is_for_the_eyes_of_its_owner_alone(
    cli: Cli, env: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    before = os.umask(0)
    try:
        assert cli("keys", "new", "march", "--file", str(file)).output == ""
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text(file.read_text().rstrip())
    assert told(cli, "keys", "new", "april", "--file", str(file)) == {"id": "april", "file": str(file)}
    env.delenv("BATUTA_KEYS")
    env.setenv("BATUTA_KEYS_FILE", str(file))
    assert [key["id"] for key in told(cli, "keys", "list")["keys"]] == ["march", "april"]
    assert not caplog.records
    file.chmod(0o644)
    cli("keys", "list")
    assert "chmod 600" in caplog.text


def test_a_key_goes_into_no_file_that_is_not_one_of_keys(cli: Cli, tmp_path: Path) -> None:
    file, link, taken = tmp_path / "other", tmp_path / "link", tmp_path / "keys"
    file.write_text("somebody's words\n")
    link.symlink_to(file)
    taken.write_text(K1)
    for path, word in ((link, "cannot be written"), (file, "id:base64"), (taken, "already"), (tmp_path, "directory")):
        found = cli("keys", "new", "k1", "--file", str(path))
        assert (found.exit_code, word in found.stderr) == (USAGE, True), found.stderr
    assert (file.read_text(), taken.read_text()) == ("somebody's words\n", K1)
