"""What passes through the store's door: runs, messages, attempts, workers and changes. Values, no I/O."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

from batuta.errors import AlreadyStarted, StoreError
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.letters import NewLetter
from batuta.journal.states import RunState
from batuta.telemetry import Event


class RunKind(StrEnum):
    """What a run executes. All three are claimed from the same queues."""

    WORKFLOW = "workflow"
    JOB = "job"
    ACTIVITY = "activity"


class IfExists(StrEnum):
    """What a start does when its id is taken."""

    RETURN = "return"
    """Give the run that has it, open or closed."""
    REJECT = "reject"
    """Refuse, open or closed."""
    RESTART = "restart"
    """Refuse while it is open; when it is closed, begin a new run under the id."""
    RENEW = "renew"
    """Give the run that has it while that is open or younger than `NewRun.fresh`; else begin a new run under the id."""


class ParentPolicy(StrEnum):
    """What becomes of a child when its parent closes."""

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
    """Run timeout in microseconds; 0 is none."""
    execution_timeout: int = 0
    """The same for the whole chain."""
    version: str = ""
    tags: str = "{}"
    """JSON object of strings."""
    memo: str = "null"
    """JSON, small."""
    chain_id: RunId | None = None
    """The first run of the chain; None when this is it."""
    parent_run_id: RunId | None = None
    parent_seq: int = 0
    parent_policy: ParentPolicy = ParentPolicy.CANCEL
    code: str = ""
    """What a worker must have to run it: `name`, `name@version` or `activity:name`. Empty: its name."""
    flow_key: str = ""
    """What limits per key count by, and what a queue is fair between."""
    expires: int = 0
    """Microseconds from its creation until it is closed as timed_out, unless it was claimed before; 0 is never."""
    fresh: int = 0
    """With IfExists.RENEW: microseconds from the creation of a run that keep its id, also when it is closed."""
    debounce: str = ""
    """A key. While a run of this key was never claimed, a start replaces what that one is to do instead of adding
    another: its start message, tags, memo, priority and expiry become the new one's, and it is due `delay` from now."""
    debounce_limit: int = 0
    """Microseconds from the first start of a debounced run after which no later one puts it off; 0 is none."""
    start: str = "{}"
    """JSON of a journal `Body` with `start` and `value` (the arguments): the start message of an unowned run."""
    if_exists: IfExists = IfExists.RETURN
    own_id: bool = False
    """Known to have its own run_id for an id, which nobody else can have."""


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
    """Rises at every claim, reap and close from outside: the fence."""
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
    reason: str
    """Why it is parked, was handed back or was ended; empty again once it is taken up."""
    failed_code: list[str]
    """Fingerprints whose replay failed: only other code may take it out of needs_code."""
    version: str
    tags: str
    memo: str
    code: str = ""
    parent_run_id: RunId | None = None
    parent_seq: int = 0
    flow_key: str = ""
    expires_at: int | None = None
    """When it is closed if nobody has claimed it; None once it was claimed."""
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


StartOutcome = tuple[Run, bool] | AlreadyStarted | StoreError
"""What became of one of many starts: its run and whether it is new, or why there is none."""


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
    """From an operator: the owner lets what is in flight come to its end, and moves the run to paused."""


ANSWERS = frozenset({MessageKind.CHILD, MessageKind.ACTIVITY})
"""What answers calls of one run; its name says of which."""


class Message(Struct, kw_only=True):
    """A row of the inbox. It belongs to the chain; its id is unique there for the chain's life."""

    message_id: str
    kind: MessageKind
    name: str = ""
    body: str = "null"
    """JSON payload."""
    at: int = 0
    """Stamped by the store."""
    number: int = 0
    """Given by the store; orders the unread. Not gapless, and not in order of commit."""


PAUSES = 0
"""The `seq` of attempts that are none: no command has it."""


class Attempt(Struct, kw_only=True):
    """One try of an activity that had no journal entry yet. Written without waiting; it stays when that is there.

    With `seq` PAUSES: a time in which the run was paused, written when it was resumed (of a job only if it had begun:
    else nothing counted). Time limits of activities do not count it. Number 0 of those has no such time, but how long
    the runs before it in its chain were paused: it lies before the run's own time.
    """

    seq: int
    number: int
    """1 for the first."""
    started_at: int
    ended_at: int | None = None
    next_at: int | None = None
    """When the next try is due, after a failure. Of one whose answer comes from outside: when it is over its time."""
    error: str | None = None
    """JSON of a Failure."""
    details: str | None = None
    """JSON of the last heartbeat's details."""
    outside: bool = False
    """Its code has ended without an answer: that comes, or was to come, from outside, by token."""
    name: str = ""
    """Of its activity, for whoever listens: no store keeps it."""


class OutputKind(StrEnum):
    PUBLISHED = "published"
    """Belongs to the run."""
    ANSWER = "answer"
    """To an update, whose message id is the name. Belongs to the chain: whoever waits for it need not know which run
    of the chain answers."""


class Output(Struct, kw_only=True, gc=False):
    """A value for readers outside, written over by the turn that makes a newer one."""

    kind: OutputKind
    name: str
    ord: int
    """The entry whose turn made it (of a rejected update, which has none: the head)."""
    at: int
    value: str | None = None
    error: str | None = None
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
    start: str = "{}"


class Move(Struct, gc=False):
    """The state that a change leaves its run in, when it is not to go on running here.

    waiting: handed back, due at `wake_at` (None: for a message alone). Due at once if anything unread is in its inbox.
    pending: handed back untouched, due at `wake_at`.
    a closed state: `closed_at` is stamped, owner and wake_at are cleared.
    paused: while a PAUSE is in its inbox unread, which is read with this: held, to be due at `wake_at` once it goes on.
    Else, because it was resumed meanwhile, as waiting (pending when it has not begun).
    needs_code, poisoned: parked with `reason`; `fingerprint` is added to `failed_code`.

    Closing (but for `continued`) tells the parent, if it is open: a message `child:<run_id>` of kind CHILD with
    `outcome` as its body. Closing in any way tells open children by their policy, when `children` is set: a message
    `parent:<run_id of the parent>` of kind CANCEL or TERMINATE. One that closes in the same batch need not be told.
    """

    state: RunState
    wake_at: int | None = None
    reason: str = ""
    fingerprint: str = ""
    outcome: str = ""
    """JSON of a journal `Body` for the parent; empty when there is none."""
    children: bool = False
    """The run may have children."""


class Effects(Struct, kw_only=True, gc=False):
    """What a change does beyond its own run, in the same transaction."""

    outputs: list[Output] = field(default_factory=list)
    """Upserted by (run, kind, name); answers by (chain, kind, name)."""
    children: list[NewRun] = field(default_factory=list)
    """Inserted unowned, each with its start message. One that is there already, by run id, is accepted."""
    sends: list[Send] = field(default_factory=list)
    """Put into inboxes, in order. One that was sent before, by message id, is accepted."""
    successor: Successor | None = None
    """With a move to `continued`."""
    letter: NewLetter | None = None
    """With a move to `failed`: the run becomes a dead letter."""


class Change(Struct, gc=False):
    """All that one batch does to one run: together or not at all, under the run's fence."""

    run_id: RunId
    epoch: int
    head: int
    """What the store must hold before. A new run: -1."""
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
    """What is told of its entries when they are durable, if all are answers of activities and somebody listens. False:
    they are of several kinds, and it is made of them then. No store looks at it."""

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
    """What became of a change that did not become durable as asked."""

    REFUSED = "refused"
    """The fence held: another owner, another head, closed, or the worker is not live. Nothing of it was written."""
    EXISTS = "exists"
    """A start whose id is taken. Nothing of it was written."""
    QUEUED = "queued"
    """A start into a queue that is paused or has limits: it must wait for its turn there, unowned. Nothing of it was
    written."""
    UNREAD = "unread"
    """A move to completed, failed or cancelled found signals or updates in the inbox that the run has not read (and
    does not consume with this change): they were acknowledged, so it must see them first. Nothing of it was written."""


class Refusal(Struct, gc=False):
    """A child or message of a durable change that the store did not take."""

    seq: int
    id: str
    error: str
    """AlreadyStarted (a child's id is taken), UnknownRun or RunClosed (nobody to send to)."""
    state: str = ""
    """Of the run that stands in the way, or is closed."""


class Tape(Struct):
    """All that is needed to bring a run into memory."""

    run: Run
    entries: list[Entry]
    messages: list[Message]
    """Unread, by number."""
    attempts: list[Attempt]
    sealed: str = ""
    """Why its payloads cannot be read: then it has none, and the run is to be parked."""


class Claim(Struct):
    """What a claim brought, and what it had to leave."""

    tapes: list[Tape] = field(default_factory=list)
    held: bool = False
    """Due runs were left in their queue because of a limit: look again when a run of that queue leaves this worker."""
    again_at: int | None = None
    """When a rate allows the next of them, or now when a claim took no more than its share; None when no time does."""
    limited: list[str] = field(default_factory=list)
    """When something was held: queues with limits among those it looked at. Of a store that `hands_over`."""


class WorkerInfo(Struct, kw_only=True):
    """A worker's row. `code` names the workflows (and jobs) it can run, with their fingerprints."""

    worker_id: str
    queues: list[str]
    code: dict[str, str]
    host: str = ""
    pid: int = 0
    lease: int = 10_000_000
    """Microseconds that a beat keeps it alive."""


class WorkerView(Struct, kw_only=True):
    """A registered worker, as others see it."""

    worker_id: str
    host: str
    pid: int
    queues: list[str]
    code: dict[str, str]
    lease_until: int
    live: bool
    """Its lease is not over by the store's clock."""


class Pulse(Struct, kw_only=True):
    """What a heartbeat brings back."""

    now: int
    """The store's clock."""
    alive: bool
    """False: this worker's row is gone, and its runs are others'; it must drop all and register anew."""
    timeline: str = ""
    """Names the history that the database is on. Another one than before: it was restored or failed over."""
    due_at: int | None = None
    """Earliest wake_at of what this worker may claim; in the past when something is due now."""
    unread: list[RunId] = field(default_factory=list)
    """Runs owned by this worker with unread messages."""
    owned: dict[RunId, int] = field(default_factory=dict)
    """Runs owned by this worker, with their epochs."""
    peers: list[str] = field(default_factory=list)
    """Workers, live by lease or not, whose process seems to be gone (their lock is free). Never this worker."""
    reaped: int = 0
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
