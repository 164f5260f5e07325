"""A run in memory: its code, suspended, and the position on its tape.

A machine is a function from inputs to commands. It performs nothing: each `turn` delivers one input, lets the code run
until it waits again, and gives back the commands that were issued. Feeding it the journal rebuilds it exactly.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from random import Random
from typing import Any, cast
from uuid import UUID

from msgspec import UNSET, Raw, json, structs

from batuta.authoring.context import RunInfo, current_runtime
from batuta.authoring.definitions import Workflow
from batuta.authoring.failures import to_exception, to_failure
from batuta.authoring.options import ActivityOptions
from batuta.clock import SECOND
from batuta.engine.loop import RunFuture, RunLoop, RunTask, RunTimerHandle
from batuta.errors import BatutaError, Nondeterministic, WaitsForNothing, WorkflowBroken
from batuta.ids import RunId
from batuta.journal.entries import Body, Command, CommandKind, EntryKind, StartInfo
from batuta.serde import MAX_PAYLOAD, Codec, Decoder, decode, encode

_set_running_loop = asyncio._set_running_loop
_get_running_loop = asyncio._get_running_loop
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Named here because a member of an enum is looked up slowly, and these are asked for in every turn.
_ACTIVITY, _TIMER, _STARTED = CommandKind.ACTIVITY, CommandKind.TIMER, EntryKind.STARTED


class _Thread(threading.local):
    hooked = False
    """Async generators that begin now are held by their run's loop."""


_thread = _Thread()


def _hook_generators() -> Any:
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(_hold_generator, None)
    return hooks


def _hold_generator(generator: AsyncGenerator[Any, Any]) -> None:
    cast(RunLoop, _get_running_loop()).hold_generator(generator)


@contextmanager
def turns() -> Iterator[None]:
    """Many turns, one after the other: what they all need is set once. No async generator may begin between them."""
    hooks, before = _hook_generators(), _thread.hooked
    _thread.hooked = True
    try:
        yield
    finally:
        _thread.hooked = before
        sys.set_asyncgen_hooks(*hooks)


class Gone(BaseException):
    """Raised by every batuta call in a run that has left memory: only its `finally` blocks are running."""


class PendingActivity:
    """An activity that was called and has not answered."""

    __slots__ = ("codec", "data", "decoder", "future", "issued_at", "name", "options")

    def __init__(
        self, name: str, codec: Codec | None, decoder: Decoder | None, data: bytes, options: ActivityOptions, at: int
    ) -> None:
        self.name, self.codec, self.decoder, self.data, self.options = name, codec, decoder, data, options
        self.issued_at = at
        self.future: RunFuture

    def decode_result(self, value: Raw) -> Any:
        if self.codec is not None:
            return self.codec.decode_result(value)
        return decode(value, cast(Decoder, self.decoder), f"the result of activity {self.name!r}")


class RunIdentity:
    """What of a run never changes."""

    __slots__ = ("id", "namespace", "queue", "run_id")

    def __init__(self, run_id: RunId, id: str, queue: str, namespace: str) -> None:
        self.run_id, self.id, self.queue, self.namespace = run_id, id, queue, namespace


class Machine:
    """One run of one workflow. Not thread-safe; used from the worker's loop alone."""

    def __init__(self, workflow: Workflow[..., Any], identity: RunIdentity) -> None:
        self.workflow = workflow
        self.identity = identity
        self.limit = MAX_PAYLOAD
        self.start: StartInfo
        self.at = self.started_at = 0
        self.entries = 0
        self.activities: dict[int, PendingActivity] = {}
        self.commands: list[Command] = []
        self.logs: list[Callable[[], None]] = []
        self.outcome: Command | None = None
        """The command that closes the run, once its code has come to an end."""
        self.recorded: list[Command] | None = None
        """In replay: the commands that this turn issued when it was live."""
        self._timers: dict[int, RunTimerHandle] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._seq = 0
        self._random: Random | None = None
        self._gone = False
        self._main: RunTask | None = None

    # -- turns

    def turn(self, at: int, kind: EntryKind, body: Body) -> list[Command]:
        """Deliver one input at tape time `at` and run until idle. Raises WorkflowBroken when the run must be parked."""
        self.at = at
        self.entries += 1
        self.commands = []
        if kind is _STARTED:
            self._prepare(at, body)
        loop = self.loop
        host = _get_running_loop()
        hooks = None if _thread.hooked else _hook_generators()
        _set_running_loop(loop)
        loop.in_turn = True
        try:
            _DELIVER[kind](self, body)
            loop.run_until_idle()
            if self._main is not None and self._main.done():
                self._finish(self._main)
        finally:
            loop.in_turn = False
            if hooks is not None:
                sys.set_asyncgen_hooks(*hooks)
            _set_running_loop(host)
        if loop.broken is not None:
            raise loop.broken
        if self.outcome is None and not self.activities and not self._timers:
            raise self._waits_for_nothing()
        return self.commands

    def _prepare(self, at: int, body: Body) -> None:
        if body.start is UNSET:
            raise Nondeterministic("entry 0", "a start", "an entry without one")
        self.start = body.start
        self.limit = body.start.max_payload or MAX_PAYLOAD
        self.started_at = at
        self._context = contextvars.Context()
        self._context.run(current_runtime.set, self)
        self.loop = RunLoop(self, self.start.seed)  # type: ignore[abstract]  # the rest is filled in by name

    def _deliver_start(self, body: Body) -> None:
        args, kwargs = self.workflow.codec.decode_args(body.value if body.value is not UNSET else Raw(b"[]"))
        coro = self.workflow.fn(*args, **kwargs)
        self._main = self.loop.create_task(coro, name=self.workflow.name, context=self._context)

    def _deliver_result(self, body: Body) -> None:
        pending = self._answered(body)
        value = pending.decode_result(body.value if body.value is not UNSET else Raw(b"null"))
        del self.activities[body.seq]
        if not pending.future.done():
            pending.future.set_result(value)

    def _deliver_error(self, body: Body) -> None:
        pending = self._answered(body)
        if body.error is UNSET:
            raise Nondeterministic(f"entry {self.entries - 1}", "an error", "an entry without one")
        del self.activities[body.seq]
        if not pending.future.done():
            pending.future.set_exception(to_exception(body.error))

    def _answered(self, body: Body) -> PendingActivity:
        pending = self.activities.get(body.seq)
        if pending is None:
            raise Nondeterministic(
                f"entry {self.entries - 1}", f"an answer to command {body.seq} ({body.name})", "no such command waits"
            )
        return pending

    def _deliver_timer(self, body: Body) -> None:
        handle = self._timers.pop(body.seq, None)
        if handle is None:
            raise Nondeterministic(f"entry {self.entries - 1}", f"timer {body.seq} fired", "no such timer is set")
        self.loop.fire(handle)

    def _deliver_cancel(self, body: Body) -> None:
        if self._main is not None:
            self._main.cancel(body.reason or None)

    def _finish(self, main: RunTask) -> None:
        """The main coroutine has come to an end: its result, error or cancellation closes the run."""
        if main.cancelled():
            self.outcome = self._issue(CommandKind.CANCELLED)
            return
        error = main.exception()
        if isinstance(error, WorkflowBroken):
            self.loop.broken = error
        elif error is not None:
            self.outcome = self._issue(CommandKind.FAIL, error=error)
        else:
            self._complete(main.result())

    def _complete(self, value: Any) -> None:
        codec = self.workflow.codec
        try:
            data = codec.encode_result(value, self.limit)
            codec.decode_result(data)
        except BatutaError as error:
            self.outcome = self._issue(CommandKind.FAIL, error=error)
        else:
            self.outcome = self._issue(CommandKind.COMPLETE, data=data)

    def _waits_for_nothing(self) -> WaitsForNothing:
        where = "; ".join(self.loop.waiting()[:5])
        return WaitsForNothing(
            f"workflow {self.workflow.name!r} waits, and no activity, timer or message can wake it "
            f"({where or 'no stack'}): something in it must complete what it awaits"
        )

    # -- commands

    def _issue(
        self,
        kind: CommandKind,
        name: str = "",
        data: bytes | None = None,
        error: BaseException | None = None,
        target: int = 0,
    ) -> Command:
        self._seq = seq = self._seq + 1
        command = Command(
            seq,
            kind,
            name,
            UNSET if data is None else Raw(data),
            UNSET if error is None else to_failure(error),
            target,
        )
        self.commands.append(command)
        return command

    async def call_activity(
        self, name: str, codec: Codec | None, result: Decoder | None, arguments: Any, options: ActivityOptions
    ) -> Any:
        """Issue the activity and wait for its answer. Cancelled while it waits: asks for the activity's end, too."""
        self._alive()
        if codec is not None:
            args, kwargs = arguments
            data = codec.encode_args(args, kwargs, self.limit)
        else:
            data = encode(arguments, f"the input of activity {name!r}", self.limit)
        self._seq = seq = self._seq + 1
        self.commands.append(Command(seq, _ACTIVITY, name, Raw(data)))
        pending = PendingActivity(name, codec, result, data, options, self.at)
        pending.future = RunFuture(loop=self.loop)
        self.activities[seq] = pending
        try:
            return await pending.future
        except asyncio.CancelledError:
            if not self._gone and self.activities.pop(seq, None) is not None:
                self._issue(CommandKind.CANCEL, name, target=seq)
            raise

    def side_effect(self, make: Callable[[], Any], result: Decoder | None) -> Any:
        self._alive()
        command = self._recorded_here(CommandKind.SIDE_EFFECT) or self._make_side_effect(make)
        command = structs.replace(command, seq=self._seq + 1)
        self._seq += 1
        self.commands.append(command)
        if command.error is not UNSET:
            raise to_exception(command.error)
        data = bytes(cast(Raw, command.value))
        return decode(data, result, "a side effect") if result is not None else json.decode(data)

    def _make_side_effect(self, make: Callable[[], Any]) -> Command:
        try:
            return Command(0, CommandKind.SIDE_EFFECT, value=Raw(encode(make(), "a side effect", self.limit)))
        except Exception as error:  # noqa: BLE001 - its failure is an outcome like another, and is kept like one
            return Command(0, CommandKind.SIDE_EFFECT, error=to_failure(error))

    def _recorded_here(self, kind: CommandKind) -> Command | None:
        """In replay: the recorded command at this place of the turn, which must be of that kind."""
        if self.recorded is None:
            return None
        place = len(self.commands)
        found = self.recorded[place] if place < len(self.recorded) else None
        if found is None or found.kind is not kind:
            self.loop.broken = Nondeterministic(
                f"entry {self.entries - 1}, command {self._seq + 1}", str(found.kind if found else "nothing"), str(kind)
            )
            raise self.loop.broken
        return found

    # -- timers

    def set_timer(self, handle: RunTimerHandle, delay: float) -> int:
        self._alive()
        wait = max(0, round(delay * SECOND))
        self._seq = seq = self._seq + 1
        self.commands.append(Command(seq, _TIMER, "", Raw(b"%d" % wait)))
        self._timers[seq] = handle
        heappush(self._deadlines, (self.at + wait, seq))
        return seq

    def drop_timer(self, seq: int) -> None:
        self._timers.pop(seq, None)

    def next_timer(self) -> tuple[int, int] | None:
        """The earliest timer as (deadline, seq)."""
        deadlines, alive = self._deadlines, self._timers
        while deadlines:
            if deadlines[0][1] in alive:
                return deadlines[0]
            heappop(deadlines)
        return None

    def seconds(self) -> float:
        return (self.at - self.started_at) / SECOND

    # -- what workflow code asks

    def now(self) -> int:
        self._alive()
        return self.at

    def random(self) -> Random:
        self._alive()
        if self._random is None:
            self._random = Random(self.start.seed)
        return self._random

    def uuid(self) -> UUID:
        return UUID(int=self.random().getrandbits(128), version=4)

    def info(self) -> RunInfo:
        self._alive()
        identity = self.identity
        return RunInfo(
            run_id=identity.run_id,
            id=identity.id,
            workflow=self.workflow.name,
            queue=identity.queue,
            namespace=identity.namespace,
            entries=self.entries,
            started_at=_EPOCH + timedelta(microseconds=self.started_at),
            version=self.start.version,
            replaying=self.recorded is not None,
        )

    def log(self, emit: Callable[[], None]) -> None:
        if self.recorded is None and not self._gone:
            self.logs.append(emit)

    def key(self, seq: int, name: str) -> str:
        """An activity call's stable key."""
        return f"{self.start.key_base}:{seq}:{name}"

    # -- the end

    def _alive(self) -> None:
        if self._gone:
            raise Gone

    def tear_down(self) -> None:
        """Leave memory. `finally` blocks of suspended code run, and every batuta call in them raises."""
        if self._gone:
            return
        self._gone = True
        if hasattr(self, "loop"):
            host = _get_running_loop()
            hooks = _hook_generators()
            _set_running_loop(self.loop)
            try:
                self._context.run(self.loop.tear_down)  # in the run's context: its batuta calls must find this machine
            finally:
                sys.set_asyncgen_hooks(*hooks)
                _set_running_loop(host)
            # Machine, loop, main task and context refer to each other: leave nothing for the collector.
            del self._context, self.loop
            self._main = None
        self.activities.clear()
        self._timers.clear()
        self._deadlines.clear()


_DELIVER: dict[EntryKind, Callable[[Machine, Body], None]] = {
    EntryKind.STARTED: Machine._deliver_start,
    EntryKind.ACTIVITY_DONE: Machine._deliver_result,
    EntryKind.ACTIVITY_FAILED: Machine._deliver_error,
    EntryKind.TIMER_FIRED: Machine._deliver_timer,
    EntryKind.CANCEL_REQUESTED: Machine._deliver_cancel,
}
"""How each input reaches the code."""
