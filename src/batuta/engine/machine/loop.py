"""A small event loop on which plain asyncio code runs the same way every time.

Ready callbacks run first in, first out; time is that of the run's journal; timers are durable. It has no selector,
no thread and no clock. It runs only inside a turn, when the machine that owns it calls `run_until_idle`.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any, NoReturn, Protocol, TypeVar, cast

from msgspec import Struct

from batuta.engine.machine.deferred_logs import is_printable
from batuta.engine.machine.deterministic_order import order_as_completed, order_gathers, order_scopes
from batuta.errors import Forbidden, Spins, WorkflowBroken, told

log = logging.getLogger("batuta.engine")

MOST_CALLBACKS = 100_000
"""A turn that runs more callbacks than this waits for nothing and never will."""
_SPINS = (
    f"the workflow ran {MOST_CALLBACKS:,} callbacks in one turn without waiting for anything: "
    f"await an activity or a timer inside the loop that spins"
)

MOST_DELIVERIES = 1_000
"""How often one turn cancels the tasks of a cancelled scope of anyio anew. The next turn goes on with it."""

_HASH_STEP = 0x9E3779B97F4A7C15  # spreads consecutive numbers over all bits
_HASH_MASK = 0x7FFF_FFFF_FFFF_FFFF


_new_task, _begin_task = asyncio.Task.__new__, asyncio.Task.__init__  # looked up here, not anew for each task
_done = asyncio.Task.done
Broken = TypeVar("Broken", bound=WorkflowBroken)


class TimerHost(Protocol):
    """Who keeps a loop's timers: the machine. Returns the number of the command that set the timer."""

    def set_timer(self, handle: RunTimerHandle, delay: float) -> int: ...
    def drop_timer(self, seq: int) -> None: ...
    def seconds(self) -> float: ...


class RunFuture(asyncio.Future[Any]):
    """A future whose hash is counted, not its address: sets of futures iterate in the same order in every replay.

    It is counted when it is first asked for, which is a deterministic moment, too; most futures are never in a set.
    """

    __slots__ = ("_number",)

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            self._number: int = cast(RunLoop, self.get_loop()).next_hash()
            return self._number


Waiter = asyncio.Future[Any]
"""What a call of ours waits for, which no code of a workflow ever has in its hands, nor in a set: a plain future. Tasks
have a short way for those, and for a subclass ask for each of its methods by name: a tenth of a turn."""


class RunTask(asyncio.Task[Any]):
    """A task with a counted hash and name (asyncio.wait and TaskGroup iterate sets of tasks)."""

    __slots__ = ("_number",)

    _number: int
    """Set before it is begun, which puts it into a set: see `RunLoop.begin`."""

    def __hash__(self) -> int:
        return self._number


class RunHandle(Struct, eq=False):
    """A callback that waits its turn. In place of asyncio's handle, whose making looks at debug settings."""

    _call: tuple[Any, ...]
    """The callback and its arguments, as they came: they are handed on without another tuple."""
    _context: contextvars.Context
    _cancelled: bool = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def get_context(self) -> contextvars.Context:
        return self._context


class RunTimerHandle(RunHandle, eq=False, kw_only=True):
    """A durable timer. Cancelling it takes it off the run's list; nothing is written for that."""

    host: TimerHost
    due: float
    seq: int = 0

    def when(self) -> float:
        return self.due

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self.host.drop_timer(self.seq)

    def __hash__(self) -> int:
        return self.seq


class RunLoop(asyncio.AbstractEventLoop):
    """The event loop of one run."""

    def __init__(self, host: TimerHost, seed: int) -> None:
        self._host = host
        self._ready: list[RunHandle] = []
        self._postponed: list[RunHandle] = []
        """What the next turn runs after its input."""
        self._deliveries = 0
        self._hashes = seed
        self.counter = self._gathers = 0
        self._tasks: list[RunTask] = []
        self._generators: list[AsyncGenerator[Any, Any]] = []
        self._prune_at = 64
        self.in_turn = self._torn_down = False
        self._step: type | None = None
        """The type of what asyncio's tasks give to call_soon for their next step."""
        self.broken: WorkflowBroken | None = None
        order_scopes()

    def next_hash(self) -> int:
        """Counts tasks and futures. From the run's seed: equal in each replay, and unlike those of other runs, which
        share asyncio's set of all tasks."""
        self.counter += 1
        self._hashes = count = self._hashes + 1
        return (count * _HASH_STEP) & _HASH_MASK

    def next_gather_hash(self) -> int:
        """The same for the futures of `asyncio.gather`, which have a counter of their own: journals were written while
        theirs was no part of it."""
        self._gathers += 1
        return ((self._hashes ^ self._gathers) * _HASH_STEP) & _HASH_MASK

    # -- running

    def breaks(self, error: Broken) -> Broken:
        """The run must be parked with this error, also when its code swallows it. Returns the error."""
        self.broken = error
        return error

    def mend(self) -> WorkflowBroken | None:
        """Forget what broke it, which is returned."""
        broken, self.broken = self.broken, None
        return broken

    def run_until_idle(self) -> None:
        """Run callbacks until none is ready. Raises Spins when they do not end."""
        ready = self._ready
        if self._postponed:
            ready += self._postponed
            self._postponed.clear()
        self._deliveries = 0
        left = MOST_CALLBACKS
        while ready:
            for handle in ready:  # and those that are added meanwhile
                if handle._cancelled:
                    continue
                left -= 1
                if not left:
                    raise Spins(_SPINS)
                try:
                    handle._context.run(*handle._call)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # noqa: BLE001 - tasks keep their own errors, SystemExit too
                    self.call_exception_handler({"message": "a callback failed", "exception": error})
            del handle
            ready.clear()  # finalising them may add more

    def call_soon(  # type: ignore[override]  # argument types are not tied to the callback's here and below
        self, *call: Any, context: contextvars.Context | None = None, callback: Any = None
    ) -> RunHandle:
        if callback is not None:  # by its name, as any loop takes it
            call = (callback, *call)
        if not self.in_turn and not self._torn_down:
            self._forbid("call_soon from outside the run's turn", "an activity, or a signal")
        if type(call[0]) is self._step:
            self._look_for_foreign_await(call[0])
        handle = RunHandle(call, context or contextvars.copy_context())
        self._ready.append(handle)
        return handle

    def deliver_later(self, deliver: Callable[..., Any], origin: object) -> RunHandle | None:
        """Whether a cancelled scope of anyio waits with its next delivery. It cancels its tasks in each round of a loop
        until they have left it: where they do something durable first, such as the compensations of a saga, this turn
        would never end."""
        self._deliveries += 1
        if self._deliveries <= MOST_DELIVERIES:
            return None
        handle = RunHandle((deliver, origin), contextvars.copy_context())
        self._postponed.append(handle)
        return handle

    def _look_for_foreign_await(self, step: Any) -> None:
        """A task that awaited a future of another loop is stepped with an error: flag it, even if code swallows it."""
        for error in gc.get_referents(step):
            if isinstance(error, RuntimeError):
                self.broken = Forbidden(
                    f"workflow code awaited a future of another event loop or library ({error}): "
                    f"use an activity for what happens outside the run"
                )

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> NoReturn:  # type: ignore[override]
        self._forbid("a callback from another thread", "an activity for what runs in threads")

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> RunTimerHandle:
        host = self._host
        now = host.seconds()
        when = now + delay
        handle = RunTimerHandle((callback, *args), context or contextvars.copy_context(), host=host, due=when)
        handle.seq = host.set_timer(handle, when - now)  # as `call_at` does it: the rounding is in the journal
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> RunTimerHandle:
        handle = RunTimerHandle((callback, *args), context or contextvars.copy_context(), host=self._host, due=when)
        handle.seq = self._host.set_timer(handle, when - self._host.seconds())
        return handle

    def fire(self, handle: RunTimerHandle) -> None:
        """A timer is due: its callback is the first of this turn."""
        self._ready.append(handle)

    def time(self) -> float:
        return self._host.seconds()

    # -- tasks, futures and generators are held strongly: the collector must not run user code at random

    def create_future(self) -> RunFuture:
        return RunFuture(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None, **_: Any) -> RunTask:
        return self.begin(coro, name, context)

    def begin(self, coro: Any, name: str | None, context: contextvars.Context | None) -> RunTask:
        task = _new_task(RunTask)
        task._number = self.next_hash()
        number = self.counter
        _begin_task(task, coro, loop=self, name=name or f"task-{number}", context=context)
        self._step = type(self._ready[-1]._call[0])
        self._tasks.append(task)
        if number >= self._prune_at:
            self._prune()
        return task

    def hold_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """sys.set_asyncgen_hooks' firstiter."""
        self.counter += 1
        self._generators.append(generator)
        if self.counter >= self._prune_at:
            self._prune()

    def _prune(self) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        self._generators = [agen for agen in self._generators if getattr(agen, "ag_frame", None) is not None]
        self._prune_at = self.counter + max(64, len(self._tasks) + len(self._generators))

    def waiting(self) -> list[str]:
        """Where each unfinished task waits, innermost frame first in line."""
        return [_place(task.get_coro()) for task in self._tasks if not task.done()]

    def let_go(self) -> bool:
        """Tear down what has ended. False when something in it is suspended: that would run code of the workflow."""
        if self._generators:
            return False
        for task in self._tasks:
            if not _done(task):
                return False
        self._torn_down = True
        self._tasks.clear()
        self._ready.clear()
        self._postponed.clear()
        return True

    def tear_down(self) -> None:
        """Close everything that is suspended, in order. Their `finally` blocks run; what they call must refuse."""
        self._torn_down = True
        while self._tasks or self._generators:  # a `finally` block may start more: it is closed unbegun
            generators, self._generators = self._generators, []
            tasks, self._tasks = self._tasks, []
            for agen in generators:
                _drive(agen.aclose())
            for task in tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # we know
                    _unwind_generator(task.get_coro())
                    _close(task.get_coro())
        self._ready.clear()
        self._postponed.clear()

    # -- the rest of asyncio's interface

    def is_running(self) -> bool:
        return self.in_turn

    def is_closed(self) -> bool:
        return False

    get_debug = bool  # False: asked for every future, so without a frame of its own

    def get_task_factory(self) -> None:
        """None, the default: tasks are made by `create_task`. Libraries ask, such as anyio."""

    def get_exception_handler(self) -> None:
        """None, the default: what a task leaves behind is logged."""

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.in_turn or issubclass(type(error), SystemExit):
            return
        if error is None or is_printable(error):
            log.warning("in a workflow: %s", context.get("message"), exc_info=error)
        else:
            log.warning("in a workflow: %s: %s", context.get("message"), told(error))

    async def shutdown_asyncgens(self) -> None:
        return None

    def _forbid(self, what: str, instead: str) -> NoReturn:
        self.broken = Forbidden(f"workflow code used {what}, which cannot be replayed: use {instead} instead")
        raise self.broken

    def __repr__(self) -> str:
        return f"<run loop {id(self):#x}>"


def _place(coroutine: Any) -> str:
    """The lines that a suspended coroutine waits at, from the inside out."""
    lines = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return " < ".join(reversed(lines))


def _drive(closing: Any) -> None:
    """Close an async generator as far as it goes without waiting."""
    try:
        closing.send(None)
    except StopIteration:
        return
    except BaseException as error:  # noqa: BLE001 - as in _close
        log.debug("while closing a workflow's generator: %r", error)
        return
    _close(closing)


def _unwind_generator(awaited: Any) -> None:
    """Before Python 3.13, closing a coroutine leaves the async generator that it waits in suspended. The innermost
    first: closing one leaves those that it waits in, too."""
    while awaited is not None and type(awaited).__name__ not in _STEPS_OF_GENERATORS:
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    if awaited is None:
        return
    for part in gc.get_referents(awaited):  # the step does not tell its generator otherwise
        _unwind_generator(getattr(part, "ag_await", None))
    for _ in range(_MOST_CLOSES):
        try:
            awaited.throw(GeneratorExit)
        except BaseException as error:  # noqa: BLE001 - as in _close
            log.debug("while closing a workflow's generator: %r", error)
            return


_STEPS_OF_GENERATORS = ("async_generator_asend", "async_generator_athrow")
_MOST_CLOSES = 100
"""How many `finally` blocks, one within the other, may each wait once more while they are closed."""


def _close(coroutine: Any) -> None:
    """Close a coroutine for good, here: left suspended it would be closed by its deallocation, out of our hands."""
    for _ in range(_MOST_CLOSES):
        try:
            coroutine.close()
            return
        except RuntimeError as error:  # "coroutine ignored GeneratorExit": a `finally` block waits
            log.debug("while closing a workflow's coroutine: %r", error)
        except BaseException as error:  # noqa: BLE001 - a `finally` block raises, in a run that is gone
            log.debug("while closing a workflow's coroutine: %r", error)
            return


def _forbidden(name: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(self: RunLoop, *_args: Any, **_kwargs: Any) -> NoReturn:
        self._forbid(f"loop.{name}()", instead)

    refuse.__name__ = name
    return refuse


_ACTIVITY = "an activity, which may do this"
for _name in (
    "run_in_executor getaddrinfo getnameinfo create_connection create_server create_unix_connection "
    "create_unix_server create_datagram_endpoint connect_read_pipe connect_write_pipe subprocess_shell "
    "subprocess_exec add_reader add_writer remove_reader remove_writer sock_recv sock_recv_into sock_recvfrom "
    "sock_recvfrom_into sock_sendall sock_sendto sock_connect sock_accept sock_sendfile sendfile start_tls "
    "add_signal_handler remove_signal_handler connect_accepted_socket shutdown_default_executor"
).split():
    setattr(RunLoop, _name, _forbidden(_name, _ACTIVITY))
for _name in ("set_task_factory", "set_exception_handler", "set_debug", "set_default_executor"):
    setattr(RunLoop, _name, _forbidden(_name, "nothing: the settings of a run's loop are the same in every replay"))
for _name in ("run_forever", "run_until_complete", "stop", "close"):
    setattr(RunLoop, _name, _forbidden(_name, "nothing: the worker runs the loop"))


order_gathers(lambda loop: isinstance(loop, RunLoop))
order_as_completed(lambda loop: isinstance(loop, RunLoop))


def close_unbegun(awaitable: Any) -> None:
    """A coroutine that will not be awaited."""
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()
