"""Delays in a test with a seed: attempts of activities, messages on their way, children that wait.

Everything ends at a different moment in virtual time, so only the random choices decide on the order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, cast

from batuta import ids
from batuta.authoring.definitions import ExecutionMode
from batuta.authoring.failures.conversion import to_failure
from batuta.authoring.middleware import ActivityCall, Middleware, Proceed
from batuta.clock import SECOND
from batuta.durations import Duration, in_seconds
from batuta.errors import InvalidInput
from batuta.failpoints import InjectedFault
from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.records import Change, Message, NewRun, Refusal, RunKind, Verdict
from batuta.journal.store import Store
from batuta.testing.virtualtime import EPOCH

if TYPE_CHECKING:
    from batuta.engine.activities.call import Call

SLOWEST = 60.0
_APART = 10
"""Microseconds between two moments at which something ends: asyncio treats closer ones as the same."""
_SCALES = 14
_SEED_OF_IDS = 4711


class Chance:
    """The lots that a seed draws. Each has a name, so that what one is does not depend on how many came before."""

    def __init__(self, seed: int, slowest: Duration = SLOWEST, failing: float = 0.0) -> None:
        if not isinstance(seed, int):
            raise InvalidInput(f"seed={seed!r} must be a whole number")
        longest: float = in_seconds(slowest)
        if not _is_number(longest) or not 0 < longest < float("inf"):
            raise InvalidInput(f"slowest={slowest!r} must be a number of seconds or a timedelta, more than 0")
        if not _is_number(failing) or not 0 <= failing < 1:
            raise InvalidInput(f"failing={failing!r} must be the share of attempts that fail, from 0 to less than 1")
        self.seed, self.slowest, self.failing = seed, longest, failing
        self._drawn: Counter[str] = Counter()
        self._moments: set[int] = set()
        self.written: dict[tuple[RunId, int], int] = {}
        """The position of each journal entry among all written entries."""
        self._numbers = count(1)
        self.most: int | None = None
        """After this many entries `too_much` is called: an endless run would never stop."""
        self.too_much: Callable[[], object] = bool
        self.was_too_much = False

    def draw(self, name: str) -> Random:
        """The next lot of that name."""
        self._drawn[name] += 1
        return Random(f"{self.seed} {name} {self._drawn[name]}")

    def seconds(self, lot: Random, most: float | None = None) -> float:
        """How long something takes. Of every scale: half of all is short, down to a fraction of a thousandth."""
        share = lot.random()
        if lot.random() < 0.5:
            share /= 2 << int(lot.random() * _SCALES)
        return share * (self.slowest if most is None else min(most, self.slowest))

    def note(self, changes: Sequence[Change]) -> None:
        """They are written."""
        for change in changes:
            for entry in change.entries:
                self.written[change.run_id, entry.ord] = number = next(self._numbers)
                if number == self.most:
                    self.was_too_much = True
                    self.too_much()

    async def wait(self, seconds: float) -> None:
        """Let about as much time pass: nothing else that waits here ends at that moment."""
        loop = asyncio.get_running_loop()
        now = round(loop.time() * SECOND)
        moment = (now + int(seconds * SECOND)) // _APART * _APART + _APART
        while moment in self._moments:
            moment += _APART
        self._moments.add(moment)
        await asyncio.sleep((moment - now) / SECOND)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class SlowAttempts(Middleware):
    """Each attempt takes its time before its code, and after it; and may fail, when another one follows."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._one_thread = asyncio.Lock()

    async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
        attempt = cast("Call", call.of)
        place = attempt.activity.execution_mode
        if place is ExecutionMode.STORE:  # its transaction is open, and would hold up everything
            return await proceed()
        chance, lot = self._chance, self._chance.draw(f"attempt of {attempt.pending.name}")
        seconds = chance.seconds(lot, _most(attempt))
        before = seconds * lot.random()
        fault = _fault(chance, attempt) if lot.random() < chance.failing else None
        await chance.wait(before)
        if fault is not None and lot.random() < 0.5:
            raise fault
        try:
            if place is ExecutionMode.LOOP:
                value = await proceed()
            else:
                async with self._one_thread:  # two of them would end in a random order
                    value = await proceed()
        except Exception:
            await chance.wait(seconds - before)
            raise
        await chance.wait(seconds - before)
        if fault is not None:
            raise fault
        return value


def _most(attempt: Call) -> float | None:
    """No attempt is over its time by chance: half of that is for its code."""
    limits = []
    if attempt.deadline is not None:
        limits.append((attempt.deadline - attempt.started_at) / SECOND / 2)
    if attempt.pending.options.heartbeat is not None:
        limits.append(attempt.pending.options.heartbeat / 2)
    return min(limits, default=None)


def _fault(chance: Chance, attempt: Call) -> InjectedFault | None:
    """None when the call would fail with it."""
    options = attempt.pending.options
    is_last = options.once or options.retry.attempts == attempt.attempt
    fault = InjectedFault(f"seed {chance.seed} lets attempt {attempt.attempt} of {attempt.pending.name!r} fail")
    if is_last or options.total_timeout is not None or options.retry.refuses(to_failure(fault)):
        return None
    return fault


def slow_down(store: Store, chance: Chance) -> None:
    """Messages through this store take some time, and children wait for a worker."""
    send, commit = store.send, store.commit

    async def send_slowly(run_id: RunId, message: Message, act: Act | None = None) -> bool:
        await chance.wait(chance.seconds(chance.draw(message.kind)))
        return await send(run_id, message, act)

    async def commit_with_delays(worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        for change in changes:
            for child in () if change.effects is None else change.effects.children:
                if child.kind is RunKind.WORKFLOW:
                    child.delay += _delay(child, chance)
        answers = await commit(worker_id, changes)
        chance.note(changes)
        return answers

    vars(store).update(send=send_slowly, commit=commit_with_delays)


def _delay(child: NewRun, chance: Chance) -> int:
    most = child.execution_timeout / SECOND / 2 if child.execution_timeout else None
    return int(chance.seconds(chance.draw(f"child {child.name}"), most) * SECOND)


@contextmanager
def foreseen() -> Iterator[None]:
    """The ids of runs are the same whenever the same runs are begun, and so is all that grows from them."""
    before = ids.foresee(_SEED_OF_IDS, at=EPOCH)
    try:
        yield
    finally:
        ids.go_on_from(before)
