"""What users see of the engine is the same on every store."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from batuta import (
    AlreadyStarted,
    Interrupted,
    Retry,
    RunCancelled,
    RunClosed,
    RunFailed,
    RunState,
    RunTerminated,
    RunTimedOut,
    UnknownRun,
    activity,
    activity_info,
    continue_as_new,
    now,
    start_child,
    workflow,
)
from batuta.ids import new_run_id
from batuta.testing.conformance.kit import live_worker, start_owned
from batuta.verify import verify
from tests.engine.arena import PATIENCE, Arena, until, until_state
from tests.engine.kit import replay_all

executed: list[str] = []
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def _afresh() -> None:
    executed.clear()
    gates.clear()


@activity
async def act(name: str) -> str:
    executed.append(name)
    return name


@activity
async def waits_at(gate: str) -> str:
    """Ends when the test opens the gate."""
    executed.append(gate)
    await gates.setdefault(gate, asyncio.Event()).wait()
    return gate


@activity(retry=Retry(attempts=3, first=0.01))
async def flaky(name: str) -> int:
    executed.append(name)
    if activity_info().attempt < 3:
        raise ConnectionError("busy")
    return activity_info().attempt


@workflow
async def order(name: str) -> list[Any]:
    first = await act(f"{name} reserve")
    both = await asyncio.gather(act(f"{name} charge"), flaky(f"{name} flaky"))
    await asyncio.sleep(0.02)
    try:
        async with asyncio.timeout(0.02):
            await asyncio.sleep(60)
    except TimeoutError:
        return [first, *both, await act(f"{name} ship")]
    return []


@workflow
async def sleeps(seconds: float) -> str:
    await act("before")
    await asyncio.sleep(seconds)
    return await act("after")


@workflow
async def waits(gate: str) -> str:
    return await act("before") + " " + await waits_at(gate)


EVERYTHING = (order, sleeps, waits, act, waits_at, flaky)


async def begun(gate: str) -> None:
    async def is_there() -> bool:
        return gate in executed

    await until(is_there)


async def test_a_workflow_runs_from_start_to_result(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(order, "a", id="a")
    assert await handle.result(PATIENCE) == ["a reserve", "a charge", 3, "a ship"]
    kinds = Counter(str(line.kind) for line in await handle.journal())
    assert kinds == {"started": 1, "activity_done": 4, "timer_fired": 2}
    await replay_all(arena.store(client), {"order": order})


@workflow
async def naps(seconds: float) -> float:
    begun = now()
    await asyncio.sleep(seconds)
    return (now() - begun).total_seconds()


async def test_timers_never_fire_early_in_memory_or_out_of_it(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, naps, keep_in_memory=0.1)
    handles = [await client.start(naps, n / 100) for n in range(1, 25, 3)]
    passed = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
    assert all(slept >= n / 100 for slept, n in zip(passed, range(1, 25, 3), strict=True))


async def test_many_runs_at_once_come_to_their_ends(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handles = await asyncio.gather(*(client.start(order, f"o{n}", id=f"o{n}") for n in range(100)))
    results = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
    assert [result[-1] for result in results] == [f"o{n} ship" for n in range(100)]
    assert await client.count(state="completed") == 100
    assert max(Counter(name for name in executed if "flaky" not in name).values()) == 1


async def test_two_workers_share_the_runs_and_nothing_is_done_twice(arena: Arena) -> None:
    one, two = await arena.client(), await arena.client()
    starter = await arena.client()
    handles = [await starter.start(order, f"o{n}", id=f"o{n}") for n in range(40)]
    await arena.worker(one, *EVERYTHING, claim_batch=5)
    await arena.worker(two, *EVERYTHING, claim_batch=5)
    for number, handle in enumerate(handles):
        assert (await handle.result(PATIENCE))[-1] == f"o{number} ship"
    assert max(Counter(name for name in executed if "flaky" not in name).values()) == 1


async def test_a_result_reaches_another_client_that_waits_for_it(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, *EVERYTHING)
    await client.start(waits, "gate", id="x")
    await begun("gate")
    waiting = asyncio.create_task((await other.get("x", waits)).result(PATIENCE))
    await asyncio.sleep(0)
    gates["gate"].set()
    assert await waiting == "before gate"


async def test_a_run_started_by_one_client_is_run_by_the_worker_of_another(arena: Arena) -> None:
    starter, client = await arena.client(), await arena.client()
    handle = await starter.start(sleeps, 0.01, id="x")
    assert (await handle.describe()).state is RunState.PENDING
    await arena.worker(client, *EVERYTHING)
    assert await handle.result(PATIENCE) == "after"


async def test_after_a_crash_another_worker_goes_on_and_repeats_nothing(arena: Arena) -> None:  # covers B-03
    one, two = await arena.client(), await arena.client()
    first = await arena.worker(one, *EVERYTHING)
    handle = await two.start(waits, "gate")
    await begun("gate")
    await arena.kill(one, first)
    await arena.worker(two, *EVERYTHING)
    await until(lambda: _count("gate", 2))
    gates["gate"].set()
    assert await handle.result(PATIENCE) == "before gate"
    assert Counter(executed) == {"before": 1, "gate": 2}


async def _count(name: str, count: int) -> bool:
    return executed.count(name) == count


async def test_a_zombie_cannot_write_what_another_worker_has_taken_over(arena: Arena) -> None:
    one, two = await arena.client(), await arena.client()
    zombie = await arena.worker(one, *EVERYTHING)
    handle = await two.start(waits, "gate")
    await begun("gate")
    assert zombie.session is not None
    await arena.store(two).retire(zombie.session.info.worker_id)  # declared dead, but it lives
    await arena.worker(two, *EVERYTHING)
    await until(lambda: _count("gate", 2))
    gates["gate"].set()
    assert await handle.result(PATIENCE) == "before gate"
    journal = await handle.journal()
    assert [str(line.kind) for line in journal] == ["started", "activity_done", "activity_done"]


async def test_a_once_activity_cut_off_by_a_crash_is_interrupted(arena: Arena) -> None:
    @workflow
    async def careful(gate: str) -> str:
        try:
            return await waits_at.with_options(once=True)(gate)
        except Interrupted:
            return "interrupted"

    one, two = await arena.client(), await arena.client()
    first = await arena.worker(one, careful, waits_at)
    handle = await two.start(careful, "gate")
    await begun("gate")
    await arena.kill(one, first)
    await arena.worker(two, careful, waits_at)
    assert await handle.result(PATIENCE) == "interrupted"
    assert executed == ["gate"]


async def test_a_long_sleeper_leaves_memory_and_comes_back(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING, keep_in_memory=0.01)
    handle = await client.start(sleeps, 0.3)
    assert await handle.result(PATIENCE) == "after"
    assert executed == ["before", "after"]
    epochs = await arena.store(client).epochs(handle.run_id)
    assert epochs[-1] > epochs[0], "it was claimed again"


async def test_a_run_can_be_cancelled_by_another_client_in_memory_and_out_of_it(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, *EVERYTHING)
    inside = await client.start(waits, "gate", id="inside")
    outside = await client.start(sleeps, 3600, id="outside")
    await begun("gate")
    await until_state(outside, RunState.WAITING)
    for id in ("inside", "outside"):
        await (await other.get(id)).cancel("enough")
    for handle in (inside, outside):
        with pytest.raises(RunCancelled):
            await handle.result(PATIENCE)


async def test_a_run_can_be_terminated_by_another_client(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(waits, "gate", id="x")
    await begun("gate")
    await (await other.get("x")).terminate("enough")
    with pytest.raises(RunTerminated, match="enough"):
        await handle.result(PATIENCE)


async def test_a_run_over_its_time_is_closed(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handles = [await client.start(sleeps, 3600, timeout=0.2), await client.start(waits, "gate", timeout=0.2)]
    for handle in handles:
        with pytest.raises(RunTimedOut):
            await handle.result(PATIENCE)


async def test_ids_are_unique_whatever_is_asked_at_once(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, *EVERYTHING)
    starts = [c.start(sleeps, 0.01, id="one") for c in (client, other) for _ in range(20)]
    handles = await asyncio.gather(*starts)
    assert len({handle.run_id for handle in handles}) == 1
    assert await handles[0].result(PATIENCE) == "after"
    with pytest.raises(AlreadyStarted):
        await other.start(sleeps, 1, id="one", if_exists="reject")
    again = await other.start(sleeps, 0.01, id="one", if_exists="restart")
    assert again.run_id != handles[0].run_id
    assert await again.result(PATIENCE) == "after"


async def test_errors_cross_the_database(arena: Arena) -> None:
    @activity(retry=Retry(attempts=1))
    async def refuses() -> None:
        raise FileNotFoundError(2, "no such order", "x")

    @workflow
    async def asks() -> None:
        await refuses()

    client, other = await arena.client(), await arena.client()
    await arena.worker(client, asks, refuses)
    handle = await other.start(asks)
    with pytest.raises(RunFailed) as caught:
        await handle.result(PATIENCE)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert caught.value.__cause__.filename == "x"


@pytest.mark.parametrize(
    "text", ["a\0b", "🎼 ação", '"\\\n\x1f', "x" * 2_000_000], ids=["nul", "unicode", "quotes", "2MB"]
)
async def test_values_survive_the_database(arena: Arena, text: str) -> None:
    client = await arena.client()
    await arena.worker(client, relays, act)
    tag = text[:100].replace("\0", "")  # which no store could find
    handle = await client.start(relays, text, memo=text[:1000], tags={"t": tag})
    assert await handle.result(PATIENCE) == text
    found = await handle.describe()
    assert (found.memo, found.tags) == (text[:1000], {"t": tag})


@workflow
async def relays(text: str) -> str:
    return await act(text)


async def test_a_parked_run_goes_on_when_a_worker_with_other_code_comes(arena: Arena) -> None:
    @workflow(name="changing")
    async def good() -> str:
        await act("one")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return await act("two")
        return "slept"

    @workflow(name="changing")
    async def bad() -> str:
        await asyncio.sleep(5)
        return await act("another")

    client = await arena.client()
    worker = await arena.worker(client, good, act)
    handle = await client.start(good)
    await until_state(handle, RunState.WAITING)
    await worker.stop()
    worker = await arena.worker(client, bad, act)
    await handle.cancel()
    await until_state(handle, RunState.NEEDS_CODE)
    assert "recorded: activity act" in (await handle.describe()).reason
    await worker.stop()
    await arena.worker(client, good, act)
    assert await handle.result(PATIENCE) == "two"
    assert executed == ["one", "two"]


async def test_graceful_stop_finishes_calls_in_flight_and_hands_the_rest_back(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    worker = await arena.worker(client, *EVERYTHING)
    busy = await client.start(waits, "gate")
    idle = await client.start(sleeps, 20, id="idle")
    await begun("gate")
    stopping = asyncio.create_task(worker.stop())
    await until_state(idle, RunState.WAITING)
    gates["gate"].set()
    await stopping
    await arena.worker(other, *EVERYTHING)
    assert await busy.result(PATIENCE) == "before gate"
    assert Counter(executed) == {"before": 2, "gate": 1}


async def test_lists_and_counts(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    for number in range(5):
        await (await client.start(sleeps, 0.001, id=f"s-{number}", tags={"n": str(number % 2)})).result(PATIENCE)
    await client.start(sleeps, 3600, id="open")
    assert await client.count(state="completed") == 5
    assert await client.count(tags={"n": "1"}) == 2
    page = await client.list(limit=2, id_prefix="s-")
    assert [run.id for run in page.runs] == ["s-4", "s-3"]
    following = await client.list(limit=10, id_prefix="s-", cursor=page.cursor)
    assert [run.id for run in following.runs] == ["s-2", "s-1", "s-0"]
    assert following.cursor is None


async def test_a_cancel_that_another_client_was_promised_is_never_lost(arena: Arena) -> None:
    @workflow
    async def hurries(steps: int) -> int:
        for number in range(steps):
            await act(str(number))
        return steps

    client, other = await arena.client(), await arena.client()
    await arena.worker(client, hurries, act)

    async def race(number: int) -> bool:
        handle = await client.start(hurries, 1 + number * 5)
        try:
            await (await other.get(handle.id)).cancel("enough")
        except RunClosed:
            await handle.result(PATIENCE)
            return False
        with pytest.raises(RunCancelled):
            await handle.result(PATIENCE)
        assert "cancel_requested" in [line.kind for line in await handle.journal()]
        return True

    assert any(await asyncio.gather(*map(race, range(40))))
    report = await verify(arena.store(client), [hurries])
    assert not report.violations


async def test_the_result_of_a_deleted_run_is_refused_to_all_who_wait_or_ask(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    asked, waited = [await client.start(sleeps, 1000.0) for _ in range(2)]
    handle = await other.get(waited.id)
    waiting = asyncio.create_task(handle.result())
    await asyncio.sleep(0)
    for one in (asked, waited):
        await one.terminate()
        await one.delete()
    with pytest.raises((UnknownRun, RunTerminated)):  # it may have heard of the end before
        await asyncio.wait_for(waiting, PATIENCE)
    for gone in (asked, handle):
        with pytest.raises(UnknownRun):
            await asyncio.wait_for(gone.result(), PATIENCE)


async def test_a_run_that_moves_whenever_somebody_looks_is_terminated(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await arena.client()
    store = arena.store(client)
    worker = await live_worker(store)
    pen = await start_owned(store, worker, "restless")
    handle = await client.get("restless")

    def moving(look: Any) -> Any:
        async def looked(*args: Any) -> Any:
            found = await look(*args)
            await pen.write(store, worker)
            return found

        return looked

    for verb in ("get_run", "get", "outcome", "now"):
        monkeypatch.setattr(store, verb, moving(getattr(store, verb)))
    await handle.terminate("enough")
    monkeypatch.undo()
    assert (await handle.describe()).state is RunState.TERMINATED


async def test_a_run_that_never_stands_still_is_terminated(arena: Arena) -> None:
    @workflow
    async def hurries() -> None:
        while True:
            await act("")

    @workflow
    async def bears() -> None:
        while True:
            await start_child(sleeps, 1000.0)

    @workflow
    async def goes_on() -> None:
        await act("")
        continue_as_new()

    client, other = await arena.client(), await arena.client()
    await arena.worker(client, hurries, bears, goes_on, sleeps, act)
    for flow in (hurries, bears, goes_on):
        for _ in range(5):
            handle = await client.start(flow)
            await (await other.get(handle.id)).terminate("enough")
            with pytest.raises(RunTerminated, match="enough"):
                await handle.result(PATIENCE)
    report = await verify(arena.store(client), [hurries, bears, goes_on])
    assert not report.violations


async def test_a_cancel_and_a_terminate_are_noticed_long_before_the_next_heartbeat(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    worker = await arena.worker(client, *EVERYTHING, heartbeat=500.0, lease=1000.0)
    cancelled, terminated = await client.start(waits, "one", id="one"), await client.start(waits, "two", id="two")
    await begun("one")
    await begun("two")
    await (await other.get("one")).cancel("enough")
    await (await other.get("two")).terminate("enough")
    with pytest.raises(RunCancelled):
        await cancelled.result(PATIENCE)

    async def gone() -> bool:
        assert worker.session is not None
        return terminated.run_id.int not in worker.session.runs

    await until(gone)


async def test_the_journal_of_a_run_that_is_not_there_any_more_is_an_error(arena: Arena) -> None:
    client = await arena.client()
    handle = await client.start(order, "a")
    assert await handle.journal() == []
    handle._ref.run_id = new_run_id()
    with pytest.raises(UnknownRun):
        await handle.journal()
