"""Records that go into a store and come out: runs, messages, attempts, workers and changes. No I/O."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple

from msgspec import Struct, field

from batuta.errors import AlreadyStarted, StoreError, WrongWorkflow
from batuta.ids import RunId
from batuta.journal.codec_envelope import Payload
from batuta.journal.entries import Entry
from batuta.journal.states import RunState
from batuta.names import joined
from batuta.telemetry import Event


class RunKind(StrEnum):
    """The kind of a run. All three are claimed from the same queues."""

    WORKFLOW = "workflow"
    JOB = "job"
    ACTIVITY = "activity"


class LetterReason(StrEnum):
    """Why it failed."""

    EXHAUSTED = "exhausted"
    """Every attempt failed."""
    REFUSED = "refused"
    """The error is never retried."""
    TIMED_OUT = "timed_out"
    """The last attempt, or all of them together, took too long."""
    INTERRUPTED = "interrupted"
    """A `once` activity whose worker died: it may or may not have happened."""
    RAISED = "raised"
    """An error that the workflow declares, where its definition says `dead_letter=True`."""
    WORKFLOW_ERROR = "workflow_error"
    """An error that left the workflow's code, and that it does not declare."""
    COMPENSATION_FAILED = "compensation_failed"
    """A compensation of a saga failed for good: what it should undo is still done."""
    UNDELIVERED = "undelivered"
    """A message of the bus that its subscriber refused, could not read, or failed with every time."""


class NewLetter(Struct, kw_only=True, gc=False):
    """The dead letter of a change that closes a run. The store adds the run's id, kind, name, queue, tags and time."""

    reason: LetterReason
    error: str
    """The bare class name."""
    message: Payload
    """At most 2,000 characters of it."""
    fingerprint: str
    """The same for errors of the same origin: see `engine.letters.fingerprint`."""
    activity: str = ""
    """The activity that failed; empty: the workflow's own code."""
    seq: int = 0
    attempts: int = 0
    keep: int = -1
    """The last entry before the failure: a reprocessing from the failed step keeps entries up to it."""
    trace: str = ""
    """The trace id."""


class IfExists(StrEnum):
    """The policy of a start whose id is taken."""

    RETURN = "return"
    """Return the run that has it, open or closed."""
    REJECT = "reject"
    """Refuse, open or closed."""
    RESTART = "restart"
    """Refuse while it is open; when it is closed, begin a new run under the id."""
    RENEW = "renew"
    """Return the run that has it while it is open or younger than `NewRun.fresh`; else begin a new run under the id."""
    SAME = "same"
    """Return the run that has it if it was started with the same arguments; else refuse.

    For a store the same as RETURN.
    """


GIVES = frozenset({IfExists.RETURN, IfExists.RENEW, IfExists.SAME})
"""If the id is taken, these return the run that has it, unless it belongs to another workflow or job."""


class ParentPolicy(StrEnum):
    """The policy for a child whose parent closes."""

    CANCEL = "cancel"
    TERMINATE = "terminate"
    ABANDON = "abandon"


class NewRun(Struct, kw_only=True, gc=False):
    """A run to be inserted. The store stamps `created_at` and computes deadlines with its own clock."""

    run_id: RunId
    id: str
    name: str
    kind: RunKind = RunKind.WORKFLOW
    queue: str = "default"
    priority: int = 0
    delay: int = 0
    """Microseconds until it may be claimed first."""
    timeout: int = 0
    """Run timeout in microseconds; 0 means none."""
    execution_timeout: int = 0
    """The same for the whole chain."""
    version: str = ""
    tags: str = "{}"
    """JSON object of strings."""
    memo: Payload = "null"
    """JSON, small."""
    chain_id: RunId | None = None
    """The first run of the chain; None when this is it."""
    parent_run_id: RunId | None = None
    parent_seq: int = 0
    parent_policy: ParentPolicy = ParentPolicy.CANCEL
    code: str = ""
    """The code name that a worker needs to run it: `name`, `name@version` or `activity:name`. Empty: its name."""
    flow_key: str = ""
    """The key for limits per key and fairness of the queue."""
    expires: int = 0
    """Microseconds from its creation until it is closed as timed_out, unless it was claimed before; 0 is never."""
    fresh: int = 0
    """With IfExists.RENEW: microseconds from the creation of a run that keep its id, also when it is closed."""
    debounce: str = ""
    """A key. While a run of this key was never claimed, a start replaces what that one is to do instead of adding
    another: its start message, tags, memo, priority and expiry become the new one's, and it is due `delay` from now."""
    debounce_limit: int = 0
    """Microseconds from the first start of a debounced run after which later calls no longer delay it; 0 means none."""
    instead: RunId | None = None
    """For a debounced start: the only run that may do its work, its own or the one that waits under its key.

    If another run has it, nothing is written: the outcome is that run, not new, or StoreUnavailable when none waits.
    None: any.
    """
    start: Payload = "{}"
    """JSON of a journal `Body` with `start` and `value` (the arguments): the start message of an unowned run."""
    if_exists: IfExists = IfExists.RETURN
    own_id: bool = False
    """Its id is its own run_id, so no other run can have it."""


class Run(Struct):
    """A run's row. Narrow: payloads are in the journal."""

    run_id: RunId
    id: str
    chain_id: RunId
    kind: RunKind
    name: str
    queue: str
    priority: int
    state: RunState
    epoch: int
    """Rises at every claim, reap and close from outside: with the owner it is the fence."""
    head: int
    """`ord` of the last journal entry; -1 when there is none."""
    owner: str | None
    wake_at: int | None
    """When it is due; None waits for a message alone (or is owned, parked or closed)."""
    created_at: int
    closed_at: int | None
    deadline: int | None
    """When the run times out: the earlier of run and execution timeout."""
    deaths: int
    """Workers that died with it since it last made progress."""
    reason: Payload
    """Why it is parked, was handed back or was ended; empty again once it is taken up."""
    failed_code: list[str]
    """Fingerprints whose replay failed: only other code may take it out of needs_code."""
    version: str
    tags: str
    memo: Payload
    code: str = ""
    parent_run_id: RunId | None = None
    parent_seq: int = 0
    flow_key: str = ""
    expires_at: int | None = None
    """When it is closed if no worker has claimed it; None once it was claimed."""
    awaits: int = 0
    """Children that must close before it is due."""
    paused_at: int | None = None
    """Since when an operator holds it: its deadline and expiry are put off by as long as that."""
    resume_at: int | None = None
    """The wake_at that it had when it was paused."""
    forked_from: RunId | None = None
    """The run whose journal it began with."""
    forked_at: int = -1
    """The last entry that it has in common with that one."""


StartOutcome = tuple[Run, bool] | AlreadyStarted | WrongWorkflow | StoreError
"""The outcome of one of many starts: its run and whether it is new, or why there is none."""


class MessageKind(StrEnum):
    START = "start"
    SIGNAL = "signal"
    UPDATE = "update"
    CANCEL = "cancel"
    TERMINATE = "terminate"
    """From a parent that closed: the owner closes the run."""
    CHILD = "child"
    """A child closed. The body is the JSON of a journal `Body`: `seq`, and `value` or `error`."""
    ACTIVITY = "activity"
    """An activity was completed from outside. The body is as for a child."""
    PAUSE = "pause"
    """From an operator: the owner lets calls in flight finish, and moves the run to paused."""


ANSWERS = frozenset({MessageKind.CHILD, MessageKind.ACTIVITY})
"""Messages that answer calls of one run; the name says which run."""


IN_PAGES = frozenset({MessageKind.SIGNAL, MessageKind.UPDATE, MessageKind.CHILD})
"""Kinds of messages that may be read later than those of other kinds that came after them."""


PAGE_BYTES = 2 * 1024 * 1024
"""How many bytes of unread messages are read at once, or one longer message. See Store.unread."""


class Message(Struct, kw_only=True):
    """A row of the inbox. It belongs to the chain; its id is unique there for the chain's life."""

    message_id: str
    kind: MessageKind
    name: str = ""
    body: Payload = "null"
    """JSON; not a payload where the kind says all."""
    at: int = 0
    """Stamped by the store."""
    number: int = 0
    """Given by the store; orders the unread. Not gapless, and not in order of commit."""


class Receipt(Struct):
    """A message of the inbox without its payload."""

    message_id: str
    kind: MessageKind
    read: bool


def chosen_message_id(kind: MessageKind, name: str, id: str) -> str:
    """The id of a message that its sender has named.

    Ids of senders never equal ids of other kinds or names, so one order number can be used for several signals.
    """
    return joined(kind, name, id)


HEARTBEAT = "beat:"
"""Prefix of the ids of heartbeats from outside, which are messages of kind ACTIVITY.

A store deletes them after reading.
"""


def is_heartbeat(message_id: str) -> bool:
    return message_id.startswith(HEARTBEAT)


PAUSES, LOSSES = 0, -1
"""Values of `seq` of rows that are not attempts: no command has them."""
LOSSES_KEPT = 20
"""A store keeps at most so many of the last losses of a run, and half of that at least."""


FIRST_KEPT, LAST_KEPT = 10, 90
"""Attempts of one call that a store keeps: the first ones and the last ones."""


def loss_number(epoch: int) -> int:
    """Of the row of a loss, by the run's epoch after it. A later one takes the place of one that is long ago."""
    return 1 + epoch % LOSSES_KEPT


class Attempt(Struct, kw_only=True):
    """An attempt of an activity that had no journal entry yet. Written without waiting; it stays afterwards, among the
    FIRST_KEPT and LAST_KEPT of its call.

    With `seq` PAUSES: a period in which the run was paused, written when it was resumed (for a job only if it had
    begun). Time limits of activities do not count it. Number 0 of those holds instead how long the earlier runs of its
    chain were paused, since they are before the run's own time.

    With `seq` LOSSES: a moment at which a begun run was taken from a dead worker. Attempts that it had under way are
    lost. The number is that of `loss_number`.
    """

    seq: int
    number: int
    """1 for the first."""
    started_at: int
    ended_at: int | None = None
    next_at: int | None = None
    """When the next attempt is due, after a failure. For an attempt that waits for an outside answer: its deadline."""
    error: Payload | None = None
    """JSON of a Failure."""
    details: Payload | None = None
    """JSON of the last heartbeat's details."""
    outside: bool = False
    """Its code has ended without an answer: that comes, or was to come, from outside, by token."""
    tokens: Payload | None = None
    """Hashes of the tokens that its code has asked for (`authoring.tokens`). A store keeps them when it is written
    without."""
    name: str = ""
    """The name of its activity, for listeners: no store keeps it."""

    @property
    def replaces(self) -> int | None:
        """The number of the attempt that is deleted when this one is written."""
        return self.number - LAST_KEPT if self.seq > PAUSES and self.number > FIRST_KEPT + LAST_KEPT else None


class OutputKind(StrEnum):
    PUBLISHED = "published"
    """Belongs to the run."""
    ANSWER = "answer"
    """The answer to an update, named by its message id.

    It belongs to the chain, so a waiting caller need not know which run answers.
    """
    COMPENSATION = "compensation"
    """JSON of the NewRun that undoes the run's open sagas: a store inserts it when it times the run out. None: nothing
    is to be undone."""


REJECTED = -1
"""In the place of an entry's number: no entry tells of it."""


class Output(Struct, kw_only=True, gc=False):
    """A value for readers outside, written over by the turn that makes a newer one."""

    kind: OutputKind
    name: str
    ord: int
    """The entry whose turn made it. REJECTED for a rejected update: it has no entry, and may be sent again."""
    at: int
    value: Payload | None = None
    error: Payload | None = None
    """JSON of a Failure."""


class Send(Struct, kw_only=True, gc=False):
    """A message to the chain of another run: the current one of `id`. It leaves with the turn that sent it."""

    seq: int
    id: str
    message: Message
    again: bool = False
    """It may have been taken before, even by a chain of that id that has ended since: it is not sent a second time."""


class Successor(Struct, kw_only=True, gc=False):
    """The next run of a chain, inserted unowned with its start message by the change that closes the one before.

    Takes over id, chain, kind, priority, tags, memo, flow key and parent from it.
    """

    run_id: RunId
    name: str
    code: str = ""
    queue: str = "default"
    version: str = ""
    delay: int = 0
    timeout: int = 0
    execution_timeout: int = 0
    start: Payload = "{}"


class Move(Struct, gc=False):
    """The state that a change moves its run to, if the run does not go on here.

    - waiting: released, due at `wake_at` (None: only by a message). Due at once if its inbox has anything unread.
    - pending: released untouched, due at `wake_at`.
    - a closed state: sets `closed_at`, clears owner and wake_at.
    - paused: while its inbox has an unread PAUSE, which is read with this; due at `wake_at` once it goes on. Otherwise,
      because it was resumed meanwhile, as waiting (pending when it has not begun).
    - needs_code, poisoned: parked with `reason`; adds `fingerprint` to `failed_code`.

    Closing (except `continued`) notifies an open parent: a message `child:<run_id>` of kind CHILD with `outcome` as its
    body. Closing in any way notifies open children by their policy, when `children` is set: a message `parent:<run_id
    of the parent>` of kind CANCEL or TERMINATE. A child that closes in the same batch needs none.
    """

    state: RunState
    wake_at: int | None = None
    reason: Payload = ""
    fingerprint: str = ""
    outcome: Payload = ""
    """JSON of a journal `Body` for the parent; empty when there is none."""
    children: bool = False
    """The run may have children."""


class Effects(Struct, kw_only=True, gc=False):
    """Effects of a change on other runs, in the same transaction."""

    outputs: list[Output] = field(default_factory=list)
    """Upserted by (run, kind, name); answers by (chain, kind, name)."""
    children: list[NewRun] = field(default_factory=list)
    """Inserted unowned, each with its start message. A child that exists already, by run id, is accepted."""
    sends: list[Send] = field(default_factory=list)
    """Put into inboxes, in order. A message that was sent before, by message id, is accepted."""
    successor: Successor | None = None
    """With a move to `continued`."""
    letter: NewLetter | None = None
    """With a move to `failed`: the run becomes a dead letter."""


class Change(Struct, gc=False):
    """All that one batch does to one run: together or not at all, under the run's fence."""

    run_id: RunId
    epoch: int
    head: int
    """The head that the store must hold before. A new run: -1."""
    entries: list[Entry] = field(default_factory=list)
    """Contiguous: ord = head + 1, head + 2, ..."""
    start: NewRun | None = None
    """Insert the run, owned by the committing worker, with this change's epoch. Its entries are its first."""
    consumed: tuple[str, ...] = ()
    """Message ids of the chain's inbox, marked read."""
    attempts: tuple[Attempt, ...] = ()
    """Upserted by (run, seq, number)."""
    move: Move | None = None
    effects: Effects | None = None
    told: Event | list[Event] | Literal[False] | None = None
    """The event for its entries when they are durable, if all are answers of activities and middleware listens.

    False: they are of several kinds, and the events are made then. Stores ignore it.
    """

    @property
    def new_head(self) -> int:
        return self.head + len(self.entries)


def and_then(told: Event | list[Event], event: Event) -> list[Event]:
    """The next event of a change."""
    if not isinstance(told, list):
        return [told, event]
    told.append(event)
    return told


class Verdict(StrEnum):
    """The outcome of a change that did not become durable as asked."""

    REFUSED = "refused"
    """The fence held: another owner, another head, closed, or the worker is not live. Nothing of it was written."""
    EXISTS = "exists"
    """A start whose id is taken. Nothing of it was written."""
    QUEUED = "queued"
    """A start into a queue that is paused or has limits: it must wait for its turn there, unowned. Nothing of it was
    written."""
    UNREAD = "unread"
    """A move to completed, failed or cancelled found signals, updates or a cancel in the inbox that the run has not
    read (and does not consume with this change), or one to continued a cancel: they were acknowledged, so it must see
    them first. Nothing of it was written."""
    BUSY = "busy"
    """Somebody else holds the run's row, or another that the change must write to. Nothing of it was written; it is to
    be written again, before any other change of its run."""


class Refusal(Struct, gc=False):
    """A child or message of a durable change that the store did not take."""

    seq: int
    id: str
    error: str
    """AlreadyStarted (a child's id is taken), UnknownRun or RunClosed (no receiver)."""
    state: str = ""
    """The state of the run that has the id, or is closed."""
    holder: str = ""
    """AlreadyStarted: the kind of the run that has the id, a space, and its name."""


class StoredRun(Struct):
    """All that is needed to bring a run into memory."""

    run: Run
    entries: list[Entry]
    messages: list[Message]
    """Unread, by number."""
    attempts: list[Attempt]
    sealed: str = ""
    """Why its payloads cannot be read: then it has none, and the run is to be parked."""
    more: bool = False
    """There may be more unread messages than these: they are to be asked for when these were consumed."""


SEALED = -2
"""In place of an epoch: the run has messages that cannot be read here."""


class Unread(NamedTuple):
    """Unread messages of a run."""

    epoch: int
    """-1 when it is closed."""
    messages: list[Message]
    """By number."""
    more: bool = False
    """As of a StoredRun."""
    sealed: str = ""
    """As of a StoredRun."""


class Claim(Struct):
    """The runs of a claim, and those that it had to leave."""

    stored_runs: list[StoredRun] = field(default_factory=list)
    held: bool = False
    """Due runs were left in their queue because of a limit: look again when a run of that queue leaves this worker."""
    again_at: int | None = None
    """When a rate allows the next of them, or now when a claim took no more than its share; None when no time does."""
    limited: list[str] = field(default_factory=list)
    """When something was held: queues with limits among those it looked at. Of a store that `hands_over`."""
    timed_out: list[RunId] = field(default_factory=list)
    """Unclaimed runs that it closed, because their time was over. Of a store without heartbeats."""


class WorkerInfo(Struct, kw_only=True):
    """A worker's row. `code` names the workflows (and jobs) it can run, with their fingerprints."""

    worker_id: str
    queues: list[str]
    code: dict[str, str]
    host: str = ""
    pid: int = 0
    process: str = ""
    """See `journal.processes`."""
    lease: int = 10_000_000
    """Microseconds that a beat keeps it alive."""


class WorkerView(Struct, kw_only=True):
    """A registered worker, as others see it."""

    worker_id: str
    host: str
    pid: int
    queues: list[str]
    code: dict[str, str]
    registered_at: int
    beat_at: int
    """When it last renewed its lease."""
    lease_until: int
    live: bool
    """Its lease is not over by the store's clock."""
    runs: int
    """How many it owns."""


class Pulse(Struct, kw_only=True):
    """The result of a heartbeat."""

    now: int
    """The store's clock."""
    alive: bool
    """False: this worker's row is gone, and others own its runs; it must drop everything and register again."""
    timeline: str = ""
    """Names the history that the database is on. Another one than before: it was restored or failed over."""
    position: int = 0
    """Rises with every write to the database. A lower value than before: it was restored from an earlier state."""
    beaten_at: int | None = None
    """`now` of the last beat that the database knows of. Less than that of the last one answered: the same."""
    due_at: int | None = None
    """Earliest wake_at of what this worker may claim; in the past when something is due now."""
    unread: list[RunId] = field(default_factory=list)
    """Runs owned by this worker with unread messages."""
    owned: dict[RunId, int] = field(default_factory=dict)
    """Runs owned by this worker, with their epochs."""
    peers: list[str] = field(default_factory=list)
    """Workers, with or without a valid lease, that have died: their lock is free, and their process has ended.

    Where only the database can be asked, and a session may be lost for a moment, they must also be silent. Never this
    worker.
    """
    reaped: int = 0
    timed_out: list[RunId] = field(default_factory=list)
    """Runs that this heartbeat closed, because their time was over."""
    schedule_at: int | None = None
    """Earliest `next_at` of the schedules; in the past when one is due now."""


class RunFilter(Struct, kw_only=True, frozen=True):
    """Which runs to list. None and empty do not restrict."""

    states: tuple[RunState, ...] = ()
    name: str | None = None
    kind: RunKind | None = None
    queue: str | None = None
    id_prefix: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    flow_key: str | None = None
    parent: RunId | None = None
    created_after: int | None = None
    created_before: int | None = None
    retrying: int = 0
    """Only runs of which an activity (or the job) has failed that often at least, and its next try is to come or has
    begun: the run is owned or due at some time, and no entry is later than when that try was due."""


class Page(Struct):
    """Some runs, newest first, and the cursor of the next page (None: that was the last)."""

    runs: list[Run]
    cursor: str | None


class Hint(Struct, kw_only=True):
    """Something may have happened. May come late, twice or never: polling is the truth."""

    due: bool = False
    """Something became claimable."""
    messages: list[RunId] = field(default_factory=list)
    """Owned runs that got a message or were closed from outside."""
    closed: list[RunId] | None = field(default_factory=list)
    """Runs that closed; None: many, look for yours."""
    answered: list[RunId] | None = field(default_factory=list)
    """Chains with new answers to updates; None: many, look for yours."""
    schedules: bool = False
    """A schedule was made, changed or resumed: the next one may be due earlier than was thought."""
    partners: bool = False
    """A breaker or a limit has changed."""
    partner: tuple[str, str, str] | None = None
    """Its kind, name and document, unless it was forgotten: for listeners in the process that changed it."""
    bus: bool = False
    """A message was published, or a subscription was made."""
