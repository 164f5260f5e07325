"""The store contract, in the words of the domain. Not public; it may change.

Every method is one transaction. A store is bound to one namespace and takes time from its own `now` expression. A store
is correct when it passes `batuta.testing.conformance`.

Errors, the same for all stores (see `batuta.errors`):
- StoreUnavailable: unreachable, locked or full; nothing was written; may be tried again
- OutcomeUnknown: the connection broke during a write: it may or may not be durable; write the same again
- BadData: the database refused a value; nothing was written
- StoreFailed: an fsync failed: acknowledged writes since then are not reliable; drop everything, reopen, read again
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from batuta.errors import BatutaError
from batuta.ids import RunId
from batuta.journal.audit import Act, ActFilter, Recorded
from batuta.journal.bus.messages import BusStore, NewMessage
from batuta.journal.dead_letters import DeadLetter, DeadLetterGroups, DeadLetterPage, LetterFilter
from batuta.journal.entries import Entry
from batuta.journal.flows.store import FlowStore
from batuta.journal.forks import Fork
from batuta.journal.queues import LIMITS, QueueInfo, QueueLimits, StoreGauges
from batuta.journal.quotas import Quota
from batuta.journal.records import (
    Attempt,
    Change,
    Claim,
    Hint,
    Message,
    NewRun,
    Output,
    Page,
    Pulse,
    Receipt,
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
from batuta.journal.resilience.partners import PartnerStore
from batuta.journal.retention import Pruned, Retention
from batuta.journal.schedules import DueSchedule, Firing, ScheduleRow
from batuta.journal.server.api_keys import KeyStore
from batuta.journal.server.documents import DocumentStore
from batuta.journal.server.requests import RequestStore
from batuta.journal.states import RunState

ForkOutcome = Run | BatutaError
"""The new run, or why there is none."""


class Heartbeat(Protocol):
    """A worker's heartbeat, with its own connection. Lives in the heartbeat thread and its event loop."""

    async def beat(self, worker: WorkerInfo, *, reap: bool) -> Pulse:
        """Renew the lease, return news, and look for dead workers, all bounded in size.

        Renews the lease while the worker's row exists, also when it had expired: the row is deleted only together with
        taking its runs, so a worker that merely could not reach the store (like all of them during an outage) goes on.
        Times out open runs whose deadline has passed, and unclaimed runs that have expired (also in a paused queue).
        Takes needs_code runs out of parking (state waiting, due now, no reason) when `worker.code` has another
        fingerprint for their name than all in their `failed_code`.

        With `reap`, unless this worker's own lease had just expired (then all of them stood still together), deletes
        rows of workers whose lease has expired, and releases runs whose owner has no row: epoch + 1, no owner, due now,
        state waiting (pending when head is -1); deaths + 1 when head has not moved since the claim, else 1; at 5 deaths
        parked as poisoned. If a dead worker owned a suspect (a run with 2 deaths or more; it owns at most one), only
        that run counts a death.
        """
        ...

    async def reap(self, worker_ids: Sequence[str]) -> int:
        """Delete the rows of workers whose lock is free, and reap their runs. Returns the number of released runs.

        A worker whose lock is held is left alone.
        """
        ...


class CallerTransaction(Protocol):
    """The caller's own transaction. Starts and messages in it exist if, and only if, it commits."""

    blocking: bool
    """Its connection blocks: `start_many` never suspends, and belongs into the thread that has the connection."""
    brief: bool
    """It blocks for so little time that an event loop may wait for it."""

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        """Like `Store.start_many`, on the caller's connection only. New runs become due when it commits.

        Raises WrongTransaction and TransactionFailed; other errors of the connection are its driver's own.
        """
        ...

    async def send(self, run_id: RunId, id: str, message: Message) -> bool:
        """As that of `Store`, with the caller's connection alone: it is delivered when that commits. `id`: the run's.

        Raises RunClosed, UnknownRun, and as `start_many`."""
        ...

    async def publish(self, messages: Sequence[NewMessage]) -> list[str]:
        """Like `Store.publish_messages`, on the caller's connection only. Raises as `start_many`."""
        ...

    async def start_of(self, run: Run) -> Entry | Message | None:
        """The input of the run's chain: its first entry, or the waiting start message.

        None when it no longer exists. Also on the caller's connection only.
        """
        ...

    async def parent_of(self, run_id: RunId) -> tuple[RunId | None, int]:
        """The run that began this one, and which of its commands did: None and 0 when no run did. Also on the caller's
        connection only. Raises UnknownRun."""
        ...


class Borrowed(Protocol):
    """A transaction on the caller's own connection that the store begins and ends, under the store's locks."""

    def begin(self) -> Generator[float, None, None]:
        """Begin it. As long as others write, this gives the seconds after which to go on asking.

        Raises WrongTransaction, StoreUnavailable (others write for too long), and the driver's errors."""
        ...

    def end(self, *, commit: bool) -> None:
        """End it. Does nothing when it has already ended."""
        ...


class Transaction(Protocol):
    """The transaction of an activity, which also holds its entry: both are durable, or neither."""

    blocking: bool
    """The code is a plain function with its own thread; while it runs, no other writer can write to the database."""
    seconds: float
    """How long its code may take."""

    @property
    def connection(self) -> object:
        """For the activity's code. Raises WrongTransaction when there is none."""
        ...

    async def begin(self) -> None:
        """Raises StoreUnavailable. When it raises, or is cancelled, nothing is left of it."""
        ...

    async def commit(
        self,
        worker_id: str,
        change: Change,
        may_leave: Callable[[Sequence[Refusal]], None],
        messages: Sequence[NewMessage] = (),
    ) -> Verdict | list[Refusal]:
        """Write the change like `Store.commit`, publish the messages, and commit.

        The fence is tested last: until then no row of a run is locked.

        A verdict means that everything was rolled back; REFUSED also when the change exists already, because another
        transaction wrote it. `may_leave` is asked about refusals before the commit; its errors are raised, and nothing
        is committed. Raises OutcomeUnknown when it may or may not be durable; TransactionEnded when the code has ended
        it itself; for any other error of the database it was rolled back.
        """
        ...

    async def rollback(self) -> None:
        """Does nothing when it has ended.

        Never raises errors of the database. Afterwards the connection is useless to the activity's code, also to code
        that runs on in its thread.
        """
        ...


class Store(KeyStore, RequestStore, DocumentStore, PartnerStore, FlowStore, BusStore, Protocol):
    """One namespace of one database."""

    namespace: str
    poll_seconds: float | None
    """How often a worker should look for due runs when no hint comes; None when hints are certain."""
    hands_over: bool
    """Whether `hand_over` costs less than a commit and a claim."""

    async def open(self) -> None:
        """Connect, and check that this code works with the schema (SchemaMismatch otherwise)."""
        ...

    async def close(self) -> None: ...

    async def migrate(self, *, plan: bool = False, repair: bool = False) -> list[str]:
        """Bring the schema up to date under a lock; returns the names of the applied (with `plan`: pending) changes.

        `repair`: also check whether functions, triggers and views were edited in the database, and replace them.
        """
        ...

    async def now(self) -> int:
        """The database's clock, microseconds."""
        ...

    def keyed(self, text: str) -> str:
        """The text that may be stored in the clear instead of a hash of payloads: a keyed hash where there is a key,
        else the text."""
        ...

    # -- runs come in

    async def start(self, run: NewRun, message: Message | None = None) -> tuple[Run, bool]:
        """Insert an unowned run, pending and due, with its start message. Returns the id's run and whether it is new.

        With REJECT, or RESTART while the current one is open: raises AlreadyStarted, nothing is written. With another
        `if_exists`, when the id's run is of another kind or name: raises WrongWorkflow, nothing is written.
        `message` goes into the inbox of the run that is returned, new or not, in the same transaction; when that one is
        closed: raises RunClosed, nothing is written.
        """
        ...

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        """The same for many in one transaction: the result or error of `start` for each, in the order given.

        `runs` may be made while they are read; if that raises, nothing is written. A run whose id is taken (also by one
        before it) or whose data is refused does not harm the others. Nor does a run that must wait for a locked row: it
        gets StoreUnavailable (`start` waits), unless there is an `after`.

        `after` is inserted with them, pending and not due: new runs among them become its children (with `after.run_id`
        as their parent, and the policy ABANDON), and the close of the last one makes it due. Closing one of them
        decrements its `awaits`, and puts no message into its inbox. Its outcome is the last of the list. If it is
        written again (its run_id exists already), everything is as the first time.
        """
        ...

    async def enter(self, transaction: object, runs: Sequence[NewRun]) -> CallerTransaction:
        """Make ready for these runs to be started, or messages to be sent, inside a transaction of the caller's own: a
        connection or session of any driver that the store knows, on its own database. Does not touch it. Raises
        WrongTransaction."""
        ...

    def borrow(self, connection: object) -> Borrowed:
        """For a database where a transaction needs more than the database's own locks. Raises WrongTransaction."""
        ...

    async def send(self, run_id: RunId, message: Message, act: Act | None = None) -> bool:
        """Put a message into the inbox of the run's chain; a waiting run becomes due. A pending one keeps its
        time, but for a CANCEL or TERMINATE.

        False when the id was sent before (nothing changes). An update that was rejected (its answer has REJECTED in the
        place of an entry's number) can be sent again while its chain is open: that answer is forgotten, and the message
        is unread, with a higher number. Raises RunClosed, UnknownRun.
        """
        ...

    async def unpark(self, run_id: RunId, act: Act | None = None) -> bool:
        """Let any code try a parked run again: waiting, due now, no deaths, no failed code, no reason.

        False, without a change, when it is not parked. Raises UnknownRun.
        """
        ...

    # -- runs are worked on

    async def register(self, worker: WorkerInfo) -> int:
        """Make the worker live for one lease, replacing any row of its id. Returns the store's clock."""
        ...

    async def retire(self, worker_id: str) -> None:
        """Delete the worker and release the runs that it still owns (without counting a death)."""
        ...

    async def give_up(self, worker_id: str, run_ids: Sequence[RunId], reason: str) -> int:
        """Set these runs free as if their worker had died with each of them: epoch + 1, owner none, deaths + 1 when
        head has not moved since the claim, else 1; at 5 deaths parked as poisoned. Each death makes it due later: at
        once, in 1, 3, 7 seconds. The reason stays until the next claim. Runs that the worker does not own are left
        alone. Returns the number of runs set free."""
        ...

    def heartbeat(self, worker_id: str) -> AbstractAsyncContextManager[Heartbeat]:
        """A heartbeat session, to be opened in the thread and event loop that will beat. Holds the worker's lock."""
        ...

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        """Own up to `limit` due runs of the worker's queues and names; by priority (high first), then wake_at. From
        queues named in `room`, at most that many.

        Sets epoch + 1, state running, no wake_at or reason, and remembers the head at the claim. Claims nothing when
        the worker is not live. Never claims a run whose `failed_code` holds the worker's fingerprint for its name: this
        code cannot replay it. Also claims a run whose deadline has passed (the owner closes it); an expired run is
        claimed with its expiry as its deadline. After a claim a run does not expire, and is no longer debounced.

        Claims nothing from a paused queue, and from one with limits only what keeps them, whatever other workers do at
        the same time; runs without an owner, because their worker died or released them, do not count. While more is
        due than can be taken, at each priority three of four claims from a queue rotate over flow keys, least recently
        served keys first; the fourth is the longest due. So a key with many runs does not block others. A run that
        becomes due with a time long past may be found up to two seconds late. Suspects (2 deaths or more) are claimed
        one at a time: only when the worker owns none, and at most one.
        """
        ...

    async def hasten(self, until: int, limit: int, *, asleep: int = 0) -> int:
        """The store's clock was set back from `until`: make runs due now that were due by then and are not any longer.

        Up to `limit` runs, earliest first; returns how many. Runs created since then with a delay are left alone.
        `asleep`: among begun runs also those due that many microseconds later. Their journals say what is really due,
        so a worker that claims them can keep the remaining wait.
        """
        ...

    async def due_at(self, worker: WorkerInfo) -> int | None:
        """The earliest time at which a claim of this worker can find something; None when nothing becomes due by time
        alone.

        Runs in a paused queue, or in one whose concurrency is used up, do not count; runs that wait for a rate count
        from when it allows them.
        """
        ...

    async def unread(self, run_ids: Sequence[RunId], *, after: int = 0) -> dict[RunId, Unread]:
        """For each run its epoch (-1 when it is closed) and a page of its chain's unread messages, by number: those of
        the first PAGE_BYTES, plus all that a run must know before it goes on (starts, ends, pauses, answers of
        activities; for a run that has not begun its cancels). Consumed messages make room.

        `after` leaves out signals, updates and ends of children up to this number: see `unread_pages`. If some cannot
        be read: SEALED, and none; `sealed` says why.
        """
        ...

    async def load(self, run_id: RunId) -> StoredRun:
        """The result of a claim, without claiming. Raises UnknownRun."""
        ...

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        """Make all changes durable in one transaction; returns only those that were not, by index.

        For a durable change with refused children or sends: the refusals. Children and sends of a change that was
        written before are checked again, so that a repeated commit reports them, too; those that were accepted then are
        not sent again, even if another chain has the id by now.

        The fence per change: the run is open, the worker owns it, its epoch is the change's and its head is the
        change's `head`. The owner is checked besides the epoch, because a database that went back in time gives an
        epoch out twice. A change that finds its epoch, its `new_head` and its own last entry already there (and no
        owner, after a move) was written before: it counts as durable, also when the run is closed. A new run needs a
        live row of the worker, and a free id. A run occurs at most once in a batch. A row that another transaction has
        locked delays only the changes that need it: they are BUSY, and the others are written.
        """
        ...

    async def hand_over(
        self, worker: WorkerInfo, changes: Sequence[Change], limit: int
    ) -> tuple[dict[int, Verdict | list[Refusal]], Claim]:
        """Commit, and then claim up to `limit` runs from the named queues, whose limits the ended runs have left.

        Where it `hands_over`, this is one transaction for jobs that have succeeded, and no other worker can take their
        slots. A change that was written before counts as durable, as in `commit`. OutcomeUnknown: runs may have been
        claimed, too.
        """
        ...

    def transact(self, seconds: float) -> Transaction:
        """A transaction for an activity, not begun. The database ends it when it is idle for longer than `seconds`."""
        ...

    def why_not_transactional(self, is_async: bool) -> str:
        """Why such a function cannot be executed in a transaction here, as the end of a sentence; empty: it can."""
        ...

    async def close_run(
        self, run_id: RunId, head: int, entry: Entry, state: RunState, reason: str, act: Act | None = None
    ) -> bool:
        """Close an open run from outside with its last entry: epoch + 1, owner none. False when `head` has moved or
        it is closed; nothing is written then. Tells parent and children, as a `Move` does."""
        ...

    # -- what operators do
    # Every verb that is given an `act` records it in the audit log, in its own transaction, once for each run, queue,
    # schedule or dead letter that it changed; when nothing was changed, nothing is recorded.

    async def pause_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        """Pause runs. Runs without an owner (pending, waiting, parked) are paused at once: no owner and wake_at,
        paused_at now, resume_at the wake_at.

        An owned run gets a message `pause:<n>` of kind PAUSE instead, and its owner moves it to paused. Returns the
        runs that were paused or got the message; paused and closed runs, and those with such an unread message, are
        left alone. Nothing makes a paused run due, times it out or lets it expire; messages are accepted, and wait in
        its inbox. `awaits` is still counted.
        """
        ...

    async def resume_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        """Resume paused runs: waiting (pending when head is -1), due at resume_at, or now if a begun run has unread
        messages.

        Moves deadline and expires_at by the length of the pause, and next_at of attempts that wait for an outside
        answer, too. Notes the pause as an attempt of seq PAUSES (except for a job that has not begun), and clears
        paused_at and resume_at. An owned run with an unread PAUSE: that is marked read. A parked run is tried again, as
        by `unpark`. Returns the runs that go on.
        """
        ...

    async def cancel_runs(self, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        """Ask open runs to end, as by a `send` of a CANCEL with the id `cancel:<run_id>` and the reason as its name.

        Returns the runs that were asked; runs that were asked before, are closed or do not exist are left alone.
        """
        ...

    async def end_unbegun(self, run_ids: Sequence[RunId], reason: str) -> list[RunId]:
        """Close as cancelled those runs that have no owner and have not begun (head -1), whatever their state and
        queue: their code does not run.

        For runs that were asked to end. A run with an unread signal or update is left alone, and so is a run that
        follows another in its chain (except jobs): its next owner decides. Notifies parents and children like
        `close_run`. Returns the closed runs.
        """
        ...

    async def terminate_runs(self, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        """Close open runs as terminated, as by `close_run` with an entry after their last one.

        Returns the runs that were open.
        """
        ...

    async def delete_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        """Delete closed runs with everything that belongs to them: the whole chain of each, journals, messages,
        outputs, attempts, dead letters, and their closed children in the same way. Returns the ids of all deleted runs.

        A chain with an open run, with an open child at any depth, or with an open parent, which may start it again, is
        left alone, and is not in the answer. Long journals may take several transactions.
        """
        ...

    async def fork(self, forks: Sequence[Fork], act: Act) -> list[ForkOutcome]:
        """Make runs from others, each separately, all in one transaction: the new run, or why there is none.

        UnknownRun; RunMoved (another head, open where it must be closed, not the current one of its id); AlreadyStarted
        (the id is taken); LetterResolved (the dead letter is not open, or does not exist).
        """
        ...

    # -- dead letters

    async def letter(self, run_id: RunId) -> DeadLetter:
        """Raises UnknownLetter."""
        ...

    async def letters(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> DeadLetterPage:
        """Newest first; the cost of a page does not grow with its number."""
        ...

    async def letter_groups(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> DeadLetterGroups:
        """By fingerprint, those with the newest letter first; the cost of a page does not grow with its number, nor,
        where only states, name, reason or fingerprint restrict, with the size of the groups."""
        ...

    async def count_letters(self, where: LetterFilter) -> int: ...

    async def discard_letters(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        """Mark open ones as discarded, with `act.reason` as the note. Returns those that were open."""
        ...

    # -- retention

    async def set_retention(self, rule: Retention, act: Act | None = None) -> bool:
        """Add the rule, or replace the one of its name and state. False when it is there already."""
        ...

    async def drop_retention(self, name: str, state: str, act: Act | None = None) -> bool:
        """Remove a rule. False when there is none."""
        ...

    async def retention(self) -> list[Retention]:
        """By name and state."""
        ...

    async def prune(self, limit: int, after: RunId | None = None, *, dry_run: bool = False) -> Pruned:
        """Look at up to `limit` runs, from the oldest after `after` on, and delete closed chains whose retention is
        over, with journals, messages, outputs and attempts.

        The last run of a chain to close decides. Of chains with long journals only some are deleted in one step: at
        least one, if there is any. Children are looked at separately. They are kept as long as their parent is open,
        and a parent as long as any child exists. A chain with an open dead letter is kept, too. It never waits for a
        run that another transaction has locked, but skips it, and holds no lock for long. With `dry_run` nothing
        changes.
        """
        ...

    # -- quotas
    # Clients that start runs enforce quotas: no method of a store refuses a run because of one.

    async def set_quota(self, quota: Quota, act: Act | None = None) -> bool:
        """Set it, or replace the one of its name. False when it is there already."""
        ...

    async def clear_quota(self, name: str, act: Act | None = None) -> bool:
        """Remove a quota, so that the one of EVERYBODY applies, if there is any. False when there is none."""
        ...

    async def quotas(self) -> list[Quota]:
        """The quotas that apply in this namespace, by name: its own, and those of EVERYBODY where it has none."""
        ...

    async def spend_starts(self, count: int, quota: Quota, ago: int = 0) -> None:
        """Record that many started runs, the first of them `ago` microseconds ago, for all clients of the namespace.

        `quota` is the one of STARTS: see `journal.quotas.spent`.
        """
        ...

    # -- marks
    # Said once of a namespace, for all who connect to it: see `journal.marks`.

    async def set_mark(self, name: str, value: str, act: Act | None = None) -> bool:
        """Set it, or replace the one of its name. False when it is there already."""
        ...

    async def clear_mark(self, name: str, act: Act | None = None) -> bool:
        """Remove a mark. False when there is none."""
        ...

    async def marks(self) -> dict[str, str]:
        """The marks of this namespace, by name."""
        ...

    # -- the audit log

    async def note_act(self, target: str, act: Act) -> None:
        """Record an action by itself, before methods do it that do not record actions."""
        ...

    async def audit(self, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        """Acts with numbers > after, in order."""
        ...

    async def audit_head(self) -> tuple[int, str]:
        """Number and hash of the last row ever written, remembered apart from the rows; (0, "") before the first."""
        ...

    async def acts(self, where: ActFilter, before: int | None = None, limit: int = 50) -> list[Recorded]:
        """Acts with numbers < before, newest first. `target` is the id of a run, or the name of something else."""
        ...

    # -- payloads as they lie there

    async def inbox(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Message]:
        """Messages of the chain with ids > after, read or not, by id: those of the first PAGE_BYTES, and at most
        `limit`. Read messages may be deleted."""
        ...

    async def answers_of(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Output]:
        """All answers of the chain with names > after, by name."""
        ...

    async def rewrite(self, changed: Rewrite) -> bool:
        """Write the same payloads otherwise. False when the run is not closed, or is not there: nothing is written."""
        ...

    # -- queues

    async def limit_queue(
        self, name: str, limits: QueueLimits, only: Collection[str] = LIMITS, act: Act | None = None
    ) -> None:
        """Set the limits of the queue that are named in `only`; the others stay.

        Owned runs go on, also when there are more than it allows.
        """
        ...

    async def pause_queue(self, name: str, paused: bool, reason: str = "", act: Act | None = None) -> None:
        """Let nothing more be claimed from it, or let it go on. Runs that are owned go on."""
        ...

    async def queues(self) -> list[QueueInfo]:
        """By name."""
        ...

    # -- schedules

    async def put_schedule(self, schedule: ScheduleRow, expected: int | None = None, act: Act | None = None) -> bool:
        """Write it with revision `expected` + 1 in place of the one that has the revision `expected`; None: insert it.
        False when there is another (or, with `expected`, none): nothing is written. The times of the row are the
        store's."""
        ...

    async def delete_schedule(self, id: str, act: Act | None = None) -> bool:
        """False when there is none."""
        ...

    async def schedule(self, id: str) -> DueSchedule:
        """Raises UnknownSchedule."""
        ...

    async def schedules(self, after: str = "", limit: int = 1_000) -> list[DueSchedule]:
        """Schedules with ids > after, by id."""
        ...

    async def due_schedules(self, limit: int, after: tuple[int, str] | None = None) -> list[DueSchedule]:
        """Schedules that are not paused and whose next_at has passed, by next_at and id; after the given one."""
        ...

    async def schedule_at(self, after: int = -1) -> int | None:
        """The earliest next_at of schedules that are not paused, later than `after`."""
        ...

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        """Each separately, all in one transaction: whether it happened."""
        ...

    # -- reading
    # A missing run raises UnknownRun where one is asked for, and is left out where many are.

    async def get(self, id: str) -> Run:
        """The current run of the id: the last one begun. Raises UnknownRun."""
        ...

    async def get_run(self, run_id: RunId) -> Run:
        """Raises UnknownRun."""
        ...

    async def journal(self, run_id: RunId, after: int = -1, limit: int = 10_000) -> list[Entry]:
        """Entries with ord > after, in order."""
        ...

    async def epochs(self, run_id: RunId) -> list[int]:
        """The epoch that wrote each entry, in order."""
        ...

    async def attempts(self, run_id: RunId, seq: int | None = None) -> list[Attempt]:
        """By seq and number. `seq`: those of that call."""
        ...

    async def outputs(self, run_id: RunId) -> list[Output]:
        """Published values of the run, by name."""
        ...

    async def answers(self, asked: Sequence[tuple[RunId, str]]) -> list[Output | None]:
        """The answers to updates, each asked for by chain and message id."""
        ...

    async def received(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Receipt]:
        """Messages of the chain with ids > after, read or not, by id. Signals, updates and cancels that were read stay
        until the chain is deleted; others may be deleted when they are read."""
        ...

    async def closed_among(self, run_ids: Sequence[RunId]) -> list[RunId]:
        """Which of these runs are closed or do not exist: a waiter must not wait for a deleted run."""
        ...

    async def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        """The run and its last entry. Raises UnknownRun."""
        ...

    async def list_runs(self, where: RunFilter, cursor: str | None = None, limit: int = 50) -> Page:
        """Newest first; the cost of a page does not grow with its number."""
        ...

    async def count_runs(self, where: RunFilter) -> int: ...

    async def count_states(self, where: RunFilter) -> dict[RunState, int]:
        """The same by state, in one query; states without any are left out."""
        ...

    async def gauges(self) -> StoreGauges:
        """How much is open, in one query whose cost does not grow with runs that have ended, and is bounded: see
        MOST_COUNTED and MOST_QUEUES. Runs that wait for a message or a person may be counted among the newest alone."""
        ...

    async def workers(self) -> list[WorkerView]:
        """Every registered worker, live or not, by worker_id."""
        ...

    # -- hints

    def listen(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        """Call back, on the event loop that opened the store, when something may have happened. Returns the undo."""
        ...

    def shift_clock(self, seconds: float) -> None:
        """Testing only: move this store object's `now` (also that of hearts opened afterwards or before)."""
        ...
