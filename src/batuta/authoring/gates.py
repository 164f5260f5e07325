"""Gates: asked before an attempt of an activity begins. A refusal costs no attempt.

A breaker and a partner's limit are gates (`batuta.resilience`). Subclass `Gate` to write your own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from msgspec import Struct

from batuta.durations import Duration, in_seconds
from batuta.errors import GateFailed, GateRefused, InvalidInput
from batuta.journal.resilience.partners import PartnerStore
from batuta.names import check_name
from batuta.telemetry import Event

log = logging.getLogger("batuta.resilience")

T = TypeVar("T")

_LONGEST = 366 * 86_400.0
"""Seconds: a refusal that says more is asked again then."""


class GateCall(Protocol):
    """The call that asks."""

    def gate_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the activity, decoded when they are asked for."""
        ...


class Refusal(Struct, frozen=True):
    """Not now."""

    wait: float
    """Seconds after which the call is to ask again. It asks earlier when the gate is woken."""
    why: str = ""
    topic: str = ""
    """The name by which `GateHost.wake` wakes it; empty: the gate's name."""
    spread: float = 0.0
    """More seconds for a call that waits, so that not all come back at once. They are not told in errors."""
    pending: bool = False
    """The gate does not know yet: the call waits for its answer, also with `on_refusal="fail"`."""
    gate: str = ""
    """The gate that refused, of a gate that asks others: runs that left memory are woken by its name."""


class Outcome(Struct, frozen=True):
    """How an attempt that a gate let in has ended."""

    error: BaseException | None = None
    seconds: float = 0.0
    ran: bool = True
    """False: it never began, or its answer does not count. A gate then takes back what it gave."""
    begun: bool = True
    """False: nothing of it was done."""


NOT_RUN = Outcome(ran=False)
NOT_BEGUN = Outcome(ran=False, begun=False)


class Keeper(Protocol):
    """A gate in one worker, or in one client."""

    frees_early: bool
    """Whether `leave` may come when the attempt is over its time, though its code has not ended."""

    def enter(self, call: GateCall) -> object:
        """A `Refusal`, or else what `leave` is given. Must not wait."""
        ...

    def leave(self, ticket: Any, outcome: Outcome) -> None:
        """Called once for every `enter` that did not refuse."""
        ...

    def lapsed(self, ticket: Any) -> bool:
        """Asked just before the code begins, in any thread: whether the attempt was let in too long ago. It is then
        to ask all gates again."""
        ...


class GateHost(Protocol):
    """What a gate has in its worker or client."""

    namespace: str
    store: PartnerStore
    monotonic: Callable[[], float]

    def wake(self, topic: str, most: int | None = None) -> None:
        """Have calls that wait here for a topic ask again: all, or the `most` that have waited longest."""
        ...

    def waiting(self, topic: str) -> int:
        """How many calls wait here for it."""
        ...

    def service(self, kind: Callable[[GateHost], T]) -> T:
        """What all gates of the host share: made when it is first asked for."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin it beside the calls; it ends with the host."""
        ...

    def call_later(self, seconds: float, act: Callable[[], None]) -> None: ...

    def report(self, event: Event) -> None:
        """Tell listeners of an event."""
        ...


class Gate:
    """A gate, as it is declared: `@activity(gates=[...])`. Gates are asked in order; if one refuses, those before it
    take back what they gave.

    Override `enter`, and `leave` if something is to be given back; both are called on the event loop of the worker and
    must not block. `on_refusal="wait"`: the call waits, and its run leaves memory if that takes long; with
    `longest_wait` it waits in memory for so long at most, then fails. `on_refusal="fail"`: it fails at once. It fails
    with what `error` returns.
    """

    frees_early = True

    def __init__(self, name: str, *, on_refusal: str = "wait", longest_wait: Duration | None = None) -> None:
        self.name = check_name(name, "gate name")
        self.keepers: dict[Keepers, Keeper] = {}
        if on_refusal not in ("wait", "fail"):
            raise InvalidInput(f"on_refusal={on_refusal!r} of gate {name!r} must be 'wait' or 'fail'")
        self.on_refusal = on_refusal
        self.longest_wait: float | None = None if longest_wait is None else check_period("longest_wait", longest_wait)
        if on_refusal == "fail" and longest_wait is not None:
            raise InvalidInput(
                f"gate {name!r} has longest_wait and on_refusal='fail', which never waits: leave out one"
            )

    def bind(self, host: GateHost) -> Keeper:
        """The gate in a worker or client. Called once for each."""
        return self

    def enter(self, call: GateCall) -> object:
        """A `Refusal`, or else what `leave` is given."""
        raise NotImplementedError(f"gate {self.name!r} has no enter()")

    def leave(self, ticket: Any, outcome: Outcome) -> None:
        """An attempt that was let in has ended."""

    def lapsed(self, ticket: Any) -> bool:
        """Whether an attempt that was let in, and has not begun yet, must ask again."""
        return False

    def error(self, refusal: Refusal) -> GateRefused:
        """The error of a call that does not wait."""
        return GateRefused(self.name, refusal.why, refusal.wait)

    def __repr__(self) -> str:
        return f"<gate {self.name}>"


class Keepers:
    """The keepers of one host. Each gate holds its own: a host forgets unused gates."""

    def __init__(self, host: GateHost) -> None:
        self._host = host
        self._gates: WeakSet[Gate] = WeakSet()

    def of(self, gate: Gate) -> Keeper:
        """Made when the gate is asked for the first time."""
        found = gate.keepers.get(self)
        if found is None:
            found = gate.keepers[self] = gate.bind(self._host)
            self._gates.add(gate)
        return found

    def clear(self) -> None:
        """The host closes."""
        for gate in list(self._gates):
            gate.keepers.pop(self, None)
        self._gates.clear()


def check_period(name: str, period: object) -> float:
    """Seconds, more than 0 and at most a year. Raises InvalidInput."""
    seconds: object = in_seconds(period)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= _LONGEST:
        raise InvalidInput(
            f"{name}={period!r} must be more than 0 seconds and at most a year, as a number or a timedelta"
        )
    return float(seconds)


def check_gates(gates: object) -> tuple[Gate, ...]:
    """Raises InvalidInput."""
    if isinstance(gates, Gate) or not isinstance(gates, Sequence):
        raise InvalidInput(f"gates={gates!r} must be a list of gates, such as gates=[breaker('bank')]")
    for one in gates:
        if not isinstance(one, Gate):
            raise InvalidInput(f"gates={list(gates)!r} must contain only gates, not {one!r}")
    return tuple(gates)


Passes = list[tuple[Keeper, object]]
"""The gates that let a call in, with the pass of each."""


def enter_all(keepers: Sequence[tuple[Gate, Keeper]], call: GateCall) -> Passes | tuple[Gate, Refusal]:
    """Ask all: those that let the call in, or the first that refused it."""
    passes: Passes = []
    for gate, keeper in keepers:
        try:
            answer = keeper.enter(call)
            if isinstance(answer, Refusal) and not 0 <= answer.wait + answer.spread <= 2 * _LONGEST:  # nan, too
                raise InvalidInput(
                    f"gate {gate.name!r} refused for {answer.wait!r} seconds: from 0 to a year is allowed"
                )
        except BaseException:
            leave_all(passes, NOT_BEGUN)
            raise
        if isinstance(answer, Refusal):
            leave_all(passes, NOT_BEGUN)
            return gate, answer
        passes.append((keeper, answer))
    return passes


def have_lapsed(passes: Passes) -> bool:
    """Whether one of these gates is to be asked again."""
    for keeper, ticket in passes:  # noqa: SIM110 - half the time of any(): it is done for every attempt
        if keeper.lapsed(ticket):
            return True
    return False


def refusal_error(gate: Gate, refusal: Refusal) -> Exception:
    """The error of a call that does not wait, or has waited for long enough."""
    try:
        error: object = gate.error(refusal)
        if isinstance(error, Exception):
            return error
        raise InvalidInput(f"error() of gate {gate.name!r} must return an exception, not {error!r}")
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001 - whatever the user's code raises is why the call fails
        return GateFailed(gate.name, raised)


def leave_all(passes: Passes, outcome: Outcome) -> None:
    """The last that let it in is told first. One that raises is logged: the attempt has ended all the same."""
    for keeper, ticket in reversed(passes):
        try:
            keeper.leave(ticket, outcome)
        except KeyboardInterrupt:
            raise
        except BaseException:
            log.exception("%r raised when it was told of the end of an attempt", keeper)
