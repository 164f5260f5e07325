"""Gated group commit: everything that waits becomes durable in one transaction, then its effects go out.

One transaction is in flight at a time. What arrives meanwhile forms the next batch; there are no timers.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from batuta import failpoints
from batuta.engine.dbclock import DatabaseClock
from batuta.errors import AlreadyStarted, BadData, OutcomeUnknown, StoreFailed, StoreUnavailable
from batuta.failpoints import failpoint
from batuta.ids import jitter
from batuta.journal.entries import Entry
from batuta.journal.records import Change, Move, Refusal, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.settings import Settings

if TYPE_CHECKING:
    from batuta.engine.completion import Completion
    from batuta.engine.live import Effect, LiveRun
    from batuta.engine.reporter import Reporter

log = logging.getLogger("batuta.engine")

_FIRST_WAIT, _LONGEST_WAIT = 0.02, 2.0
_PATIENCE = 5.0
_ROUNDS = 2
_TOGETHER = sys.version_info < (3, 12)
"""Effects only begin things. From Python 3.12 on they may run an activity, too, for as long as it does not wait."""

STORE_FAILED = "the store failed"
"""Why everything was dropped, when it was an fsync: the store must be opened anew."""


class MustQueue(Exception):
    """A start cannot be owned at once: its queue is paused, or has limits. Nothing was written."""


class _Round:
    """Waits for one round of the event loop, with less ado than `asyncio.sleep(0)`: no function of Python is called."""

    __await__ = staticmethod(partial(iter, (None,)))  # static: from Python 3.14 on a partial would be a method


_A_ROUND = cast(Awaitable[None], _Round())

Item = tuple["LiveRun", Change, list["Effect"]]
Verdicts = dict[int, Verdict | list[Refusal]]


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
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._settings = settings
        self._clock = clock
        self._may_act = may_act
        self._failed = failed
        self._waiting: deque[LiveRun] = deque()
        self._held: deque[tuple[list[Item], Verdicts]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._sent: list[Item] = []
        """The batch that is on its way, or was last."""
        self._reporter: Reporter | None = None
        self._starters: list[tuple[asyncio.Future[Completion], Completion]] = []
        self._is_lone = False

    def open(self, context: contextvars.Context) -> None:
        """Effects go out in this context, whoever's call caused them."""
        self._context = context

    def report_to(self, reporter: Reporter) -> None:
        """Somebody may listen to what becomes durable."""
        if reporter.listens:
            self._reporter = reporter

    def submit(self, run: LiveRun) -> None:
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

    def is_writing(self, run: LiveRun) -> bool:
        """Whether a change of the run is on its way."""
        for item in self._sent:  # noqa: SIM110 - a generator costs more than it, and there is rarely more than one
            if item[0] is run:
                return True
        return False

    def stop(self) -> None:
        """Drop all. What is in flight may or may not become durable; nobody here will act on it."""
        self._stopped = True
        self._waiting.clear()
        self._held.clear()
        if self._task is not None:
            self._task.cancel()

    async def written(self, seconds: float) -> None:
        """Wait until nothing waits to be written, for so long at most."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)

    # -- the loop

    async def _write_all(self) -> None:
        try:
            batch = self._sent = take_batch(self._waiting, self._settings)
            sending: asyncio.Task[Verdicts] | None = None
            while batch:
                verdicts = await (sending or self._write(batch))
                # The next batch goes out before this one's effects do: the database works while we do.
                following = self._sent = take_batch(self._waiting, self._settings) if self._waiting else []
                sending = None
                if following:
                    sending = asyncio.get_running_loop().create_task(self._write(following))
                    await asyncio.sleep(0)
                self._is_lone = len(batch) == 1 and not following
                self.settle(batch, verdicts)
                self._is_lone = False
                if following:
                    batch = following
                    continue
                rounds = _ROUNDS  # quick answers come within two rounds: being there saves that of a new task
                while rounds and not self._waiting:
                    rounds -= 1
                    await _A_ROUND
                batch = self._sent = take_batch(self._waiting, self._settings)
                if self._starters and batch:
                    asyncio.get_running_loop().call_soon(self._tell_starters)
        except asyncio.CancelledError:
            pass
        except StoreFailed as error:
            log.critical("the store failed, everything in memory is dropped and read again: %s", error)
            self._failed(STORE_FAILED)
        except Exception:
            log.critical("the committer failed, everything in memory is dropped and read again", exc_info=True)
            self._failed("the committer failed")
        finally:
            self._task = None
            self._tell_starters()
            if self._waiting and not self._stopped:
                run = self._waiting.popleft()
                self.submit(run)

    def release(self) -> None:
        """The lease was renewed: what became durable while it was over may act now."""
        while self._held and self._may_act():
            self._act(*self._held.popleft())

    def settle(self, batch: list[Item], verdicts: Verdicts) -> None:
        """It is durable, or refused: its effects may go out."""
        if self._stopped:
            return
        if self._held or not self._may_act():
            self._held.append((batch, verdicts))
        else:
            self._act(batch, verdicts)

    def _act(self, batch: list[Item], verdicts: Verdicts) -> None:
        if failpoints.armed is not None:
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
                except Exception:
                    log.exception("run %s is dropped and will be read again", run.identity.id)
                    run.drop()
        finally:
            self._clock.go_on()

    # -- one batch

    async def _write(self, batch: list[Item]) -> Verdicts:
        """Write until it is durable or refused. Raises StoreFailed."""
        if failpoints.armed is not None:
            failpoint("commit.before")
        wait, waited, unknown = _FIRST_WAIT, 0.0, False
        while True:
            try:
                commit = self._store.commit if self._reporter is None else self._reporter.timed(self._store.commit)
                changes = [batch[0][1]] if len(batch) == 1 else [change for _, change, _ in batch]
                return await commit(self._worker_id, changes)
            except OutcomeUnknown as error:
                unknown = True
                log.warning("a batch of %d may or may not be durable, writing it again: %s", len(batch), error)
            except StoreUnavailable as error:
                log.warning("the store is away, %d changes wait: %s", len(batch), error)
                if not unknown or waited > _PATIENCE:
                    self._withdraw_starts(batch, error if not unknown else OutcomeUnknown(str(error)), keep=unknown)
            except BadData as error:
                return await self._split(batch, error)
            await asyncio.sleep(wait * (0.5 + jitter()))
            waited += wait
            wait = min(wait * 2, _LONGEST_WAIT)

    def _withdraw_starts(self, batch: list[Item], error: Exception, *, keep: bool) -> None:
        """Tell starters that it did not work. `keep`: it may have been written, so the change stays in the batch."""
        for item in list(batch):
            run = item[0]
            if item[1].start is not None and run.starting is not None:
                if keep:
                    if not run.starting.done():
                        run.starting.set_exception(error)
                    run.starting = None
                else:
                    batch.remove(item)
                    run.drop(error)

    async def _split(self, batch: list[Item], error: BadData) -> Verdicts:
        """The database refused some value: find whose, park that run, and let the others through."""
        if len(batch) == 1:
            run, change, _ = batch[0]
            if change.start is not None:
                run.drop(error)
                return {0: Verdict.REFUSED}
            log.error("run %s is parked: the database refuses its entry: %s", run.identity.id, error)
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


def take_batch(waiting: deque[LiveRun], settings: Settings) -> list[Item]:
    """What waits, up to the limits of a batch."""
    batch: list[Item] = []
    rows, size = 0, 0
    most_rows, most_bytes = settings.batch_rows, settings.batch_bytes
    while waiting and rows < most_rows and size < most_bytes:
        run = waiting.popleft()
        change = run.change
        if change is None:  # dropped meanwhile
            continue
        if change.attempts:
            _keep_last_words(change)
        batch.append((run, change, run.effects))
        run.change = None
        run.effects = []
        entries = change.entries
        if len(entries) == 1:
            rows += 1
            size += len(entries[0].body)
        else:
            rows += len(entries) or 1
            size += _size_of(entries)
    return batch


def _keep_last_words(change: Change) -> None:
    """The last word on each attempt counts, and a statement may touch a row once."""
    change.attempts = tuple({(one.seq, one.number): one for one in change.attempts}.values())


def _size_of(entries: list[Entry]) -> int:
    return sum([len(entry.body) for entry in entries])


def _judged(run: LiveRun, change: Change, effects: list[Effect], verdict: Verdict | list[Refusal]) -> None:
    """Not all of the change was written, or nothing of it."""
    if isinstance(verdict, list):
        run.settled(change, effects, verdict)
    elif verdict is Verdict.UNREAD:
        run.unread(change, effects)
    elif verdict is Verdict.QUEUED:
        run.drop(MustQueue(run.identity.queue))
    elif verdict is Verdict.EXISTS:
        run.drop(AlreadyStarted(run.identity.id, "open or closed"))
    else:
        log.warning("a write of run %s was refused: it has another owner, or is closed", run.identity.id)
        run.drop()
