"""Help and version: quick, and complete."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from batuta.cli import COMMANDS, root
from tests.cli.conftest import Cli

HEAVY = {"asyncpg", "rich", "uvloop", "pydantic", "sqlite3"}


def leaves(command: click.Command, *words: str) -> Iterator[str]:
    """Every command that does something, as it is typed."""
    if not isinstance(command, click.Group):
        yield " ".join(words)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, *words, name)


def test_help_imports_neither_the_engine_nor_a_store_nor_a_table() -> None:
    program = (
        "import sys\n"
        "from batuta.cli import main\n"
        "sys.argv = ['batuta', '--help']\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        "print('MODULES', *sys.modules, file=sys.stderr)"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert "Commands" in outcome.stdout
    loaded = set(outcome.stderr.partition("MODULES")[2].split())
    assert HEAVY.isdisjoint({name.split(".")[0] for name in loaded})
    assert not [name for name in loaded if name.startswith(("batuta.engine", "batuta.stores", "batuta.cli.demo"))]


def test_help_lists_every_command_and_every_exit_code(cli: Cli) -> None:
    text = cli("--help").stdout
    assert all(re.search(rf"^  {name} ", text, re.MULTILINE) for name in COMMANDS)
    assert re.findall(r"^    (\d)  ", text, re.MULTILINE) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("command", [*leaves(root)])
def test_every_command_has_help_and_takes_json(cli: Cli, command: str) -> None:
    result = cli(*command.split(), "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_the_version_is_that_of_the_package(cli: Cli) -> None:
    import batuta

    assert cli("--version").stdout == f"batuta {batuta.__version__}\n"


def test_an_unknown_command_is_a_usage_error(cli: Cli) -> None:
    result = cli("dance")
    assert result.exit_code == 2
    assert "dance" in result.stderr


def test_an_error_with_json_is_one_object_on_stderr_and_nothing_on_stdout(cli: Cli) -> None:
    cli("migrate")
    result = cli("runs", "show", "nobody", "--json")
    assert result.stdout == ""
    assert json.loads(result.stderr)["error"]["type"] == "UnknownRun"


@pytest.mark.parametrize(
    "words", ["dance", "runs dance", "runs list --limit 0", "runs start", "runs list --sort", "worker --json=1 x"]
)
def test_a_usage_error_with_json_is_one_object_too(cli: Cli, words: str) -> None:
    result = cli(*words.split(), "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    error = json.loads(result.stderr)["error"]
    assert error["type"] == "UsageError"
    assert error["message"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("workes",), "Did you mean workers or worker"),
        (("dead-letters", "reproces"), "Did you mean reprocess?"),
        (("queues", "set"), "There are limit, list, pause, resume, show."),
    ],
)
def test_an_unknown_command_names_similar_ones(cli: Cli, words: tuple[str, ...], hint: str) -> None:
    refused = cli(*words)
    assert refused.exit_code == 2
    assert hint in " ".join(refused.stderr.split())
