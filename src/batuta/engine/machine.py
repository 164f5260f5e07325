"""A run in memory: its code, suspended, and the position on its tape.

A machine is a function from inputs to commands. It performs nothing: each `turn` delivers one input, lets the code run
until it waits again, and gives back the commands that were issued. Feeding it the journal rebuilds it exactly.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from inspect import isawaitable
from random import Random
from typing import Any, NoReturn, TypeVar, cast
from uuid import UUID

from msgspec import UNSET, Raw, UnsetType, json, structs

from batuta.authoring.chains import ContinueAsNew
from batuta.authoring.context import RunInfo, current_runtime
from batuta.authoring.definitions import Workflow, code_of
from batuta.authoring.failures import to_exception, to_failure
from batuta.authoring.options import ActivityOptions
from batuta.clock import SECOND
from batuta.engine.generators import HostLoop, hook_generators
from batuta.engine.identity import RunIdentity
from batuta.engine.kin import Kin
from batuta.engine.letters import FailedCall, error_of, failed_call
from batuta.engine.logs import Line
from batuta.engine.loop import RunLoop, RunTask, RunTimerHandle, Waiter, close_unbegun
from batuta.engine.mailbox import Mailbox
from batuta.engine.named import NamedTimers
from batuta.engine.past import Past
from batuta.engine.patches import Patches
from batuta.engine.pending import PendingActivity
from batuta.engine.routes import RoutedCall, call_routed, routed_to
from batuta.errors import BatutaError, Forbidden, InvalidInput, Nondeterministic, WaitsForNothing, WorkflowBroken
from batuta.journal.entries import Body, Command, CommandKind, EntryKind, StartInfo
from batuta.journal.failures import Failure
from batuta.serde import MAX_PAYLOAD, UNFIT, Codec, Decoder, decode, encode, unfit

_set_running_loop = asyncio._set_running_loop
_get_running_loop = asyncio._get_running_loop
_Future = asyncio.Future
_set_result = _Future.set_result  # a method of one of C's classes is looked for anew at each call
_task_done, _cancelled = asyncio.Task.done, asyncio.Task.cancelled
_exception, _result = asyncio.Task.exception, asyncio.Task.result
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 24 * 3600 * SECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_FAR = 2e11
"""Seconds, some thousand years: what is due within them is due at a moment that a `datetime` can have."""
T = TypeVar("T")

# Named here because a member of an enum is looked up slowly, and these are asked for in every turn.
_ACTIVITY, _TIMER, _COMPLETE = CommandKind.ACTIVITY, CommandKind.TIMER, CommandKind.COMPLETE
_STARTED = EntryKind.STARTED
_NULL = Raw(b"null")


class Gone(BaseException):
    """Raised by every batuta call in a run that has left memory: only its `finally` blocks are running."""


class Machine:
    """One run of one workflow. Not thread-safe; used from the worker's loop alone."""

    # Slots: with so many attributes each instance would have a dictionary of its own, grown several times.
    __slots__ = tuple(
        "_context _failure _gone _main _named _patches _random _seq _shut _timers activities arguments at beyond "
        "cancel_requested commands deadlines entries failed identity kin limit logs loop mailbox outcome past recorded "
        "start started_at workflow".split()
    )

    def __init__(self, workflow: Workflow[..., Any], identity: RunIdentity) -> None:
        self.workflow = workflow
        self.identity = identity
        self.limit = MAX_PAYLOAD
        self.start: StartInfo
        self.failed: FailedCall | None = None
        """The call whose error the run failed with."""
        self.arguments = b"[]"
        """Kept only for a run that may be tried again."""
        self.at = self.started_at = 0
        self.entries = 0
        self.activities: dict[int, PendingActivity] = {}
        self.commands: list[Command] = []
        self.beyond = False
        """This turn issued a command that reaches beyond the run (see `engine.effects`)."""
        self.logs: list[Line] = []
        self.outcome: Command | None = None
        """The command that closes the run, once its code has come to an end."""
        self.recorded: list[Command] | None = None
        """In replay: the commands that this turn issued when it was live."""
        self.cancel_requested = False
        self.kin: Kin | None = None
        """Other runs that this one deals with, if any."""
        self.past: Past | None = None
        """Of a run that was made from another."""
        self._timers: dict[int, RunTimerHandle] = {}
        self.deadlines: list[tuple[int, int]] = []
        """A heap of timers, with some that were cancelled: ask `next_timer`."""
        self._seq = 0
        self._random: Random | None = None
        self._patches: Patches | None = None
        self._named: NamedTimers | None = None
        self.mailbox: Mailbox | None = None
        self._gone = False
        self._shut = ""
        """Why no command may be issued now; empty: they may."""
        self._failure: BaseException | None = None
        """What a handler of signals raised."""
        self._main: RunTask | None = None

    # -- turns

    def turn(self, at: int, kind: EntryKind, body: Body, commands: list[Command], host: HostLoop = None) -> None:
        """Deliver one input at tape time `at` and run until idle: what that issues is added to `commands`. Raises
        WorkflowBroken when the run must be parked. `host`: the loop that runs, within `Turns`."""
        self.at = at
        self.entries += 1
        self.commands = commands
        self.beyond = False
        if kind is _STARTED:
            self._prepare(at, body)
        loop = self.loop
        hooks = None
        if host is None:
            host, hooks = _get_running_loop(), hook_generators()
        _set_running_loop(loop)
        loop.in_turn = True
        try:
            _DELIVER[kind](self, body)
            if not body.quiet:
                loop.run_until_idle()
                main = self._main
                if main is not None and (_task_done(main) or self._failure is not None):
                    self._finish(main)
        finally:
            loop.in_turn = False
            if hooks is not None:
                sys.set_asyncgen_hooks(*hooks)
            _set_running_loop(host)
        if loop.broken is not None:
            raise loop.broken
        if not self.activities and self.outcome is None and not self._timers and not self._listens(body):
            raise self._waits_for_nothing()

    def _prepare(self, at: int, body: Body) -> None:
        if body.start is UNSET:
            raise Nondeterministic("entry 0", "a start", "an entry without one")
        self.start = body.start
        self.limit = body.start.max_payload or MAX_PAYLOAD
        if body.start.retry is not UNSET and body.value is not UNSET:
            self.arguments = bytes(body.value)
        self.started_at = at
        self._context = contextvars.Context()
        self._context.run(current_runtime.set, self)
        self.loop = RunLoop(self, self.start.seed)  # type: ignore[abstract]  # the rest is filled in by name

    def _deliver_start(self, body: Body) -> None:
        workflow = self.workflow
        args, kwargs = workflow.codec.decode_args(body.value if body.value is not UNSET else Raw(b"[]"))
        self._main = self.loop.begin(workflow.fn(*args, **kwargs), workflow.name, self._context)
        for letter in self.start.carried:
            self.messages().put(letter.name, letter.value if letter.value is not UNSET else Raw(b"null"))

    def _deliver_result(self, body: Body) -> None:
        seq, given = body.seq, body.value
        here = self.activities.pop(seq, None)
        pending = here or self._answered(body)
        try:
            value = pending.decoder.decode(given if given is not UNSET else _NULL)
        except UNFIT as error:
            if here is not None:
                self.activities[seq] = here  # that is its failure, which is yet to come
            raise unfit(f"the result of activity {pending.name!r}", error) from error
        if here is None:
            self._forget(seq)
        try:
            _set_result(pending.future, value)
        except asyncio.InvalidStateError:
            pass  # cancelled, and its code has not yet run

    def _deliver_error(self, body: Body) -> None:
        pending = self._answered(body)
        if body.error is UNSET:
            raise Nondeterministic(f"entry {self.entries - 1}", "an error", "an entry without one")
        self._forget(body.seq)
        if not pending.future.done():
            pending.future.set_exception(error_of(body, body.error, pending.options, self.entries - 1))

    def _answered(self, body: Body) -> PendingActivity:
        pending = self.activities.get(body.seq)
        if pending is None and self.kin is not None and body.seq in self.kin.routed:
            pending = self.kin.routed[body.seq].pending
        if pending is None:
            raise Nondeterministic(
                f"entry {self.entries - 1}", f"an answer to command {body.seq} ({body.name})", "no such command waits"
            )
        return pending

    def _forget(self, seq: int) -> None:
        if self.activities.pop(seq, None) is None and self.kin is not None:
            del self.kin.routed[seq]

    def _deliver_timer(self, body: Body) -> None:
        handle = self._timers.pop(body.seq, None)
        if handle is None:
            raise Nondeterministic(f"entry {self.entries - 1}", f"timer {body.seq} fired", "no such timer is set")
        self.loop.fire(handle)

    def _deliver_cancel(self, body: Body) -> None:
        self.cancel_requested = True
        if self._main is not None:
            self._main.cancel(body.reason or None)

    def _finish(self, main: RunTask) -> None:
        """The main coroutine has come to an end: its result, error or cancellation closes the run.

        So does an error of a signal's handler."""
        if self.mailbox is not None:
            self.mailbox.close(continues=self._failure is None and _continues(main))
        if self._failure is None and _cancelled(main):
            self.outcome = self._issue(CommandKind.CANCELLED)
            return
        error = self._failure if self._failure is not None else _exception(main)
        if error is None:
            self._complete(_result(main))
        elif isinstance(error, WorkflowBroken):
            self.loop.broken = error
        elif isinstance(error, ContinueAsNew):
            self.outcome = self._issue(CommandKind.CONTINUE, code_of(self.start.name, error.version), error.data)
            self.beyond = True
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        call = self.failed = failed_call(error)
        # A run that is one call has no code of its own: where it went wrong is where the call did.
        told = call.failure.traceback if call is not None and isinstance(self.workflow, RoutedCall) else None
        self.outcome = self._issue(CommandKind.FAIL, error=to_failure(error, told))
        self.beyond = self.beyond or self.start.retry is not UNSET

    def _complete(self, value: Any) -> None:
        codec = self.workflow.codec
        try:
            data = codec.encode_result(value, self.limit)
            codec.decode_result(data)
        except BatutaError as error:
            self._fail(error)
        else:
            self.outcome = self._issue(_COMPLETE, "", data)

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
        error: Failure | UnsetType = UNSET,
        target: int = 0,
    ) -> Command:
        self._seq = seq = self._seq + 1
        command = Command(seq, kind, name, UNSET if data is None else Raw(data), error, target)
        self.commands.append(command)
        return command

    def issue_beyond(
        self,
        kind: CommandKind,
        name: str,
        data: bytes | None = None,
        error: BaseException | None = None,
        to: str = "",
    ) -> None:
        """A command that the store has a part in (see `engine.effects`)."""
        self._issue(kind, name, data, UNSET if error is None else to_failure(error)).to = to
        self.beyond = True

    def next_seq(self) -> int:
        """The number of a command that is being issued."""
        self._seq += 1
        return self._seq

    @property
    def last_seq(self) -> int:
        return self._seq

    def kinship(self) -> Kin:
        if self.kin is None:
            self.kin = Kin(self)
        return self.kin

    async def call_activity(
        self,
        name: str,
        codec: Codec | None,
        decoder: Decoder,
        args: Any,
        kwargs: dict[str, Any],
        options: ActivityOptions,
        issued_at: int = 0,
    ) -> Any:
        """Issue the activity and wait for its answer. Cancelled while it waits: asks for the activity's end, too.

        Without a codec `args` is sent as it is. `issued_at`: when it was issued in the run that sent it here.
        """
        if self._shut:
            self._refuse()
        if codec is not None:
            data = codec.encode_args(args, kwargs, self.limit)
        else:
            data = encode(args, f"the input of activity {name!r}", self.limit)
        future: Waiter = _Future(loop=self.loop)
        pending = PendingActivity(name, codec, decoder, data, options, issued_at or self.at, self.entries - 1, future)
        if (options.queue is not None or self.recorded is not None) and (to := routed_to(self, options)) is not None:
            return await call_routed(self, pending, to)
        self._seq = seq = self._seq + 1
        self.commands.append(Command(seq, _ACTIVITY, name, Raw(data)))
        self.activities[seq] = pending
        try:
            return await future
        except asyncio.CancelledError:
            if not self._gone and self.activities.pop(seq, None) is not None:
                self._issue(CommandKind.CANCEL, name, target=seq)
            raise

    def side_effect(self, make: Callable[[], Any], result: Decoder | None) -> Any:
        self.check_alive()
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

    # -- messages

    def messages(self) -> Mailbox:
        """Made when it is first asked for."""
        if self.mailbox is None:
            self.mailbox = Mailbox(self)
        return self.mailbox

    def publish(self, name: str, value: Any) -> None:
        self.check_alive()
        self.issue_beyond(CommandKind.PUBLISH, name, encode(value, f"the published value {name!r}", self.limit))

    def _deliver_signal(self, body: Body) -> None:
        self.messages().deliver_signal(body)

    def _deliver_update(self, body: Body) -> None:
        self.messages().deliver_update(body)

    def _listens(self, body: Body) -> bool:
        waits_for_kin = self.kin is not None and self.kin.waits()
        return body.quiet or waits_for_kin or (self.mailbox is not None and self.mailbox.listens())

    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        """A task of the run that its code did not start."""
        self.loop.create_task(coro, name=name, context=self._context.copy())

    def fail(self, error: BaseException) -> None:
        """End the run with this error, at the end of this turn."""
        if self._failure is None:
            self._failure = error

    def only_looking(self, what: str, look: Callable[[], T]) -> T:
        """Call code of the run between two turns. Raises Forbidden when it does more than look at what is there."""
        loop, host = self.loop, _get_running_loop()
        self._shut = what
        _set_running_loop(loop)
        try:
            found = self._context.copy().run(look)
            if isawaitable(found):
                close_unbegun(found)
                self._refuse()
        finally:
            self._shut = ""
            _set_running_loop(host)
            broken, loop.broken = loop.broken, None
            if broken is not None:
                raise Forbidden(f"{what} may only look at the run: it must not wait or act, nor wake what waits")
        return found

    # -- timers

    def set_timer(self, handle: RunTimerHandle, delay: float, name: str = "") -> int:
        if self._shut:
            self._refuse()
        wait = max(0, round(delay * SECOND)) if delay < _FAR else self._for_ever(delay)
        self._seq = seq = self._seq + 1
        self.commands.append(Command(seq, _TIMER, name, Raw(b"%d" % wait)))
        self._timers[seq] = handle
        heappush(self.deadlines, (self.at + wait, seq))
        return seq

    def _for_ever(self, delay: float) -> int:
        """The wait of a timer that is never due: until the last moment that there is a `datetime` for."""
        if delay != delay:
            raise InvalidInput("a timer of nan seconds cannot be: give a number of seconds")
        return min(round(min(delay, 1e12) * SECOND), _LAST - self.at)

    def drop_timer(self, seq: int) -> None:
        self._timers.pop(seq, None)

    def next_timer(self) -> tuple[int, int] | None:
        """The earliest timer as (deadline, seq)."""
        deadlines, alive = self.deadlines, self._timers
        while deadlines:
            if deadlines[0][1] in alive:
                return deadlines[0]
            heappop(deadlines)
        return None

    def named_timers(self) -> NamedTimers:
        self.check_alive()
        if self._named is None:
            self._named = NamedTimers(self)
        return self._named

    def seconds(self) -> float:
        return (self.at - self.started_at) / SECOND

    # -- what workflow code asks

    def now(self) -> int:
        if self._gone:
            raise Gone
        return self.at

    def random(self) -> Random:
        self.check_alive()
        if self._random is None:
            self._random = Random(self.start.seed)
        return self._random

    def reseed(self, key_base: str) -> None:
        """Chance goes another way from here on."""
        self._random = Random(key_base)

    def uuid(self) -> UUID:
        return UUID(int=self.random().getrandbits(128), version=4)

    def patched(self, id: str, *, deprecated: bool) -> bool:
        self.check_alive()
        if self._patches is None:
            self._patches = Patches(self)
        if not deprecated:
            return self._patches.patched(id)
        self._patches.deprecated(id)
        return True

    def info(self) -> RunInfo:
        self._there()
        identity = self.identity if self.past is None else self.past.told
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
            attempt=self.start.attempt,
            trace=self.start.trace,
            headers=self.start.headers,
            continue_hint=self.continue_hint(),
        )

    def continue_hint(self) -> bool:
        """Whether the journal has grown long, or the run old."""
        return self.entries >= self.workflow.continue_after or self.at - self.started_at >= _DAY

    @property
    def main(self) -> RunTask | None:
        return self._main

    def log(self, emit: Callable[[], None]) -> None:
        if self.recorded is None and not self._gone:
            self.logs.append((self.entries, emit))

    def unlog(self) -> None:
        """What this turn has logged belongs to a turn that never was."""
        self.logs = [line for line in self.logs if line[0] < self.entries]

    def key(self, seq: int, name: str) -> str:
        """An activity call's stable key."""
        base = (self.past is not None and self.past.key_base(seq)) or self.start.key_base
        if self.start.options is not UNSET:  # a call that was sent here has the key that it had there
            return base
        return f"{base}:{seq}:{name}"

    def mark(self, seq: int) -> str:
        """What names the child or message that a command gives to the store."""
        return (self.past is not None and self.past.mark(seq)) or self.start.mark or self.start.key_base

    # -- the end

    @property
    def gone(self) -> bool:
        """It has left memory."""
        return self._gone

    def check_alive(self) -> None:
        """Raises where no command may be issued."""
        if self._shut:
            self._refuse()

    def _there(self) -> None:
        if self._gone:
            raise Gone

    def _refuse(self) -> NoReturn:
        self._there()
        self.loop.broken = Forbidden(self._shut)
        raise self.loop.broken

    def tear_down(self) -> None:
        """Leave memory. `finally` blocks of suspended code run, and every batuta call in them raises."""
        if self._gone:
            return
        self._gone = True
        self._shut = "gone"
        if hasattr(self, "loop"):
            if not self.loop.let_go():
                self._unwind()
            # Machine, loop, main task and context refer to each other: leave nothing for the collector.
            del self._context, self.loop
            self._main = None
        self.mailbox = None
        if self.activities:
            self.activities.clear()
        if self.kin is not None:
            self.kin.clear()
        if self.deadlines:
            self._timers.clear()
            self.deadlines.clear()

    def _unwind(self) -> None:
        host, hooks = _get_running_loop(), hook_generators()
        _set_running_loop(self.loop)
        try:
            self._context.run(self.loop.tear_down)  # in the run's context: its batuta calls must find this machine
        finally:
            sys.set_asyncgen_hooks(*hooks)
            _set_running_loop(host)


_DELIVER: dict[EntryKind, Callable[[Machine, Body], None]] = {
    EntryKind.STARTED: Machine._deliver_start,
    EntryKind.ACTIVITY_DONE: Machine._deliver_result,
    EntryKind.ACTIVITY_FAILED: Machine._deliver_error,
    EntryKind.TIMER_FIRED: Machine._deliver_timer,
    EntryKind.SIGNAL: Machine._deliver_signal,
    EntryKind.UPDATE: Machine._deliver_update,
    EntryKind.CANCEL_REQUESTED: Machine._deliver_cancel,
    EntryKind.CHILD_DONE: lambda machine, body: machine.kinship().child_done(body),
    EntryKind.CHILD_FAILED: lambda machine, body: machine.kinship().child_failed(body),
    EntryKind.ACCEPTED: lambda machine, body: machine.kinship().accepted(body),
    EntryKind.REFUSED: lambda machine, body: machine.kinship().refused(body),
}
"""How each input reaches the code."""


def _continues(main: RunTask) -> bool:
    return main.done() and not main.cancelled() and isinstance(main.exception(), ContinueAsNew)
