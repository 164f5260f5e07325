"""Operators see breakers and limits and change them; code outside of workflows passes the same gates."""

import asyncio
from typing import Any

import pytest

from batuta import Batuta, BreakerOpen, LimitReached, Rate, RetryLater, UnknownPartner, activity, workflow
from batuta.connect import connect
from batuta.errors import InvalidInput
from batuta.resilience import Bucket, breaker, partner_limit
from batuta.resilience.outside import gated
from batuta.verify import verify
from tests.engine.arena import Arena, until
from tests.engine.kit import world

bank = breaker("bank", failures=2, open_for=30)
orders = partner_limit("orders", key=lambda who: who, rate="5/min")
balance = partner_limit("balance", bucket=Bucket(10, "6/min"))  # type: ignore[arg-type]
done: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()


@activity(gates=[bank, orders])
async def order(who: str) -> str:
    done.append(who)
    return who


@workflow
async def orders_one(who: str) -> str:
    return await order(who)


async def test_a_forced_breaker_holds_runs_until_it_is_closed_and_the_audit_log_says_who() -> None:
    async with world(orders_one, order) as env:
        assert await (await env.start(orders_one, "a")).result(5) == "a"
        breakers = env.client.breakers
        view = await breakers.open("bank", "maintenance")
        assert (view.state, view.forced, view.reason) == ("open", "open", "maintenance")
        await env.advance(1)
        held = [await env.start(orders_one, f"{n}") for n in range(20)]
        await env.advance(300)
        assert done == ["a"]
        assert "gate:bank" in {(await one.describe()).reason for one in held}
        view = await breakers.off("bank", "never mind")
        assert (view.state, view.forced) == ("closed", "off")
        assert [await one.result(3) for one in held] == [f"{n}" for n in range(20)]
        assert (await breakers.close("bank", "as before")).forced == ""
        acts = [act for act in (await env.client.audit()).rows if act.verb == "force breaker"]
        assert [(act.target, act.reason) for act in acts][::-1] == [
            ("bank", "maintenance"),
            ("bank", "never mind"),
            ("bank", "as before"),
        ]


async def test_a_limit_is_changed_live_and_reset() -> None:
    async with world(orders_one, order) as env:
        held = [await env.start(orders_one, "a") for _ in range(40)]
        await env.advance(1)
        assert len(done) == 5
        limits = env.client.limits
        assert (await limits.get("orders")).keys[0].used == {"5/min": 5}
        view = await limits.change("orders", rate="1000/s", reason="a big day")
        assert (view.rates, view.changed, view.declared) == (["1000/s"], True, "5/min")
        for one in held:
            await one.result(3)
        assert (await limits.reset("orders")).rates == ["5/min"]


async def test_a_pause_holds_one_key_alone_and_can_be_ended() -> None:
    async with world(orders_one, order) as env:
        assert await (await env.start(orders_one, "a")).result(5) == "a"
        await env.client.limits.hold("orders", 600, key="a")
        held, free = await env.start(orders_one, "a"), await env.start(orders_one, "b")
        assert await free.result(5) == "b"
        await env.advance(60)
        assert done == ["a", "b"]
        assert (await env.client.limits.get("orders")).keys[0].held_until is not None
        await env.client.limits.release("orders", key="a")
        assert await held.result(5) == "a"


async def test_a_balance_that_the_partner_tells_may_be_negative() -> None:
    async with world(orders_one, order) as env:
        act = env.client.gates
        async with act(balance):
            done.append("first")
        await env.client.limits.sync("balance", -5)
        began = env.now
        async with act(balance):
            done.append("second")
        assert 59 <= (env.now - began).total_seconds() < 75, "six tokens come back in a minute"
        assert done == ["first", "second"]
        with pytest.raises(InvalidInput, match="has no bucket"):
            async with act(orders, args=["a"]):
                await env.client.limits.sync("orders", 5)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
async def test_a_change_holds_at_once_in_the_process_that_made_it(
    kind: str, request: pytest.FixtureRequest, real_time: None
) -> None:
    url = "memory://" if kind == "memory" else request.getfixturevalue(f"{kind}_url")
    curt = partner_limit("curt", bucket=Bucket(2, Rate(1, 3600)), on_refusal="fail")
    bank = breaker("curt bank", on_refusal="fail")

    async def passes(client: Batuta) -> bool:
        try:
            async with client.gates(curt, bank):
                return True
        except (LimitReached, BreakerOpen):
            return False

    async with connect(url) as client:
        assert [await passes(client) for _ in range(3)] == [True, True, False]
        for _ in range(5):
            await client.limits.sync("curt", 1)
            assert [await passes(client) for _ in range(2)] == [True, False]
        await client.limits.sync("curt", 2)
        await client.limits.hold("curt", 600)
        assert not await passes(client)
        await client.limits.release("curt")
        assert await passes(client)
        await client.breakers.open("curt bank")
        assert not await passes(client)
        await client.breakers.close("curt bank")
        assert await passes(client)


async def test_code_outside_of_workflows_passes_the_same_breaker() -> None:
    curt = breaker("bank", on_refusal="fail")
    async with world(orders_one, order) as env:
        client = env.client
        for _ in range(2):
            with pytest.raises(ConnectionError):
                async with client.gates(bank):
                    raise ConnectionError("away")
        await asyncio.sleep(0.5)
        assert (await client.breakers.get("bank")).state == "open"
        with pytest.raises(BreakerOpen) as refused:
            async with client.gates(curt):
                done.append("never")
        assert 0 < refused.value.retry_after <= 30
        before = asyncio.get_running_loop().time()
        async with client.gates(bank):
            done.append("later")
        assert 29 < asyncio.get_running_loop().time() - before < 40
        await asyncio.sleep(0.5)
        assert (await client.breakers.get("bank")).state == "closed"
    assert done == ["later"]


async def test_a_bounded_wait_ends_with_a_named_error() -> None:
    slow = partner_limit("slow", rate="1/h", longest_wait=3)
    async with world(orders_one, order) as env:
        client = env.client
        async with client.gates(slow):
            pass
        with pytest.raises(LimitReached):
            async with client.gates(slow):
                done.append("never")
    assert done == []


async def test_a_backend_without_gates_is_told_when_to_try_again() -> None:
    hourly = partner_limit("hourly", rate="1/h")

    async def act(who: str) -> str:
        return who

    async with world(orders_one, order) as env:
        client = env.client
        call = gated(client._gates, [hourly], act)
        assert await call("a") == "a"
        with pytest.raises(RetryLater) as later:
            await call("b")
        assert 3000 < later.value.seconds < 12_000


@pytest.mark.parametrize(
    ("noun", "verb", "args"),
    [
        ("breakers", "get", ["nope"]),
        ("breakers", "open", ["nope"]),
        ("breakers", "forget", ["nope"]),
        ("limits", "get", ["nope"]),
        ("limits", "reset", ["nope"]),
        ("limits", "hold", ["nope", 5]),
        ("limits", "release", ["nope"]),
        ("limits", "sync", ["nope", 5]),
        ("limits", "forget", ["nope"]),
    ],
)
async def test_an_undeclared_partner_is_unknown(noun: str, verb: str, args: list[Any]) -> None:
    async with connect("memory://") as client:
        with pytest.raises(UnknownPartner, match=r"no (breaker|limit) 'nope'"):
            await getattr(getattr(client, noun), verb)(*args)


async def test_bad_changes_are_refused() -> None:
    async with connect("memory://") as client:
        for bad in ({"rate": "-1/s"}, {"rates": ["1/s", "1/h"]}, {"concurrency": 0}, {}):
            with pytest.raises(InvalidInput):
                await client.limits.change("x", **bad)
        for wait in (-1, 0, float("nan")):
            with pytest.raises(InvalidInput):
                await client.limits.hold("x", wait)
        with pytest.raises(InvalidInput):
            await client.limits.sync("x", float("inf"))
        assert await client.limits.list() == []


async def test_two_processes_share_breakers_and_limits(arena: Arena) -> None:  # covers D-03
    one, other = await arena.client(), await arena.client()
    worker = await arena.worker(one, orders_one, order, keep_in_memory=0.5)
    assert await (await one.start(orders_one, "a")).result(20) == "a"
    await other.breakers.open("bank", "from elsewhere")
    assert worker.session is not None
    keeper = worker.session.executor.gates._keepers.of(bank)._keeper  # type: ignore[attr-defined]

    async def heard() -> bool:
        return bool(keeper.known.state == "open")

    await until(heard)
    held = [await other.start(orders_one, f"{n}") for n in range(10)]

    async def wait() -> bool:
        return {(await handle.describe()).reason for handle in held} == {"gate:bank"}

    await until(wait)
    await other.breakers.close("bank")
    assert [await handle.result(30) for handle in held] == [f"{n}" for n in range(10)]
    found = await verify(arena.store(one), patience=5)
    assert not found.violations, found.violations
