"""`batuta flows`: flows as files: checked, tested, pushed, published and exported."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import REASON, CommonOptions, json_option, print_json, with_common_options
from batuta.cli.common.redaction import say
from batuta.errors import InvalidInput, UnknownFlow
from batuta.printable import number_of

if TYPE_CHECKING:
    from batuta.client import Batuta
    from batuta.flows.models import Workflow

flows = LazyGroup(
    "flows",
    {
        "export": ("batuta.cli.flows.command:export", "Write flows of the database into files."),
        "list": ("batuta.cli.flows.command:list_flows", "List flows with their versions."),
        "publish": ("batuta.cli.flows.command:publish", "Publish the newest draft of a flow."),
        "push": ("batuta.cli.flows.command:push", "Store files that differ as drafts."),
        "secrets": ("batuta.cli.flows.secrets:secrets", "Secrets that flows name as secret://store/NAME."),
        "test": ("batuta.cli.flows.command:test", "Run the tests of flows (*.test.json)."),
        "validate": ("batuta.cli.flows.command:validate", "Check files of flows, and list all faults."),
    },
    help="Flows as files: check, test, push, publish and export them.",
)

_places = click.argument("places", nargs=-1, required=True, metavar="FILE_OR_FOLDER...")


def _end(document: dict[str, Any], as_json: bool, lines: list[str], bad: bool) -> None:
    if as_json:
        print_json(document)
    for line in [] if as_json else lines:
        say(line)
    if bad:
        raise click.exceptions.Exit(1)


@click.command("validate")
@_places
@json_option
def validate(places: tuple[str, ...], as_json: bool) -> None:
    """Check files of flows: every fault with its path and a hint. Needs no database."""
    from batuta.flows.files import flow_files, read_flow

    found = {str(file): read_flow(file)[1] for file in flow_files(places)}
    lines = [f"{file}: {fault}" for file, faults in found.items() for fault in faults]
    bad = sum(1 for faults in found.values() if faults)
    lines.append(f"{number_of(len(found), 'file')}, {bad} with faults")
    _end({"files": found}, as_json, lines, bad > 0)


@click.command("test")
@_places
@json_option
def test(places: tuple[str, ...], as_json: bool) -> None:
    """Run the tests in *.test.json: each rehearses its flow on an event. Nothing is called; needs no database."""
    from batuta.flows.files import flow_cases

    async def work() -> dict[str, list[str]]:
        return {str(case): await case.problems() for case in flow_cases(places)}

    found = asyncio.run(work())
    if not found:
        raise InvalidInput("there are no tests of flows (*.test.json) in the given places")
    lines = [
        f"{'FAILED' if told else 'passed'}  {name}{''.join(f'{chr(10)}        {one}' for one in told)}"
        for name, told in found.items()
    ]
    bad = sum(1 for told in found.values() if told)
    lines.append(f"{number_of(len(found), 'test')}, {bad} failed")
    _end({"tests": found}, as_json, lines, bad > 0)


@click.command("push")
@_places
@click.option("--publish", "publishes", is_flag=True, help="Publish them, too, so that events start them.")
@REASON
@with_common_options
def push(common: CommonOptions, places: tuple[str, ...], publishes: bool, reason: str) -> None:
    """Keep flows of files as drafts: a draft of the name is written over, a published version gets a new one after it.
    A file that says the same as the newest version changes nothing.

    All files are checked first: when one is wrong, nothing is written.
    """
    from batuta.flows.files import flow_files, read_document, read_flow

    files = flow_files(places)
    faults = [f"{file}: {fault}" for file in files for fault in read_flow(file)[1]]
    if faults:
        raise InvalidInput("nothing is pushed:\n" + "\n".join(faults))
    given: dict[Path, dict[str, Any]] = {}
    names: dict[str, Path] = {}
    for file in files:
        given[file] = read_document(file)
        first = names.setdefault(given[file]["name"], file)
        if first.resolve() != file.resolve():
            raise InvalidInput(f"{first} and {file} are both flow {given[file]['name']!r}: rename one of them")

    async def work(client: Batuta) -> list[dict[str, Any]]:
        return [await _push(client, file, document, publishes) for file, document in given.items()]

    _end_pushed(common, common.because(reason).ask(work))


async def _push(client: Batuta, file: Path, document: dict[str, Any], publishes: bool) -> dict[str, Any]:
    page = await client.flows.list(name=document["name"], limit=1)
    newest = page.workflows[0] if page.workflows else None
    done = "created"
    if newest is None:
        newest = await client.flows.create(document)
    elif await client.flows.document(newest.id) == _kept(document):
        done = "unchanged"
    elif newest.published_at is None:
        newest, done = await client.flows.change(newest.id, document, whole=True), "changed"
    else:
        newest = await client.flows.create(document)
    if publishes and newest.published_at is None:
        newest, done = await client.flows.publish(newest.id), f"{done}, published"
    return {"file": str(file), "id": newest.id, "name": newest.name, "version": newest.version, "done": done}


def _kept(document: dict[str, Any]) -> dict[str, Any]:
    """The document as it would be kept."""
    from batuta.flows.models import normalised_type

    if "trigger_type" in document:
        return document | {"trigger_type": normalised_type(document["trigger_type"])}
    return document


def _end_pushed(common: CommonOptions, found: list[dict[str, Any]]) -> None:
    lines = [f"{one['name']} v{one['version']}: {one['done']}" for one in found]
    _end({"flows": found}, common.as_json, lines, False)


@click.command("publish")
@click.argument("name")
@click.option("--inactive", is_flag=True, help="Events do not start it.")
@REASON
@with_common_options
def publish(common: CommonOptions, name: str, inactive: bool, reason: str) -> None:
    """Publish the newest version of the flow NAME: it never changes again, and events start it from now on."""

    async def work(client: Batuta) -> list[dict[str, Any]]:
        page = await client.flows.list(name=name, limit=1)
        if not page.workflows:
            raise UnknownFlow(name)
        made = await client.flows.publish(page.workflows[0].id, activate=not inactive)
        return [{"id": made.id, "name": made.name, "version": made.version, "done": "published"}]

    _end_pushed(common, common.because(reason).ask(work))


@click.command("list")
@with_common_options
def list_flows(common: CommonOptions) -> None:
    """List flows by name, the newest version first."""
    found = common.ask(_all)
    rows = [(f"{one.name} v{one.version}", one.trigger_type or "by hand", _state(one), one.id) for one in found]
    widths = [max((len(row[place]) for row in rows), default=0) for place in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    _end({"workflows": found}, common.as_json, lines or ["there are no flows"], False)


def _state(one: Workflow) -> str:
    if one.published_at is None:
        return "draft"
    return "active" if one.is_active else "published"


async def _all(client: Batuta, name: str | None = None) -> list[Workflow]:
    found: list[Workflow] = []
    cursor: str | None = None
    while True:
        page = await client.flows.list(name=name, cursor=cursor, limit=200)
        found += page.workflows
        if (cursor := page.cursor) is None:
            return found


@click.command("export")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", default=None, metavar="NAME", help="Only this flow.")
@with_common_options
def export(common: CommonOptions, folder: Path, name: str | None) -> None:
    """Write the newest version of each flow into FOLDER, one file for each, as `batuta flows push` reads them."""

    async def work(client: Batuta) -> list[tuple[Workflow, dict[str, Any]]]:
        newest: dict[str, Workflow] = {}
        for one in await _all(client, name):
            newest.setdefault(one.name, one)
        if name is not None and not newest:
            raise UnknownFlow(name)
        return [(one, await client.flows.document(one.id)) for one in newest.values()]

    found = common.ask(work)
    told: list[dict[str, Any]] = []
    taken: set[str] = set()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one, document in found:
            file = folder / f"{_file_name(one.name, taken)}.json"
            file.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
            told.append({"file": str(file), "id": one.id, "name": one.name, "version": one.version, "done": str(file)})
    except OSError as error:
        raise InvalidInput(f"{str(folder)!r} cannot be written: {error.strerror}") from None
    _end_pushed(common, told)


def _file_name(name: str, taken: set[str]) -> str:
    """A name that every system takes, that leads to no other folder, and that is none of those that are taken."""
    kept = "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in name.strip().lower())
    found = bare = kept.strip("_")[:60] or "flow"
    for number in count(2):
        if found not in taken:
            break
        found = f"{bare}-{number}"
    taken.add(found)
    return found
