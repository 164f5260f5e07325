"""A run as it is when it has read all that was acknowledged: what queries look at. The run itself may not have come to
it yet, or may have no owner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import UNSET, Raw, json

from batuta.authoring.definitions import Workflow
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.replay import Replay
from batuta.engine.run.inputs import Input, InputReader
from batuta.errors import BatutaError, WorkflowBroken, told
from batuta.ids import RunId
from batuta.journal.entries import Body, Command, Entry, EntryKind, decode_body
from batuta.journal.paging import last_of_page, unread_pages
from batuta.journal.records import Attempt, Message, MessageKind, Run, StoredRun
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store

_LOOKS = 5
_TOO_MANY = "it has more messages than are read together"
_TO_CODE = (MessageKind.SIGNAL, MessageKind.UPDATE, MessageKind.CANCEL)
_INPUTS = (MessageKind.START, *_TO_CODE, MessageKind.CHILD)


class QueryStateUnknown(Exception):
    """Only a turn shows what the code does with a message."""


class EndsTooSoon(Exception):
    """The message at `place` ends the run, and there are later ones for its code. The store refuses such a close: the
    run takes them together."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place


class _Copy(Machine):
    """Runs ahead of its journal, and must not act: its commands are thrown away."""

    __slots__ = ()

    def _make_side_effect(self, make: Callable[[], Any]) -> Command:
        raise self.loop.breaks(WorkflowBroken("its code makes a side effect"))


class QueryState(InputReader):
    """A copy of a run, which is fed its journal and then the messages that it has not read."""

    def __init__(self, workflow: Workflow[..., Any], run: Run, namespace: str) -> None:
        self.identity = RunIdentity(run.run_id, run.id, run.queue, namespace, run.chain_id)
        self.parent = None if run.parent_run_id is None else (run.parent_run_id, run.parent_seq)
        self.machine = _Copy(workflow, self.identity)

    def replay(self, entries: Sequence[Entry]) -> Iterator[bool | None]:
        """In slices; the last thing given is True."""
        yield from Replay(self.machine, entries).slices()
        yield True

    def read(self, messages: Sequence[Message], attempts: Sequence[Attempt]) -> Iterator[bool | None]:
        """Goes on with the messages, one at a time; the last thing given is True. Raises QueryStateUnknown, and
        EndsTooSoon when a copy from before the messages must `read_together`."""
        for place, message in enumerate(messages):
            yield None
            if self._has_ended():
                if message.kind in _TO_CODE:
                    raise QueryStateUnknown(_TOO_MANY)
                continue
            self._read(message, attempts)
            if self._has_ended() and any(one.kind in _TO_CODE for one in messages[place + 1 :]):
                raise EndsTooSoon(place)
        yield True

    def read_together(
        self, messages: Sequence[Message], place: int, attempts: Sequence[Attempt]
    ) -> Iterator[bool | None]:
        """The same when the message at `place` ends the run too soon: as the run itself reads them when its close was
        refused. See `OwnedRun._tail`."""
        for message in messages[:place]:
            yield None
            self._read(message, attempts)
        last, later = messages[place], messages[place + 1 :]
        group = [one for one in later if one.kind in _TO_CODE]
        group.insert(0 if last.kind in (MessageKind.START, *_TO_CODE) else len(group), last)
        group.sort(key=lambda one: one.kind is MessageKind.CANCEL)
        inputs = []
        for message in group:
            with _broken_by(message):
                found = self._input(message, attempts)
            if found is not None:
                inputs.append((message, found))
        for message, (kind, body) in inputs:
            yield None
            body.quiet = message is not inputs[-1][0]
            with _broken_by(message):
                self.machine.turn(max(message.at, self.machine.at), kind, body, [])
        yield from self.read([one for one in later if one.kind not in _TO_CODE], attempts)

    def read_later(self, messages: Sequence[Message], attempts: Sequence[Attempt]) -> Iterator[bool | None]:
        """The same with a later page. Raises QueryStateUnknown alone: the pages before it are not read again."""
        try:
            yield from self.read(messages, attempts)
        except EndsTooSoon:
            raise QueryStateUnknown(_TOO_MANY) from None

    def ask(self, name: str, arguments: Raw) -> Iterator[Raw]:
        yield Raw(self.machine.messages().query(name, arguments))

    def _has_ended(self) -> bool:
        return self.machine.outcome is not None

    def _read(self, message: Message, attempts: Sequence[Attempt]) -> None:
        with _broken_by(message):
            found = self._input(message, attempts)
            if found is not None:
                self.machine.turn(max(message.at, self.machine.at), *found, [])

    def _input(self, message: Message, attempts: Sequence[Attempt]) -> Input | None:
        if message.kind is MessageKind.ACTIVITY:
            return self._answer(message, attempts)
        found = self.as_input(message) if message.kind in _INPUTS else None
        if found is None or found[0] is not EntryKind.UPDATE:
            return found
        value = found[1].value
        try:
            self.machine.messages().validate(found[1].name, value if value is not UNSET else Raw(b"[]"))
        except WorkflowBroken:
            raise
        except Exception:  # noqa: BLE001 - whatever a validator raises says no
            return None
        return found

    def _answer(self, message: Message, attempts: Sequence[Attempt]) -> Input | None:
        """An activity's answer from outside, unless its attempt is over, or failed: then it may be tried again."""
        body = json.decode(message.body, type=Body)
        last = max((one.number for one in attempts if one.seq == body.seq), default=0)
        wanted = body.seq in self.machine.activities and not body.reason and body.error is UNSET
        if message.name != str(self.identity.run_id) or not wanted or body.attempts < last:
            return None
        body.message_id = message.message_id
        return EntryKind.ACTIVITY_DONE, body


@contextmanager
def _broken_by(message: Message) -> Iterator[None]:
    try:
        yield
    except BatutaError as error:
        raise QueryStateUnknown(f"message {message.message_id!r}: {told(error)}") from error


async def acknowledged(store: Store, run_id: RunId) -> tuple[StoredRun, list[Message]]:
    """The run, and what it was sent and has not read: a page of it, if it has `more`. Whatever was acknowledged before
    this is in its journal, among the messages, or in `later_pages`. Raises UnknownRun."""
    known = _ids((await store.unread([run_id])).get(run_id, (0, []))[1])
    looks = 0
    while True:
        stored = await store.load(run_id)
        there = _ids(stored.messages)
        if stored.sealed or stored.run.state in CLOSED or not (known or there):
            stored.more = False
            return stored, []
        taken = _taken(stored)
        looks += 1
        if stored.more or known <= taken | there or looks == _LOOKS:
            return stored, [one for one in stored.messages if one.message_id not in taken]
        known = there  # the others were read meanwhile: their entries, if they have any, are there at the next look


async def later_pages(store: Store, stored: StoredRun) -> AsyncIterator[list[Message]]:
    """The run's messages besides those of `stored`. In the end raises QueryStateUnknown if the run has gone
    on since then: it may have read some of them meanwhile."""
    if not stored.more:
        return
    run, known = stored.run, _taken(stored) | _ids(stored.messages)
    async for page in unread_pages(store, run.run_id, last_of_page(stored.messages)):
        yield [one for one in page if one.message_id not in known]
    now = await store.get_run(run.run_id)
    if (now.epoch, now.head) != (run.epoch, run.head):
        raise QueryStateUnknown("the run goes on while they are read")


def _taken(stored: StoredRun) -> set[str]:
    return {decode_body(entry).message_id for entry in stored.entries}


def _ids(messages: Collection[Message]) -> set[str]:
    return {message.message_id for message in messages}


async def has_begun(store: Store, stored: StoredRun, messages: Sequence[Message]) -> bool:
    """Whether the run has begun, or would begin now if a worker took it."""
    if stored.entries:
        return stored.entries[0].kind is EntryKind.STARTED
    run, starts = stored.run, any(one.kind is MessageKind.START for one in messages)
    if run.state is not RunState.PENDING:
        return starts and run.state is RunState.RUNNING
    return starts and run.wake_at is not None and run.wake_at <= await store.now()
