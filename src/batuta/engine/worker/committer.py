"""Gated group commit: everything that waits becomes durable in one transaction, then its effects go out.

One transaction is in flight at a time. What arrives meanwhile forms the next batch; there are no timers.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

from batuta.durations import human_duration
from batuta.engine.activities.call import Effect
from batuta.engine.run.owned_run import OwnedRun
from batuta.engine.worker.database_clock import DatabaseClock
from batuta.engine.worker.outage import Outage
from batuta.engine.worker.reporter import Item, Reporter, Verdicts
from batuta.engine.worker.waiters import Completion
from batuta.errors import AlreadyStarted, BadData, OutcomeUnknown, StoreError, StoreFailed, StoreUnavailable, told
from batuta.failpoints import failpoint
from batuta.ids import jitter, new_run_id
from batuta.journal.entries import Body, EntryKind, encode_entry
from batuta.journal.records import Change, Move, Refusal, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.settings import Settings

log = logging.getLogger("batuta.engine")

_WRITING = "writing changes of runs"
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 2.0
_PATIENCE = 5.0
"""Seconds after which a start is told that it is unknown whether it was written, or that it was not."""
_TRIES = 3
"""How often a batch is written that fails for a reason that is not known to pass, before it is asked whose fault it
is."""
_WAITS = "run %s waits: another transaction holds its row in the database, or a row that it must write"
_LOCKED_START = "a row that the start needs stayed locked for too long: something holds a transaction open; try again"
_LONGEST_ASIDE = 0.5
"""Seconds between two tries of a change that waits for a locked row."""
_ROUNDS = 2
_TOGETHER = sys.version_info < (3, 12)
"""Effects only begin things. From Python 3.12 on they may run an activity, too, for as long as it does not wait."""

STORE_FAILED = "the store failed"
"""Why everything was dropped, when it was an fsync: the store must be opened anew."""


COMMITS_FAIL = "its commits fail"


class CommitsFail(Exception):
    """No change of this worker can be written, for a reason that waiting does not mend."""


async def probe(store: Store, worker_id: str) -> None:
    """Raises what a commit of this worker would. It writes a change of a run that does not exist, which the fence
    refuses: nothing comes of it."""
    entry = encode_entry(1, EntryKind.ACTIVITY_DONE, 0, Body(), 0)
    await store.commit(worker_id, [Change(new_run_id(), 1, 0, [entry])])


class MustQueue(Exception):
    """A start cannot be owned at once: its queue is paused or has limits, or the store holds the worker for dead.
    It was not written, or another worker has it."""


class _Round:
    """Waits for one round of the event loop, with less ado than `asyncio.sleep(0)`: no function of Python is called."""

    __await__ = staticmethod(partial(iter, (None,)))  # static: from Python 3.14 on a partial would be a method


_A_ROUND = cast(Awaitable[None], _Round())


class Committer:
    """Writes the changes of all runs of one worker."""

    def __init__(
        self,
        store: Store,
        worker_id: str,
        settings: Settings,
        clock: DatabaseClock,
        may_act: Callable[[], bool],
        failed: Callable[[str], None],
        outage: Outage,
        reporter: Reporter,
        context: contextvars.Context,
    ) -> None:
        """Effects go out in `context`, not in their caller's."""
        self._store = store
        self._worker_id = worker_id
        self._settings = settings
        self._clock = clock
        self._may_act = may_act
        self._failed, self._outage, self._context = failed, outage, context
        self._waiting: deque[OwnedRun] = deque()
        self._held: deque[tuple[list[Item], Verdicts]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._sent: list[Item] = []
        """The batch that is on its way, or was last."""
        self._writing_since = math.inf
        self._giving_up: set[asyncio.Task[None]] = set()
        self._reporter = reporter if reporter.listens else None
        self._starters: list[tuple[asyncio.Future[Completion], Completion]] = []
        self._is_lone = False
        self._aside: dict[OwnedRun, tuple[Item, float]] = {}
        """Changes that wait for a locked row, and since when. Nothing else of their runs is sent."""
        self._behind: set[OwnedRun] = set()
        """Runs of these that have another change by now."""
        self._aside_task: asyncio.Task[None] | None = None

    def submit(self, run: OwnedRun) -> None:
        """The run has a change that was not there before."""
        self._waiting.append(run)
        if self._task is None and not self._stopped:
            loop = asyncio.get_running_loop()
            # Not create_task: a program's own task factory may begin it at once, within a context that is in use.
            self._task = asyncio.Task(self._write_all(), loop=loop, name="batuta-committer", context=self._context)

    def started(self, starter: asyncio.Future[Completion], completion: Completion) -> None:
        """A start is durable: tell who waits for it. When it was committed alone, that is done once the run's next
        change is on its way, or does not come at once: what the starter does then need not hold up that commit."""
        if self._is_lone or self._starters:
            self._starters.append((starter, completion))
            if not self._is_lone:
                self._tell_starters()
        elif not starter.done():  # it may have been cancelled; the run goes on
            starter.set_result(completion)

    def _tell_starters(self) -> None:
        for starter, completion in self._starters:
            if not starter.done():
                starter.set_result(completion)
        self._starters.clear()

    def is_writing(self, run: OwnedRun) -> bool:
        """Whether a change of the run is on its way."""
        for item in self._sent:
            if item[0] is run:
                return True
        return run in self._aside

    def stop(self) -> None:
        """Drop all. A batch in flight may or may not become durable; its effects do not go out."""
        self._stopped = True
        self._waiting.clear()
        self._held.clear()
        self._aside.clear()
        for task in self._tasks():
            task.cancel()

    def tick(self) -> None:
        """Called now and then: starts are told when the store does not answer for long."""
        if self._task is not None and self._clock.monotonic() - self._writing_since > _PATIENCE:
            why = f"the store has not answered for {human_duration(_PATIENCE)}"
            self._withdraw_starts(self._sent, OutcomeUnknown(f"{why}: start it again with the same id"), keep=True)
            self._withdraw_waiting(StoreUnavailable(f"{why}: the run was not started"))

    async def written(self, seconds: float) -> None:
        """Wait until nothing waits to be written, for so long at most."""
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=seconds)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._task, self._aside_task) if task is not None]

    # -- the loop

    async def _write_all(self) -> None:
        try:
            batch = self._sent = self._take_batch()
            sending: asyncio.Task[Verdicts] | None = None
            while batch or sending is not None:  # a batch on its way has no items left when its starts were withdrawn
                verdicts = await (sending or self._write(batch))
                self._writing_since = math.inf
                if verdicts:
                    batch, verdicts = self._set_aside(batch, verdicts)
                # The next batch goes out before this one's effects do: the database works while we do.
                following = self._sent = self._take_batch() if self._waiting else []
                sending = None
                if following:
                    sending = asyncio.get_running_loop().create_task(self._write(following))
                    await asyncio.sleep(0)
                self._is_lone = len(batch) == 1 and not following
                self.settle(batch, verdicts)
                self._is_lone = False
                if sending is not None:
                    batch = following
                    continue
                rounds = _ROUNDS  # quick answers come within two rounds: being there saves that of a new task
                while rounds and not self._waiting:
                    rounds -= 1
                    await _A_ROUND
                batch = self._sent = self._take_batch()
                if self._starters and batch:
                    asyncio.get_running_loop().call_soon(self._tell_starters)
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, everything is read again
            self._fail(error)
        finally:
            self._task = None
            self._tell_starters()
            if self._waiting and not self._stopped:
                run = self._waiting.popleft()
                self.submit(run)

    def _take_batch(self) -> list[Item]:
        if self._aside:
            behind = [run for run in self._waiting if run in self._aside]
            if behind:  # their changes come after those that wait for a row
                self._behind.update(behind)
                self._waiting = deque(run for run in self._waiting if run not in self._aside)
        return take_batch(self._waiting, self._settings)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, StoreFailed):
            log.critical("the store failed, everything in memory is dropped and read again: %s", told(error))
            self._failed(STORE_FAILED)
        elif isinstance(error, CommitsFail):
            self._failed(f"{COMMITS_FAIL}: {error}")
        else:
            log.critical("the committer failed, everything in memory is dropped and read again", exc_info=error)
            self._failed("the committer failed")

    # -- rows that others hold

    def _set_aside(self, batch: list[Item], verdicts: Verdicts) -> tuple[list[Item], Verdicts]:
        """The batch without changes whose row another session has locked. They are written again later, and hold up no
        others."""
        if Verdict.BUSY not in verdicts.values():
            return batch, verdicts
        kept: list[Item] = []
        found: Verdicts = {}
        since = self._clock.monotonic()
        for index, item in enumerate(batch):
            verdict = verdicts.get(index)
            if verdict is Verdict.BUSY:
                if item[0] not in self._aside:
                    log.warning(_WAITS, item[1].run_id)
                    self._aside[item[0]] = item, since
                continue
            if verdict is not None:
                found[len(kept)] = verdict
            kept.append(item)
        if self._aside_task is None and not self._stopped:
            loop = asyncio.get_running_loop()
            self._aside_task = asyncio.Task(
                self._write_aside(), loop=loop, name="batuta-committer-aside", context=self._context
            )
        return kept, found

    async def _write_aside(self) -> None:
        wait = _FIRST_WAIT
        try:
            while self._aside and not self._stopped:
                await asyncio.sleep(wait * (0.5 + jitter()))
                batch = [item for item, _ in self._aside.values()]
                sent = {item[0] for item in batch}
                verdicts = await self._write(batch, aside=True)
                busy = {item[0] for index, item in enumerate(batch) if verdicts.get(index) is Verdict.BUSY}
                over = [run for run in busy if self._is_over(run)]
                for run in over:  # a start is told, and nothing of it was written
                    run.drop(StoreUnavailable(_LOCKED_START))
                done = sent - busy
                kept, found = self._set_aside(batch, verdicts)
                for run in (*done, *over):
                    self._aside.pop(run, None)
                self.settle(kept, found)
                for run in (*done, *over):
                    if run in self._behind:
                        self._behind.discard(run)
                        self.submit(run)
                wait = _FIRST_WAIT if done else min(wait * 2, _LONGEST_ASIDE)
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, everything is read again
            self._fail(error)
        finally:
            self._aside_task = None

    def _is_over(self, run: OwnedRun) -> bool:
        """Whether it is a start that has waited for as long as a caller may be kept waiting."""
        item, since = self._aside[run]
        waits = item[1].start is not None and run.starting is not None
        return waits and self._clock.monotonic() - since > _PATIENCE

    def release(self) -> None:
        """The lease was renewed: what became durable while it was over may act now."""
        while self._held and self._may_act():
            self._act(*self._held.popleft())

    def settle(self, batch: list[Item], verdicts: Verdicts) -> None:
        """It is durable, or refused: its effects may go out."""
        if self._stopped:
            return
        if verdicts:
            batch, verdicts = self._set_aside(batch, verdicts)
        if self._held or not self._may_act():
            self._held.append((batch, verdicts))
        else:
            self._act(batch, verdicts)

    def _act(self, batch: list[Item], verdicts: Verdicts) -> None:
        failpoint("commit.effects")
        if self._reporter is not None:
            self._reporter.committed(batch, verdicts)
        if _TOGETHER:
            self._clock.stand()  # what begins now begins together: each would ask for the time
        try:
            found = map(verdicts.get, range(len(batch))) if verdicts else None  # None nearly always: all is written
            for run, change, effects in batch:
                try:
                    if found is None or (verdict := next(found)) is None:
                        run.settled(change, effects)
                    else:
                        _judged(run, change, effects, verdict)
                except Exception as error:
                    log.exception(
                        "what run %s was to do next failed: it is given up", run.identity.id, extra=run.machine.logged
                    )
                    run.drop()
                    self._give_up_later(run, error)
        finally:
            self._clock.go_on()

    def _give_up_later(self, run: OwnedRun, error: Exception) -> None:
        """It would be read again at a heartbeat, and executed, again and again: let that be counted."""

        async def give_up() -> None:
            try:
                await self._store.give_up(self._worker_id, [run.run_id], f"what it was to do next failed: {error!r}")
            except Exception as again:  # noqa: BLE001 - whatever it is, a heartbeat finds the run
                log.warning("run %s could not be given up: %r", run.identity.id, again, extra=run.machine.logged)

        task = asyncio.get_running_loop().create_task(give_up())
        self._giving_up.add(task)
        task.add_done_callback(self._giving_up.discard)

    # -- one batch

    async def _write(self, batch: list[Item], *, aside: bool = False) -> Verdicts:
        """Write until it is durable or refused. Raises StoreFailed and CommitsFail. `aside`: beside other batches."""
        failpoint("commit.before")
        if not aside:
            self._writing_since = self._clock.monotonic()
        wait, waited, unknown, failures = _FIRST_WAIT, 0.0, False, 0
        while True:
            try:
                commit = self._store.commit if self._reporter is None else self._reporter.timed(self._store.commit)
                changes = [batch[0][1]] if len(batch) == 1 else [change for _, change, _ in batch]
                verdicts = await commit(self._worker_id, changes)
                self._outage.worked(_WRITING)
                if unknown and verdicts:  # what a start waits for may be its own first try: it may yet come to be
                    busy = [item for index, item in enumerate(batch) if verdicts.get(index) is Verdict.BUSY]
                    self._withdraw_starts(busy, OutcomeUnknown(f"{_LOCKED_START}, with the same id"), keep=True)
                return verdicts
            except OutcomeUnknown as error:
                unknown = True
                self._outage.failed(_WRITING, error)
            except StoreUnavailable as error:
                self._outage.failed(_WRITING, error)
                if not unknown or waited > _PATIENCE:
                    self._withdraw_starts(batch, error if not unknown else OutcomeUnknown(str(error)), keep=unknown)
                self._withdraw_waiting(error)
            except BadData as error:
                return await self._split(batch, error)
            except StoreFailed:
                raise
            except Exception as error:
                failures += 1
                unknown = unknown or not isinstance(error, StoreError)
                self._outage.failed(_WRITING, error)
                if failures >= _TRIES:
                    if not await self._all_fail():
                        return await self._split(batch, error, unknown=unknown)
                    self._withdraw_starts(batch, _of_a_start(error, unknown), keep=unknown)
                    self._withdraw_waiting(StoreUnavailable(f"no commit works just now: {_told(error)}"))
                    if waited > self._settings.lease:
                        raise CommitsFail(_told(error)) from error
            await asyncio.sleep(wait * (0.5 + jitter()))
            waited += wait
            wait = min(wait * 2, _LONGEST_WAIT)

    def _withdraw_starts(self, batch: list[Item], error: Exception, *, keep: bool) -> None:
        """Tell starters that it did not work. `keep`: it may have been written, so the change stays in the batch."""
        for item in list(batch):
            run = item[0]
            if item[1].start is not None and run.starting is not None:
                if keep:
                    run.fail_start(error)
                else:
                    batch.remove(item)
                    run.drop(error)

    def _withdraw_waiting(self, error: Exception) -> None:
        """Tell those whose starts wait behind a batch that cannot be written: nothing was sent of them."""
        for run in list(self._waiting):
            if run.change is not None and run.change.start is not None:
                run.drop(error)

    async def _all_fail(self) -> bool:
        """Whether no commit of this worker works, whatever is in it."""
        try:
            await probe(self._store, self._worker_id)
        except Exception:  # noqa: BLE001 - whatever it is, it says so
            return True
        return False

    async def _give_up(self, item: Item, error: Exception) -> None:
        """Other workers may be able to write it. Each failure counts as a death, and in the end the run is parked."""
        run, reason = item[0], f"{COMMITS_FAIL}: {_told(error)}"
        log.error(
            "run %s is given up at entry %d, %s", run.identity.id, item[1].new_head, reason, extra=run.machine.logged
        )
        try:
            await self._store.give_up(self._worker_id, [run.run_id], reason)
        except Exception as again:  # as long as it is ours it would be executed here, again and again
            raise CommitsFail(_told(again)) from again

    async def _split(self, batch: list[Item], error: Exception, *, unknown: bool = False) -> Verdicts:
        """The database refused something: find whose, park that run or give it up, and let the others through."""
        if len(batch) <= 1:
            if not batch:  # withdrawn
                return {}
            run, change, _ = batch[0]
            if change.start is not None:
                run.drop(_of_a_start(error, unknown))
                return {0: Verdict.REFUSED}
            if not isinstance(error, BadData):
                await self._give_up(batch[0], error)
                return {0: Verdict.REFUSED}
            log.error(
                "run %s is parked: the database refuses its entry: %s",
                run.identity.id,
                told(error),
                extra=run.machine.logged,
            )
            reason = f"the database refuses the run's entry: {error}"
            move = Move(RunState.NEEDS_CODE, None, reason, run.workflow.fingerprint)
            parked = Change(run_id=change.run_id, epoch=change.epoch, head=change.head, move=move)
            if change.move != move:  # it was not this very parking that was refused
                alone: list[Item] = [(run, parked, [])]
                verdicts = await self._write(alone)
                if self._reporter is not None:
                    self._reporter.committed(alone, verdicts)
            return {0: Verdict.REFUSED}
        middle = len(batch) // 2
        first, second = batch[:middle], batch[middle:]
        verdicts = await self._write(first)
        for index, verdict in (await self._write(second)).items():
            verdicts[len(first) + index] = verdict
        batch[:] = first + second  # without the starts that were withdrawn from either half
        return verdicts


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"


def _of_a_start(error: Exception, unknown: bool) -> Exception:
    """The error for a starter."""
    if unknown:
        return OutcomeUnknown(f"the start failed in an unexpected way and may have been written ({_told(error)})")
    return error


def take_batch(waiting: deque[OwnedRun], settings: Settings) -> list[Item]:
    """The next batch, up to its limits."""
    batch: list[Item] = []
    rows, size = 0, 0
    most_rows, most_bytes = settings.batch_rows, settings.batch_bytes
    while waiting and rows < most_rows and size < most_bytes:
        run = waiting.popleft()
        taken = run.take_change()
        if taken is None:  # dropped meanwhile
            continue
        change, effects = taken
        if change.attempts:  # the last word on each counts, and a statement may touch a row once
            change.attempts = tuple({(one.seq, one.number): one for one in change.attempts}.values())
        batch.append((run, change, effects))
        entries = change.entries
        if len(entries) == 1:
            rows += 1
            size += len(entries[0].body)
        else:
            rows += len(entries) or 1
            size += sum([len(entry.body) for entry in entries])
    return batch


def _judged(run: OwnedRun, change: Change, effects: list[Effect], verdict: Verdict | list[Refusal]) -> None:
    """Not all of the change was written, or nothing of it."""
    if isinstance(verdict, list):
        run.settled(change, effects, verdict)
    elif verdict is Verdict.UNREAD:
        run.unread(change, effects)
    elif verdict is Verdict.QUEUED or (change.start is not None and verdict is Verdict.REFUSED):
        run.drop(MustQueue(run.identity.queue))
    elif verdict is Verdict.EXISTS:
        run.drop(AlreadyStarted(run.identity.id, "open or closed"))
    else:
        log.warning(
            "a write of run %s was refused: it has another owner, or is closed",
            run.identity.id,
            extra=run.machine.logged,
        )
        run.drop()
