"""The low door: what a store must do, in the words of the domain. Not public; may be reshaped at will.

Every verb is one transaction. A store is bound to one namespace and takes time from one `now` expression of its
own. A store is right when it passes `batuta.testing.conformance`.

Errors, the same for all stores (see `batuta.errors`):
  StoreUnavailable  away, locked or full; nothing was written; may be tried again
  OutcomeUnknown    the connection broke during a write: it may or may not be durable; write the same again
  BadData           the database refused a value; nothing was written
  StoreFailed       an fsync failed: what was acknowledged since cannot be trusted; drop all, reopen, read again
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from batuta.errors import BatutaError
from batuta.ids import RunId
from batuta.journal.acts import Act, ActFilter, Recorded
from batuta.journal.entries import Entry
from batuta.journal.forks import Fork
from batuta.journal.letters import DeadLetter, GroupPage, LetterFilter, LetterPage
from batuta.journal.queues import LIMITS, QueueLimits, QueueView
from batuta.journal.quotas import Quota, QuotaView
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
    Refusal,
    Run,
    RunFilter,
    StartOutcome,
    Tape,
    Verdict,
    WorkerInfo,
    WorkerView,
)
from batuta.journal.retention import Pruned, Retention
from batuta.journal.rewriting import Rewrite
from batuta.journal.schedules import DueSchedule, Firing, Schedule
from batuta.journal.states import RunState

ForkOutcome = Run | BatutaError
"""The new run, or why there is none."""

SEALED = -2
"""In place of an epoch: the run has messages that cannot be read here."""


class Heart(Protocol):
    """A worker's heartbeat, with a connection of its own. Lives in the heartbeat thread and its event loop."""

    async def beat(self, worker: WorkerInfo, *, reap: bool) -> Pulse:
        """Renew the lease, bring news, and look for the dead, all bounded in size.

        Renews the lease while the worker's row is there, also when it was over: the row goes when, and only when, its
        runs are taken from it, so a worker that merely could not reach the store (as all of them during an outage)
        goes on. Times out open runs whose deadline has passed, and those that nobody has claimed before they expired
        (also in a paused queue). Takes needs_code runs out of parking (state waiting, due
        now, no reason) when `worker.code` has another fingerprint for their name than all in their `failed_code`.

        With `reap`, unless this worker's own lease was over just now (then all of them stood still together), rows of
        workers whose lease is over are deleted, and runs whose owner has no row are set free: epoch + 1, owner none,
        due now, state waiting (pending when head is -1); deaths + 1 when head has not moved since the claim, else 1; at
        5 deaths parked as poisoned. A dead worker that owned a suspect (a run with 2 deaths or more, of which it owns
        one at most) is blamed on that one: the deaths of its other runs stay.
        """
        ...

    async def bury(self, worker_ids: Sequence[str]) -> int:
        """Delete the rows of workers whose lock is free, and reap their runs. Returns the number of runs set free.

        A worker whose lock is held is left alone.
        """
        ...


class Guest(Protocol):
    """A transaction that is the caller's own. What is started in it exists if, and only if, that commits."""

    blocking: bool
    """Its connection blocks: `start_many` never suspends, and belongs into the thread that has the connection."""
    brief: bool
    """It blocks for so little time that an event loop may wait for it."""

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        """As that of `Store`, with the caller's connection alone. Those that are new become due when it commits.

        Raises WrongTransaction and TransactionFailed; other errors of the connection are its driver's own.
        """
        ...


class Borrowed(Protocol):
    """A transaction on the caller's own connection that the store begins and ends, under the store's locks."""

    def begin(self) -> Generator[float, None, None]:
        """Begin it. As long as others write, this gives the seconds after which to go on asking.

        Raises WrongTransaction, StoreUnavailable (others write for too long), and the driver's errors."""
        ...

    def end(self, *, commit: bool) -> None:
        """End it. Does nothing when it has ended by itself."""
        ...


class Transaction(Protocol):
    """One that an activity writes in, and that its entry is written in: both are there, or neither."""

    blocking: bool
    """The code is a plain function and has a thread; while it runs, nobody else can write to the database."""
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
        self, worker_id: str, change: Change, may_leave: Callable[[Sequence[Refusal]], None]
    ) -> Verdict | list[Refusal]:
        """Write the change as `Store.commit` does, and commit. The fence is tested last: until then no row of a run is
        locked. A verdict: all of it was rolled back; REFUSED also when the change is there already, for it was written
        by another transaction. `may_leave` is asked about refusals before the commit; what it raises is raised, and
        nothing is committed.

        Raises OutcomeUnknown when it may or may not be durable; TransactionEnded when the code has ended it by itself;
        any other error of the database: it was rolled back.
        """
        ...

    async def rollback(self) -> None:
        """Does nothing when it is over. Never raises for what the database says. From here on the connection is of no
        use to the activity's code, also to code that runs on in its thread."""
        ...


class Store(Protocol):
    """One namespace of one database."""

    namespace: str
    poll_seconds: float | None
    """How often a worker should look for due runs when no hint comes; None when hints are certain."""
    hands_over: bool
    """Whether `hand_over` costs less than a commit and a claim."""

    async def open(self) -> None:
        """Connect, and check that the schema is the one this code knows (SchemaMismatch otherwise)."""
        ...

    async def close(self) -> None: ...

    async def migrate(self, *, plan: bool = False) -> list[str]:
        """Bring the schema up to date under a lock; names of what was (with `plan`: would be) applied."""
        ...

    async def now(self) -> int:
        """The database's clock, microseconds."""
        ...

    # -- runs come in

    async def start(self, run: NewRun, message: Message | None = None) -> tuple[Run, bool]:
        """Insert an unowned run, pending and due, with its start message. Returns the id's run and whether it is new.

        With REJECT, or RESTART while the current one is open: raises AlreadyStarted, nothing is written.
        `message` goes into the inbox of the run that is returned, new or not, in the same transaction; when that one is
        closed: raises RunClosed, nothing is written.
        """
        ...

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        """The same for many in one transaction: what `start` would give or raise, for each in the order given.

        `runs` may be made while they are read; when that raises, nothing is written.
        One whose id is taken (also by one before it) or whose data is refused does not harm the others.
        `after` is inserted with them, pending and not due: those of them that are new become its children (with
        `after.run_id` as their parent, and the policy ABANDON), and the close of the last makes it due. Closing one of
        them takes one from its `awaits`, and puts no message into its inbox. Its outcome is the last of the list.
        Written again (its run_id is there already), all of it is as it was the first time.
        """
        ...

    async def enter(self, transaction: object, runs: Sequence[NewRun]) -> Guest:
        """Make ready for these runs to be started inside a transaction of the caller's own: a connection or session of
        any driver that the store knows, on its own database. Does not touch it. Raises WrongTransaction."""
        ...

    def borrow(self, connection: object) -> Borrowed:
        """For a database where a transaction needs more than the database's own locks. Raises WrongTransaction."""
        ...

    async def send(self, run_id: RunId, message: Message, act: Act | None = None) -> bool:
        """Put a message into the inbox of the run's chain; a waiting run becomes due. A pending one keeps its
        time, but for a CANCEL or TERMINATE.

        False when the id was sent before (nothing changes). Raises RunClosed, UnknownRun.
        """
        ...

    async def unpark(self, run_id: RunId, act: Act | None = None) -> bool:
        """Let a parked run be tried again by whatever code: waiting, due now, no deaths, no failed code, no reason.

        False when it is not parked; nothing changes then. Raises UnknownRun.
        """
        ...

    # -- runs are worked on

    async def register(self, worker: WorkerInfo) -> int:
        """Make the worker live for one lease, replacing any row of its id. Returns the store's clock."""
        ...

    async def retire(self, worker_id: str) -> None:
        """Forget the worker and set free whatever it still owns (no death is counted)."""
        ...

    def heart(self, worker_id: str) -> AbstractAsyncContextManager[Heart]:
        """A heartbeat session, to be opened in the thread and event loop that will beat. Holds the worker's lock."""
        ...

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        """Own up to `limit` due runs of the worker's queues and names; by priority (high first), then wake_at.
        Of the queues that are named in `room`, that many at most.

        epoch + 1, state running, no wake_at or reason, the head at the claim remembered. Nothing when the worker is not
        live. Never a run whose `failed_code` holds the worker's fingerprint for its name: this code cannot replay it.
        A run whose deadline is over is claimed too (the owner closes it); one that has expired is claimed with its
        expiry as its deadline. After a claim a run does not expire, and is debounced no more.

        Nothing from a paused queue. From one with limits only what keeps them, whatever other workers do at the same
        time; what nobody owns any more, because its worker died or handed it back, does not count. While more is due
        than can be taken, at each priority three of four that are taken from a queue are those of flow keys in turn, by
        how few of each were taken of late; the fourth is the longest due. A key with many runs does not keep others
        waiting. What comes to be due with a time that is long over may be found two seconds later than others.
        Suspects (2 deaths or more) are claimed one at a time: only when the worker owns none, and one at most.
        """
        ...

    async def due_at(self, worker: WorkerInfo) -> int | None:
        """Earliest time at which a claim of this worker can bring something; None when nothing comes by time alone.

        What waits in a paused queue, or in one whose concurrency is taken, does not count; what waits for a rate counts
        from when that allows it.
        """
        ...

    async def unread(self, run_ids: Sequence[RunId]) -> dict[RunId, tuple[int, list[Message]]]:
        """For each run its epoch (-1 when it is closed) and the unread messages of its chain, by number.

        Where there are some that cannot be read: SEALED, and none. Its tape says why."""
        ...

    async def load(self, run_id: RunId) -> Tape:
        """What a claim gives, without claiming. Raises UnknownRun."""
        ...

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        """Make all changes durable in one transaction; returns only those that were not, by index.

        Of a change that is durable, but for some of its children or sends: the refusals. Children and sends of a change
        that was written before are looked at anew, so that a repeated commit tells them, too; what was taken then is
        not sent again, also when another chain has the id by now.

        Fence per change: the run is open, its epoch is the change's and its head is the change's `head`. A change that
        finds its own epoch and `new_head` already there was written by us before: it counts as durable, also when the
        run is closed. A new run needs the worker's row to be live, and its id to be free.
        A run occurs at most once in a batch.
        """
        ...

    async def hand_over(
        self, worker: WorkerInfo, changes: Sequence[Change], limit: int
    ) -> tuple[dict[int, Verdict | list[Refusal]], Claim]:
        """Commit, and then claim up to `limit` runs from the queues that are named: runs that end with the changes have
        left their places by then. Where it `hands_over` that is one transaction for jobs that have ended well, and
        nobody else can take those places. A change that finds itself written before counts as durable, as in `commit`;
        OutcomeUnknown: runs may have been claimed, too.
        """
        ...

    def transact(self, seconds: float) -> Transaction:
        """A transaction for an activity, not begun. The database ends it by itself when it stands still for longer
        than `seconds`."""
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
        """Hold them. Those that nobody owns (pending, waiting, parked) are paused at once: owner and wake_at none,
        paused_at now, resume_at the wake_at. One that is owned gets a message `pause:<n>` of kind PAUSE instead, and
        its owner moves it to paused. Returns those that were paused or sent the message; those that are paused, closed,
        or already have such a message unread are left alone. Nothing makes a paused run due, times it out or lets it
        expire; messages are taken, and wait in its inbox. `awaits` is counted on."""
        ...

    async def resume_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        """Let paused ones go on: waiting (pending when head is -1), due at resume_at, or now when anything unread is in
        the inbox of one that has begun; deadline and expires_at later by the time that it was paused, and next_at of
        attempts that wait for an answer from outside, too; that time is noted as an attempt of seq PAUSES (but for a
        job that has not begun); paused_at and resume_at none. One that is owned and has an unread PAUSE: that is marked
        read. One that had been parked is tried again, as by `unpark`. Returns those that go on."""
        ...

    async def cancel_runs(self, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        """Ask open runs to end, as by a `send` of a CANCEL with the id `cancel:<run_id>` and the reason as its name.
        Returns those that were asked; those that were asked before, are closed or not there are left alone."""
        ...

    async def end_unbegun(self, run_ids: Sequence[RunId], reason: str) -> list[RunId]:
        """Close as cancelled those of these that are jobs, and that nobody owns or has begun (head -1), whatever their
        state and queue: nothing of them runs. For runs that were asked to end. One with an unread signal or update is
        left alone. Tells their kin, as `close_run`. Returns those that were closed."""
        ...

    async def terminate_runs(self, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        """Close open runs as terminated, as by `close_run` with an entry after their last one. Returns those that
        were open."""
        ...

    async def delete_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        """Delete closed runs with all that belongs to them: the whole chain of each, journals, messages, outputs,
        attempts, dead letters, and their closed children in the same way. Returns the ids of all runs that are gone.

        A chain with an open run, with an open child at any depth, or with an open parent, which may start it again, is
        left alone, and is not in the answer. Where journals are long it may take several transactions."""
        ...

    async def fork(self, forks: Sequence[Fork], act: Act) -> list[ForkOutcome]:
        """Make runs from others, each by itself, all in one transaction: the new run, or why there is none.

        UnknownRun; RunMoved (another head, open where it must be closed, not the current one of its id);
        AlreadyStarted (the id is taken); LetterResolved (the dead letter is not open, or there is none)."""
        ...

    # -- dead letters

    async def letter(self, run_id: RunId) -> DeadLetter:
        """Raises UnknownLetter."""
        ...

    async def letters(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> LetterPage:
        """Newest first; the cost of a page does not grow with its number."""
        ...

    async def letter_groups(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> GroupPage:
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
        """Take a rule away. False when there is none."""
        ...

    async def retention(self) -> list[Retention]:
        """By name and state."""
        ...

    async def prune(self, limit: int, after: RunId | None = None, *, dry_run: bool = False) -> Pruned:
        """Look at up to `limit` runs, from the oldest after `after` on, and delete the chains that are closed and whose
        retention is over, with journals, messages, outputs and attempts. The last run of a chain to close decides. Of
        chains with long journals only some are deleted in one step: at least one, if there is any.

        Children are looked at by themselves. They are kept as long as their parent is open, and a parent as long as
        any child is there. A chain with an open dead letter is kept, too. Never waits for a run that another has
        in hand, which is left, nor holds a lock for long. With `dry_run`: as if, and nothing changes."""
        ...

    # -- quotas
    # What starts runs for others goes by them: no verb of a store refuses a run because of one.

    async def set_quota(self, quota: Quota, act: Act | None = None) -> bool:
        """Set it, or replace the one of its name. False when it is there already."""
        ...

    async def clear_quota(self, name: str, act: Act | None = None) -> bool:
        """Take one away, so that the one of EVERYBODY holds, if there is any. False when there is none."""
        ...

    async def quotas(self) -> list[QuotaView]:
        """Those that hold in this namespace, by name: its own, and those of EVERYBODY where it has none."""
        ...

    async def spend_starts(self, count: int, quota: Quota, ago: int = 0) -> None:
        """Note that so many runs were started, the first of them `ago` microseconds ago, for all clients of the
        namespace to know. `quota` is the one of STARTS: see `journal.quotas.spent`."""
        ...

    # -- the audit log

    async def note_act(self, target: str, act: Act) -> None:
        """Record an act by itself, before what it asks for is done by verbs that know of no act."""
        ...

    async def audit(self, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        """Those with numbers > after, in order."""
        ...

    async def audit_head(self) -> tuple[int, str]:
        """Number and hash of the last row ever written, remembered apart from the rows; (0, "") before the first."""
        ...

    async def acts(self, where: ActFilter, before: int | None = None, limit: int = 50) -> list[Recorded]:
        """Those with numbers < before, newest first. `target` is the id of a run, or the name of something else."""
        ...

    # -- payloads as they lie there

    async def inbox(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Message]:
        """Messages of the chain with ids > after, read or not, by id. What was read may be gone."""
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
        """Set limits of the queue, those that are named in `only`; the others stay. Runs that are owned go on, also
        when they are more than it allows."""
        ...

    async def pause_queue(self, name: str, paused: bool, note: str = "", act: Act | None = None) -> None:
        """Let nothing more be claimed from it, or let it go on. Runs that are owned go on."""
        ...

    async def queues(self) -> list[QueueView]:
        """By name."""
        ...

    # -- schedules

    async def put_schedule(self, schedule: Schedule, expected: int | None = None, act: Act | None = None) -> bool:
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
        """Those with ids > after, by id."""
        ...

    async def due_schedules(self, limit: int, after: tuple[int, str] | None = None) -> list[DueSchedule]:
        """Those that are not paused and whose next_at is over, by next_at and id; after the one with these."""
        ...

    async def schedule_at(self, after: int = -1) -> int | None:
        """Earliest next_at of those that are not paused, later than `after`."""
        ...

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        """Each by itself, all in one transaction: whether it happened."""
        ...

    # -- reading
    # A run that is not there raises UnknownRun where one thing is asked for, and where many are there are none of them.

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
        """What the run has published, by name."""
        ...

    async def answers(self, asked: Sequence[tuple[RunId, str]]) -> list[Output | None]:
        """The answers to updates, each asked for by chain and message id."""
        ...

    async def closed_among(self, run_ids: Sequence[RunId]) -> list[RunId]:
        """Those of the runs that are closed."""
        ...

    async def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        """The run and its last entry. Raises UnknownRun."""
        ...

    async def list_runs(self, where: RunFilter, cursor: str | None = None, limit: int = 50) -> Page:
        """Newest first; the cost of a page does not grow with its number."""
        ...

    async def count_runs(self, where: RunFilter) -> int: ...

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
