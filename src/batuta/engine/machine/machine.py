"""A run in memory: its code, suspended, and its place in the journal.

A machine is a function from inputs to commands. It performs nothing: each `turn` delivers one input, lets the code run
until it waits again, and gives back the commands that were issued. Feeding it the journal rebuilds it exactly.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections.abc import Callable
from random import Random
from typing import Any, NoReturn, cast
from uuid import UUID

from msgspec import UNSET, Raw, json, structs

from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.definitions import Workflow, check_version, code_of
from batuta.authoring.failures.conversion import answerable, to_exception
from batuta.authoring.failures.known_errors import KnownErrors
from batuta.authoring.workflow.context import RunInfo, current_runtime
from batuta.authoring.workflow.continue_as_new import ContinueAsNew
from batuta.clock import SECOND, as_datetime
from batuta.engine.machine.async_generators import HostLoop, hook_generators
from batuta.engine.machine.children import RelatedRuns
from batuta.engine.machine.conditions import Conditions
from batuta.engine.machine.core import NULL, MachineCore, PendingActivity
from batuta.engine.machine.deferred_logs import is_printable
from batuta.engine.machine.failed_calls import FailedCall, Origin, error_of, failed_call, origins
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.loop import RunLoop, RunTask, Waiter
from batuta.engine.machine.message_handlers import MessageHandlers
from batuta.engine.machine.named_timers import NamedTimers
from batuta.engine.machine.patches import Patches
from batuta.engine.machine.routing import RoutedCall
from batuta.engine.machine.sagas import Compensations
from batuta.engine.machine.unawaited_calls import Made, Unbegun, complaint
from batuta.errors import (
    BatutaError,
    ErrorNotLoaded,
    Forbidden,
    InvalidInput,
    Nondeterministic,
    WaitsForNothing,
    WorkflowBroken,
    WorkflowRaised,
)
from batuta.journal.entries import Body, Command, CommandKind, EntryKind, Forked, StartInfo
from batuta.journal.failures import Failure
from batuta.journal.states import RunState
from batuta.journal.tracebacks import summary_of, traceback_of
from batuta.serde import MAX_PAYLOAD, UNFIT, Codec, Decoder, decode, encode, unfit

log = logging.getLogger("batuta.engine")

_set_running_loop, _get_running_loop = asyncio._set_running_loop, asyncio._get_running_loop
_Future = asyncio.Future
_set_result = _Future.set_result  # a method of one of C's classes is looked for anew at each call
_task_done, _cancelled = asyncio.Task.done, asyncio.Task.cancelled
_exception, _result = asyncio.Task.exception, asyncio.Task.result
_DAY = 24 * 3600 * SECOND

# Named here because a member of an enum is looked up slowly, and these are asked for in every turn.
_ACTIVITY, _COMPLETE = CommandKind.ACTIVITY, CommandKind.COMPLETE
_STARTED, _DONE = EntryKind.STARTED, EntryKind.ACTIVITY_DONE
_GOOD_ENDS = (CommandKind.COMPLETE, CommandKind.CONTINUE)
_NO_ORIGINS: set[Origin] = set()  # never changed


class Machine(MachineCore):
    """One run of one workflow. Not thread-safe; used from the worker's loop alone."""

    __slots__ = tuple(
        "_conditions _main _named _patches _random _unbegun arguments cancel_requested failed made message_handlers "
        "origins outcome related sagas".split()
    )

    def __init__(self, workflow: Workflow[..., Any], identity: RunIdentity, known: KnownErrors | None = None) -> None:
        """`known`: the errors that the worker knows which records what this machine does."""
        super().__init__(workflow, identity, known)
        self.failed: FailedCall | None = None
        """The call whose error the run failed with."""
        self.origins: set[Origin] = _NO_ORIGINS
        """Where the error comes from that the run failed with."""
        self.arguments = b"[]"
        """Kept only for a run that may be tried again."""
        self.made: list[Made] = []
        """Calls that this turn's code has made."""
        self._unbegun: Unbegun | None = None
        self.outcome: Command | None = None
        """The command that closes the run, once its code has ended."""
        self.cancel_requested = False
        self.related: RelatedRuns | None = None
        """Other runs that this one deals with, if any."""
        self.sagas: Compensations | None = None
        """The compensations that its sagas would run."""
        self._random: Random | None = None
        self._patches: Patches | None = None
        self._named: NamedTimers | None = None
        self._conditions: Conditions | None = None
        self.message_handlers: MessageHandlers | None = None
        self._main: RunTask | None = None

    # -- turns

    def turn(self, at: int, kind: EntryKind, body: Body, commands: list[Command], host: HostLoop = None) -> None:
        """Deliver one input at journal time `at` and run until idle; commands are added to `commands`. Raises
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
            if kind is _DONE:
                self._deliver_result(body)
            else:
                _DELIVER[kind](self, body)
            if not body.quiet:
                loop.run_until_idle()
                if self._conditions is not None:
                    self._conditions.settle(self._is_over)
                main = self._main
                if main is not None and (_task_done(main) or self._failure is not None):
                    self._finish(main)
                if self.made:
                    for call in self.made:
                        if not call.cr_suspended:
                            del call
                            self._look_for_forgotten()
                            break
                    else:
                        self.made.clear()
                if self._unbegun is not None and self.outcome is not None:
                    self._look_for_forgotten()
        finally:
            loop.in_turn = False
            if hooks is not None:
                sys.set_asyncgen_hooks(*hooks)
            _set_running_loop(host)
        if loop.broken is not None:
            raise loop.broken
        if not self.activities and self.outcome is None and not self._timers and not self._listens(body):
            raise self._waits_for_nothing()

    def replay_turn(self, at: int, kind: EntryKind, body: Body, host: HostLoop) -> list[Command]:
        """Deliver an input of the journal. Returns the commands that this issued, to be compared with the recorded
        ones."""
        self.recorded = body.commands
        commands: list[Command] = []
        self.turn(at, kind, body, commands, host)
        return commands

    def end_replay(self) -> None:
        """What comes next is live, or is not there yet."""
        self.recorded = None

    def take_over(self, at: int, fork: Forked) -> None:
        """The run, made from another, becomes itself: pending calls are its own now, and its time begins anew."""
        if self.lineage is None:
            raise Nondeterministic(f"entry {self.entries}", "a fork", "a run that was not made from another")
        self.at = at
        self.entries += 1
        self.lineage.take_over(fork)
        for seq, pending in self.activities.items():
            pending.issued_at = at
            pending.data = bytes(fork.inputs[seq]) if seq in fork.inputs else pending.data
        if self.related is not None:
            self.related.begin_anew(self.entries, at, fork)
        if fork.key_base:
            self._random = Random(fork.seed or fork.key_base)

    def retract(self) -> None:
        """The last turn failed before its code ran: it never was."""
        self.entries -= 1

    def inherit(self, before: Machine) -> None:
        """Take over log lines and unsettled calls from another machine of the run: the journal does not have them."""
        self.logs = before.logs
        if before.related is not None:
            self.kinship().unsettled.update(before.related.unsettled)

    def call_at_start(self, at: int, seq: int, pending: PendingActivity) -> None:
        """The first turn of a run that is one call is written without running it."""
        self.activities[seq] = pending
        self.at = self.started_at = at
        self.entries = 1

    def started_by(self, start: StartInfo) -> None:
        """The same: what the run was started with."""
        self.start = start

    def closed_by(self, outcome: Command) -> None:
        """The same: the command that closes it."""
        self.outcome = outcome

    def _look_for_forgotten(self) -> None:
        """Park the run when this turn made a call and dropped it, so that no code can await it. When the run completes,
        any call that it did not await parks it. Skipped in replay: the call passed when the journal was written."""
        if self._unbegun is None:
            self._unbegun = Unbegun()
        call = self._unbegun.sort(self.made)
        outcome = self.outcome
        if outcome is not None and outcome.kind not in _GOOD_ENDS:
            return
        if call is None and outcome is not None:
            call = self._unbegun.first()
        if call is None:
            return
        broken = complaint(self.workflow.name, call)
        if self.recorded is None and self.loop.broken is None:
            self.loop.breaks(broken)

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
        main = workflow.fn(*args, **kwargs) if kwargs else workflow.fn(*args)
        self._main = self.loop.begin(main, workflow.name, self._context)
        for letter in self.start.carried:
            self.messages().put(letter.name, letter.value if letter.value is not UNSET else NULL)

    def _deliver_result(self, body: Body) -> None:
        seq, given = body.seq, body.value
        here = self.activities.pop(seq, None)
        pending = here or self._answered(body)
        try:
            value = pending.decoder.decode(given if given is not UNSET else NULL)
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
            # A run that is one call has no code that would look at the error: it ends with what was recorded.
            as_recorded = isinstance(self.workflow, RoutedCall)
            error = error_of(body, body.error, pending.options, self.entries - 1, as_recorded=as_recorded)
            pending.future.set_exception(error)

    def _answered(self, body: Body) -> PendingActivity:
        pending = self.activities.get(body.seq)
        if pending is None and self.related is not None and body.seq in self.related.routed:
            pending = self.related.routed[body.seq].pending
        if pending is None:
            raise Nondeterministic(
                f"entry {self.entries - 1}", f"an answer to command {body.seq} ({body.name})", "no such command waits"
            )
        return pending

    def _forget(self, seq: int) -> None:
        if self.activities.pop(seq, None) is None and self.related is not None:
            del self.related.routed[seq]

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
        """The main coroutine has ended: its result, error or cancellation closes the run.

        So does an error of a signal's handler."""
        error = self._failure if self._failure is not None else _error_of(main)
        cancelled = self._failure is None and _cancelled(main) and self._ends_cancelled()
        if self.message_handlers is not None:
            self.message_handlers.close(*_end_of(error, cancelled=cancelled))
        if cancelled:
            self.outcome = self._issue(CommandKind.CANCELLED)
        elif error is None:
            self._complete(_result(main))
        elif isinstance(error := answerable(error), WorkflowBroken):
            self.loop.breaks(error)
        elif isinstance(error, ContinueAsNew):
            self.outcome = self._issue(CommandKind.CONTINUE, code_of(self.start.name, error.version), error.data)
            self.beyond = True
        else:
            self._fail(error)
        if self.beyond and self.message_handlers is not None:
            self.message_handlers.require_values()

    def _ends_cancelled(self) -> bool:
        """Whether a CancelledError that leaves the code ends the run as cancelled: it was asked to cancel, or its
        journal says so, as those from before this was looked at do. Else the code cancelled something of its own and
        let the error pass, which is a bug like another."""
        recorded = self.recorded_command()
        return self.cancel_requested or (recorded is not None and recorded.kind is CommandKind.CANCELLED)

    def _fail(self, error: BaseException) -> None:
        call = self.failed = failed_call(error)
        same = call is not None and isinstance(self.workflow, RoutedCall)
        failure = call.failure if call is not None and same else self._to_failure(error)
        self.origins = origins(error, self.workflow.fails)
        if self.recorded is None and Origin.CODE in self.origins and self._stops(error, failure):
            return
        self.outcome = self._issue(CommandKind.FAIL, error=failure)
        self.beyond = self.beyond or self.start.retry is not UNSET

    def _stops(self, error: BaseException, failure: Failure) -> bool:
        """An error that the workflow does not declare: whether the run is parked with it. If not, it is logged."""
        said, where = summary_of(failure), (self.workflow.name, self.identity.id)
        if self.workflow.on_error == "park":
            self.loop.breaks(WorkflowRaised(said, traceback_of(failure))).__cause__ = error
            return True
        if is_printable(error):
            self.log(
                lambda: log.error("workflow %s of run %s failed: %s", *where, said, exc_info=error, extra=self.logged)
            )
        else:
            text = traceback_of(failure)
            self.log(lambda: log.error("workflow %s of run %s failed: %s\n%s", *where, said, text, extra=self.logged))
        return False

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

    def kinship(self) -> RelatedRuns:
        if self.related is None:
            self.related = RelatedRuns(self)
        return self.related

    def compensations(self) -> Compensations:
        if self.sagas is None:
            self.sagas = Compensations(self, self.kinship)
        return self.sagas

    async def call_activity(
        self,
        name: str,
        codec: Codec | None,
        decoder: Decoder,
        args: Any,
        kwargs: dict[str, Any],
        options: ActivityOptions,
        issued_at: int = 0,
        key: str = "",
    ) -> Any:
        """Issue the activity and wait for its answer. Cancelled while it waits: asks for the activity's end, too.

        Without a codec `args` is sent as it is. `issued_at`: when it was issued in the run that sent it here. `key`:
        its stable key, if another run gave it one.
        """
        if self._shut:
            self._refuse()
        if codec is not None:
            data = codec.encode_args(args, kwargs, self.limit)
        else:
            data = encode(args, f"the input of activity {name!r}", self.limit)
        future: Waiter = _Future(loop=self.loop)
        pending = PendingActivity(
            name, codec, decoder, data, options, issued_at or self.at, self.entries - 1, future, key
        )
        if (options.queue is not None or self.recorded is not None) and (to := self._routed_to(options)):
            return await self.kinship().call_routed(pending, to)
        self._seq = seq = self._seq + 1
        self.commands.append(Command(seq, _ACTIVITY, name, Raw(data)))
        self.activities[seq] = pending
        try:
            return await future
        except asyncio.CancelledError:
            if not self._gone and self.activities.pop(seq, None) is not None:
                self._issue(CommandKind.CANCEL, name, target=seq)
            raise

    def _routed_to(self, options: ActivityOptions) -> str:
        """The id of the run that executes the call that is being issued; empty: it stays here. In replay, as it was."""
        if self.recorded is not None:
            return self.recorded_to(_ACTIVITY)
        stays = options.queue is None or options.queue == self.identity.queue
        return "" if stays else self.child_id(self._seq + 1)

    def side_effect(self, make: Callable[[], Any], result: Decoder | None) -> Any:
        self.check_alive()
        command = self._recorded_here(CommandKind.SIDE_EFFECT) or self._make_side_effect(make)
        command = structs.replace(command, seq=self._seq + 1)
        self._seq += 1
        self.commands.append(command)
        if command.error is not UNSET:
            try:
                raise to_exception(command.error, strict=True)
            except ErrorNotLoaded as error:
                self.loop.breaks(error)
                raise
        data = bytes(cast(Raw, command.value))
        return decode(data, result, "a side effect") if result is not None else json.decode(data)

    def _make_side_effect(self, make: Callable[[], Any]) -> Command:
        if self.loop.broken is not None:
            raise self.loop.broken
        try:
            value = self.only_looking("the function of side_effect()", make, contextvars.copy_context())
            return Command(0, CommandKind.SIDE_EFFECT, value=Raw(encode(value, "a side effect", self.limit)))
        except Forbidden as error:  # a replay, which does not call it, would not act
            raise self.loop.breaks(error) from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - its failure is an outcome like another, and is kept like one
            return Command(0, CommandKind.SIDE_EFFECT, error=self._to_failure(error))

    def _recorded_here(self, kind: CommandKind) -> Command | None:
        """In replay: the recorded command at this place of the turn, which must be of that kind."""
        if self.recorded is None:
            return None
        found = self.recorded_command()
        if found is None or found.kind is not kind:
            where = f"entry {self.entries - 1}, command {self._seq + 1}"
            raise self.loop.breaks(Nondeterministic(where, str(found.kind if found else "nothing"), str(kind)))
        return found

    # -- the end of the run, as its code asks for it

    def continue_as_new(self, args: tuple[Any, ...], version: str | None) -> NoReturn:
        self.check_alive()
        if asyncio.current_task() is not self._main:
            raise InvalidInput(
                "continue_as_new() was called in a task: call it in the workflow's own coroutine, its tasks being done"
            )
        following = self.start.version if version is None else check_version(version)
        if following != self.start.version:  # its parameters are its own: who has that version checks them
            raise ContinueAsNew(encode(args, f"the input of version {following!r}", self.limit), following)
        codec = self.workflow.codec
        data = codec.encode_args(args, {}, self.limit)
        codec.decode_args(data)
        raise ContinueAsNew(data, following)

    def at_safe_point(self, args: tuple[Any, ...]) -> bool:
        """Whether to continue as new here; kept in the journal. In replay, what was done when this turn was live."""
        self.check_alive()
        busy = self.message_handlers is not None and self.message_handlers.is_handling()
        related = self.related is not None and self.related.waits()
        if busy or self.activities or related or self.next_timer() is not None:
            return False
        if self.recorded is None:
            goes_on = self._continue_hint()
        else:
            found = self.recorded_command()
            if found is not None and found.kind is CommandKind.CONTINUE:
                # Of a journal older than the mark, or its code continued right here, with the same arguments.
                return self._is_input(found, args)
            goes_on = found is not None and found.kind is CommandKind.SAFE_POINT
        if goes_on:
            self._issue(CommandKind.SAFE_POINT)
        return goes_on

    def _is_input(self, command: Command, args: tuple[Any, ...]) -> bool:
        try:
            return command.value == Raw(self.workflow.codec.encode_args(args, {}, self.limit))
        except (TypeError, InvalidInput):
            return False

    def _continue_hint(self) -> bool:
        """Whether the journal has grown long, or the run old."""
        return self.entries >= self.workflow.continue_after or self.at - self.started_at >= _DAY

    # -- messages

    def messages(self) -> MessageHandlers:
        """Made when it is first asked for."""
        if self.message_handlers is None:
            self.message_handlers = MessageHandlers(self)
        return self.message_handlers

    def _listens(self, body: Body) -> bool:
        waits_for_kin = self.related is not None and self.related.waits()
        return body.quiet or waits_for_kin or (self.message_handlers is not None and self.message_handlers.listens())

    async def wait_until(self, condition: Callable[[], Any], timeout: float | None) -> None:
        if self._conditions is None:
            self._conditions = Conditions(self)
        await self._conditions.wait(condition, timeout)

    def _is_over(self) -> bool:
        """Whether no more code is to run in this turn."""
        return (
            (self._main is not None and self._main.done()) or self._failure is not None or self.loop.broken is not None
        )

    # -- timers

    def named_timers(self) -> NamedTimers:
        self.check_alive()
        if self._named is None:
            self._named = NamedTimers(self)
        return self._named

    # -- what workflow code asks

    def now(self) -> int:
        self._there()
        return self.at

    def timeout_left(self) -> float | None:
        """Seconds until the run exceeds its timeout, or its chain the execution timeout."""
        self._there()
        start = self.start
        ends = [self.started_at + start.timeout] if start.timeout else []
        ends += [(start.chain_at or self.started_at) + start.execution_timeout] if start.execution_timeout else []
        return max(0.0, (min(ends) - self.at) / SECOND) if ends else None

    def random(self) -> Random:
        self.check_alive()
        if self._random is None:
            self._random = Random(self.start.seed)
        return self._random

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
        identity = self.identity if self.lineage is None else self.lineage.told
        return RunInfo(
            run_id=identity.run_id,
            id=identity.id,
            workflow=self.workflow.name,
            queue=identity.queue,
            namespace=identity.namespace,
            entries=self.entries,
            started_at=as_datetime(self.started_at),
            version=self.start.version,
            replaying=self.recorded is not None,
            attempt=self.start.attempt,
            trace=self.start.trace,
            headers=self.start.headers,
            continue_hint=self._continue_hint(),
            parent_id=self.start.parent or None,
            slot=as_datetime(self.start.slot or None),
        )

    # -- the end

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
        self.message_handlers = self._conditions = None
        if self._unbegun is not None:
            self._unbegun.close()
        self.activities.clear()
        if self.related is not None:
            self.related.clear()
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
    EntryKind.SIGNAL: lambda machine, body: machine.messages().deliver_signal(body),
    EntryKind.UPDATE: lambda machine, body: machine.messages().deliver_update(body),
    EntryKind.CANCEL_REQUESTED: Machine._deliver_cancel,
    EntryKind.CHILD_DONE: lambda machine, body: machine.kinship().child_done(body),
    EntryKind.CHILD_FAILED: lambda machine, body: machine.kinship().child_failed(body),
    EntryKind.ACCEPTED: lambda machine, body: machine.kinship().accepted(body),
    EntryKind.REFUSED: lambda machine, body: machine.kinship().refused(body),
}
"""How each input reaches the code."""


def _error_of(main: RunTask) -> BaseException | None:
    if not _cancelled(main):
        return _exception(main)
    try:
        _result(main)
    except asyncio.CancelledError as error:
        return error
    return None


def _end_of(error: BaseException | None, *, cancelled: bool) -> tuple[RunState, str]:
    """The state that a run comes to whose code has ended, and the name of its error."""
    if cancelled:
        return RunState.CANCELLED, ""
    if error is None:
        return RunState.COMPLETED, ""
    if isinstance(answerable(error), ContinueAsNew):
        return RunState.CONTINUED, ""
    return RunState.FAILED, type(error).__name__
