"""The tables, as dictionaries."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from batuta.clock import Clock, SystemClock
from batuta.ids import RunId, new_message_id
from batuta.journal.audit import Recorded
from batuta.journal.bus.messages import StoredMessage, SubscriptionRow
from batuta.journal.dead_letters import DeadLetter
from batuta.journal.entries import Entry
from batuta.journal.flows.records import EventRow, FlowRow, FlowRun
from batuta.journal.queues import QueueLimits
from batuta.journal.quotas import Quota
from batuta.journal.records import (
    REJECTED,
    Attempt,
    Message,
    MessageKind,
    Output,
    ParentPolicy,
    Run,
    WorkerInfo,
    is_heartbeat,
)
from batuta.journal.retention import Retention
from batuta.journal.schedules import ScheduleRow
from batuta.journal.server.api_keys import StoredKey
from batuta.journal.server.requests import KeptRequest
from batuta.stores.contract import rules
from batuta.stores.contract.claim_limits import Rotation
from batuta.stores.contract.listeners import Listeners


class Row(Struct):
    """A run with all that belongs to it."""

    run: Run
    parent_policy: ParentPolicy
    debounce: str = ""
    """The key that later starts find it by, until it is claimed."""
    claimed_head: int = -1
    journal: list[Entry] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    published: dict[str, Output] = field(default_factory=dict)
    compensation: str | None = None
    """The value of its output of that kind."""

    def snapshot(self) -> Run:
        return replace(self.run, failed_code=list(self.run.failed_code))

    @property
    def is_open(self) -> bool:
        return self.run.closed_at is None

    @property
    def is_suspect(self) -> bool:
        return rules.is_suspect(self.run.deaths, self.run.head, self.claimed_head)

    def failures(self) -> int:
        """How often the step has failed that is tried again; 0: none is."""
        if not self.is_open or (self.run.owner is None and self.run.wake_at is None):
            return 0
        last = self.journal[-1].at if self.journal else 0
        failed = (one for one in self.attempts.values() if one.error is not None and one.next_at is not None)
        return max((one.number for one in failed if one.next_at is None or last <= one.next_at), default=0)

    def write(self, entries: Sequence[Entry], epoch: int) -> None:
        for entry in entries:
            if entry.ord != len(self.journal):
                raise ValueError(f"entry {entry.ord} of run {self.run.run_id} does not follow {self.run.head}")
            self.journal.append(entry)
            self.epochs.append(epoch)
        self.run.head = len(self.journal) - 1

    def note(self, attempt: Attempt) -> None:
        known = self.attempts.get((attempt.seq, attempt.number))
        if known is not None and attempt.tokens is None and known.tokens is not None:
            attempt = replace(attempt, tokens=known.tokens)
        self.attempts[attempt.seq, attempt.number] = attempt


class Inbox(Struct):
    """The messages of one chain."""

    known: set[str] = field(default_factory=set)
    """Ids of all messages, read or not."""
    unread: dict[str, Message] = field(default_factory=dict)
    """By id, in order of their numbers."""

    kept: dict[str, Message] = field(default_factory=dict)
    """Signals, updates and cancels that were read: a run may be asked to read the first two again."""

    def read(self, message_ids: Iterable[str]) -> None:
        for message_id in message_ids:
            message = self.unread.pop(message_id, None)
            if message is not None and message.kind in rules.PROMISED:
                self.kept[message_id] = message
            elif message is not None and message.kind is MessageKind.ACTIVITY and is_heartbeat(message_id):
                self.known.discard(message_id)

    def read_again(self, message_id: str) -> None:
        """Make a read message unread. Unknown messages stay unknown."""
        message = self.kept.pop(message_id, None)
        if message is not None:
            self.unread[message_id] = message
            self.unread = dict(sorted(self.unread.items(), key=lambda item: item[1].number))


class Registration(Struct):
    """A worker's row."""

    worker: WorkerInfo
    lease_until: int
    registered_at: int
    beat_at: int


class QueueRow(Struct):
    """A queue that was set up, paused or limited."""

    paused: bool = False
    reason: str = ""
    limits: QueueLimits = field(default_factory=QueueLimits)
    begun: dict[str, dict[int, int]] = field(default_factory=dict)
    """Runs that began, by flow key ("" for all of them) and the end of the sub-window."""


class DocumentRow(Struct):
    """A document, with its times."""

    body: str
    created_at: int
    written_at: int
    expires_at: int


class DeliveryRow(Struct):
    """A message that a subscription has yet to get."""

    key: str
    state: int
    """0 waits for one of the same key, 1 is to become a run, 2 is a run."""
    at: int
    run_id: RunId | None = None


class BusTables(Struct):
    """Messages of the bus."""

    messages: dict[int, StoredMessage] = field(default_factory=dict)
    """By number."""
    known: set[tuple[str, str, str]] = field(default_factory=set)
    """Topic, subscription and id of each."""
    subscriptions: dict[str, SubscriptionRow] = field(default_factory=dict)
    deliveries: dict[tuple[str, int], DeliveryRow] = field(default_factory=dict)
    """By subscription and number."""


class NamespaceTables(Struct):
    """The tables of one namespace."""

    rows: dict[RunId, Row] = field(default_factory=dict)
    open: dict[RunId, Row] = field(default_factory=dict)
    """The rows that are not closed: claims and heartbeats look through these."""
    children: dict[RunId, dict[RunId, Row]] = field(default_factory=dict)
    """Open and closed ones, by parent."""
    followers: dict[RunId, set[RunId]] = field(default_factory=dict)
    """The runs of a chain that are not its first, by chain."""
    current: dict[str, RunId] = field(default_factory=dict)
    inboxes: dict[RunId, Inbox] = field(default_factory=dict)
    """By chain."""
    answers: dict[tuple[RunId, str], Output] = field(default_factory=dict)
    """By chain and message id."""
    workers: dict[str, Registration] = field(default_factory=dict)
    locks: set[str] = field(default_factory=set)
    """Workers whose heartbeat is open."""
    queues: dict[str, QueueRow] = field(default_factory=dict)
    rotations: dict[tuple[str, int], Rotation] = field(default_factory=dict)
    """The rotations, by queue and priority."""
    debounced: dict[str, Row] = field(default_factory=dict)
    """Starts that later starts of the same key replace."""
    schedules: dict[str, ScheduleRow] = field(default_factory=dict)
    letters: dict[RunId, DeadLetter] = field(default_factory=dict)
    audit: list[Recorded] = field(default_factory=list)
    retention: dict[tuple[str, str], Retention] = field(default_factory=dict)
    """By name and state."""
    quotas: dict[str, Quota] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    requests: dict[str, KeptRequest] = field(default_factory=dict)
    documents: dict[tuple[str, str], DocumentRow] = field(default_factory=dict)
    """By kind and key."""
    partners: dict[tuple[str, str, str], tuple[str, int | None]] = field(default_factory=dict)
    """By kind, name and key: the document, and when it expires."""
    flows: dict[UUID, FlowRow] = field(default_factory=dict)
    events: dict[UUID, EventRow] = field(default_factory=dict)
    event_names: dict[tuple[str, str], UUID] = field(default_factory=dict)
    """Events by source and external id."""
    flow_runs: dict[tuple[UUID, UUID], FlowRun] = field(default_factory=dict)
    """By flow and event."""
    flow_keys: dict[RunId, tuple[str, str]] = field(default_factory=dict)
    """Runs of flows that are counted, by their first run: key and id."""
    bus: BusTables = field(default_factory=BusTables)
    allowance: tuple[float, int] | None = None
    """How many starts of its burst were left, and when."""

    def is_used(self) -> bool:
        """Whether it has workers, documents, schedules or runs that are due."""
        due = any(row.run.wake_at is not None for row in self.open.values())
        return bool(self.workers or self.documents or self.schedules or due)

    def inbox(self, chain_id: RunId) -> Inbox:
        return self.inboxes.setdefault(chain_id, Inbox())

    def forget_rejected(self, chain_id: RunId, message_id: str) -> bool:
        """Let an update come again that was rejected. False when it was not."""
        answer = self.answers.get((chain_id, message_id))
        if answer is None or answer.ord != REJECTED:
            return False
        del self.answers[chain_id, message_id]
        inbox = self.inbox(chain_id)
        inbox.known.discard(message_id)
        inbox.kept.pop(message_id, None)
        return True

    def unread(self, chain_id: RunId) -> list[Message]:
        return list(self.inbox(chain_id).unread.values())

    def current_row(self, id: str) -> Row | None:
        run_id = self.current.get(id)
        return None if run_id is None else self.rows[run_id]

    def open_row_of_chain(self, row: Row) -> Row | None:
        last = self.current_row(row.run.id)
        return last if last is not None and last.run.chain_id == row.run.chain_id and last.is_open else None

    def add(self, row: Row) -> None:
        run = row.run
        self.rows[run.run_id] = self.open[run.run_id] = row
        self.current[run.id] = run.run_id
        if run.parent_run_id is not None:
            self.children.setdefault(run.parent_run_id, {})[run.run_id] = row
        if run.chain_id != run.run_id:
            self.followers.setdefault(run.chain_id, set()).add(run.run_id)
        if row.debounce:
            self.debounced[row.debounce] = row

    def shut(self, row: Row, now: int) -> None:
        row.run.closed_at = now
        self.forget_debounce(row)
        del self.open[row.run.run_id]

    def open_children(self, run_id: RunId) -> list[Row]:
        return [child for child in self.children.get(run_id, {}).values() if child.is_open]

    def chain(self, chain_id: RunId) -> list[Row]:
        """All runs of a chain."""
        return [self.rows[run_id] for run_id in (chain_id, *self.followers.get(chain_id, ())) if run_id in self.rows]

    def forget(self, run_ids: Iterable[RunId]) -> None:
        """Delete whole chains, with everything that belongs to them."""
        for run_id in run_ids:
            run = self.rows.pop(run_id).run
            if self.current.get(run.id) == run.run_id:
                del self.current[run.id]
            if run.parent_run_id is not None:
                siblings = self.children.get(run.parent_run_id, {})
                siblings.pop(run.run_id, None)
                if not siblings:
                    self.children.pop(run.parent_run_id, None)
            self.children.pop(run.run_id, None)
            self.followers.pop(run.run_id, None)
            self.letters.pop(run.run_id, None)
            for message_id in self.inboxes.pop(run.run_id, Inbox()).known:
                self.answers.pop((run.run_id, message_id), None)

    def forget_debounce(self, row: Row) -> None:
        """No later start replaces the run's work."""
        if row.debounce:
            del self.debounced[row.debounce]
            row.debounce = ""

    def is_live(self, worker_id: str, now: int) -> bool:
        known = self.workers.get(worker_id)
        return known is not None and known.lease_until > now

    def due(self, worker: WorkerInfo) -> list[tuple[int, Row]]:
        """Runs that the worker may claim now or later, with the time from which on it may."""
        has_suspect = any(row.is_suspect and row.run.owner == worker.worker_id for row in self.open.values())
        return [
            (row.run.wake_at, row)
            for row in self.open.values()
            if row.run.wake_at is not None
            and row.run.queue in worker.queues
            and rules.may_take(worker.code, row.run.code, row.run.failed_code)
            and not (has_suspect and row.is_suspect)
        ]

    def scheduled(self) -> list[tuple[int, str]]:
        """When each schedule that is not paused is to be looked at."""
        found = self.schedules.values()
        return [(row.next_at, row.id) for row in found if row.next_at is not None and not row.paused]

    def schedule_at(self) -> int | None:
        return min((at for at, _ in self.scheduled()), default=None)


class MemoryDatabase:
    """The data that several stores share, as several processes share a database. It ends with the process."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.lock = threading.RLock()
        self.timeline = new_message_id()
        self.numbers = itertools.count(1)
        self.namespaces: dict[str, NamespaceTables] = {}
        self.keys: dict[str, StoredKey] = {}
        """API keys of all namespaces, by id."""
        self.listeners: list[tuple[str, Listeners]] = []
