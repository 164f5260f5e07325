"""A store around another one: payloads are coded on their way in and decoded on their way out.

All else is the other store's affair. Workers' fingerprints bear the mark of what can be read here: so a run that was
parked because its payloads could not be read is taken up by a worker that can.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast
from uuid import UUID

from msgspec.structs import replace

from batuta.codecs.base import PayloadCodec
from batuta.errors import PayloadDamaged, PayloadSealed, UnknownRun, UnknownSchedule, told
from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.bus.messages import Begun, BusTurn, NewMessage, StoredMessage
from batuta.journal.codec_envelope import is_coded
from batuta.journal.dead_letters import DeadLetter, DeadLetterGroups, DeadLetterPage, LetterFilter
from batuta.journal.entries import Entry
from batuta.journal.flows.records import (
    Accepted,
    EventFilter,
    EventRow,
    FlowFilter,
    FlowRow,
    FlowRun,
    FlowSchedule,
    FlowStart,
    NewEvent,
)
from batuta.journal.forks import Fork
from batuta.journal.records import (
    IN_PAGES,
    PAGE_BYTES,
    SEALED,
    Attempt,
    Change,
    Claim,
    Message,
    NewRun,
    Output,
    Page,
    Refusal,
    Run,
    RunFilter,
    StartOutcome,
    StoredRun,
    Unread,
    Verdict,
    WorkerInfo,
    WorkerView,
)
from batuta.journal.reencryption import Rewrite
from batuta.journal.schedules import DueSchedule, Firing, ScheduleRow
from batuta.journal.server.api_keys import StoredKey
from batuta.journal.server.documents import CODED, Document
from batuta.journal.server.requests import KeptRequest
from batuta.journal.states import RunState
from batuta.journal.store import CallerTransaction, ForkOutcome, Heartbeat, Store, Transaction
from batuta.stores.coded.changes import Changes
from batuta.stores.coded.forks import Forks
from batuta.stores.coded.handles import CodedCallerTransaction, CodedHeartbeat, CodedTransaction
from batuta.stores.coded.partners import PartnerVerbs
from batuta.stores.coded.payloads import Payloads
from batuta.stores.coded.plaintext_checks import PlaintextChecks
from batuta.stores.coded.record_codec import (
    BARE,
    Reader,
    RecordCodec,
    closed_by_store,
    document_place,
    never_plain,
    reader,
    request_place,
)
from batuta.stores.coded.run_facts import Facts, refuse_other_code
from batuta.stores.coded.starts import start_all
from batuta.stores.contract import rules

PASSED = frozenset(
    "acts audit audit_head borrow cancel_runs clear_quota close closed_among "
    "count_letters count_runs count_states delete_runs delete_schedule discard_letters "
    "clear_request drop_request drop_retention end_unbegun epochs gauges give_up hands_over "
    "has_api_keys hasten known_namespaces limit_queue list_requests listen marks migrate note_act note_api_key now "
    "pause_queue pause_runs poll_seconds prune queues quotas received renew_request "
    "resume_runs retention retire revoke_api_key schedule_at set_quota set_retention shift_clock spend_starts "
    "wake_gate terminate_runs unpark why_not_transactional "
    "flow_runs open_runs counted_runs prune_events "
    "put_subscription drop_subscription sent_messages bus_status prune_messages".split()
)
"""Verbs without payloads, which go straight to the inner store."""
_TRIES = 10
"""Of an event whose debounced starts others change at the same time."""
_SLICE = 500
"""Entries that are decoded at once."""


def coded(store: Store, codecs: Sequence[PayloadCodec]) -> Store:
    """The same store, with payloads that go through these codecs, in this order. None: the store itself."""
    return cast(Store, CodedStore(store, codecs)) if codecs else store


class CodedStore(PartnerVerbs):
    """Implements `Store`."""

    def __init__(self, store: Store, codecs: Sequence[PayloadCodec]) -> None:
        payloads = Payloads(codecs, store.namespace)
        super().__init__(store, payloads)
        self.coding = RecordCodec(payloads)
        self._facts = Facts(store)
        self._marked = f"|{self.coding.payloads.mark}"
        self._changes = Changes(self.coding, self._facts, self._marked)
        self._forks = Forks(store, self.coding, self._facts)
        self._plaintext_checks = PlaintextChecks(store, self.coding)

    def __getattr__(self, name: str) -> Any:
        if name in PASSED:
            return getattr(self.inner, name)
        raise AttributeError(name)

    def keyed(self, text: str) -> str:
        return self.coding.payloads.keyed(text)

    # -- runs come in

    async def start(self, run: NewRun, message: Message | None = None) -> tuple[Run, bool]:
        await self.guard.check()
        if not run.debounce:
            sent = None if message is None else self.coding.message_to_id(run.id, message)
            found, new = await self.inner.start(self.coding.new_run(run), sent)
            return self._plain(found), new
        [(found, new)] = map(rules.started, await self.start_many([run]))
        if message is not None:
            await self.send(found.run_id, message)
        return found, new

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        await self.guard.check()
        outcomes = await start_all(self.inner.start_many, self.coding, runs, after)
        return [(self._plain(one[0]), one[1]) if isinstance(one, tuple) else one for one in outcomes]

    async def enter(self, transaction: object, runs: Sequence[NewRun]) -> CallerTransaction:
        entered = await self.inner.enter(transaction, runs)
        await self.guard.check(later=entered.blocking)
        return CodedCallerTransaction(entered, self.coding, self._facts)

    async def send(self, run_id: RunId, message: Message, act: Act | None = None) -> bool:
        if message.kind not in BARE:
            await self.guard.check()
        if message.kind not in BARE:
            message = self.coding.message(await self._facts.of(run_id), message)
        return await self.inner.send(run_id, message, act)

    # -- runs are worked on

    async def register(self, worker: WorkerInfo) -> int:
        await self.guard.look()
        return await self.inner.register(self.marked(worker))

    @asynccontextmanager
    async def heartbeat(self, worker_id: str) -> AsyncIterator[Heartbeat]:
        async with self.inner.heartbeat(worker_id) as heartbeat:
            yield CodedHeartbeat(heartbeat, self.marked)

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        return await self._plain_claim(await self.inner.claim(self.marked(worker), limit, room))

    async def _plain_claim(self, claim: Claim) -> Claim:
        claim.stored_runs = [await self._tape(stored) for stored in claim.stored_runs]
        return claim

    async def due_at(self, worker: WorkerInfo) -> int | None:
        return await self.inner.due_at(self.marked(worker))

    async def unread(self, run_ids: Sequence[RunId], *, after: int = 0) -> dict[RunId, Unread]:
        found = await self.inner.unread(run_ids, after=after)
        for run_id, (epoch, messages, more, _) in found.items():
            if messages:
                try:
                    fact = await self._facts.of(run_id)
                    found[run_id] = Unread(epoch, *await self._page(reader(fact), messages, more))
                except PayloadSealed as error:
                    found[run_id] = Unread(SEALED, [], sealed=told(error))
                except UnknownRun:  # it was deleted just now
                    found[run_id] = Unread(-1, [])
        return found

    async def _page(
        self, reader: Reader, messages: Sequence[Message], more: bool, *, begun: bool = True
    ) -> tuple[list[Message], bool]:
        """The messages of one page: decompressed ones may be too many for it. `more`: what the other store says."""
        page: list[Message] = []
        size = 0
        for message in messages:
            if size < PAGE_BYTES or rules.is_urgent(message.kind, begun=begun):
                page.append(plain := await self._plaintext_checks.message(reader, message))
                size += len(plain.body) if plain.kind in IN_PAGES else 0
            else:
                more = True
        return page, more

    async def load(self, run_id: RunId) -> StoredRun:
        return await self._tape(await self.inner.load(run_id))

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        if not self.guard.settled:
            await self.guard.check_changes(changes)
        async with self._changes.written(changes) as coded:
            return await self.inner.commit(worker_id, coded)

    async def hand_over(
        self, worker: WorkerInfo, changes: Sequence[Change], limit: int
    ) -> tuple[dict[int, Verdict | list[Refusal]], Claim]:
        if not self.guard.settled:
            await self.guard.check_changes(changes)
        async with self._changes.written(changes) as coded:
            answers, claim = await self.inner.hand_over(self.marked(worker), coded, limit)
        return answers, await self._plain_claim(claim)

    def transact(self, seconds: float) -> Transaction:
        return CodedTransaction(self.inner.transact(seconds), self._changes)

    async def close_run(
        self, run_id: RunId, head: int, entry: Entry, state: RunState, reason: str, act: Act | None = None
    ) -> bool:
        coded = self.coding.entry(await self._facts.of(run_id), entry)
        return await self.inner.close_run(run_id, head, coded, state, reason, act)

    # -- what operators do

    async def fork(self, forks: Sequence[Fork], act: Act) -> list[ForkOutcome]:
        await self.guard.check()
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

    async def letters(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> DeadLetterPage:
        page = await self.inner.letters(where, cursor, limit)
        return DeadLetterPage([self.coding.plain_letter(letter) for letter in page.letters], page.cursor)

    async def letter_groups(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> DeadLetterGroups:
        page = await self.inner.letter_groups(where, cursor, limit)
        plain = self.coding.plain_letter
        return DeadLetterGroups([replace(group, example=plain(group.example)) for group in page.groups], page.cursor)

    # -- schedules

    async def put_schedule(self, schedule: ScheduleRow, expected: int | None = None, act: Act | None = None) -> bool:
        if schedule.sealed and is_coded(schedule.spec):  # its spec could not be read, and stays as it is
            return await self.inner.put_schedule(replace(schedule, sealed=""), expected, act)
        if expected is not None:
            await self._refuse_unreadable(schedule.id)
        await self.guard.look()
        await self.guard.check()
        coded = replace(self.coding.encode(schedule), sealed="")
        return await self.inner.put_schedule(coded, expected, act)

    async def _refuse_unreadable(self, id: str) -> None:
        """Refuse to replace a schedule that cannot be read: its owners would lose it.

        Raises PayloadSealed. A damaged schedule, or one that is unencrypted, may be replaced.
        """
        try:
            self.coding.read((await self.inner.schedule(id)).schedule)
        except (PayloadDamaged, UnknownSchedule):
            pass
        except PayloadSealed as error:
            raise PayloadSealed(f"schedule {id!r} is unchanged, because it cannot be read here: {error}") from None

    async def schedule(self, id: str) -> DueSchedule:
        return self._due(await self.inner.schedule(id))

    async def schedules(self, after: str = "", limit: int = 1_000) -> list[DueSchedule]:
        return [self._due(found) for found in await self.inner.schedules(after, limit)]

    async def due_schedules(self, limit: int, after: tuple[int, str] | None = None) -> list[DueSchedule]:
        return [self._due(found) for found in await self.inner.due_schedules(limit, after)]

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        await self.guard.check()
        new_run = self.coding.new_run
        return await self.inner.fire([replace(one, starts=[new_run(run) for run in one.starts]) for one in firings])

    # -- flows

    async def put_flow(
        self,
        flow: FlowRow,
        expected: int | None = None,
        act: Act | None = None,
        schedule: FlowSchedule | None = None,
    ) -> bool:
        if flow.sealed and is_coded(flow.document):  # it could not be read, and stays as it is
            flow = replace(flow, sealed="")
        else:
            await self.guard.check()
            flow = self.coding.encode(flow)
        if schedule is not None and schedule.row is not None:
            await self.guard.check()
            schedule = FlowSchedule(schedule.id, replace(self.coding.encode(schedule.row), sealed=""))
        return await self.inner.put_flow(flow, expected, act, schedule)

    async def flow(self, workflow_id: UUID) -> FlowRow | None:
        found = await self.inner.flow(workflow_id)
        return None if found is None else self.coding.plain_flow(found)

    async def flows(self, where: FlowFilter, after: tuple[str, int] | None = None, limit: int = 50) -> list[FlowRow]:
        return [self.coding.plain_flow(one) for one in await self.inner.flows(where, after, limit)]

    async def changed_flows(self, since: int, limit: int = 1_000) -> list[FlowRow]:
        return [self.coding.plain_flow(one) for one in await self.inner.changed_flows(since, limit)]

    async def active_flows(self, trigger_type: str) -> list[FlowRow]:
        return [self.coding.plain_flow(one) for one in await self.inner.active_flows(trigger_type)]

    async def accept_events(self, events: Sequence[NewEvent]) -> list[Accepted]:
        await self.guard.check()
        accepted = await self.inner.accept_events([self._coded_event(new, {}) for new in events])
        for place, new in enumerate(events):
            tries = _TRIES
            while (waits := accepted[place].waits) and tries:  # it is encoded again, for the runs that wait
                others = {asked: await self._waiting(run_id) for asked, run_id in waits.items() if asked != run_id}
                [accepted[place]] = await self.inner.accept_events([self._coded_event(new, others)])
                tries -= 1
        return [
            replace(one, event=new.event if one.is_stale else self.coding.plain_event(one.event))
            for new, one in zip(events, accepted, strict=True)
        ]

    def _coded_event(self, new: NewEvent, others: Mapping[RunId, Run | None]) -> NewEvent:
        """`others`: the runs that are to do the work of debounced starts."""
        starts = [replace(one, run=self.coding.new_run(one.run, others.get(one.run.run_id))) for one in new.starts]
        return replace(new, event=self.coding.encode(new.event), starts=starts)

    async def _waiting(self, run_id: RunId) -> Run | None:
        try:
            return await self.inner.get_run(run_id)
        except UnknownRun:
            return None

    async def start_flow_run(self, event_id: UUID, start: FlowStart) -> tuple[FlowRun, bool]:
        await self.guard.check()
        coded = FlowStart(start.workflow_id, self.coding.new_run(start.run))
        return await self.inner.start_flow_run(event_id, coded)

    async def event(self, event_id: UUID) -> EventRow | None:
        found = await self.inner.event(event_id)
        return None if found is None else self.coding.plain_event(found)

    async def events(self, where: EventFilter, before: UUID | None = None, limit: int = 50) -> list[EventRow]:
        return [self.coding.plain_event(one) for one in await self.inner.events(where, before, limit)]

    async def rewrite_events(self, events: Sequence[EventRow]) -> None:
        raise NotImplementedError("only the store inside knows how payloads lie there")

    # -- reading

    async def get(self, id: str) -> Run:
        run = await self.inner.get(id)
        self._facts.refuse_renamed(run)
        return self._plain(run)

    async def get_run(self, run_id: RunId) -> Run:
        return self._plain(await self.inner.get_run(run_id))

    async def journal(self, run_id: RunId, after: int = -1, limit: int = 10_000) -> list[Entry]:
        entries = await self.inner.journal(run_id, after, limit)
        if entries and entries[0].ord and closed_by_store(entries[0]):  # its checksum needs the entry before
            before = await self.inner.journal(run_id, entries[0].ord - 2, 1)
            return (await self._entries(run_id, [*before, *entries]))[len(before) :]
        return await self._entries(run_id, entries)

    async def attempts(self, run_id: RunId, seq: int | None = None) -> list[Attempt]:
        return [self.coding.plain_attempt(run_id, one) for one in await self.inner.attempts(run_id, seq)]

    async def outputs(self, run_id: RunId) -> list[Output]:
        return [self.coding.read_output(run_id, None, output) for output in await self.inner.outputs(run_id)]

    async def inbox(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Message]:
        found = await self.inner.inbox(chain_id, after, limit)
        reads = Reader((await self._facts.of(chain_id)).id, chain_id)
        return [await self._plaintext_checks.message(reads, message) for message in found]

    async def answers_of(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Output]:
        return [self.coding.plain_answer(chain_id, one) for one in await self.inner.answers_of(chain_id, after, limit)]

    # -- the bus

    async def publish_messages(self, messages: Sequence[NewMessage]) -> list[str]:
        await self.guard.check()
        return await self.inner.publish_messages([self.coding.encode(message) for message in messages])

    async def bus_turn(self, names: Sequence[str], begun: Sequence[Begun], limit: int) -> BusTurn:
        turn = await self.inner.bus_turn(names, begun, limit)
        return BusTurn([self.coding.plain_published(one) for one in turn.deliveries], turn.more)

    async def unsent_messages(self, via: str, limit: int) -> list[StoredMessage]:
        return [self.coding.plain_published(one) for one in await self.inner.unsent_messages(via, limit)]

    async def messages(self, topic: str | None, before: int | None = None, limit: int = 50) -> list[StoredMessage]:
        return [self.coding.plain_published(one) for one in await self.inner.messages(topic, before, limit)]

    async def rewrite_messages(self, bodies: Mapping[int, str]) -> None:
        raise NotImplementedError("only the store inside knows how payloads lie there")

    # -- requests with an idempotency key

    async def begin_request(self, key: str, digest: str, owner: str, lock: int, keep: int) -> KeptRequest:
        await self.guard.check()
        text = f"request {key} {digest}"
        kept = self.coding.read(await self.inner.begin_request(key, self.keyed(text), owner, lock, keep))
        return replace(kept, digest=digest) if self.coding.payloads.is_keyed(text, kept.digest) else kept

    async def find_request(self, key: str) -> KeptRequest | None:
        found = await self.inner.find_request(key)
        return None if found is None else self.coding.read(found)

    async def finish_request(self, key: str, owner: str, answer: str) -> bool:
        return await self.inner.finish_request(key, owner, self.coding.encode_text(answer, request_place(key)))

    # -- keys of the server

    async def put_api_key(self, key: StoredKey, act: Act | None = None) -> bool:
        await self.guard.check()
        coded = self.coding.api_key(replace(key, namespace=self.namespace))
        return await self.inner.put_api_key(coded, act)

    async def api_keys(self) -> list[StoredKey]:
        return [self.coding.plain_key(one) for one in await self.inner.api_keys()]

    async def find_api_key(self, id: str) -> StoredKey | None:
        found = await self.inner.find_api_key(id)
        return None if found is None else self.coding.plain_key(found)

    async def rewrite_api_key(self, id: str, digest: str) -> None:
        raise NotImplementedError("only the store inside knows how payloads lie there")

    # -- documents: some hold what was asked, or secrets

    async def put_documents(self, kind: str, bodies: Mapping[str, str], keep: int, act: Act | None = None) -> None:
        if kind in CODED:
            await self.guard.check()
            bodies = {key: self.coding.encode_text(body, document_place(kind, key)) for key, body in bodies.items()}
        await self.inner.put_documents(kind, bodies, keep, act)

    async def rewrite_document(self, kind: str, key: str, before: str, body: str) -> bool:
        raise NotImplementedError("only the store inside knows how payloads lie there")

    async def document(self, kind: str, key: str) -> Document | None:
        found = await self.inner.document(kind, key)
        return found if found is None or kind not in CODED else self.coding.read_document(kind, found)

    async def documents(self, kind: str, limit: int = 1_000) -> list[Document]:
        found = await self.inner.documents(kind, limit)
        if kind not in CODED:
            return found
        plain: list[Document] = []
        for one in found:
            with suppress(PayloadSealed):  # its key was retired: it cannot be told
                plain.append(self.coding.read_document(kind, one))
        return plain

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
        return self._plain(run), (await self._entries(run_id, [last], run))[0]

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
        """Its fingerprints also say what it can read."""
        return replace(worker, code={name: f"{mark}{self._marked}" for name, mark in worker.code.items()})

    def _plain(self, run: Run) -> Run:
        self._facts.note(run)
        return self._seen(run)

    def _seen(self, run: Run) -> Run:
        if run.failed_code:
            run = replace(run, failed_code=[mark.removesuffix(self._marked) for mark in run.failed_code])
        return self.coding.plain_run(run)

    async def _tape(self, stored: StoredRun) -> StoredRun:
        """Never raises PayloadSealed: a tape that cannot be read says so, and is empty."""
        run_id, run, fact = stored.run.run_id, self._plain(stored.run), self._facts.note(stored.run)
        if stored.sealed:
            return StoredRun(run, [], [], [], stored.sealed)
        try:
            refuse_other_code(run)
            entries = await self._entries(run_id, stored.entries, run)
            begun = run.head >= 0
            messages, more = await self._page(reader(fact), stored.messages, stored.more, begun=begun)
            attempts = [self.coding.read_attempt(run_id, attempt) for attempt in stored.attempts]
        except PayloadSealed as error:
            return StoredRun(run, [], [], [], told(error))
        self._facts.keep(fact)
        return StoredRun(run, entries, messages, attempts, more=more)

    async def _entries(self, run_id: RunId, entries: list[Entry], run: Run | None = None) -> list[Entry]:
        """In slices, so that others get their turn on the event loop."""
        if not entries:
            return []
        fact = await self._facts.of(run_id) if run is None else self._facts.note(run)
        if self.coding.payloads.strict:
            for entry in filter(closed_by_store, entries):
                await self._plaintext_checks.end(run_id, entry, run)
        found = self.coding.plain_entries(fact, entries[:_SLICE])
        for first in range(_SLICE, len(entries), _SLICE):
            await asyncio.sleep(0)
            found += self.coding.plain_entries(fact, entries[first - 1 : first + _SLICE])[1:]
        return found

    def _due(self, found: DueSchedule) -> DueSchedule:
        """Never raises: an unreadable one says why, and is refused when it is used."""
        row = found.schedule
        try:
            return DueSchedule(self.coding.read(row), found.busy)
        except PayloadSealed as error:
            return DueSchedule(replace(row, spec=never_plain(row.spec), sealed=str(error)), found.busy)
