"""State that the parts of a machine share: place in the journal, commands of the turn, timers, the run's loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from inspect import isawaitable
from typing import Any, NoReturn, TypeVar, cast

from msgspec import UNSET, Raw, Struct, UnsetType

from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.definitions import Workflow
from batuta.authoring.failures.conversion import to_failure
from batuta.authoring.failures.known_errors import KnownErrors
from batuta.clock import SECOND
from batuta.engine.machine.deferred_logs import Line, emit
from batuta.engine.machine.identity import Lineage, RunIdentity
from batuta.engine.machine.loop import RunLoop, RunTimerHandle, Waiter, close_unbegun
from batuta.errors import Forbidden, InvalidInput
from batuta.ids import RunId, trace_id_of_run
from batuta.journal.entries import Command, CommandKind, Forked, StartInfo
from batuta.journal.failures import Failure
from batuta.serde import MAX_PAYLOAD, Codec, Decoder, encode

_set_running_loop, _get_running_loop = asyncio._set_running_loop, asyncio._get_running_loop
NULL = Raw(b"null")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_FAR = 2e11
"""Seconds, some thousand years: a `datetime` can hold every moment until then."""
_TIMER = CommandKind.TIMER  # a member of an enum is looked up slowly
_NOTHING_SHOWN: frozenset[str] = frozenset()
_LONGEST_ID = 500
MOST_PUBLISHED = 1_000
"""Names under which one run may publish values."""
T = TypeVar("T")


class Evicted(BaseException):
    """Raised by every batuta call in a run that has left memory: only its `finally` blocks are running."""


class PendingActivity(Struct, eq=False):
    """An activity between its call and its answer, as the code that called it waits for it."""

    name: str
    codec: Codec | None
    decoder: Decoder
    """Decodes its result."""
    data: bytes
    options: ActivityOptions
    issued_at: int
    entry: int
    """The entry of the turn that called it."""
    future: Waiter = cast(Waiter, None)
    """None of a call that no code waits for."""
    key: str = ""
    """Its stable key, where that is not made from its command: of a compensation."""


class MachineCore:
    """The state of one run's code, for the machine and the parts that it holds."""

    # Slots: with so many attributes each instance would have a dictionary of its own, grown several times.
    __slots__ = tuple(
        "_context _failure _gone _known _seq _shown _shut _timers activities at beyond commands deadlines entries "
        "identity limit lineage logs loop recorded start started_at workflow".split()
    )

    _context: contextvars.Context
    loop: RunLoop
    start: StartInfo

    def __init__(self, workflow: Workflow[..., Any], identity: RunIdentity, known: KnownErrors | None) -> None:
        self.workflow = workflow
        self.identity = identity
        self._known = known
        self.limit = MAX_PAYLOAD
        self.at = self.started_at = 0
        self.entries = 0
        self.activities: dict[int, PendingActivity] = {}
        self.commands: list[Command] = []
        self.recorded: list[Command] | None = None
        """In replay: the commands that this turn issued when it was live."""
        self.beyond = False
        """This turn issued a command that reaches beyond the run (see `engine.run.effects`)."""
        self.logs: list[Line] = []
        self.lineage: Lineage | None = None
        """For a forked run."""
        self._shown: set[str] | frozenset[str] = _NOTHING_SHOWN
        """Names of the values that it has published."""
        self._timers: dict[int, RunTimerHandle] = {}
        self.deadlines: list[tuple[int, int]] = []
        """A heap of timers, with some that were cancelled: ask `next_timer`."""
        self._seq = 0
        self._gone = False
        self._shut = ""
        """Why no command may be issued now; empty: they may."""
        self._failure: BaseException | None = None
        """The error that a signal handler raised."""

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
        self, kind: CommandKind, name: str, data: bytes | None = None, error: BaseException | None = None, to: str = ""
    ) -> None:
        """A command that the store has a part in."""
        self._issue(kind, name, data, UNSET if error is None else self._to_failure(error)).to = to
        self.beyond = True

    def add_beyond(self, command: Command) -> None:
        """The same, with the number that `next_seq` gave."""
        self.commands.append(command)
        self.beyond = True

    def next_seq(self) -> int:
        """The number of a command that is being issued."""
        self._seq += 1
        return self._seq

    def recorded_command(self) -> Command | None:
        """In replay: the command that was recorded at this place of the turn."""
        place, recorded = len(self.commands), self.recorded
        return recorded[place] if recorded is not None and place < len(recorded) else None

    def recorded_to(self, kind: CommandKind) -> str:
        """In replay: the id of the run that the command at this place of the turn began, if it is of that kind."""
        found = self.recorded_command()
        return found.to if found is not None and found.kind is kind else ""

    def _to_failure(self, error: BaseException) -> Failure:
        failure = to_failure(error)
        if self._known is not None:
            self._known.decide(failure, where=f"workflow {self.workflow.name!r}")
        return failure

    def publish(self, name: str, value: Any) -> None:
        self.check_alive()
        data = encode(value, f"the published value {name!r}", self.limit)
        if name not in self._shown:
            if self.start.bounded and len(self._shown) >= MOST_PUBLISHED:
                raise InvalidInput(
                    f"published value {name!r} is one too many: a run has at most {MOST_PUBLISHED:,} names; publish "
                    f"values together, under one name"
                )
            self._shown = {*self._shown, name}
        self.issue_beyond(CommandKind.PUBLISH, name, data)

    # -- code of the run

    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        """A task of the run that its code did not start."""
        self.loop.create_task(coro, name=name, context=self._context.copy())

    def fail(self, error: BaseException) -> None:
        """End the run with this error, at the end of this turn."""
        if self._failure is None:
            self._failure = error

    def only_looking(self, what: str, look: Callable[[], T], context: contextvars.Context | None = None) -> T:
        """Call code of the run, between two turns or where one rests. Raises Forbidden when it does more than
        read."""
        loop, host = self.loop, _get_running_loop()
        before, self._shut = self._shut, what
        in_turn, loop.in_turn = loop.in_turn, False
        _set_running_loop(loop)
        try:
            found = (context or self._context.copy()).run(look)
            if isawaitable(found):
                close_unbegun(found)
                self._refuse()
        finally:
            self._shut, loop.in_turn = before, in_turn
            _set_running_loop(host)
            if loop.mend() is not None:
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
            raise InvalidInput("a timer cannot have nan seconds: give a number of seconds")
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

    def seconds(self) -> float:
        return (self.at - self.started_at) / SECOND

    # -- log lines

    @property
    def logged(self) -> dict[str, str]:
        """The `extra` of a log line about the run."""
        identity, start = self.identity, getattr(self, "start", None)  # unknown before its first turn
        trace_id = trace_id_of_run("" if start is None else start.trace, identity.chain_id)
        return {"run": identity.id, "run_id": str(identity.run_id), "trace_id": trace_id}

    def log(self, let_go: Callable[[], None]) -> None:
        if self.recorded is None and not self._gone:
            self.logs.append((self.entries, let_go))

    def unlog(self) -> None:
        """Drop the log lines of this turn, which did not happen."""
        self.logs = [line for line in self.logs if line[0] < self.entries]

    def emit_logs(self, durable: int) -> None:
        """Let the lines of the first `durable` turns go out."""
        self.logs = emit(self.logs, durable, self.identity.id)

    # -- names

    def key(self, seq: int, name: str) -> str:
        """An activity call's stable key."""
        base = (self.lineage is not None and self.lineage.key_base(seq)) or self.start.key_base
        if self.start.options is not UNSET:  # a call that was sent here has the key that it had there
            return base
        return f"{base}:{seq}:{name}"

    def mark(self, seq: int) -> str:
        """Names the child or message that a command gives to the store."""
        return (self.lineage is not None and self.lineage.mark(seq)) or self.start.mark or self.start.key_base

    def child_id(self, seq: int) -> str:
        """Readable, and unlike that of any other child: also of a run that comes later under the parent's id."""
        mark = self.mark(seq)
        id = f"{self.identity.id}/{seq}-{mark[-6:]}"
        return id if len(id) <= _LONGEST_ID else f"{mark}/{seq}"

    def descend(self, last: Forked) -> None:
        """The run was made from another; `last` is the fork by which it became itself."""
        self.lineage = Lineage(self.identity, last)

    @property
    def first_run_id(self) -> RunId:
        """The run that was started; this one may have been made from it."""
        if self.lineage is not None:
            return self.lineage.first
        return RunId(self.start.key_base) if self.start.mark else self.identity.run_id

    # -- whether it may act

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
            raise Evicted

    def _refuse(self) -> NoReturn:
        self._there()
        raise self.loop.breaks(Forbidden(self._shut))
