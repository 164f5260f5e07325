"""Executes transactional activities: what they write, their answer and the turn that it causes commit together."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

from batuta.authoring.activity.attempt import CompleteLater, current_activity
from batuta.authoring.activity.transactional import Transaction
from batuta.authoring.failures.conversion import answerable, to_failure
from batuta.durations import human_duration
from batuta.engine.activities.call import Call, TransactionalInput, Turn, fatal
from batuta.engine.activities.executor import Executor
from batuta.engine.activities.outbox import Outbox, of_the_run
from batuta.engine.activities.threads import Threads
from batuta.engine.machine.headers import headers_of
from batuta.engine.worker.database_clock import DatabaseClock
from batuta.engine.worker.outage import Outage
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
from batuta.journal.records import Refusal, Verdict, WorkerInfo
from batuta.serde import encode
from batuta.settings import Settings

log = logging.getLogger("batuta.engine")

_set_current = current_activity.set
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0
_REMEMBERED = 1_000


class Host(Protocol):
    """The part of the worker that transactions use."""

    store: stores.Store
    settings: Settings
    clock: DatabaseClock
    executor: Executor
    info: WorkerInfo
    outage: Outage
    monotonic: Callable[[], float]

    @property
    def over(self) -> bool: ...
    def may_act(self) -> bool: ...
    def permission(self) -> Coroutine[Any, Any, None]: ...
    def store_was_there(self, since: float) -> bool: ...

    def store_failed(self) -> None:
        """The store must be opened anew: everything is dropped."""
        ...


class Transactions:
    """The transactions of one worker."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._executor, self._settings = host.executor, host.settings
        self._open: dict[Call, _Attempt] = {}
        """Those whose code has been given the transaction, in the order in which that was."""
        self._watching: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.threads = Threads("batuta-transaction")
        """Of their own, one for each call: who waits for a thread must not hold up all who write."""
        self._wait = _FIRST_WAIT
        self._uncommitted: dict[tuple[RunId, int], float] = {}
        """When the store was first away at the commit of a call, by the monotonic clock."""

    def open(self, loop: asyncio.AbstractEventLoop, context: contextvars.Context) -> None:
        self._loop, self._context = loop, context
        self.hold_time = getattr(loop, "hold_time_until", None)  # a loop with a clock of its own, in tests

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._watching is not None:
            self._watching.cancel()
        self.threads.close()

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
        return found.offered

    def begin(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin an attempt."""
        context = self._context.copy()
        context.run(_set_current, call)
        attempt = _Attempt(self, call, self._host.store.transact(self._settings.transaction_time))
        work = attempt.execute(args, kwargs)
        task = attempt.task = asyncio.Task(work, loop=self._loop, name="batuta-transaction", context=context)
        call.task = task
        self._tasks.add(task)
        task.add_done_callback(attempt.ended)

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
        if self._uncommitted:
            self._uncommitted.pop((call.run.run_id, call.seq), None)

    def watch(self, attempt: _Attempt) -> None:
        """Its code has the transaction now, for so long at most. All may take as long, so that one timer is enough."""
        self._open[attempt.call] = attempt
        if self._watching is None:
            self._look_in(attempt.seconds)

    def _look_in(self, seconds: float) -> None:
        self._watching = self._loop.call_later(seconds, self._look, context=self._context)

    def _look(self) -> None:
        self._watching = None
        now = self._loop.time()
        for attempt in self._open.values():
            if attempt.offered.over:
                continue
            left = attempt.begun_at + attempt.seconds - now
            if left > 0:
                self._look_in(left)
                return
            attempt.interrupt()

    def forget(self, call: Call) -> None:
        self._open.pop(call, None)


class _Attempt:
    """One attempt, from its begin to its commit."""

    task: asyncio.Task[None]
    offered: Transaction

    def __init__(self, all_of_them: Transactions, call: Call, transaction: stores.Transaction) -> None:
        self._all, self.call, self._transaction = all_of_them, call, transaction
        self._host, self._executor, self._loop = all_of_them._host, all_of_them._executor, all_of_them._loop
        self._run, self.seconds = call.run, transaction.seconds
        self._answer: TransactionalInput | None = None
        self._plain: _Plain | None = None
        self._is_begun = self._interrupted = False
        self.begun_at = 0.0
        self._was_back = bool(all_of_them._uncommitted) and all_of_them.was_back(call)

    async def execute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Never raises, but for a keyboard interrupt."""
        self._is_begun = True
        call, host, transaction = self.call, self._host, self._transaction
        try:
            if not host.may_act():
                await host.permission()
            if transaction.blocking:  # while it is open nothing can be written: what comes before it must be
                answer = self._answer = TransactionalInput(call)
                self._run.add_input(answer)
                await answer.reached
            try:
                await transaction.begin()
            except StoreUnavailable as error:
                await self._begin_later(error)
            failpoint("transaction.begun")
            value = await self._within_time(args, kwargs)
            if call.over:  # its code did not let itself be cancelled
                raise asyncio.CancelledError
            failpoint("activity.after")
            data = encode(value, call.activity.codec.output, host.settings.max_payload)
            call.activity.codec.decode_result(data)
            outbox = self._outbox() if self.offered.outgoing else None
            self._executor.finish(call)
            answer = self._take_turn(data)
            await answer.reached
            if answer.turn is None:
                await self._ended_without(answer)
            else:
                await self._commit(answer.turn, outbox)
        except KeyboardInterrupt as error:
            await self._give_up(error)
            raise
        except BaseException as error:  # noqa: BLE001 - whatever an activity raises is its answer
            await self._give_up(answerable(error))
        finally:
            self._leave()

    async def _begin_later(self, error: StoreUnavailable) -> None:
        """A store that is away is not the activity's fault."""
        wait, outage = _FIRST_WAIT, self._host.outage
        doing = f"beginning the transaction of activity {self.call.pending.name}"
        while True:
            outage.failed(doing, error, holds=False)
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)
            try:
                return await self._transaction.begin()
            except StoreUnavailable as again:
                error = again

    async def _within_time(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value that its code returns."""
        transaction, within = self._transaction, self._executor.within
        self.offered = Transaction(lambda: transaction.connection, self._host.settings.max_payload, self.call.publish)
        self.begun_at = self._loop.time()
        self._all.watch(self)
        try:
            if within is None:
                return await self._called(args, kwargs)
            return await within(self.call, args, kwargs, self._called)
        except asyncio.CancelledError as error:
            if not self._interrupted or self.task.cancelling() > 1:
                raise
            name = self.call.pending.name
            raise ActivityTimeout(
                f"activity {name!r} held its transaction for longer than {human_duration(self.seconds)}"
            ) from error
        finally:
            self.offered.over = True
            if self._interrupted:
                self.task.uncancel()

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        self.call.check_gates()
        if self.call.activity.is_async:
            return cast(Awaitable[Any], self.call.activity.fn(*args, **kwargs))
        context = contextvars.Context() if self._executor.within is None else contextvars.copy_context()
        context.run(_set_current, self.call)
        plain = _Plain(self._loop, self.call, args, kwargs)
        self._all.threads.call(context, plain)
        self._plain = plain  # not before: where no thread can be had, none will leave
        if (hold_time := self._all.hold_time) is not None:
            hold_time(plain.answer)
        return plain.answer

    def interrupt(self) -> None:
        """It is over its time."""
        if not self._interrupted:
            self._interrupted = True
            self.task.cancel()

    def _outbox(self) -> Outbox:
        headers = headers_of(self._run.started_with)
        return Outbox(self.offered.outgoing, self._host.clock.now(), self._run.identity, headers)

    # -- the turn

    @property
    def _turn(self) -> Turn | None:
        """The turn of its answer, once it has run."""
        return None if self._answer is None else self._answer.turn

    def _take_turn(self, data: bytes) -> TransactionalInput:
        """Have the turn of the answer run, in its place among the run's inputs and not in this task."""
        answer = self._answer
        if answer is None:
            answer = self._answer = TransactionalInput(self.call, data)
            self._run.add_input(answer)
        else:
            answer.wait_again()
            self._loop.call_soon(self._turn_now, answer, data, context=self._all._context)
        return answer

    def _turn_now(self, answer: TransactionalInput, data: bytes) -> None:
        if not answer.reached.done():
            self._run.take_turn(answer, data)
            if not answer.reached.done():
                answer.reached.set_result(None)

    async def _ended_without(self, answer: TransactionalInput) -> None:
        """The run has ended, is parked or was told of a failure: the committer writes that."""
        await self._transaction.rollback()
        self.call.over = True
        self._run.remove_input(answer)

    async def _commit(self, turn: Turn, outbox: Outbox | None) -> None:
        change = turn[0]
        if outbox is not None:
            outbox.add_to(change)
        failpoint("transaction.turned")
        may_leave = _nothing_left if outbox is None else outbox.may_leave
        answer = await self._transaction.commit(self._host.info.worker_id, change, may_leave, self.offered.messages)
        if answer is Verdict.UNREAD:  # what it was sent must be read before it closes: then it is executed anew
            self._take_back(lambda: self._executor.begin_anew(self.call))
            return
        if isinstance(answer, Verdict):
            log.warning(
                "a write of run %s was refused: it has another owner, or is closed",
                self._run.identity.id,
                extra=self._run.machine.logged,
            )
            self._run.drop()
            return
        self._all.committed(self.call)
        failpoint("transaction.durable")
        if not self._host.may_act():
            await self._host.permission()
        self.call.over = True
        if not self._host.over:
            self._run.settle_transaction(turn, of_the_run(answer) if answer else ())

    # -- what goes wrong

    async def _give_up(self, error: BaseException) -> None:
        """Nothing of it is there: try again as its policy says, or leave that to the run's new owner."""
        with suppress(asyncio.CancelledError):  # asked once more to end
            await self._transaction.rollback()
        call = self.call
        if isinstance(error, StoreFailed):
            self._host.store_failed()
        elif self._host.over or (isinstance(error, asyncio.CancelledError) and self._turn is not None):
            return  # dropped while it was committed: the run's new owner reads the outcome
        elif self._is_stores_fault(error):
            doing = f"committing activity {call.pending.name} of run {self._run.identity.id}"
            self._host.outage.failed(doing, cast(Exception, error), holds=False)
            self._take_back(lambda: self._all.begin_later(call))
        elif self._turn is not None:
            failure = to_failure(error)
            if isinstance(error, TransactionEnded):
                fatal(failure)
            self._take_back(lambda: self._executor.conclude(call, failure))
        else:
            if self._answer is not None:
                self._run.remove_input(self._answer)
            self._executor.fail(call, _explained(call, error))

    def _is_stores_fault(self, error: BaseException) -> bool:
        away = self._turn is not None and isinstance(error, StoreUnavailable | OutcomeUnknown)
        return away and not self._all.is_its_own_fault(self.call, self._was_back)

    def _take_back(self, then: Callable[[], None]) -> None:
        answer = self._answer
        if answer is not None and (turn := answer.turn) is not None:
            answer.turned(None)
            self._loop.call_soon(self._run.take_back, answer, turn, then, context=self._all._context)

    def ended(self, task: asyncio.Task[None]) -> None:
        self._all._tasks.discard(task)
        if not self._is_begun:  # cancelled in the round of the event loop in which it was made
            self._leave()

    def _leave(self) -> None:
        """Its place is free when its code has really ended."""
        self._all.forget(self.call)
        plain = self._plain
        if plain is None or plain.is_over:
            self._executor.vacate(self.call)
        else:
            plain.then = self._executor.vacate


class _Plain:
    """The call of a plain function, in its thread, which may take longer than anybody waits for it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._loop, self._call, self._args, self._kwargs = loop, call, args, kwargs
        self.answer: asyncio.Future[Any] = loop.create_future()
        """Cancelled when the answer is not wanted any more: the function is not called then, if it has not been."""
        self.is_over = False
        self.then: Callable[[Call], None] | None = None
        """Called when the thread has left the function."""

    def __call__(self) -> None:
        value: Any = None
        failed: BaseException | None = None
        try:
            if not self.answer.cancelled():
                self._call.check_gates()
                value = self._call.activity.fn(*self._args, **self._kwargs)
        except StopIteration as error:  # no future takes it
            failed = RuntimeError(f"activity {self._call.pending.name!r} raised StopIteration")
            failed.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the activity's answer
            failed = error
        with suppress(RuntimeError):  # the worker and its loop may be gone
            self._loop.call_soon_threadsafe(self._tell, value, failed)
        del failed  # whose traceback holds this frame

    def _tell(self, value: Any, failed: BaseException | None) -> None:
        self.is_over = True
        if self.then is not None:
            self.then(self._call)
        if self.answer.done():
            return
        if failed is None:
            self.answer.set_result(value)
        else:
            self.answer.set_exception(failed)


def _nothing_left(_: Sequence[Refusal]) -> None:
    """Whether what was refused may be: it was sent by the run, which is told of it."""


def _explained(call: Call, error: BaseException) -> BaseException:
    if isinstance(error, CompleteLater):
        return InvalidInput(
            f"activity {call.pending.name!r} is transactional and raised CompleteLater: its transaction cannot wait "
            f"for an answer from outside"
        )
    return error
