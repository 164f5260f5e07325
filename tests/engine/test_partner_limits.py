"""Limits towards a partner: rates, concurrency, balances and pauses that the partner asks for, over all workers."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from batuta import LimitReached, Rate, Retry, RunFailed, RunState, activity, workflow
from batuta.authoring.gates import NOT_BEGUN, Gate, Refusal
from batuta.errors import GateFailed, InvalidInput, UnknownPartner
from batuta.journal.resilience.partners import LIMIT, PartnerChange
from batuta.resilience import Bucket, partner_limit
from batuta.resilience.limits.rules import LimitDoc, LimitSettings
from batuta.resilience.partners import Partners
from batuta.testing import Environment
from tests.engine.kit import world

calls: list[tuple[float, str]] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()


def now() -> float:
    return asyncio.get_running_loop().time()


def host_of(env: Environment) -> Any:
    assert env.worker.session is not None
    return env.worker.session.executor.gates


def most_within(seconds: float, key: str | None = None) -> int:
    """The most calls in any so many seconds."""
    times = sorted(at for at, who in calls if key is None or who == key)
    return max((sum(start <= at < start + seconds for at in times) for start in times), default=0)


by_bank = partner_limit("create", key=lambda bank, *_: bank, rates=["10/min", "30/h"])


@activity(gates=[by_bank])
async def create(bank: str) -> str:
    calls.append((now(), bank))
    return bank


@workflow
async def creates(bank: str) -> str:
    return await create(bank)


async def finish(env: Environment, handles: list[Any], patience: float) -> None:
    for handle in handles:
        await handle.result(patience)


async def test_several_windows_hold_at_once_and_each_key_has_its_own() -> None:
    async with world(creates, create) as env:
        handles = [await env.start(creates, bank) for bank in ("a", "b") for _ in range(35)]
        await env.settle()
        assert Counter(who for _, who in calls) == {"a": 10, "b": 10}
        await finish(env, handles, 3 * 3600)
    for key in ("a", "b"):
        assert most_within(60, key) == 10
        assert most_within(3600, key) == 30
    times = sorted(at for at, who in calls if who == "a")
    assert times[29] - times[0] < 200, "most of the rate is used"


async def test_permits_from_before_a_worker_stood_still_are_not_used_beside_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stands still after its gates have let calls in, and before the code of these begins."""
    act = create.with_options(gates=[partner_limit("tens", rate="10/s")])

    @workflow
    async def run() -> str:
        return await act("a")

    async with world(run, create) as env:
        await (await env.start(run)).result(10)
        await env.advance(10)
        calls.clear()
        assert env.worker.session is not None
        runner = env.worker.session.executor._runner
        held = asyncio.Event()
        with monkeypatch.context() as patch:
            patch.setattr(runner, "_lease", SimpleNamespace(monotonic=runner._lease.monotonic, valid_until=0.0))
            patch.setattr(runner, "_permission", held.wait)
            early = [await env.start(run) for _ in range(10)]
            await env.advance(0.3)
            assert len(env.worker.session.executor.at_work()) == 1, "calls were let in, and none has begun"
        assert calls == []
        await env.advance(30)
        late = [await env.start(run) for _ in range(30)]
        await env.advance(0.1)
        held.set()
        await finish(env, [*early, *late], 60)
    assert len(calls) == 40
    assert most_within(1) <= 10


async def test_concurrency_that_a_stopped_process_had_is_not_used_when_others_may_have_it() -> None:
    async with Environment() as env:
        one = partner_limit("one", concurrency=1)
        keeper: Any = one.bind(host_of(env))
        while isinstance(ticket := keeper.enter(None), Refusal):
            await env.settle()
        assert not keeper.lapsed(ticket)
        keeper._keeper.tick = lambda: False  # it stands still
        await env.advance(16)
        assert keeper.lapsed(ticket)
        keeper.leave(ticket, NOT_BEGUN)
        assert isinstance(keeper.enter(None), Refusal), "the store is asked"


async def test_what_must_wait_long_leaves_memory_with_its_reason() -> None:
    hourly = partner_limit("hourly", rate="1/h")
    act = create.with_options(gates=[hourly])

    @workflow
    async def run() -> str:
        return await act("a")

    async with world(run, create) as env:
        handles = [await env.start(run) for _ in range(3)]
        await env.settle()
        assert env.worker.session is not None
        assert not env.worker.session.runs
        states = Counter((found.state, found.reason) for found in [await one.describe() for one in handles])
        assert states == {(RunState.COMPLETED, ""): 1, (RunState.WAITING, "gate:hourly"): 2}
        await finish(env, handles, 5 * 3600)
    assert most_within(3600) == 1


async def test_concurrency_is_never_more_than_the_limit() -> None:
    three = partner_limit("three", concurrency=3)
    inside = [0, 0]

    @activity(gates=[three])
    async def act() -> None:
        inside[0] += 1
        inside[1] = max(inside)
        await asyncio.sleep(5)
        inside[0] -= 1

    @workflow
    async def run() -> None:
        await act()

    async with world(run, act) as env:
        before = now()
        handles = [await env.start(run) for _ in range(30)]
        await finish(env, handles, 500)
        assert inside == [0, 3]
        assert now() - before < 5 * 10 * 1.2


async def test_concurrency_beside_a_rate_is_used_again_as_soon_as_a_call_ends() -> None:
    both = partner_limit("both", rate="100/s", concurrency=2)

    @activity(gates=[both])
    async def act() -> None:
        await asyncio.sleep(0.05)
        calls.append((now(), ""))

    @workflow
    async def run() -> None:
        await act()

    async with world(run, act) as env:
        before = now()
        handles = [await env.start(run) for _ in range(100)]
        await finish(env, handles, 100)
        assert calls[-1][0] - before < 100 / 2 * 0.05 * 1.2


async def test_a_call_may_weigh_more_than_one() -> None:
    heavy = partner_limit("heavy", rate="10/min", weight=lambda count: count)

    @activity(gates=[heavy])
    async def act(count: int) -> None:
        calls.extend([(now(), "")] * count)

    @workflow
    async def run(count: int) -> None:
        await act(count)

    async with world(run, act) as env:
        handles = [await env.start(run, count) for count in (4, 4, 4, 10, 1)]
        await finish(env, handles, 3600)
        assert most_within(60) <= 10
        with pytest.raises(RunFailed, match="never allows a call of weight 11"):
            await (await env.start(run, 11)).result(5)


async def test_a_heavy_call_gets_in_while_light_ones_take_each_unit_that_comes_free() -> None:
    shared = partner_limit("shared", concurrency=5, weight=lambda units: units)

    @activity(gates=[shared])
    async def act(units: int) -> None:
        await asyncio.sleep(1)
        calls.append((now(), "heavy" if units > 1 else "light"))

    @workflow
    async def lights(count: int) -> None:
        for _ in range(count):
            await act(1)

    @workflow
    async def heavy() -> None:
        await act(4)

    async with world(lights, heavy, act) as env:
        busy = [await env.start(lights, 100) for _ in range(6)]
        await env.advance(5.5)
        one = await env.start(heavy)
        await env.advance(20)
        assert "heavy" in [who for _, who in calls]
        await one.result(5)
        await finish(env, busy, 2_000)


@pytest.mark.parametrize("limit", [{"rate": "6/min"}, {"bucket": Bucket(6, Rate(6, 60))}], ids=["rate", "bucket"])
async def test_a_heavy_call_gets_its_units_in_time_though_many_light_ones_wait(limit: dict[str, Any]) -> None:
    shared = partner_limit("shared", weight=lambda units: units, **limit)

    @activity(gates=[shared])
    async def act(units: int) -> None:
        calls.extend([(now(), "heavy" if units > 1 else "light")] * units)

    @workflow
    async def run(units: int) -> None:
        await act(units)

    async with world(run, act) as env:
        before = [await env.start(run, 1) for _ in range(6)]
        await env.advance(1)
        light = [await env.start(run, 1) for _ in range(30)]
        await env.advance(1)
        heavy = await env.start(run, 5)
        await heavy.result(200)
        await finish(env, [*before, *light], 3_600)
    if "rate" in limit:
        assert most_within(60) == 6


async def test_units_of_a_call_that_another_gate_refuses_serve_the_next_one() -> None:
    class Door(Gate):
        shut = True

        def enter(self, call: Any) -> object:
            return Refusal(1.0, "it is shut") if self.shut else None

    door, ten = Door("door"), partner_limit("ten", rate="10/h")
    act = create.with_options(gates=[ten, door])

    @workflow
    async def run() -> str:
        return await act("a")

    async with world(run, create) as env:
        handles = [await env.start(run) for _ in range(10)]
        await env.advance(1200)
        door.shut = False
        await finish(env, handles, 200)
        assert len(calls) == 10


async def test_what_was_counted_still_counts_when_the_period_of_a_used_up_limit_changes() -> None:
    five = partner_limit("five", rate="5/min")
    act = create.with_options(gates=[five])

    @workflow
    async def run() -> str:
        return await act("a")

    async with world(run, create) as env:
        handles = [await env.start(run) for _ in range(20)]
        await env.advance(10)
        assert len(calls) == 5
        for rate in ("5/h", "5/min", "5/40s"):
            await env.client.limits.change("five", rate=rate)
            assert (await env.client.limits.get("five")).keys[0].used[rate] == 5
            await env.advance(2)
            assert len(calls) == 5
        await finish(env, handles, 600)


class TooMany(Exception):
    def __init__(self, wait: str) -> None:
        super().__init__("429")
        self.status_code, self.headers = 429, {"Retry-After": wait}


@pytest.mark.parametrize(("said", "held"), [("100", 100), ("rubbish", 0), ("-1", 0), ("99999999", 600)])
async def test_a_retry_after_holds_all_calls_back_within_reason(said: str, held: float) -> None:
    polite = partner_limit("polite", rate="1000/s", longest_hold=600)

    @activity(gates=[polite], retry=Retry(attempts=2, first=1, jitter=0))
    async def act(bad: bool) -> None:
        calls.append((now(), ""))
        if bad and len(calls) == 1:
            raise TooMany(said)

    @workflow
    async def run(bad: bool) -> None:
        await act(bad)

    async with world(run, act) as env:
        first = await env.start(run, True)
        await env.settle()
        others = [await env.start(run, False) for _ in range(5)]
        await finish(env, [first, *others], 2000)
    times = sorted(at for at, _ in calls)
    assert held <= times[1] - times[0] < held + 30


async def test_a_limit_that_fails_says_when_to_come_back() -> None:
    curt = partner_limit("curt", rate="1/min", on_refusal="fail")
    act = create.with_options(gates=[curt])

    @workflow
    async def run() -> str:
        return await act("a")

    async with world(run, create) as env:
        outcomes = []
        for _ in range(3):
            try:
                outcomes.append(await (await env.start(run)).result(5))
            except RunFailed as failed:
                error = failed.__cause__
                assert isinstance(error, LimitReached)
                outcomes.append(f"{0 < error.retry_after <= 70}")
            await env.advance(2)
    assert outcomes.count("a") == 1
    assert outcomes[-1] == "True"


async def test_an_undeclared_limit_is_a_named_error() -> None:
    act = create.with_options(gates=[partner_limit("nowhere")])

    @workflow
    async def run() -> None:
        await act("a")

    async with world(run, create) as env:
        with pytest.raises(RunFailed) as failed:
            await (await env.start(run)).result(5)
        assert isinstance(failed.value.__cause__, UnknownPartner)


async def test_a_declared_limit_that_is_forgotten_is_declared_again() -> None:
    async with world(creates, create) as env:
        await finish(env, [await env.start(creates, "a") for _ in range(10)], 5)
        await env.client.limits.change("create", rate="10/min")
        await env.advance(1)
        held = [await env.start(creates, "a") for _ in range(3)]
        await env.advance(1)
        assert len(calls) == 10
        await env.client.limits.forget("create")
        late = await env.start(creates, "a")
        await finish(env, [*held, late], 20)
        view = await env.client.limits.get("create")
        assert (view.changed, view.rates) == (False, ["10/min", "30/h"])


async def test_a_limit_among_more_than_a_thousand_is_known_changed_and_forgotten() -> None:
    async with world(creates, create) as env:
        for n in range(1_001):
            await env.store.change_partner(
                LIMIT, f"bank-{n}", "", lambda docs: PartnerChange(None, LimitDoc(turn=docs.now).encode())
            )
        await finish(env, [await env.start(creates, "a")], 5)
        await env.advance(6)
        await finish(env, [await env.start(creates, "a")], 5)
        await env.client.limits.change("create", rate="3/min")
        await env.advance(1)
        for _ in range(5):
            await env.start(creates, "a")
        await env.advance(1)
        assert len(calls) == 3
        await env.client.limits.forget("create")
        assert len(await env.client.limits.list()) >= 1_001


async def test_news_that_were_read_before_a_declaration_do_not_undo_it() -> None:
    async with world(creates, create) as env:
        partners = host_of(env).service(Partners)
        stale = await env.store.partners()
        await finish(env, [await env.start(creates, "a")], 5)
        old = await env.store.partners()
        await env.client.limits.change("create", rate="2/min")
        await env.advance(1)
        for rows in (stale, old):
            partners._learn(rows)
            assert partners._shared[LIMIT, "create"]._settings.text() == "2/min"
        await finish(env, [await env.start(creates, "a")], 5)


@pytest.mark.parametrize("key", ["", "a"])
async def test_a_limit_that_cannot_be_read_fails_calls_and_says_what_to_do(key: str) -> None:
    async with world(creates, create) as env:
        await finish(env, [await env.start(creates, "b")], 5)
        await env.store.change_partner(LIMIT, "create", key, lambda _: PartnerChange(None, '["rubbish"]', tell=True))
        await env.advance(60)
        with pytest.raises(RunFailed, match="batuta partners delete limit create") as failed:
            await (await env.start(creates, "a")).result(10)
        assert isinstance(failed.value.__cause__, GateFailed)
        found = await env.client.limits.get("create")
        assert "cannot be read" in found.reason
        await env.client.limits.forget("create")
        await env.advance(2)
        await finish(env, [await env.start(creates, "a")], 10)


@pytest.mark.parametrize("key", ["", "x" * 201, "\x00"])
async def test_a_key_that_no_store_can_keep_is_a_named_error(key: str) -> None:
    async with world(creates, create) as env:
        with pytest.raises(RunFailed) as failed:
            await (await env.start(creates, key)).result(5)
        assert isinstance(failed.value.__cause__, GateFailed)
        assert "key of limit 'create'" in str(failed.value)


@pytest.mark.parametrize(
    "options",
    [
        {"rate": "-5/min"},
        {"rate": "0/min"},
        {"rate": "many"},
        {"rate": ["5/min", "50/h"]},
        {"rates": "5/min"},
        {"rates": ["100/min", "50/h"]},
        {"rates": ["100/min", "200/min"]},
        {"rates": ["100/min", "100/h"]},
        {"concurrency": 0},
        {"concurrency": -1},
        {"concurrency": True},
        {"bucket": 5},
        {"bucket": Bucket(0, "1/s")},  # type: ignore[arg-type]
        {"rate": "1/s", "weight": 0},
        {"rate": "1/s", "key": "x" * 201},
        {"rate": "1/s", "longest_hold": -1},
    ],
)
def test_bad_limits_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        partner_limit("bad", **options)


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="needs rates"):
        LimitSettings()
