"""Plain asyncio works in workflows: every primitive, durable where it waits for time."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from batuta import RunState, activity, now, wait_for_timer, workflow
from tests.engine.kit import commands, journal_of, world


@activity
async def add(a: int, b: int) -> int:
    return a + b


@activity
async def after(seconds: float, value: str) -> str:
    await asyncio.sleep(seconds)
    return value


@workflow
async def naps(seconds: float) -> list[datetime]:
    begun = now()
    await asyncio.sleep(seconds)
    return [begun, now()]


async def test_thirty_days_of_sleep_take_thirty_days_of_tape_and_no_time() -> None:  # covers B-06
    async with world(naps) as env:
        before = env.now
        begun, ended = await env.run(naps, 30 * 86_400)
        assert begun == before
        assert timedelta(days=30) <= ended - begun < timedelta(days=30, milliseconds=5)
        assert env.now >= ended


async def test_a_sleep_of_nothing_or_less_sets_no_timer() -> None:
    @workflow
    async def yields() -> int:
        await asyncio.sleep(0)
        await asyncio.sleep(-5)
        return 1

    async with world(yields) as env:
        handle = await env.start(yields)
        assert await handle.result() == 1
        assert await commands(handle) == ["complete"]


@pytest.mark.parametrize("seconds", [1e11, 1e12, 1e30, float("inf")])
async def test_a_sleep_for_ever_is_accepted(seconds: float) -> None:
    @workflow
    async def waits() -> None:
        await asyncio.sleep(seconds)

    async with world(waits) as env:
        handle = await env.start(waits)
        await env.advance(60)
        [listed] = (await env.client.list()).runs
        assert listed.state is RunState.WAITING
        await handle.terminate("long enough")


async def test_a_timer_may_be_as_far_off_as_a_time_can_be() -> None:
    @workflow
    async def waits() -> None:
        await wait_for_timer("the end", datetime.max.replace(tzinfo=UTC))

    async with world(waits) as env:
        handle = await env.start(waits)
        await env.advance(60)
        assert (await handle.describe()).state is RunState.WAITING


async def test_a_sleep_of_no_number_is_an_error_in_the_code() -> None:
    @workflow
    async def waits() -> str:
        try:
            await asyncio.sleep(float("nan"))
        except ValueError as error:
            return str(error)
        return "slept"

    async with world(waits) as env:
        assert "nan" in (await env.run(waits)).lower()


async def test_data_flows_between_activities_through_variables() -> None:  # covers B-05
    @workflow
    async def sums(numbers: list[int]) -> int:
        total = 0
        for number in numbers:
            total = await add(total, number)
        return total

    async with world(sums, add) as env:
        assert await env.run(sums, [1, 2, 3, 4]) == 10


async def test_gather_gives_results_in_order_of_its_arguments() -> None:
    @workflow
    async def fans_out() -> list[str]:
        return list(await asyncio.gather(after(3, "slow"), after(1, "quick"), after(2, "middling")))

    async with world(fans_out, after) as env:
        handle = await env.start(fans_out)
        assert await handle.result() == ["slow", "quick", "middling"]
        answers = [line.body.seq for line in await handle.journal() if line.body.name == "after"]
        assert answers == [2, 3, 1]


async def test_gather_can_collect_errors() -> None:
    @activity
    async def refuses() -> int:
        raise LookupError("not here")

    @workflow
    async def collects() -> list[str]:
        call = refuses.with_options(once=True)
        return [repr(r) for r in await asyncio.gather(call(), add(1, 1), return_exceptions=True)]

    async with world(collects, add, refuses) as env:
        assert await env.run(collects) == ["LookupError('not here')", "2"]


async def test_wait_returns_the_first_and_the_rest_can_be_cancelled() -> None:
    @workflow
    async def races() -> str:
        tasks = [asyncio.create_task(after(n, str(n))) for n in (30, 10, 20)]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)
        return "".join(task.result() for task in done)

    async with world(races, after) as env:
        handle = await env.start(races)
        assert await handle.result() == "10"
        assert (await commands(handle)).count("cancel after") == 2


async def test_wait_with_a_timeout_leaves_the_slow_ones_pending() -> None:
    @workflow
    async def waits() -> list[int]:
        tasks = [asyncio.create_task(after(n, str(n))) for n in (5, 50)]
        done, pending = await asyncio.wait(tasks, timeout=10)
        return [len(done), len(pending)]

    async with world(waits, after) as env:
        assert await env.run(waits) == [1, 1]


async def test_task_group_waits_for_all_of_its_tasks() -> None:
    @workflow
    async def groups() -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(add(n, n)) for n in range(5)]
        return sum(task.result() for task in tasks)

    async with world(groups, add) as env:
        assert await env.run(groups) == 20


async def test_task_group_cancels_its_tasks_when_one_fails() -> None:
    @activity
    async def refuses() -> None:
        raise PermissionError("no")

    @workflow
    async def groups() -> str:
        said = "fine"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(after(3600, "late"))
                group.create_task(refuses.with_options(once=True)())
        except* PermissionError as errors:
            said = str(errors.exceptions[0])
        return said

    async with world(groups, after, refuses) as env:
        before = env.now
        handle = await env.start(groups)
        assert await handle.result() == "no"
        assert env.now - before < timedelta(seconds=1)
        assert "cancel after" in await commands(handle)


async def test_timeout_is_a_durable_timer() -> None:
    @workflow
    async def limits() -> str:
        try:
            async with asyncio.timeout(60):
                await asyncio.sleep(3600)
        except TimeoutError:
            return "over"
        return "slept"

    async with world(limits) as env:
        before = env.now
        assert await env.run(limits) == "over"
        assert timedelta(seconds=60) <= env.now - before < timedelta(seconds=61)


async def test_a_timeout_that_is_not_reached_leaves_nothing_behind() -> None:
    @workflow
    async def limits() -> int:
        async with asyncio.timeout(3600):
            result = await add(1, 2)
        await asyncio.sleep(1)
        return result

    async with world(limits, add) as env:
        before = env.now
        assert await env.run(limits) == 3
        assert env.now - before < timedelta(seconds=2)


async def test_timeouts_nest_and_the_inner_one_is_told_apart() -> None:
    @workflow
    async def limits() -> str:
        async with asyncio.timeout(100):
            try:
                async with asyncio.timeout(5):
                    await asyncio.sleep(50)
            except TimeoutError:
                await asyncio.sleep(1)
                return "inner"
        return "none"

    async with world(limits) as env:
        assert await env.run(limits) == "inner"


async def test_wait_for_gives_a_result_or_times_out() -> None:
    @workflow
    async def waits() -> list[str]:
        first = await asyncio.wait_for(after(1, "in time"), timeout=5)
        try:
            second = await asyncio.wait_for(after(100, "late"), timeout=5)
        except TimeoutError:
            second = "timeout"
        return [first, second]

    async with world(waits, after) as env:
        assert await env.run(waits) == ["in time", "timeout"]


async def test_an_event_wakes_everyone_who_waits_for_it() -> None:
    @workflow
    async def signals() -> list[int]:
        event, order = asyncio.Event(), list[int]()

        async def wait(number: int) -> None:
            await event.wait()
            order.append(number)

        tasks = [asyncio.create_task(wait(n)) for n in range(3)]
        await asyncio.sleep(10)
        event.set()
        await asyncio.gather(*tasks)
        return order

    async with world(signals) as env:
        assert await env.run(signals) == [0, 1, 2]


async def test_a_queue_connects_a_producer_and_consumers() -> None:
    @workflow
    async def pipeline() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
        found: list[int] = []

        async def consume() -> None:
            while True:
                found.append(await add(await queue.get(), 100))
                queue.task_done()

        consumers = [asyncio.create_task(consume()) for _ in range(3)]
        for number in range(10):
            await queue.put(number)
        await queue.join()
        for consumer in consumers:
            consumer.cancel()
        return sorted(found)

    async with world(pipeline, add) as env:
        assert await env.run(pipeline) == list(range(100, 110))


async def test_a_lock_is_held_over_activities() -> None:
    @workflow
    async def exclusive() -> list[str]:
        lock, seen = asyncio.Lock(), list[str]()

        async def work(name: str) -> None:
            async with lock:
                seen.append(f"{name} in")
                await after(5, name)
                seen.append(f"{name} out")

        await asyncio.gather(work("a"), work("b"))
        return seen

    async with world(exclusive, after) as env:
        assert await env.run(exclusive) == ["a in", "a out", "b in", "b out"]


async def test_a_semaphore_bounds_what_goes_on_at_once() -> None:
    @workflow
    async def bounded() -> int:
        semaphore, most, inside = asyncio.Semaphore(2), 0, 0

        async def work() -> None:
            nonlocal most, inside
            async with semaphore:
                inside += 1
                most = max(most, inside)
                await after(1, "x")
                inside -= 1

        await asyncio.gather(*(work() for _ in range(6)))
        return most

    async with world(bounded, after) as env:
        before = env.now
        assert await env.run(bounded) == 2
        assert env.now - before >= timedelta(seconds=3)


async def test_a_condition_and_a_barrier_work_too() -> None:
    @workflow
    async def meets() -> list[str]:
        seen: list[str] = []
        condition, barrier = asyncio.Condition(), asyncio.Barrier(2)

        async def wait() -> None:
            async with condition:
                await condition.wait_for(lambda: bool(seen))
            seen.append("woken")
            await barrier.wait()

        task = asyncio.create_task(wait())
        await asyncio.sleep(1)
        async with condition:
            seen.append("said")
            condition.notify_all()
        await barrier.wait()
        await task
        return seen

    async with world(meets) as env:
        assert await env.run(meets) == ["said", "woken"]


async def test_shield_lets_an_activity_end_after_its_waiter_gave_up() -> None:
    @workflow
    async def shields() -> str:
        task = asyncio.create_task(after(20, "survived"))
        try:
            async with asyncio.timeout(5):
                await asyncio.shield(task)
        except TimeoutError:
            pass
        return await task

    async with world(shields, after) as env:
        assert await env.run(shields) == "survived"


async def test_call_later_and_loop_time_are_tape_time() -> None:
    @workflow
    async def calls() -> list[float]:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[float] = loop.create_future()
        loop.call_later(90, lambda: woken.set_result(round(loop.time(), 2)))
        return [loop.time(), await woken]

    async with world(calls) as env:
        assert await env.run(calls) == [0.0, 90.0]


async def test_a_callback_may_be_given_by_its_name() -> None:
    @workflow
    async def calls() -> list[str]:
        loop = asyncio.get_running_loop()
        order: list[str] = []
        loop.call_soon(callback=lambda: order.append("soon"))
        loop.call_later(1, callback=lambda: order.append("later"))
        loop.call_at(loop.time() + 2, callback=lambda: order.append("then"))
        await asyncio.sleep(3)
        return order

    async with world(calls) as env:
        assert await env.run(calls) == ["soon", "later", "then"]


async def test_timers_fire_in_order_of_their_deadlines_and_ties_in_order_of_issue() -> None:
    @workflow
    async def naps_together() -> list[str]:
        order: list[str] = []

        async def nap(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            order.append(name)

        await asyncio.gather(nap("b1", 20), nap("a", 10), nap("b2", 20), nap("c", 30))
        return order

    async with world(naps_together) as env:
        assert await env.run(naps_together) == ["a", "b1", "b2", "c"]


async def test_a_turn_consumes_exactly_one_input() -> None:
    @workflow
    async def fans_out() -> int:
        return sum(await asyncio.gather(*(add(n, 0) for n in range(4))))

    async with world(fans_out, add) as env:
        handle = await env.start(fans_out)
        assert await handle.result() == 6
        kinds = [str(line.kind) for line in await handle.journal()]
        assert kinds == ["started"] + ["activity_done"] * 4


async def test_tape_time_never_goes_back() -> None:
    async with world(naps, add) as env:
        handle = await env.start(naps, 5)
        await handle.result()
        times = [entry.at for entry in await journal_of(env, handle)]
        assert times == sorted(times)


async def test_a_workflow_sees_only_its_own_tasks() -> None:
    @workflow
    async def looks() -> list[str]:
        other = asyncio.create_task(asyncio.sleep(1), name="mine")
        names = sorted(task.get_name() for task in asyncio.all_tasks())
        current = asyncio.current_task()
        assert current is not None
        await other
        return [current.get_name(), *names]

    async with world(looks) as env:
        assert await env.run(looks) == ["looks", "looks", "mine"]


async def test_an_activity_called_outside_a_workflow_is_a_plain_call() -> None:
    assert await add(1, 2) == 3


async def test_a_workflow_called_as_a_function_is_that_function() -> None:
    @workflow
    async def sums() -> int:
        return await add(20, 22)

    assert await sums() == 42


@pytest.mark.parametrize("count", [1_000])
async def test_a_sleeping_run_costs_neither_memory_nor_a_task_nor_a_thread(count: int) -> None:  # covers B-06
    import threading

    async with world(naps) as env:
        await env.settle()
        tasks, threads = len(asyncio.all_tasks()), threading.active_count()
        handles = [await env.start(naps, 86_400) for _ in range(count)]
        await env.settle()
        assert env.worker.session is not None
        assert env.worker.session.runs == {}
        assert (len(asyncio.all_tasks()), threading.active_count()) == (tasks, threads)
        assert (await handles[0].describe()).state is RunState.WAITING
        assert [len(await handle.result()) for handle in handles] == [2] * count


async def test_now_is_an_aware_datetime_in_utc() -> None:
    async with world(naps) as env:
        begun, _ = await env.run(naps, 1)
        assert begun.tzinfo is UTC
