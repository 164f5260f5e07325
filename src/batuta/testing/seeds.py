"""`interleavings`: the same workflow under many orders of what can happen, each drawn by a seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from batuta.authoring.definitions import Workflow
from batuta.authoring.jobs import Job
from batuta.durations import Duration
from batuta.errors import InvalidInput
from batuta.testing.crashes import apart
from batuta.testing.environment import Environment
from batuta.testing.events import Happening
from batuta.testing.random_delays import SLOWEST, Chance, foreseen
from batuta.testing.virtualtime import run
from batuta.testing.worker_lives import Plan, Script, comparable, ending_of, violations

_SHOWN = 40
_ENOUGH = 5
"""Failing seeds to report: more of them would say nothing new."""
_MANY = 1_000
"""Entries that a run may have, besides ten times those of the usual order, before it counts as endless."""


@dataclass
class Interleavings:
    """The result of the seeds."""

    ending: Any
    """The result in the usual order, or the RunNotCompleted that was raised."""
    seeds: list[int] = field(default_factory=list)
    endings: dict[int, Any] = field(default_factory=dict)
    """The same under each seed: all alike, unless a `check` or a `key` lets them differ."""
    orders: int = 0
    """How many different orders there were, the usual one included."""

    def __str__(self) -> str:
        return f"{len(self.seeds)} seeds, {self.orders} orders, the usual end: {self.ending!r}"


class OrderChangesResult(AssertionError):
    """A run came to another end, or broke a promise, because things happened in another order."""

    def __init__(self, wrong: Sequence[_Life], tried: int) -> None:
        shortest = min(wrong, key=lambda life: len(life.happened))
        seeds = ", ".join(str(life.seed) for life in wrong)
        super().__init__(
            f"{len(wrong)} of {tried} seeds made a difference: {seeds}\n"
            f"With seed {shortest.seed} {'; '.join(shortest.wrong)}. What happened, in seconds:\n"
            f"{_shown(shortest.happened)}\n"
            f"Again: interleavings(..., seed={shortest.seed}) or Environment(..., seed={shortest.seed})"
        )
        self.seeds = [life.seed for life in wrong]
        """Seeds that made a difference."""
        self.happened = shortest.happened
        """Under the seed that the message tells of."""


def interleavings(
    workflow: Workflow[..., Any] | Job[..., Any],
    /,
    *input: Any,  # noqa: A002 - its own word
    seeds: int | Iterable[int] = 100,
    seed: int | None = None,
    activities: Sequence[object] | Callable[[], Sequence[object]] = (),
    workflows: Sequence[Workflow[..., Any]] = (),
    script: Script | None = None,
    key: Callable[[Any], Any] | None = None,
    check: Callable[[Any], object] | None = None,
    slowest: Duration = SLOWEST,
    failing: float = 0.0,
    **environment: Any,
) -> Interleavings:
    """Run it once in the usual order, in which every activity answers at once; then once for each seed, which decides
    how long attempts of activities, messages and the starts of children take. Every run must come to the same end.

    `seeds`: how many, or which. `seed`: only this one. `activities`, `workflows`, `script` and `key` are those of
    `crash_sweep`. `check(ending)`: where ends may differ, raises AssertionError or returns False if one is wrong.
    `slowest`: the longest time in seconds of an attempt, a message or a start: shorter timers can come before it.
    `failing`: the share of attempts that fail, before or after their code; never the last one of a call. Other keywords
    are those of an Environment: jobs, queues, store, settings.

    A plain function, for a plain test: it has its own event loops, in virtual time. Raises OrderChangesResult, an
    AssertionError that names the seed and shows the events.
    """
    plan = Plan.of(workflow, input, activities, workflows, environment, script)
    several = range(seeds) if isinstance(seeds, int) else seeds or ()
    chosen = [seed] if seed is not None else list(several)
    if not chosen:
        raise InvalidInput(f"seeds={seeds!r} must be a number of seeds, at least 1, or the seeds themselves")
    for one in chosen:
        Chance(one, slowest, failing)  # refused here, before anything is run
    trial = _Trial(plan, {"slowest": slowest, "failing": failing}, key, check)
    return apart(lambda: trial.run(chosen))


@dataclass
class _Life:
    """One run under a seed, or in the usual order."""

    seed: int | None
    most: int = 0
    """How many entries the journals may have in the end."""
    ending: Any = None
    happened: list[Happening] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    is_endless: bool = False

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(one.what for one in self.happened)


class _Trial:
    def __init__(
        self,
        plan: Plan,
        odds: dict[str, Any],
        key: Callable[[Any], Any] | None,
        check: Callable[[Any], object] | None,
    ) -> None:
        self._plan, self._odds, self._check = plan, odds, check
        self._key = key or (comparable if check is None else None)

    def run(self, seeds: Sequence[int]) -> Interleavings:
        usual = _Life(None)
        self._live(usual)
        if usual.wrong:
            raise AssertionError(f"even in the usual order {'; '.join(usual.wrong)}:\n{_shown(usual.happened)}")
        found = Interleavings(usual.ending)
        orders, wrong = {usual.order}, []
        for seed in seeds:
            life = self._try(seed, usual)
            found.seeds.append(seed)
            found.endings[seed] = life.ending
            orders.add(life.order)
            if life.wrong:
                wrong.append(life)
            if len(wrong) == _ENOUGH or life.is_endless:
                break
        if wrong:
            raise OrderChangesResult(wrong, len(found.seeds))
        found.orders = len(orders)
        return found

    def _try(self, seed: int, usual: _Life) -> _Life:
        life = _Life(seed, _MANY + 10 * len(usual.happened))
        try:
            self._live(life)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong belongs to the seed with which it does
            life.wrong.append(f"the test ends with {type(error).__name__}: {error}")
        if self._key is not None and not life.wrong and self._key(life.ending) != self._key(usual.ending):
            life.wrong.append(f"the run ends with {life.ending!r}, and in the usual order with {usual.ending!r}")
        return life

    def _live(self, life: _Life) -> None:
        run(self._from_start_to_end(life))
        if self._check is not None:
            try:
                if self._check(life.ending) is False:
                    life.wrong.append(f"the run ends with {life.ending!r}, which the check refuses")
            except AssertionError as error:
                life.wrong.append(f"the run ends with {life.ending!r}, which the check refuses: {error}")

    async def _from_start_to_end(self, life: _Life) -> None:
        plan = self._plan
        odds = {} if life.seed is None else {"seed": life.seed, **self._odds}
        with foreseen():
            async with Environment(activities=plan.activities(), **plan.environment, **odds) as env:
                playing = asyncio.create_task(self._play(env, life))
                if env.chance is not None:
                    env.chance.most, env.chance.too_much = life.most, playing.cancel
                try:
                    await playing
                except asyncio.CancelledError:
                    if env.chance is None or not env.chance.was_too_much:
                        raise
                    life.is_endless = True
                    raise AssertionError(f"it goes on and on, and has {life.most} entries in its journals") from None
                finally:
                    life.happened = await env.happened()

    async def _play(self, env: Environment, life: _Life) -> None:
        plan = self._plan
        handle = await env.begin(plan.work, *plan.input, id="seeded")
        if plan.script is not None:
            await plan.script(env, handle)
        life.ending = await ending_of(env, handle)
        await env.settle()
        life.wrong += await violations(env)


def _shown(happened: Sequence[Happening]) -> str:
    half = _SHOWN // 2
    if len(happened) <= _SHOWN:
        return "\n".join(map(str, happened))
    left_out = f"{'...':>12}  {len(happened) - _SHOWN} more"
    return "\n".join([*map(str, happened[:half]), left_out, *map(str, happened[-half:])])
