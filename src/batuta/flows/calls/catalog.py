"""Versions of flows: drafts are changed, published ones never are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from msgspec import Struct, json, structs

from batuta.authoring.services import FlowService
from batuta.errors import FlowConflict, InvalidInput, StoreUnavailable, UnknownFlow
from batuta.flows.calls import starters
from batuta.flows.calls.reading import Client
from batuta.flows.document import FlowDocument, waited_fields
from batuta.flows.models import Workflow, normalised_type
from batuta.flows.rows import document_of, listed_view, workflow_view
from batuta.flows.validation import parse_document
from batuta.ids import new_run_id
from batuta.journal.audit import Verb
from batuta.journal.flows.records import FlowFilter, FlowRow, FlowSchedule
from batuta.names import check_reason

MOST = 200
"""Of a page."""
WAITS: Final = "flow waits "
"""Beginning of the kind of documents that say what flows wait for, by the type of the event; keys are paths."""
_FOR_EVER = 1_000 * 366 * 86_400 * 10**6
_TRIES = 100
"""To make a version: one of all that are made at the same time gets through each time."""
_LAST_VERSION = 2**31 - 1


class WorkflowPage(Struct):
    """Some versions of flows, and the cursor of the next page (None: that was the last)."""

    workflows: list[Workflow]
    cursor: str | None


class Catalog:
    """The flows of one namespace."""

    def __init__(self, client: Client, backend: FlowService) -> None:
        self._client, self._backend = client, backend

    async def create(self, document: Mapping[str, Any] | bytes | str, *, reason: str = "") -> Workflow:
        """Keep a flow as a draft: its first version, or the next one where the name is there. Raises InvalidFlow."""
        return await self._insert(*_checked(document), reason)

    async def _insert(self, flow: FlowDocument, text: str, reason: str) -> Workflow:
        for _ in range(_TRIES):
            newest = await self._newest(flow.name)
            version = 1 if newest is None else newest.version + 1
            row = _with(FlowRow(workflow_id=new_run_id(), name=flow.name, version=version, document=text), flow, text)
            act = self._backend.act(Verb.CREATE_FLOW, check_reason(reason), after={"id": str(row.workflow_id)})
            if await self._backend.store.put_flow(row, act=act):
                return await self.get(row.workflow_id)
        raise StoreUnavailable(f"others make versions of flow {flow.name!r} at the same time: try again")

    async def _newest(self, name: str, *, published: bool | None = None) -> FlowRow | None:
        found = await self._backend.store.flows(FlowFilter(name=name, published=published), limit=1)
        return found[0] if found else None

    async def row(self, workflow_id: object) -> FlowRow:
        """Raises UnknownFlow."""
        found = await self._backend.store.flow(uuid_or(workflow_id, UnknownFlow))
        if found is None:
            raise UnknownFlow(workflow_id)
        return found

    async def get(self, workflow_id: object) -> Workflow:
        """Raises UnknownFlow."""
        return self.view(await self.row(workflow_id))

    async def document(self, workflow_id: object) -> dict[str, Any]:
        """The flow as a file has it. Raises UnknownFlow."""
        found: dict[str, Any] = json.decode(document_of(await self.row(workflow_id)))
        return found

    async def published(self, name: str, version: int | None = None) -> Workflow | None:
        """The published flow of that name, and of that version or the newest. None: there is none."""
        if version is None:
            found = await self._newest(name, published=True)
        else:
            rows = await self._backend.store.flows(FlowFilter(name=name, published=True), (name, version + 1), 1)
            found = next((row for row in rows if row.version == version), None)
        return None if found is None else self.view(found)

    async def list(
        self,
        *,
        name: str | None = None,
        trigger_type: str | None = None,
        active: bool | None = None,
        published: bool | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> WorkflowPage:
        """By name, the newest version first."""
        check_limit(limit)
        where = FlowFilter(name=name, trigger_type=trigger_type, active=active, published=published)
        rows = await self._backend.store.flows(where, _place(cursor), limit + 1)
        page = rows[:limit]
        more = json.encode([page[-1].name, page[-1].version]).decode() if len(rows) > limit else None
        return WorkflowPage([listed_view(row, self._backend.namespace) for row in page], more)

    async def change(
        self, workflow_id: object, changes: Mapping[str, Any], *, whole: bool = False, reason: str = ""
    ) -> Workflow:
        """Write some fields of a draft, and take those from it that are None; `whole`: they are all that it has. Raises
        UnknownFlow, FlowConflict (it is published), InvalidFlow."""
        row = await self.row(workflow_id)
        if row.published_at is not None:
            raise FlowConflict(f"flow {row.target} is published and never changes: make a new version of it")
        fields = {} if whole else json.decode(document_of(row))
        given = {name: value for name, value in {**fields, **changes}.items() if value is not None}
        flow, text = _checked(given)
        changed = _with(row, flow, text)
        if flow.name != row.name:
            newest = await self._newest(flow.name)
            changed.name, changed.version = flow.name, 1 if newest is None else newest.version + 1
        await self._write(changed, Verb.CHANGE_FLOW, reason)
        return await self.get(row.workflow_id)

    async def publish(self, workflow_id: object, *, activate: bool = True, reason: str = "") -> Workflow:
        """From now on the version never changes, and can be run. `activate`: events start it, and not the versions
        before any more. Raises UnknownFlow, FlowConflict (it is published already)."""
        row = await self.row(workflow_id)
        if row.published_at is not None:
            raise FlowConflict(f"flow {row.target} is published already: make a new version to change it")
        flow = parse_document(document_of(row))
        for event, field in waited_fields(flow.steps):
            kind = f"{WAITS}{normalised_type(event)}"
            await self._backend.store.put_documents(kind, {f"={field}": "null"}, _FOR_EVER)
        row.published_at, row.is_active = await self._backend.now(), activate
        await self._write(row, Verb.PUBLISH_FLOW, reason, await self._prepare(row) if activate else None)
        return await self.get(row.workflow_id)

    async def new_version(self, workflow_id: object, *, reason: str = "") -> Workflow:
        """A new draft with the document of this version. Raises UnknownFlow."""
        text = document_of(await self.row(workflow_id))
        return await self._insert(parse_document(text), text, reason)

    async def activate(self, workflow_id: object, active: bool = True, *, reason: str = "") -> Workflow:
        """Let events start it, and no other version of its name; or not any more. Raises UnknownFlow, FlowConflict."""
        row = await self.row(workflow_id)
        if row.published_at is None:
            raise FlowConflict(f"flow {row.target} is a draft: publish it first")
        if row.is_active != active:
            if active:
                document_of(row)
            row.is_active = active
            verb = Verb.ACTIVATE_FLOW if active else Verb.DEACTIVATE_FLOW
            await self._write(row, verb, reason, await self._prepare(row))
        return listed_view(await self.row(row.workflow_id), self._backend.namespace)

    async def _prepare(self, row: FlowRow) -> FlowSchedule:
        """What goes with a flow that becomes active, or is active no longer. Its schedule is written with it; the limit
        of its queue and its subscription are there before: without an active flow they start nothing."""
        planned = await starters.prepare(self._client, row) if row.is_active else None
        made = None if planned is None else await self._backend.schedule_row(planned)
        return FlowSchedule(starters.schedule_id(row.name), made)

    async def _write(self, row: FlowRow, verb: Verb, reason: str, schedule: FlowSchedule | None = None) -> None:
        # With a schedule it becomes active, or is active no longer: messages are kept for what it was.
        before = set() if schedule is None else await self._topics(row.name)
        act = self._backend.act(verb, check_reason(reason), after={"id": str(row.workflow_id)})
        if not await self._backend.store.put_flow(row, row.revision, act, schedule):
            raise FlowConflict(f"flow {row.target} changed since it was read: read it again")
        for topic in before and before - await self._topics(row.name):
            await starters.drop(self._client, topic, row.name)

    async def _topics(self, name: str) -> set[str]:
        """Of the active version."""
        rows = await self._backend.store.flows(FlowFilter(name=name, active=True), limit=1)
        return {starters.topic_of(row) for row in rows} - {""}

    def view(self, row: FlowRow) -> Workflow:
        return workflow_view(row, self._backend.namespace)


def _checked(document: Mapping[str, Any] | bytes | str) -> tuple[FlowDocument, str]:
    """The flow, and the text that is kept. Raises InvalidFlow."""
    flow = parse_document(document)
    value = dict(document) if isinstance(document, Mapping) else json.decode(document)
    if "trigger_type" in value:
        value["trigger_type"] = normalised_type(value["trigger_type"])
    return flow, json.encode(value).decode()


def _with(row: FlowRow, flow: FlowDocument, text: str) -> FlowRow:
    return structs.replace(
        row, description=flow.description or "", trigger_type=normalised_type(flow.trigger_type), document=text
    )


def _place(cursor: str | None) -> tuple[str, int] | None:
    if cursor is None:
        return None
    try:
        name, version = json.decode(cursor, type=tuple[str, int])
    except ValueError:
        raise no_cursor(cursor) from None
    if not 0 <= version <= _LAST_VERSION or "\x00" in name:
        raise no_cursor(cursor)
    return name, version


def no_cursor(given: str) -> InvalidInput:
    return InvalidInput(f"{given[:100]!r} is not a cursor: pass the cursor of the previous page")


def check_limit(limit: object) -> None:
    if type(limit) is not int or not 1 <= limit <= MOST:
        raise InvalidInput(f"limit={limit!r} must be a whole number from 1 to {MOST}")


def uuid_or(given: object, unknown: Callable[[str], Exception]) -> UUID:
    """The UUID, or the error that there is no such thing."""
    if isinstance(given, UUID):
        return given
    try:
        return UUID(str(given))
    except ValueError:
        raise unknown(str(given)[:100]) from None
