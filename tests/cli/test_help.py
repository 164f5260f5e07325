"""Help and version: quick, and complete."""

import json
import re
import subprocess
import sys

import pytest

from batuta.cli import COMMANDS
from tests.cli.conftest import Cli

HEAVY = {"asyncpg", "rich", "uvloop", "pydantic", "sqlite3"}
LEAVES = [
    "check",
    "demo",
    "worker",
    "migrate",
    "prune",
    "replay",
    "verify",
    *(f"runs {c}" for c in "start list show journal pause resume cancel terminate retry delete".split()),
    *(f"jobs {c}" for c in "enqueue list show attempts cancel retry".split()),
    *(f"retention {c}" for c in "list set drop".split()),
    *(f"audit {c}" for c in "list verify".split()),
    *(f"queues {c}" for c in "list show limit pause resume".split()),
]


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


@pytest.mark.parametrize("command", LEAVES)
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
