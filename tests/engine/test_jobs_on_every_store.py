"""Jobs, batches and queues on every store, in real time."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from batuta import (
    Queue,
    Retry,
    RunCancelled,
    RunFailed,
    RunState,
    RunTimedOut,
    activity,
    batch_info,
    checkpoint,
    job,
    last_checkpoint,
    progress,
    run_child,
    workflow,
)
from batuta.clock import as_datetime
from batuta.errors import NotSerialisable
from batuta.verify import verify
from tests.engine.arena import Arena, until

seen: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@job(retry=Retry(attempts=3, first=0.01, jitter=0))
async def send(to: str, fails: int = 0) -> str:
    seen.append(to)
    if seen.count(to) <= fails:
        raise LookupError(f"{to} {len(seen)}")
    return f"sent to {to}"


@job
async def report(title: str) -> list[Any]:
    found = await batch_info()
    return [title, found.total, found.completed, found.failed, found.not_completed]


async def sound(arena: Arena, client: Any) -> None:
    """Everything in the store is as it should be."""
    found = await verify(arena.store(client), patience=5)
    assert not found.violations, found.violations


async def test_jobs_run_to_their_end(arena: Arena) -> None:
    client = await arena.client()
    batch = await client.enqueue_many([send.call(f"{n}") for n in range(300)])
    await arena.worker(client, send)
    alone = await client.enqueue(send, "alone")
    assert await alone.result(20) == "sent to alone"
    assert await asyncio.gather(*(handle.result(20) for handle in batch)) == [f"sent to {n}" for n in range(300)]
    assert set(Counter(seen).values()) == {1}
    await sound(arena, client)


async def test_every_failed_attempt_is_kept(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, send)
    good, bad = (await client.enqueue_many([send.call("ana", 2), send.call("bo", 99).with_options(delay=0.2)]))[:2]
    assert await good.result(20) == "sent to ana"
    with pytest.raises(RunFailed):
        await bad.result(20)
    assert [bool(attempt.error) for attempt in await good.attempts()] == [True, True, False]
    assert [bool(attempt.error) for attempt in await bad.attempts()] == [True, True, True]
    await sound(arena, client)


async def test_a_callback_is_called_when_all_of_its_batch_have_ended(arena: Arena) -> None:
    client = await arena.client()
    calls = [send.call(f"{n}") for n in range(20)]
    calls += [send.call("ana", 99).with_options(retry=Retry(attempts=1), id="bad")]
    batch = await client.enqueue_many(calls, on_done=report.call("letters"))
    await arena.worker(client, send, report)
    assert batch.done is not None
    assert await batch.done.result(20) == ["letters", 21, 20, 1, ["bad"]]
    await sound(arena, client)


async def test_a_batch_that_is_there_already_calls_back_at_once(arena: Arena) -> None:
    client = await arena.client()
    await client.enqueue(send, "ana", id="one", delay=1000)
    batch = await client.enqueue_many([send.call("bo").with_options(id="one")], on_done=report.call("again"))
    await arena.worker(client, send, report)
    assert batch.done is not None
    assert await batch.done.result(20) == ["again", 0, 0, 0, []]


async def test_an_argument_that_cannot_be_written_leaves_nothing_of_its_batch(arena: Arena) -> None:
    client = await arena.client()
    calls: list[Any] = [send.call(f"{n}") for n in range(50)]
    calls[25] = send.call(object())  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(NotSerialisable, match="call 25 of the batch"):
        await client.enqueue_many(calls, on_done=report.call("never"))
    assert await client.count(kind="job") == 0


async def test_a_job_goes_on_from_its_checkpoint_on_another_worker(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()

    @job
    async def copy() -> list[int]:
        at = last_checkpoint(int, 0)
        seen.append(at)
        if not at:
            await checkpoint(7)
            progress("half")
            await asyncio.sleep(1000)
        return [at]

    doomed = await arena.worker(client, copy)
    [handle] = await client.enqueue_many([copy.call()])

    async def saved() -> bool:
        return any(attempt.details == "7" for attempt in (await handle.describe()).attempts)

    await until(saved)
    await arena.kill(client, doomed)
    await arena.worker(other, copy)
    assert await (await other.get(handle.id, copy)).result(20) == [7]
    assert seen == [0, 7]
    await sound(arena, client)


async def test_a_running_job_is_cancelled_from_another_client(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    begun = asyncio.Event()

    @job
    async def wait() -> None:
        begun.set()
        await asyncio.sleep(1000)

    await arena.worker(client, wait)
    [handle] = await other.enqueue_many([wait.call()])
    await begun.wait()
    await handle.cancel("enough")
    with pytest.raises(RunCancelled):
        await handle.result(20)
    await sound(arena, client)


async def test_progress_is_seen_by_another_client(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    go_on = asyncio.Event()

    @job
    async def walk() -> None:
        progress(1)
        await go_on.wait()
        progress(2)

    await arena.worker(client, walk)
    [handle] = await other.enqueue_many([walk.call()])

    async def at_one() -> bool:
        return await handle.progress() == 1

    await until(at_one)
    go_on.set()
    await handle.result(20)
    assert await handle.progress() == 2


async def test_a_unique_job_is_there_once(arena: Arena) -> None:
    client = await arena.client()
    handles = await asyncio.gather(*(client.enqueue(send, f"{n}", unique="a") for n in range(10)))
    assert len({handle.run_id for handle in handles}) == 1
    await arena.worker(client, send)
    assert await handles[0].result(20)
    later = await client.enqueue(send, "later", unique="a")
    assert await later.result(20) == "sent to later"
    kept = await client.enqueue(send, "kept", unique="a", unique_for=3600)
    assert kept.run_id == later.run_id


async def test_of_debounced_calls_the_last_one_is_made(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, send)
    handles = [await client.enqueue(send, f"{n}", unique="a", debounce=0.5) for n in range(5)]
    assert len({handle.run_id for handle in handles}) == 1
    assert await handles[0].result(20) == "sent to 4"
    assert seen == ["4"]


async def test_a_job_that_waited_too_long_has_timed_out(arena: Arena) -> None:
    client = await arena.client()
    handle = await client.enqueue(send, "ana", expires=0.01)
    await asyncio.sleep(0.02)
    await arena.worker(client, send)
    with pytest.raises(RunTimedOut):
        await handle.result(20)
    assert seen == []


# -- queues


class Crowd:
    """Counts how many are in at once, by key."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def visit(self, key: str) -> None:
        for each in (key, "all"):
            self.now[each] += 1
            self.most[each] = max(self.most[each], self.now[each])
        await asyncio.sleep(0.005)
        for each in (key, "all"):
            self.now[each] -= 1


async def test_limits_hold_over_workers(arena: Arena) -> None:
    crowd = Crowd()

    @job
    async def visit(key: str) -> None:
        await crowd.visit(key)

    clients = [await arena.client() for _ in range(2)]
    queues = [Queue("default", concurrency=4, key_concurrency=1)]
    batch = await clients[0].enqueue_many([visit.call(f"{n % 7}").with_options(key=f"{n % 7}") for n in range(60)])
    for client in clients:
        await arena.worker(client, visit, queues=queues)
    await asyncio.gather(*(handle.result(20) for handle in batch))
    assert crowd.most.pop("all") <= 4
    assert set(crowd.most.values()) == {1}
    await sound(arena, clients[0])


async def test_a_worker_keeps_its_own_limit(arena: Arena) -> None:
    crowd = Crowd()

    @job
    async def visit() -> None:
        await crowd.visit("")

    client = await arena.client()
    batch = await client.enqueue_many([visit.call() for _ in range(20)])
    await arena.worker(client, visit, queues=[Queue("default", per_worker=3)])
    alone = [await client.enqueue(visit) for _ in range(10)]
    await asyncio.gather(*(handle.result(20) for handle in [*batch, *alone]))
    assert crowd.most["all"] == 3


async def test_a_run_that_leaves_makes_room_for_the_next_at_once(arena: Arena) -> None:
    client = await arena.client()
    batch = await client.enqueue_many([send.call(f"{n}") for n in range(100)])
    await arena.worker(client, send, queues=[Queue("default", per_worker=1)], heartbeat=300, lease=1000)
    await asyncio.gather(*(handle.result(20) for handle in batch))


async def test_a_rate_is_kept_and_everything_is_done(arena: Arena) -> None:
    client = await arena.client()
    batch = await client.enqueue_many([send.call(f"{n}") for n in range(9)])
    loop = asyncio.get_running_loop()
    began = loop.time()
    await arena.worker(client, send, queues=[Queue("default", rate="3/s")])
    await asyncio.gather(*(handle.result(30) for handle in batch))
    assert loop.time() - began > 1.9  # nine at three in any second take two


async def test_a_paused_queue_gives_nothing_until_it_goes_on(arena: Arena) -> None:
    client = await arena.client()
    await client.pause_queue("default", "deploying")
    await arena.worker(client, send)
    handle = await client.enqueue(send, "ana")
    found = await handle.describe()
    assert (found.state, found.reason) == (RunState.PENDING, "queue 'default' is paused: deploying")
    [queue] = [one for one in await client.queues() if one.name == "default"]
    assert (queue.paused, queue.reason, queue.ready, queue.workers) == (True, "deploying", 1, 1)
    await client.resume_queue("default")
    assert await handle.result(20) == "sent to ana"


async def test_a_job_that_a_limit_holds_back_says_why(arena: Arena) -> None:
    @job
    async def wait() -> None:
        await asyncio.sleep(1000)

    client = await arena.client()
    await arena.worker(client, wait, queues=[Queue("default", concurrency=1)], grace=0.01)
    first, second = await client.enqueue_many([wait.call(), wait.call()])

    async def one_runs() -> bool:
        return [(await one.describe()).state for one in (first, second)].count(RunState.RUNNING) == 1

    await until(one_runs)
    states = {(await one.describe()).state: (await one.describe()).reason for one in (first, second)}
    assert "reached its concurrency (1)" in states[RunState.PENDING]


async def test_limits_are_set_and_taken_away(arena: Arena) -> None:
    client = await arena.client()
    await client.limit_queue("mail", concurrency=5, rate="100/min")
    await client.limit_queue("mail", key_rate="1/s", concurrency=None)
    await arena.worker(client, send, queues=["default", Queue("mail", key_concurrency=2)])
    [queue] = [one for one in await client.queues() if one.name == "mail"]
    assert (queue.concurrency, queue.key_concurrency) == (None, 2)
    assert (str(queue.rate), str(queue.key_rate)) == ("100/min", "1/s")


async def test_a_key_with_many_does_not_starve_one_with_few(arena: Arena) -> None:
    client = await arena.client()
    many = [send.call("many").with_options(key="a") for _ in range(200)]
    await client.enqueue_many(many)
    few = await client.enqueue_many([send.call("few").with_options(key="b") for _ in range(5)])
    await arena.worker(client, send, claim_batch=20)
    await asyncio.gather(*(handle.result(20) for handle in few))
    place = max(place for place, name in enumerate(seen) if name == "few")
    assert place < 60


async def test_a_run_of_a_workflow_has_a_key_and_waits_for_its_turn(arena: Arena) -> None:
    crowd = Crowd()

    @activity
    async def visit(key: str) -> None:
        await crowd.visit(key)

    @workflow
    async def order(key: str) -> str:
        await visit(key)
        return key

    client = await arena.client()
    await arena.worker(client, order, visit, queues=[Queue("default", key_concurrency=1)])
    handles = await asyncio.gather(*(client.start(order, f"{n % 2}", key=f"{n % 2}", expires=60) for n in range(12)))
    assert [await handle.result(20) for handle in handles] == [f"{n % 2}" for n in range(12)]
    assert (crowd.most["0"], crowd.most["1"]) == (1, 1)
    assert (await handles[0].describe()).key == "0"
    assert await client.count(key="0") == 6
    await sound(arena, client)


async def test_a_child_has_a_key_and_expires(arena: Arena) -> None:
    @workflow
    async def late() -> None:
        pass

    @workflow
    async def parent() -> str:
        try:
            await run_child(late, queue="later", key="k", expires=0.01)
        except RunTimedOut as error:
            return str(error)
        return "in time"

    client = await arena.client()
    await arena.worker(client, parent, late, queues=["default"])
    handle = await client.start(parent)

    async def too_late() -> bool:
        waiting = (await client.list(queue="later")).runs
        now = as_datetime(await arena.store(client).now())
        return bool(waiting) and (waiting[0].expires_at or now) <= now

    await until(too_late)
    await arena.worker(client, late, queues=["later"])
    assert "timed out" in await handle.result(20)
    [child] = (await client.list(queue="later")).runs
    assert child.key == "k"
