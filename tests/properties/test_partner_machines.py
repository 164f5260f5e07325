"""Breakers and limits against simple models: what several processes do to one document, on every store."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from batuta.clock import SECOND
from batuta.connect import store_for
from batuta.ids import new_message_id
from batuta.journal.queues import Rate
from batuta.journal.resilience.partners import BREAKER, CLOSED, HALF_OPEN, LIMIT, OPEN, PartnerChange, PartnerDocs
from batuta.journal.store import Store
from batuta.resilience.breakers.rules import BreakerSettings, BreakerState, decode_breaker
from batuta.resilience.limits.rules import Bucket, Grant, LimitSettings, Wish, decode_counts
from tests.long import LONG

T = TypeVar("T")
EXAMPLES = 100 if LONG else 10
PROCESSES = st.sampled_from("abc")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def shared(request: pytest.FixtureRequest) -> Iterator[tuple[Store, asyncio.Runner]]:
    url = "memory://" if request.param == "memory" else request.getfixturevalue(f"{request.param}_url")
    store = store_for(url)
    with asyncio.Runner() as runner:
        runner.run(_open(store))
        yield store, runner
        runner.run(store.close())


async def _open(store: Store) -> None:
    await store.migrate()
    await store.open()


class OnStore(RuleBasedStateMachine):
    """A document that changes through the store's verb alone. Time is its own: the store's would not be exact."""

    store: Store
    runner: asyncio.Runner
    kind = BREAKER

    def __init__(self) -> None:
        super().__init__()
        self.name, self.now = new_message_id(), 1_000 * SECOND

    def change(self, act: Callable[[str | None], tuple[str, T]]) -> T:
        def decide(docs: PartnerDocs) -> PartnerChange[T]:
            doc, answer = act(docs.doc)
            return PartnerChange(answer, doc)

        done: Coroutine[Any, Any, PartnerChange[T]] = self.store.change_partner(self.kind, self.name, "k", decide)
        return self.runner.run(done).answer


class BreakerMachine(OnStore):
    """The model knows the calls; the breaker only what it was told."""

    SETTINGS = BreakerSettings(failures=3, open_for=10, growth=2, longest_open=30, probes=2, successes=2, probe_lease=5)

    def __init__(self) -> None:
        super().__init__()
        self.streak = self.passed = self.openings = 0
        self.state, self.until = CLOSED, 0
        self.probes: dict[str, int] = {}
        self.stale: list[tuple[int, list[int]]] = []
        self.turn = 0

    def act(self, how: Callable[[BreakerState], T]) -> tuple[BreakerState, T]:
        def decide(doc: str | None) -> tuple[str, tuple[BreakerState, T]]:
            state = decode_breaker(doc) or BreakerState(settings=self.SETTINGS)
            answer = how(state)
            return state.encode(), (state, answer)

        return self.change(decide)

    def opened(self) -> None:
        self.openings += 1
        self.state, self.until = OPEN, self.now + min(30, 10 * 2 ** (self.openings - 1)) * SECOND
        self.probes, self.passed, self.streak, self.turn = {}, 0, 0, self.turn + 1

    @rule(outcomes=st.lists(st.sampled_from([1, 4, -1, -2]), min_size=1, max_size=4), late=st.booleans())
    def report(self, outcomes: list[int], late: bool) -> None:
        turn = self.turn - late
        self.act(lambda state: state.report(outcomes, turn, self.now))
        if self.state != CLOSED or late:
            return
        for count in outcomes:
            self.streak = 0 if count > 0 else self.streak - count
            if self.streak >= 3:
                self.opened()
                return

    @rule(count=st.integers(1, 3))
    def ask(self, count: int) -> None:
        ids = [new_message_id() for _ in range(count)]
        _, granted = self.act(lambda state: state.take_probes(ids, self.now))
        if self.state == OPEN and self.now >= self.until:
            self.state, self.probes, self.passed, self.turn = HALF_OPEN, {}, 0, self.turn + 1
        if self.state != HALF_OPEN:
            assert granted == []
            return
        self.probes = {id: until for id, until in self.probes.items() if until > self.now}
        assert len(granted) == min(count, 2 - len(self.probes))
        self.probes |= dict.fromkeys(granted, self.now + 5 * SECOND)

    @rule(well=st.sampled_from([True, False, None]), data=st.data())
    def end(self, well: bool | None, data: st.DataObject) -> None:
        probe = data.draw(st.sampled_from([*self.probes, "unknown"]))
        self.act(lambda state: state.end_probe(probe, well, self.now))
        if self.probes.pop(probe, None) is None or self.state != HALF_OPEN or well is None:
            return
        if not well:
            self.opened()
            return
        self.passed += 1
        if self.passed >= 2:
            self.state, self.openings, self.probes, self.turn = CLOSED, 0, {}, self.turn + 1
            self.passed = self.streak = 0

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @invariant()
    def is_as_the_model(self) -> None:
        state, _ = self.act(lambda _: None)
        assert (state.state, state.streak, state.turn) == (self.state, self.streak, self.turn)
        assert state.probes == self.probes
        assert len(state.probes) <= 2
        if self.state == OPEN:
            assert state.until == self.until


class LimitMachine(OnStore):
    """Every admission is known with its time: no window may hold more than the limit."""

    kind = LIMIT
    SETTINGS = LimitSettings(rates=[Rate(5, 1), Rate(20, 60)], concurrency=4, bucket=Bucket(30, Rate(1, 1)))

    def __init__(self) -> None:
        super().__init__()
        self.admitted: list[int] = []
        self.using: dict[str, int] = dict.fromkeys("abc", 0)
        self.seen: dict[str, int] = dict.fromkeys("abc", 0)
        """When each was heard of last: later than a lease ago it is dead."""
        self.tokens, self.at = 30.0, self.now
        self.unused: dict[str, tuple[int, dict[str, int]]] = {}
        """What each will not use of its last lease, and where the store counts it."""

    @rule(who=PROCESSES, want=st.integers(0, 8), least=st.integers(1, 4), claims=st.booleans(), uses=st.booleans())
    def ask(self, who: str, want: int, least: int, claims: bool, uses: bool) -> None:
        unused, ends = self.unused.pop(who, (0, {}))
        wish = Wish(who, want, self.using[who], min(least, want), claims, unused, ends)
        grant: Grant = self.change(lambda doc: self._ask(doc, wish))
        self.tokens += unused
        self.tokens, self.at = min(30.0, self.tokens + (self.now - self.at) / SECOND), self.now
        assert grant.units == 0 or wish.least <= grant.units <= want
        assert grant.units <= max(0.0, self.tokens) + 1e-6
        if grant.units < want:
            assert grant.next_at > self.now, "a refusal says when to come back"
        self.tokens -= grant.units
        if not uses:
            self.unused[who] = grant.units, grant.ends
            self.seen[who] = self.now
            return
        for _ in range(grant.units):  # used at once, or at the last moment
            self.admitted.append(self.now if len(self.admitted) % 2 else grant.valid_until - 1)
        self.using[who] += grant.units
        self.seen[who] = self.now
        living = [one for one in "abc" if self.now - self.seen[one] < 15 * SECOND]
        assert sum(self.using[one] for one in living) <= 4

    def _ask(self, doc: str | None, wish: Wish) -> tuple[str, Grant]:
        counts = decode_counts(doc)
        grant = counts.ask(self.SETTINGS, wish, self.now)
        return counts.encode(), grant

    @rule(who=PROCESSES)
    def leave(self, who: str) -> None:
        self.using[who] = max(0, self.using[who] - 1)

    @rule(balance=st.integers(-10, 30))
    def told(self, balance: int) -> None:
        def sync(doc: str | None) -> tuple[str, None]:
            counts = decode_counts(doc)
            counts.sync(balance, self.now)
            return counts.encode(), None

        self.change(sync)
        self.tokens, self.at = float(balance), self.now

    @rule(micros=st.sampled_from([1, 40_000, 333_333, 1_000_000, 7_000_000, 20_000_000]))
    def wait(self, micros: int) -> None:
        self.now += micros
        for who in "abc":  # those that live renew their leases, or have ended their calls
            if self.now - self.seen[who] >= 15 * SECOND:
                self.using[who] = 0

    @invariant()
    def no_window_has_more_than_the_limit(self) -> None:
        times = sorted(self.admitted)
        for rate in self.SETTINGS.rates:
            for number, at in enumerate(times):
                assert sum(1 for one in times[number:] if one < at + rate.period) <= rate.count


@pytest.mark.parametrize("machine", [BreakerMachine, LimitMachine])
def test_what_the_store_keeps_is_what_the_model_says(
    shared: tuple[Store, asyncio.Runner], machine: type[OnStore]
) -> None:
    bound = type(machine.__name__, (machine,), {"store": shared[0], "runner": shared[1]})
    run_state_machine_as_test(
        bound,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
