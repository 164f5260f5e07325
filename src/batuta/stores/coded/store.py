"""A store around another one: payloads are coded on their way in and decoded on their way out.

All else is the other store's affair. Workers' fingerprints bear the mark of what can be read here: so a run that was
parked because its payloads could not be read is taken up by a worker that can.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from msgspec.structs import replace

from batuta.codecs.base import PayloadCodec
from batuta.errors import PayloadSealed, UnknownRun
from batuta.ids import RunId
from batuta.journal.acts import Act
from batuta.journal.entries import Entry
from batuta.journal.forks import Fork
from batuta.journal.letters import DeadLetter, GroupPage, LetterFilter, LetterPage
from batuta.journal.records import (
    Attempt,
    Change,
    Claim,
    Message,
    MessageKind,
    NewRun,
    Output,
    Page,
    Refusal,
    Run,
    RunFilter,
    StartOutcome,
    Tape,
    Verdict,
    WorkerInfo,
    WorkerView,
)
from batuta.journal.rewriting import Rewrite
from batuta.journal.schedules import DueSchedule, Firing, Schedule
from batuta.journal.states import RunState
from batuta.journal.store import SEALED, ForkOutcome, Guest, Heart, Store, Transaction
from batuta.stores.coded.changes import Changes
from batuta.stores.coded.coding import Coding, closed_by_store
from batuta.stores.coded.facts import Facts
from batuta.stores.coded.forks import Forks
from batuta.stores.coded.guests import CodedGuest, CodedHeart, CodedTransaction
from batuta.stores.coded.payloads import Payloads

PASSED = frozenset(
    "acts audit audit_head borrow cancel_runs clear_quota close closed_among count_letters count_runs delete_runs "
    "delete_schedule discard_letters drop_retention end_unbegun epochs hands_over limit_queue listen migrate note_act "
    "now open pause_queue pause_runs poll_seconds prune queues quotas resume_runs retention retire schedule_at "
    "set_quota set_retention shift_clock spend_starts terminate_runs unpark why_not_transactional".split()
)
"""What carries no payload: it is the other store's own."""
_SLICE = 500
"""Entries that are decoded at once."""
_BY_ID = frozenset((MessageKind.SIGNAL, MessageKind.UPDATE))


def coded(store: Store, codecs: Sequence[PayloadCodec]) -> Store:
    """The same store, with payloads that go through these codecs, in this order. None: the store itself."""
    return cast(Store, CodedStore(store, codecs)) if codecs else store


class CodedStore:
    """Implements `Store`."""

    def __init__(self, store: Store, codecs: Sequence[PayloadCodec]) -> None:
        self.inner, self.namespace = store, store.namespace
        self.coding = Coding(Payloads(codecs, store.namespace))
        self._facts = Facts(store)
        self._marked = f"|{self.coding.payloads.mark}"
        self._changes = Changes(self.coding, self._facts, self._marked)
        self._forks = Forks(store, self.coding, self._facts)

    def __getattr__(self, name: str) -> Any:
        if name in PASSED:
            return getattr(self.inner, name)
        raise AttributeError(name)

    # -- runs come in

    async def start(self, run: NewRun, message: Message | None = None) -> tuple[Run, bool]:
        sent = None if message is None else self.coding.message(None if run.debounce else run.id, message)
        found, new = await self.inner.start(self.coding.new_run(run), sent)
        return self._plain(found), new

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        last = None if after is None else self.coding.new_run(after)
        outcomes = await self.inner.start_many([self.coding.new_run(run) for run in runs], last)
        return [(self._plain(one[0]), one[1]) if isinstance(one, tuple) else one for one in outcomes]

    async def enter(self, transaction: object, runs: Sequence[NewRun]) -> Guest:
        return CodedGuest(await self.inner.enter(transaction, runs), self.coding)

    async def send(self, run_id: RunId, message: Message, act: Act | None = None) -> bool:
        id = (await self._facts.of(run_id)).id if message.kind in _BY_ID else ""
        return await self.inner.send(run_id, self.coding.message(id, message), **_acting(act))

    # -- runs are worked on

    async def register(self, worker: WorkerInfo) -> int:
        return await self.inner.register(self.marked(worker))

    @asynccontextmanager
    async def heart(self, worker_id: str) -> AsyncIterator[Heart]:
        async with self.inner.heart(worker_id) as heart:
            yield CodedHeart(heart, self.marked)

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        return await self._plain_claim(await self.inner.claim(self.marked(worker), limit, room))

    async def _plain_claim(self, claim: Claim) -> Claim:
        claim.tapes = [await self._tape(tape) for tape in claim.tapes]
        return claim

    async def due_at(self, worker: WorkerInfo) -> int | None:
        return await self.inner.due_at(self.marked(worker))

    async def unread(self, run_ids: Sequence[RunId]) -> dict[RunId, tuple[int, list[Message]]]:
        found = await self.inner.unread(run_ids)
        for run_id, (epoch, messages) in found.items():
            if messages:
                found[run_id] = await self._unread(run_id, epoch, messages)
        return found

    async def _unread(self, run_id: RunId, epoch: int, messages: list[Message]) -> tuple[int, list[Message]]:
        try:
            id = (await self._facts.of(run_id)).id
            return epoch, [self.coding.plain_message(id, message) for message in messages]
        except PayloadSealed:
            return SEALED, []
        except UnknownRun:  # it was deleted just now
            return -1, []

    async def load(self, run_id: RunId) -> Tape:
        return await self._tape(await self.inner.load(run_id))

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        return await self.inner.commit(worker_id, await self._changes.coded(changes))

    async def hand_over(
        self, worker: WorkerInfo, changes: Sequence[Change], limit: int
    ) -> tuple[dict[int, Verdict | list[Refusal]], Claim]:
        answers, claim = await self.inner.hand_over(self.marked(worker), await self._changes.coded(changes), limit)
        return answers, await self._plain_claim(claim)

    def transact(self, seconds: float) -> Transaction:
        return CodedTransaction(self.inner.transact(seconds), self._changes)

    async def close_run(
        self, run_id: RunId, head: int, entry: Entry, state: RunState, reason: str, act: Act | None = None
    ) -> bool:
        return await self.inner.close_run(run_id, head, self.coding.entry(run_id, entry), state, reason, **_acting(act))

    # -- what operators do

    async def fork(self, forks: Sequence[Fork], act: Act) -> list[ForkOutcome]:
        coded = [await self._coded_fork(fork) for fork in forks]
        outcomes = iter(await self.inner.fork([fork for fork in coded if isinstance(fork, Fork)], act))
        found = [next(outcomes) if isinstance(fork, Fork) else fork for fork in coded]
        return [self._plain(one) if isinstance(one, Run) else one for one in found]

    async def _coded_fork(self, fork: Fork) -> Fork | PayloadSealed:
        try:
            return await self._forks.coded(fork)
        except PayloadSealed as error:
            return error

    # -- dead letters

    async def letter(self, run_id: RunId) -> DeadLetter:
        return self.coding.plain_letter(await self.inner.letter(run_id))

    async def letters(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> LetterPage:
        page = await self.inner.letters(where, cursor, limit)
        return LetterPage([self.coding.plain_letter(letter) for letter in page.letters], page.cursor)

    async def letter_groups(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> GroupPage:
        page = await self.inner.letter_groups(where, cursor, limit)
        plain = self.coding.plain_letter
        return GroupPage([replace(group, example=plain(group.example)) for group in page.groups], page.cursor)

    # -- schedules

    async def put_schedule(self, schedule: Schedule, expected: int | None = None, act: Act | None = None) -> bool:
        return await self.inner.put_schedule(self.coding.schedule(schedule), expected, **_acting(act))

    async def schedule(self, id: str) -> DueSchedule:
        return self._due(await self.inner.schedule(id))

    async def schedules(self, after: str = "", limit: int = 1_000) -> list[DueSchedule]:
        return [self._due(found) for found in await self.inner.schedules(after, limit)]

    async def due_schedules(self, limit: int, after: tuple[int, str] | None = None) -> list[DueSchedule]:
        return [self._due(found) for found in await self.inner.due_schedules(limit, after)]

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        new_run = self.coding.new_run
        return await self.inner.fire([replace(one, starts=[new_run(run) for run in one.starts]) for one in firings])

    # -- reading

    async def get(self, id: str) -> Run:
        return self._plain(await self.inner.get(id))

    async def get_run(self, run_id: RunId) -> Run:
        return self._plain(await self.inner.get_run(run_id))

    async def journal(self, run_id: RunId, after: int = -1, limit: int = 10_000) -> list[Entry]:
        entries = await self.inner.journal(run_id, after, limit)
        if entries and entries[0].ord and closed_by_store(entries[0]):  # its checksum needs the entry before
            before = await self.inner.journal(run_id, entries[0].ord - 2, 1)
            return (await self._entries(run_id, [*before, *entries]))[1:]
        return await self._entries(run_id, entries)

    async def attempts(self, run_id: RunId, seq: int | None = None) -> list[Attempt]:
        return [self.coding.plain_attempt(run_id, one) for one in await self.inner.attempts(run_id, seq)]

    async def outputs(self, run_id: RunId) -> list[Output]:
        return [self.coding.read_output(run_id, None, output) for output in await self.inner.outputs(run_id)]

    async def inbox(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Message]:
        id = (await self._facts.of(chain_id)).id
        return [self.coding.plain_message(id, one) for one in await self.inner.inbox(chain_id, after, limit)]

    async def answers_of(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Output]:
        return [self.coding.plain_answer(chain_id, one) for one in await self.inner.answers_of(chain_id, after, limit)]

    async def rewrite(self, changed: Rewrite) -> bool:
        raise NotImplementedError("only the store inside knows how payloads lie there")

    async def answers(self, asked: Sequence[tuple[RunId, str]]) -> list[Output | None]:
        found = await self.inner.answers(asked)
        return [
            None if output is None else self.coding.plain_answer(chain_id, output)
            for (chain_id, _), output in zip(asked, found, strict=True)
        ]

    async def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        run, last = await self.inner.outcome(run_id)
        if last is None:
            return self._plain(run), None
        if last.ord and closed_by_store(last):
            return self._plain(run), (await self.journal(run_id, last.ord - 1, 1))[0]
        return self._plain(run), self.coding.plain_entry(run_id, last)

    async def list_runs(self, where: RunFilter, cursor: str | None = None, limit: int = 50) -> Page:
        page = await self.inner.list_runs(where, cursor, limit)
        return Page([self._seen(run) for run in page.runs], page.cursor)

    async def workers(self) -> list[WorkerView]:
        return [
            replace(view, code={name: mark.removesuffix(self._marked) for name, mark in view.code.items()})
            for view in await self.inner.workers()
        ]

    # -- parts

    def marked(self, worker: WorkerInfo) -> WorkerInfo:
        """Its fingerprints say what it can read, too."""
        return replace(worker, code={name: f"{mark}{self._marked}" for name, mark in worker.code.items()})

    def _plain(self, run: Run) -> Run:
        self._facts.note(run)
        return self._seen(run)

    def _seen(self, run: Run) -> Run:
        if run.failed_code:
            run = replace(run, failed_code=[mark.removesuffix(self._marked) for mark in run.failed_code])
        return self.coding.plain_run(run)

    async def _tape(self, tape: Tape) -> Tape:
        """Never raises PayloadSealed: a tape that cannot be read says so, and is empty."""
        run_id, run = tape.run.run_id, self._plain(tape.run)
        try:
            entries = await self._entries(run_id, tape.entries)
            messages = [self.coding.plain_message(run.id, message) for message in tape.messages]
            attempts = [self.coding.read_attempt(run_id, attempt) for attempt in tape.attempts]
        except PayloadSealed as error:
            return Tape(run, [], [], [], f"{type(error).__name__}: {error}")
        return Tape(run, entries, messages, attempts)

    async def _entries(self, run_id: RunId, entries: list[Entry]) -> list[Entry]:
        """In slices, so that others get their turn on the event loop."""
        found = self.coding.plain_entries(run_id, entries[:_SLICE])
        for first in range(_SLICE, len(entries), _SLICE):
            await asyncio.sleep(0)
            found += self.coding.plain_entries(run_id, entries[first - 1 : first + _SLICE])[1:]
        return found

    def _due(self, found: DueSchedule) -> DueSchedule:
        return DueSchedule(self.coding.plain_schedule(found.schedule), found.busy)


def _acting(act: Act | None) -> dict[str, Act]:
    return {} if act is None else {"act": act}
