"""Answers of transactional activities, as inputs of their run.

The entry of such an answer is written in the activity's own transaction, not by the committer. So it must be the next
one: all entries before it are durable, and no other input of the run is delivered until it is, too, or is taken back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Raw

from batuta.engine.calls import Call
from batuta.journal.entries import Body, EntryKind
from batuta.journal.records import Change, Refusal

if TYPE_CHECKING:
    from batuta.engine.live import Effect, LiveRun

log = logging.getLogger("batuta.engine")

_DONE = EntryKind.ACTIVITY_DONE
_STOP = (_DONE, Body())
"""Stands before the inputs that wait."""

Turn = tuple[Change, list["Effect"]]
"""What a turn wants written, and what may act then."""


class Held:
    """An answer that waits to be the next input of its run. `data`: JSON of it, when it is known before that."""

    __slots__ = ("body", "call", "data", "reached", "turn")

    def __init__(self, call: Call, data: bytes | None = None) -> None:
        self.call, self.data = call, data
        self.body = Body(call.seq, call.pending.name)
        self.reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it is the next input. Its turn has run then, if the answer was known; see `turn`."""
        self.turn: Turn | None = None


class Holding:
    """The answers of one run that are held."""

    __slots__ = ("gate", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, Held] = {}
        self.gate: Held | None = None
        """It is the next input, and everything else of the run waits for it."""

    def stops(self, run: LiveRun, body: Body) -> bool:
        """Whether this input, the next one, and all others must wait."""
        if self.gate is not None:
            return True
        held = self.waiting.get(body.seq)
        if held is None or held.body is not body:
            return False
        if held.call.over or body.seq not in run.machine.activities:
            body.seq = 0  # nobody waits for it: so it is no input
            return False
        if run.head == run.durable and run.change is None and run.ready and not run.is_being_written():
            self._shut(run, held)
        return True

    def _shut(self, run: LiveRun, held: Held) -> None:
        self.gate = held
        del self.waiting[held.body.seq]
        run.backlog[0] = _STOP
        if held.data is not None:
            take_turn(run, held, held.data)
        if not held.reached.done():
            held.reached.set_result(None)


def hold(run: LiveRun, held: Held) -> None:
    """Have the answer wait for its place among the run's inputs."""
    if run.holding is None:
        run.holding = Holding()
    run.holding.waiting[held.call.seq] = held
    run.backlog.append((_DONE, held.body))
    if held.data is None and len(run.backlog) == 1 and not run.leaving:
        run.holding.stops(run, held.body)
        if held.reached.done():  # it is its turn already, and no turn runs yet: that saves two rounds of the event loop
            return
    run.go_on_soon()


def take_turn(run: LiveRun, held: Held, data: bytes) -> None:
    """Run the turn of an answer whose place it is. From a callback, as any turn.

    `held.turn` stays None when it has failed, or the run is leaving: what is to be written then is the committer's.
    """
    try:
        _take_turn(run, held, data)
    except BaseException as error:
        if isinstance(error, Exception):
            log.exception("run %s is dropped and will be read again", run.identity.id)
        held.call.over = True
        held.reached.cancel()
        run.drop()
        raise


def _take_turn(run: LiveRun, held: Held, data: bytes) -> None:
    if run.leaving:  # it was ended or parked while the activity's code ran: no entry may come after that
        return
    call, body = held.call, held.body
    body.value, body.attempts, body.started_at = Raw(data), call.attempt, call.started_at
    run.calls.pop(call.seq, None)
    _lift(run)
    change = run.open_change()
    with run.executor.turns:
        run.answer(body)
    run.backlog.insert(0, _STOP)
    if run.change is change and change.entries and change.entries[-1].kind is _DONE:
        held.turn = change, run.effects
        run.effects, run.change = [], None


def _lift(run: LiveRun) -> None:
    if _STOP in run.backlog:
        run.backlog.remove(_STOP)


def let_go(run: LiveRun, held: Held) -> None:
    """It is no input any more: let the others through."""
    holding = run.holding
    if holding is None:
        return
    if holding.waiting.get(held.call.seq) is held:
        del holding.waiting[held.call.seq]
        with suppress(ValueError):
            run.backlog.remove((_DONE, held.body))
    if holding.gate is held:
        holding.gate = None
        _lift(run)
        if run.change is not None:
            run.submit()
    if not run.leaving:
        run.go_on_soon()


def settle(run: LiveRun, turn: Turn, refusals: Sequence[Refusal]) -> None:
    """Its transaction is durable."""
    waits = run.change is not None
    if run.holding is not None:
        run.holding.gate = None
    _lift(run)
    run.settled(*turn, refusals)
    if waits and run.change is not None:
        run.submit()
    if run.backlog and not run.leaving:
        run.go_on_soon()


def take_back(run: LiveRun, held: Held, turn: Turn, then: Callable[[], None]) -> None:
    """Nothing of its transaction is durable: the turn never was. `then` is called when the run is where it was."""
    call, held.turn = held.call, None
    if run.change is not None and (run.change.entries or run.change.move is not None):
        run.drop()  # it has ended on top of what never was
        return
    run.calls[call.seq] = call
    run.undo(*turn, then)


def reopen(run: LiveRun) -> Turn | None:
    """The run is where it was before. What came meanwhile to be written, of which the head is wrong now."""
    if run.holding is None or run.holding.gate is None:
        return None
    run.holding.gate = None
    _lift(run)
    change, effects, run.change, run.effects = run.change, run.effects, None, []
    return None if change is None else (change, effects)
