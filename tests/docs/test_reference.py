"""The reference pages are complete: nothing public is left out, and nothing stands there that does not exist."""

import inspect
import re
from enum import StrEnum

import click
import pytest

import batuta
from batuta import errors, telemetry
from batuta.authoring.activity.attempt import ActivityInfo
from batuta.authoring.backend import Description
from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.retry import Retry
from batuta.authoring.workflow.context import ChildOptions, RunInfo
from batuta.cli import COMMANDS, EXIT_CODES, root
from batuta.cli.dead_letters import dead_letters
from batuta.cli.jobs import jobs
from batuta.cli.queues import queues
from batuta.cli.runs.group import runs
from batuta.connect import connect
from batuta.failpoints import SITES
from batuta.journal.audit import Verb
from batuta.journal.entries import EntryKind
from batuta.journal.records import IfExists
from batuta.journal.states import RunState
from batuta.metrics import GAUGES, METRICS
from batuta.redaction import FIELDS, PATTERNS
from batuta.settings import _OWN_WORDS, Settings
from batuta.verify import INVARIANTS
from tests.docs.pages import FENCE, ROOT, pages

DOCS = ROOT / "docs"
FIRST_CELL = re.compile(r"^\| (?P<cell>`[^|]+`) \|", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")


def first_cells(text: str) -> list[str]:
    """What stands in code style in the first cells of a page's tables."""
    return [name for row in FIRST_CELL.finditer(text) for name in CODE.findall(row["cell"])]


def words(page: str) -> set[str]:
    """What stands in code style on a page."""
    return set(CODE.findall(FENCE.sub("", (DOCS / page).read_text())))


def default_of(name: str) -> str:
    value = getattr(Settings(), name)
    return str(value).lower() if isinstance(value, bool) else str(value) or "-"


def test_every_error_is_documented_and_nothing_else() -> None:
    classes = [
        name for name, kind in vars(errors).items() if inspect.isclass(kind) and kind.__module__ == "batuta.errors"
    ]
    headings = re.findall(r"^### (\w+)$", (DOCS / "reference" / "errors.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(classes)


def test_every_setting_is_documented_with_its_default() -> None:
    text = (DOCS / "reference" / "settings.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+)` \| (\S+) \|", text, re.MULTILINE)
    assert rows == [(name, default_of(name)) for name in Settings.__struct_fields__]


def test_all_that_is_hidden_is_documented() -> None:
    text = (DOCS / "operating" / "redaction.md").read_text()
    assert set(PATTERNS) <= set(first_cells(text))
    assert set(FIELDS) <= words("operating/redaction.md")


def test_every_verb_of_the_audit_log_is_documented() -> None:
    assert {str(verb) for verb in Verb} <= words("operating/audit.md")


def test_every_other_environment_variable_is_documented() -> None:
    text = (DOCS / "reference" / "settings.md").read_text()
    assert not [name for name in _OWN_WORDS if f"`BATUTA_{name}`" not in text]


def test_every_event_is_documented_with_its_fields_as_it_describes_itself() -> None:
    text = (DOCS / "reference" / "telemetry.md").read_text()
    rows = re.findall(r"^\| `([a-z]+\.[a-z]+)` \| (\w+) \| (.*?) ?\| (.+) \|$", text, re.MULTILINE)
    own = {"at", "run", "worker"}
    assert rows == [
        (
            one.event,
            one.__name__,
            ", ".join(f"`{name}`" for name in one.__struct_fields__ if name not in own),
            inspect.cleandoc(one.__doc__ or "").partition("\n\n")[0],
        )
        for one in telemetry.EVENTS
    ]
    for name, facts in (("run", telemetry.RunFacts), ("worker", telemetry.WorkerFacts)):
        assert f"| `{name}` | {', '.join(f'`{field}`' for field in facts.__struct_fields__)} |" in text


def test_every_metric_is_documented_as_it_describes_itself() -> None:
    text = (DOCS / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(batuta_\w+)` \| (\w+) \| (.*?) ?\| (.+) \|$", text, re.MULTILINE)
    assert rows == [
        (one.name, str(one.kind), ", ".join(f"`{label}`" for label in one.labels), one.help)
        for one in (*METRICS, *GAUGES)
    ]


def test_every_event_class_is_in_the_table() -> None:
    made = [one for one in vars(telemetry).values() if inspect.isclass(one) and issubclass(one, telemetry.Event)]
    assert {one for one in made if one.event} == set(telemetry.EVENTS)


def test_every_method_of_middleware_is_documented() -> None:
    found = first_cells((DOCS / "concepts" / "middleware.md").read_text())
    methods = [name for name, value in vars(batuta.Middleware).items() if inspect.isfunction(value)]
    assert found == methods


def test_every_failpoint_is_documented_as_it_describes_itself() -> None:
    text = (DOCS / "reference" / "failpoints.md").read_text()
    assert dict(re.findall(r"^\| `([\w.]+)` \| (.+) \|$", text, re.MULTILINE)) == SITES


@pytest.mark.parametrize(("page", "words"), [("run", RunState), ("journal", EntryKind)])
def test_every_state_and_entry_kind_is_documented(page: str, words: type[StrEnum]) -> None:
    found = first_cells((DOCS / "concepts" / f"{page}.md").read_text())
    assert not {str(word) for word in words} - set(found)


@pytest.mark.parametrize("options", [ActivityOptions, Retry])
def test_every_option_of_an_activity_is_documented(options: type[ActivityOptions | Retry]) -> None:
    found = first_cells((DOCS / "concepts" / "activity.md").read_text())
    assert not set(options.__struct_fields__) - set(found)


def test_what_is_known_of_a_run_is_documented() -> None:
    assert set(Description.__struct_fields__) <= words("concepts/run.md")
    assert set(RunInfo.__struct_fields__) <= words("concepts/workflow.md")
    inner = {"ref", "ask", "is_lost", "last_details"}  # of token, cancelled and details
    assert {*ActivityInfo.__struct_fields__, "token", "cancelled", "details"} - inner <= words("concepts/activity.md")


async def test_what_a_start_and_a_list_take_is_documented() -> None:
    async with connect("memory://") as client:
        with pytest.raises(batuta.InvalidInput) as start:
            await client.start("any", no_such_option=1)  # type: ignore[call-overload]  # that is what is tested
        with pytest.raises(batuta.InvalidInput) as found:
            await client.list(no_such_filter=1)
    for told, end in ((start, " ("), (found, "\n")):
        names = str(told.value).partition("there are ")[2].partition(end)[0].split(", ")
        assert len(names) > 8
        assert set(names) <= words("concepts/client.md")
    assert set(ChildOptions.__struct_fields__) <= words("concepts/children.md")
    assert {f'"{way}"' for way in IfExists} <= words("concepts/client.md")


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_every_table_is_documented(store: str) -> None:
    files = (ROOT / "src/batuta/stores" / store).rglob("*.sql")
    made = {
        name
        for file in files
        for name in re.findall(r"^CREATE TABLE (?:IF NOT EXISTS )?(?:batuta\.)?(\w+)", file.read_text(), re.M)
    }
    assert len(made) > 10
    assert made <= words("concepts/stores.md")


def test_every_command_is_documented() -> None:
    text = (DOCS / "concepts" / "cli.md").read_text()
    assert sorted(re.findall(r"^## ([\w-]+)$", text, re.MULTILINE)) == sorted(COMMANDS)
    for group in (runs, jobs, queues, dead_letters):
        named = re.findall(rf"^\| `{group.name} (\w+)", text, re.MULTILINE)
        assert sorted(named) == group.list_commands(click.Context(group))


def options_of(command: click.Command) -> set[str]:
    """Of the command and of all below it."""
    found = {max(param.opts, key=len) for param in command.params if isinstance(param, click.Option)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found |= options_of(inner)
    return found - {"--version"} if isinstance(command, click.Group) and command.name != "schedules" else found


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_documented_with_its_command(name: str) -> None:
    head, *sections = re.split(r"^## ", (DOCS / "concepts" / "cli.md").read_text(), flags=re.MULTILINE)
    [section] = [text for text in sections if text.startswith(f"{name}\n")]
    command = root.get_command(click.Context(root), name)
    assert command is not None
    told = set(re.findall(r"--[a-z][a-z-]*", head + section))
    assert options_of(command) - told == set()
    known = options_of(command) | {"--url", "--namespace", "--json", "--reveal"}
    assert set(re.findall(r"--[a-z][a-z-]*", section)) - known - {"--kind", "--export"} == set()


def test_every_code_that_the_server_refuses_with_is_documented() -> None:
    text = (DOCS / "operating" / "rest-api.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "src" / "batuta" / "server").rglob("*.py"))
    codes = set(re.findall(r'Refused\(\s*\d{3},\s*"(\w+)"', sources))
    assert "needs_code" in codes
    assert not sorted(code for code in codes if f"`{code}`" not in text)


def test_exit_codes_are_documented() -> None:
    text = (DOCS / "concepts" / "cli.md").read_text()
    assert re.findall(r"^\| (\d) \|", text, re.MULTILINE) == re.findall(r"^  (\d)  ", EXIT_CODES, re.MULTILINE)


def test_every_invariant_that_verify_checks_is_documented() -> None:
    text = (DOCS / "concepts" / "cli.md").read_text()
    rows = dict(re.findall(r"^\| (I\d+) \| (.+?)(?: \(with .+\))? \|$", text, re.MULTILINE))
    assert {name: sentence.lower() for name, sentence in rows.items()} == {k: v.lower() for k, v in INVARIANTS.items()}


def test_every_public_name_occurs_in_the_documentation() -> None:
    text = "\n".join(page.read_text() for page in pages())
    assert not [name for name in batuta.__all__ if not re.search(rf"\b{name}\b", text)]
