"""What is typed wrong is a sentence that says what, which and what next; never a traceback, never half done."""

from pathlib import Path

import pytest

from tests.cli.conftest import SHOP, Cli

USAGE, NOT_FOUND, NO_DATABASE = 2, 3, 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs", "start", "x", "--input", "{bad"], "line 1, column 2"),
        (["runs", "start", "x", "--input", "NaN"], "NaN is not a JSON value"),
        (["runs", "start", "x", "--input", "@no/such/file"], "no/such/file"),
        (["runs", "start", "x", "--memo", "'"], "--memo is not JSON"),
        (["runs", "start", ""], "workflow name ''"),
        (["runs", "start", "nul\0nul"], "printable"),
        (["runs", "start", "x", "--id", "a\nb"], "run id 'a\\nb'"),
        (["runs", "start", "x", "--timeout", "-1"], "'--timeout': '-1' is too short"),
        (["runs", "start", "x", "--delay", "soon"], "90s, 5min, 1h or 30d"),
        (["runs", "start", "x", "--queue", ""], "queue ''"),
        (["runs", "start", "x", "--tag", "colour"], "KEY=VALUE"),
        (["runs", "start", "x", "--if-exists", "maybe"], "restart"),
        (["runs", "list", "--state", "sleeping"], "needs_code"),
        (["runs", "list", "--since", "yesterday"], "is not a time"),
        (["runs", "list", "--cursor", "zzz"], "cursor"),
        (["runs", "list", "--limit", "0"], "1<=x<=1000"),
        (["runs", "list", "--namespace", "\n"], "namespace"),
        (["runs", "list", "--url", "mysql://here"], "sqlite:///"),
        (["runs", "list", "--url", "sqlite:///"], "names no file"),
        (["worker", "--app", "no.such.module"], "no module 'no.such.module'"),
        (["worker", "--app", "not a module"], "package.module"),
        (["worker", "--app", f"{SHOP}:nothing"], "it has app"),
        (["worker", "--app", f"{SHOP}:total"], "not a batuta.App"),
        (["worker", "--app", f"{SHOP}:not_an_app"], "not a batuta.App"),
        (["worker", "--app", f"{SHOP}:broken"], "RuntimeError: no such luck"),
        (["worker", "--app", "tests.cli.test_bad_input"], "no @workflow"),
        (["worker", "--app", SHOP, "--queue", ""], "queue ''"),
        (["verify", "--app", "no.such.module"], "no module"),
    ],
    ids=lambda value: " ".join(value)[:40].encode("unicode_escape").decode() if isinstance(value, list) else "",
)
def test_wrong_words_are_a_usage_error_that_says_which(cli: Cli, words: list[str], said: str) -> None:
    cli("migrate")
    result = cli(*words)
    assert result.exit_code == USAGE
    assert said in result.stderr
    assert result.stdout == ""
    assert cli("runs", "list", "--json").stdout == '{"runs": [], "cursor": null}\n'


@pytest.mark.parametrize("command", ["show", "journal", "cancel", "terminate"])
def test_a_run_that_is_not_there_is_not_found(cli: Cli, command: str) -> None:
    cli("migrate")
    result = cli("runs", command, "nobody")
    assert result.exit_code == NOT_FOUND
    assert "'nobody'" in result.stderr


@pytest.mark.parametrize("words", [["runs", "list"], ["runs", "show", "x"], ["verify"]])
def test_looking_at_a_database_that_is_not_there_does_not_make_one(cli: Cli, tmp_path: Path, words: list[str]) -> None:
    result = cli(*words)
    assert result.exit_code == NO_DATABASE
    assert "batuta migrate" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_away_is_named(cli: Cli) -> None:
    result = cli("runs", "list", "--url", "postgresql://127.0.0.1:1/nowhere")
    assert result.exit_code == NO_DATABASE
    assert "127.0.0.1:1" in result.stderr


def test_a_file_that_is_no_database_is_named_as_such(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("dear reader " * 100)
    result = cli("runs", "list", "--url", f"sqlite:///{tmp_path / 'letter.db'}")
    assert result.exit_code == NO_DATABASE
    assert "not a SQLite database" in result.stderr


def test_a_module_that_raises_is_shown_with_its_traceback(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = cli("worker", "--app", "raises")
    assert result.exit_code == USAGE
    assert "raises.py" in result.stderr
    assert result.stderr.endswith("error: module 'raises' cannot be imported: ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("runs_itself.py", "'runs_itself.py' is a file: give the name of the module, such as 'runs_itself'"),
        ("runs_itself", "calls asyncio.run() when it is imported: put that under `if __name__ == '__main__':`"),
    ],
)
def test_a_script_that_is_no_module_is_told_what_to_change(
    name: str, says: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs_itself.py").write_text("import asyncio\nasyncio.run(asyncio.sleep)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = cli("worker", "--app", name)
    assert result.exit_code == USAGE
    assert says in result.stderr


def test_a_setting_that_is_no_number_names_its_variable(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATUTA_LEASE", "long")
    result = cli("worker", "--app", SHOP)
    assert result.exit_code == USAGE
    assert "BATUTA_LEASE='long'" in result.stderr
