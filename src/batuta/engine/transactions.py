"""Executes transactional activities: what they write, their answer and the turn that it causes commit together."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from batuta import failpoints
from batuta.authoring.attempt import CompleteLater, current_activity
from batuta.authoring.failures import to_failure
from batuta.authoring.transactions import Transaction
from batuta.engine.calls import Call, fatal
from batuta.engine.committer import STORE_FAILED
from batuta.engine.headers import headers_of
from batuta.engine.held import Held, Turn, hold, let_go, settle, take_back, take_turn
from batuta.engine.outbox import Outbox, of_the_run
from batuta.errors import (
    ActivityTimeout,
    InvalidInput,
    OutcomeUnknown,
    StoreFailed,
    StoreUnavailable,
    TransactionEnded,
    WorkerError,
)
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal import store as stores
from batuta.journal.records import Verdict
from batuta.serde import encode

if TYPE_CHECKING:
    from batuta.engine.live import LiveRun
    from batuta.engine.session import Session

log = logging.getLogger("batuta.engine")

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0
_REMEMBERED = 1_000


class Transactions:
    """Those of one worker."""

    def __init__(self, host: Session, lost: Callable[[str], None]) -> None:
        self._host, self._lost = host, lost
        self._executor, self._settings = host.executor, host.settings
        self._open: dict[Call, Transaction] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._wait = _FIRST_WAIT
        self._uncommitted: dict[tuple[RunId, int], float] = {}
        """When the store was first away at the commit of a call, by the monotonic clock."""

    def open(self, loop: asyncio.AbstractEventLoop, context: contextvars.Context) -> None:
        self._loop, self._context = loop, context

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def thread_pool(self) -> ThreadPoolExecutor:
        """Of their own, one for each place: who waits for a thread must not hold up all who write."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._settings.transactions, thread_name_prefix="batuta-transaction")
        return self._threads

    async def ended(self) -> None:
        """Wait until all of them are rolled back."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def of(self, call: Call) -> Transaction:
        """What the code of an attempt has. Raises WorkerError."""
        found = self._open.get(call)
        if found is None:
            raise WorkerError(
                f"activity {call.pending.name!r} has no transaction: decorate it with @activity(transactional=True)"
            )
        return found

    def begin(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin an attempt."""
        context = self._context.copy()
        context.run(current_activity.set, call)
        task = asyncio.Task(
            self._execute(call, args, kwargs), loop=self._loop, name="batuta-transaction", context=context
        )
        call.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def begin_later(self, call: Call) -> None:
        """The store was away when it was to be committed: the same attempt again, when it may be there."""
        self._executor.begin_later(call, self._wait)
        self._wait = min(self._wait * 2, _LONGEST_WAIT)

    def was_back(self, call: Call) -> bool:
        """Whether a heartbeat has reached the store since an attempt of the call met none at its commit."""
        first = self._uncommitted.get((call.run.run_id, call.seq))
        return first is not None and self._host.store_was_there(first)

    def is_its_own_fault(self, call: Call, was_back: bool) -> bool:
        """Whether an attempt that met no store at its commit failed by itself: one before it did so, too, and the store
        `was_back` when this one began. Where it is not, the worker loses its lease, and its runs."""
        key = (call.run.run_id, call.seq)
        if was_back:
            self._uncommitted.pop(key, None)
            return True
        if len(self._uncommitted) > _REMEMBERED:  # those of runs that are gone
            self._uncommitted.clear()
        self._uncommitted.setdefault(key, self._host.monotonic())
        return False

    def committed(self, call: Call) -> None:
        self._wait = _FIRST_WAIT
        self._uncommitted.pop((call.run.run_id, call.seq), None)

    async def _execute(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        attempt = _Attempt(self, call, self._host.store.transact(self._settings.transaction_time))
        try:
            await attempt.run(args, kwargs)
        except BaseException as error:
            await attempt.give_up(error)
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            self._open.pop(call, None)
            attempt.leave()


class _Attempt:
    """One attempt, from its begin to its commit."""

    def __init__(self, all_of_them: Transactions, call: Call, transaction: stores.Transaction) -> None:
        self._all, self._call, self._transaction = all_of_them, call, transaction
        self._host, self._executor, self._loop = all_of_them._host, all_of_them._executor, all_of_them._loop
        self._run = call.run
        self._held: Held | None = None
        self._plain: _Plain | None = None
        self._was_back = all_of_them.was_back(call)

    async def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = self._call
        if not self._host.may_act():
            await self._host.permission()
        if self._transaction.blocking:  # while it is open nothing can be written: what comes before it must be
            await self._hold(Held(call))
        await self._begin()
        failpoint("transaction.begun")
        offered = Transaction(lambda: self._transaction.connection, self._host.settings.max_payload)
        self._all._open[call] = offered
        try:
            within = self._executor.within
            work = self._called(args, kwargs) if within is None else within(call, args, kwargs, self._called)
            value = await self._within_time(work)
        finally:
            offered.over = True
        if call.over:  # its code did not let itself be cancelled
            raise asyncio.CancelledError
        if failpoints.armed is not None:
            failpoint("activity.after")
        data = encode(value, call.activity.codec.output, self._host.settings.max_payload)
        call.activity.codec.decode_result(data)
        headers = headers_of(self._run.started_with)
        outbox = Outbox(offered.outgoing, self._host.clock.now(), self._run.identity, headers)
        self._executor.finish(call)
        await self._take_turn(data)
        if (turn := self._turn) is not None:
            await self._commit(turn, outbox)

    async def _begin(self) -> None:
        """A store that is away is not the activity's fault."""
        wait = _FIRST_WAIT
        while True:
            try:
                return await self._transaction.begin()
            except StoreUnavailable as error:
                log.warning("the transaction of activity %s cannot begin yet: %s", self._call.pending.name, error)
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)

    async def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._call.activity.is_async:
            return await self._call.activity.fn(*args, **kwargs)
        context = contextvars.Context() if self._executor.within is None else contextvars.copy_context()
        context.run(current_activity.set, self._call)
        plain = self._plain = _Plain(self._loop, self._call, args, kwargs)
        plain.begin(self._all.thread_pool(), context)
        try:
            return await plain.answer
        except asyncio.CancelledError:
            plain.cancel()
            raise

    async def _within_time(self, work: Any) -> Any:
        seconds = self._transaction.seconds
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            name = self._call.pending.name
            raise ActivityTimeout(f"activity {name!r} held its transaction for longer than {seconds:g} s") from error

    # -- the turn

    @property
    def _turn(self) -> Turn | None:
        """That of its answer, once it has run."""
        return None if self._held is None else self._held.turn

    async def _hold(self, held: Held) -> None:
        self._held = held
        hold(self._run, held)
        await held.reached

    async def _take_turn(self, data: bytes) -> None:
        """Run the turn of the answer, in its place among the run's inputs and not in this task."""
        held = self._held
        if held is None:
            held = Held(self._call, data)
            await self._hold(held)
        else:
            held.reached = self._loop.create_future()
            self._loop.call_soon(_take_turn, self._run, held, data, context=self._all._context)
            await held.reached
        if held.turn is None:  # the run has ended, is parked or was told of a failure: the committer writes that
            await self._transaction.rollback()
            self._call.over = True
            let_go(self._run, held)

    async def _commit(self, turn: Turn, outbox: Outbox) -> None:
        change = turn[0]
        outbox.add_to(change)
        failpoint("transaction.turned")
        answer = await self._transaction.commit(self._host.info.worker_id, change, outbox.may_leave)
        if answer is Verdict.UNREAD:  # what it was sent must be read before it closes: then it is executed anew
            self._take_back(lambda: self._executor.begin_anew(self._call))
            return
        if isinstance(answer, Verdict):
            log.warning("a write of run %s was refused: it has another owner, or is closed", self._run.identity.id)
            self._run.drop()
            return
        self._all.committed(self._call)
        failpoint("transaction.durable")
        if not self._host.may_act():
            await self._host.permission()
        self._call.over = True
        if not self._host.over:
            if self._host.reporter.listens:
                self._host.reporter.committed([(self._run, *turn)], {})
            settle(self._run, turn, of_the_run(answer))

    # -- what goes wrong

    async def give_up(self, error: BaseException) -> None:
        """Nothing of it is there: try again as its policy says, or leave that to whoever has the run now."""
        with suppress(asyncio.CancelledError):  # asked once more to end
            await self._transaction.rollback()
        call = self._call
        if isinstance(error, StoreFailed):
            self._all._lost(STORE_FAILED)
        elif self._host.over or (isinstance(error, asyncio.CancelledError) and self._turn is not None):
            return  # dropped while it was committed: whoever has the run reads what became of it
        elif isinstance(error, OutcomeUnknown):
            log.warning("activity %s of run %s may be committed: %s", call.pending.name, self._run.identity.id, error)
            self._take_back(lambda: self._executor.begin_anew(call))
        elif self._is_stores_fault(error):
            log.warning("activity %s of run %s is not committed: %s", call.pending.name, self._run.identity.id, error)
            self._take_back(lambda: self._all.begin_later(call))
        elif self._turn is not None:
            failure = to_failure(error)
            if isinstance(error, TransactionEnded):
                fatal(failure)
            self._take_back(lambda: self._executor.conclude(call, failure))
        else:
            if self._held is not None:
                let_go(self._run, self._held)
            self._executor.fail(call, _explained(call, error))

    def _is_stores_fault(self, error: BaseException) -> bool:
        away = self._turn is not None and isinstance(error, StoreUnavailable)
        return away and not self._all.is_its_own_fault(self._call, self._was_back)

    def _take_back(self, then: Callable[[], None]) -> None:
        held = self._held
        if held is not None and (turn := held.turn) is not None:
            held.turn = None
            self._loop.call_soon(take_back, self._run, held, turn, then, context=self._all._context)

    def leave(self) -> None:
        """Its place is free when its code has really ended."""
        plain = self._plain
        if plain is not None and plain.is_at_work():
            plain.ended.add_done_callback(self._leave_from_thread)
        else:
            self._executor.vacate(self._call)

    def _leave_from_thread(self, _: Future[None]) -> None:
        with suppress(RuntimeError):  # the worker and its loop may be gone
            self._loop.call_soon_threadsafe(self._executor.vacate, self._call)


class _Plain:
    """The call of a plain function, in its thread, which may take longer than anybody waits for it.

    Its answer comes by one call into the event loop. `run_in_executor` chains two futures for that and asks ten times
    what it was given, which was a tenth of the calls of a transactional step on SQLite.
    """

    ended: Future[None]
    """Done when the thread has left the function, or never begins it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._loop, self._call, self._args, self._kwargs = loop, call, args, kwargs
        self.over = False
        self.answer: asyncio.Future[Any] = loop.create_future()

    def begin(self, threads: ThreadPoolExecutor, context: contextvars.Context) -> None:
        self.ended = threads.submit(context.run, self)
        if (hold := getattr(self._loop, "hold_time_until", None)) is not None:
            hold(self.answer)  # a loop with a clock of its own, in tests

    def cancel(self) -> None:
        """Nobody waits any more: it is not begun, if it has not been."""
        self.ended.cancel()

    def is_at_work(self) -> bool:
        """Whether a thread is in the function, or cannot be kept from it any more."""
        return not self.over and hasattr(self, "ended") and not self.ended.done()

    def __call__(self) -> None:
        value: Any = None
        failed: BaseException | None = None
        try:
            value = self._call.activity.fn(*self._args, **self._kwargs)
        except StopIteration as error:  # no future takes it
            failed = RuntimeError(f"activity {self._call.pending.name!r} raised StopIteration")
            failed.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the activity's answer
            failed = error
        self.over = True
        with suppress(RuntimeError):  # the worker and its loop may be gone
            self._loop.call_soon_threadsafe(self._tell, value, failed)
        del failed  # whose traceback holds this frame

    def _tell(self, value: Any, failed: BaseException | None) -> None:
        if self.answer.done():
            return
        if failed is None:
            self.answer.set_result(value)
        else:
            self.answer.set_exception(failed)


def _take_turn(run: LiveRun, held: Held, data: bytes) -> None:
    if not held.reached.done():
        take_turn(run, held, data)
        if not held.reached.done():
            held.reached.set_result(None)


def _explained(call: Call, error: BaseException) -> BaseException:
    if isinstance(error, CompleteLater):
        return InvalidInput(
            f"activity {call.pending.name!r} is transactional and raised CompleteLater: its transaction cannot wait "
            f"for an answer from outside"
        )
    return error
