"""Which runs become dead letters, what is said of them, and who is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import pytest

from batuta import (
    Batuta,
    DeadLetter,
    Handle,
    Middleware,
    NonRetryable,
    Retry,
    RunFailed,
    Workflow,
    activity,
    failpoints,
    job,
    run_child,
    workflow,
)
from batuta.authoring.middleware import Start
from batuta.connect import connect
from batuta.engine.run.dead_letters import fingerprint, normalised
from batuta.journal.dead_letters import LetterFilter
from batuta.journal.failures import Failure
from batuta.testing import Environment
from batuta.verify import verify
from tests.long import some_of
from tests.properties.test_crashes import Killer, forgive_the_killed

TWICE = Retry(attempts=2, first=0.0)


class Down(Exception):
    """A service is away."""


@activity(retry=TWICE)
async def charge(number: int) -> int:
    raise Down(f"no answer from card {number}")


@activity
async def fine() -> str:
    return "fine"


@activity
async def refuse() -> None:
    raise NonRetryable("never")


@activity(retry=Retry(attempts=5, first=0.0, never=["Down"]))
async def give_up_at_once() -> None:
    raise Down("gone")


@activity(timeout=0.01, retry=Retry(attempts=1))
async def slow() -> None:
    await asyncio.sleep(60)


@workflow
async def order(number: int) -> int:
    await fine()
    return await charge(number)


@workflow
async def cleans_up(number: int) -> int:
    try:
        return await charge(number)
    finally:
        await fine()


@workflow
async def several() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(fine())
        group.create_task(charge(7))


@workflow
async def translates(number: int) -> None:
    try:
        await charge(number)
    except Down as error:
        raise ValueError("the order was refused") from error


@workflow(dead_letter=True)
async def matters() -> None:
    await fine()
    raise ValueError("this must not happen")


@workflow
async def calls(name: str) -> None:
    await {"refuse": refuse, "slow": slow, "never": give_up_at_once}[name]()


@workflow
async def recovers(number: int) -> str:
    try:
        await charge(number)
    except Down:
        return "without"
    return "with"


@workflow
async def parent(number: int) -> int:
    return await run_child(order, number)


@job(retry=TWICE)
async def send(number: int) -> None:
    raise Down(f"no mail {number}")


WORKFLOWS: list[Workflow[..., Any]] = [order, cleans_up, several, translates, matters, calls, recovers, parent]
ACTIVITIES = [charge, fine, refuse, slow, give_up_at_once]


@pytest.fixture
async def client() -> AsyncIterator[Batuta]:
    async with connect("memory://") as made, made.worker(workflows=WORKFLOWS, activities=ACTIVITIES, jobs=[send]):
        yield made


async def failed(client: Batuta, what: Any, *args: Any) -> list[DeadLetter]:
    """The dead letters after a run of it has failed."""
    handle = await client.start(what, *args)
    with pytest.raises(RunFailed):
        await handle.result()
    return (await client.dead_letters.list()).letters


async def test_a_run_whose_activity_has_no_attempt_left_is_a_dead_letter(client: Batuta) -> None:
    (letter,) = await failed(client, order, 5)
    assert (letter.kind, letter.name, letter.state, letter.reason) == ("workflow", "order", "open", "exhausted")
    assert (letter.error, letter.message, letter.activity) == ("Down", "no answer from card 5", "charge")
    assert (letter.attempts, letter.trace, letter.successor) == (2, letter.run_id.hex, None)


async def test_a_job_that_fails_is_a_dead_letter(client: Batuta) -> None:
    handle = await client.enqueue(send, 5, key="ann")
    with pytest.raises(RunFailed):
        await handle.result()
    (letter,) = (await client.dead_letters.list()).letters
    assert (letter.id, letter.run_id, letter.kind) == (handle.id, handle.run_id, "job")
    assert (letter.name, letter.activity, letter.attempts, letter.key) == ("send", "send", 2, "ann")


async def test_the_failure_counts_from_where_it_happened_and_not_from_where_the_run_ended(client: Batuta) -> None:
    await failed(client, cleans_up, 5)
    (row,) = (await client._backend.access.store.letters(LetterFilter(), None, 10)).letters
    journal = await (await client.get(row.id)).journal()
    assert journal[row.keep + 1].kind == "activity_failed"
    assert len(journal) > row.keep + 2


async def test_an_error_in_a_group_of_tasks_is_the_activitys(client: Batuta) -> None:
    (letter,) = await failed(client, several)
    assert (letter.activity, letter.error) == ("charge", "Down")


@pytest.mark.parametrize(
    ("name", "reason", "error"),
    [("refuse", "refused", "NonRetryable"), ("never", "refused", "Down"), ("slow", "timed_out", "ActivityTimeout")],
)
async def test_the_reason_says_why_it_was_given_up(client: Batuta, name: str, reason: str, error: str) -> None:
    (letter,) = await failed(client, calls, name)
    assert (letter.reason, letter.error) == (reason, error)


async def test_an_error_in_place_of_the_activitys_is_the_workflows_own(client: Batuta) -> None:
    (letter,) = await failed(client, translates, 5)
    assert (letter.reason, letter.error, letter.activity) == ("workflow_error", "ValueError", "")


async def test_an_error_that_the_workflow_does_not_declare_is_one_also_with_dead_letter(client: Batuta) -> None:
    (letter,) = await failed(client, matters)
    assert (letter.reason, letter.error, letter.activity) == ("workflow_error", "ValueError", "")


async def test_a_run_that_goes_on_without_the_activity_is_none(client: Batuta) -> None:
    assert await (await client.start(recovers, 5)).result() == "without"
    assert await client.dead_letters.count(state="any") == 0


async def test_of_parent_and_child_only_the_child_is_one(client: Batuta) -> None:
    (letter,) = await failed(client, parent, 5)
    assert letter.name == "order"


async def test_a_run_that_is_tried_again_as_a_whole_is_one_after_its_last_attempt(client: Batuta) -> None:
    handle = await client.start(order, 5, retry=Retry(attempts=3, first=0.0))
    with pytest.raises(RunFailed):
        await handle.result()
    assert await client.dead_letters.count() == 1


async def test_errors_of_one_origin_are_a_group(client: Batuta) -> None:
    for number in range(3):
        await failed(client, order, number)
    await failed(client, matters)
    groups = (await client.dead_letters.groups()).groups
    assert [(group.count, group.example.error) for group in groups] == [(1, "ValueError"), (3, "Down")]
    alike = await client.dead_letters.list(fingerprint=groups[1].fingerprint)
    assert [letter.message for letter in alike.letters] == [f"no answer from card {number}" for number in (2, 1, 0)]


class Traced(Middleware):
    def begin(self, start: Start) -> None:
        start.headers["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_letter_has_the_trace_id_of_its_run() -> None:
    async with connect("memory://", middleware=[Traced()]) as client:
        async with client.worker(workflows=[order], activities=[charge, fine]):
            (letter,) = await failed(client, order, 5)
    assert letter.trace == "0af7651916cd43dd8448eb211c80319c"


# -- who is told


async def test_a_worker_tells_of_each_after_it_is_durable() -> None:
    seen: list[tuple[str, bool]] = []

    async def alert(letter: DeadLetter) -> None:
        seen.append((letter.id, (await made.dead_letters.get(letter.id)).run_id == letter.run_id))

    async with connect("memory://") as made:
        async with made.worker(workflows=[order], activities=[charge, fine], jobs=[send], on_dead_letter=alert):
            handles: list[Handle[Any]] = [await made.start(order, 1), await made.enqueue(send, 2)]
            await until(lambda: len(seen) == 2)
    assert sorted(seen) == sorted((handle.id, True) for handle in handles)


async def test_an_object_whose_call_is_async_is_awaited() -> None:
    class Pager:
        told: ClassVar[list[str]] = []

        async def __call__(self, letter: DeadLetter) -> None:
            self.told.append(letter.id)

    async with connect("memory://") as client, client.worker(jobs=[send], on_dead_letter=Pager()):
        await client.enqueue(send, 1, id="a")
        await until(lambda: Pager.told == ["a"])


async def test_a_function_that_blocks_is_called_in_a_thread_and_errors_of_one_are_contained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    threads: list[threading.Thread] = []

    def alert(letter: DeadLetter) -> None:
        threads.append(threading.current_thread())
        raise RuntimeError("no pager")

    async with connect("memory://") as client:
        async with client.worker(jobs=[send], on_dead_letter=alert):
            await client.enqueue(send, 1)
            await client.enqueue(send, 2)
            await until(lambda: len(threads) == 2)
    assert threading.main_thread() not in threads
    assert "on_dead_letter raised" in caplog.text
    assert "is a dead letter: exhausted, Down: no mail 1" in caplog.text


# -- fingerprints


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no answer from card 17 after 3.5 s", "no answer from card 4242 after 0.25 s"),
        ("user 'ann' is unknown", "user 'bob' is unknown"),
        ("order 8f14e45f-ceea-467f-a0e6-b3a6ae8a5a6d is gone", "order 0cc175b9-c0f1-46ac-a9d8-0f9dbb8cbf4a is gone"),
        ("GET https://shop.example/a?x=1 failed", "GET https://shop.example/b failed"),
        ("cannot read /tmp/a.txt", "cannot read /var/b.txt"),
        ("row ab12 is  locked", "row cd34 is locked"),
    ],
)
def test_fingerprints_ignore_what_differs_from_run_to_run(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


def test_other_words_classes_places_and_ways_are_other_errors() -> None:
    trace = 'Traceback:\n  File "/app/shop.py", line 7, in pay\n    charge()\n'
    moved = trace.replace("/app", "/next/app").replace("line 7", "line 9")
    inside = trace + '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n'
    elsewhere = trace.replace("in pay", "in refund")

    def of(kind: str = "ValueError", message: str = "no", traceback: str = trace, where: str = "charge") -> str:
        return fingerprint(Failure(kind, message, traceback=traceback), where)

    assert of() == of(traceback=moved) == of(traceback=inside)
    assert len({of(), of("KeyError"), of(message="yes"), of(traceback=elsewhere), of(where="refund")}) == 5


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


# -- killed


async def given_up(moments: set[int]) -> Killer:
    """A job and a workflow that fail, their worker killed at these moments."""
    asyncio.get_running_loop().set_exception_handler(forgive_the_killed)
    told: list[str] = []
    async with Environment(
        workflows=[order], activities=[charge, fine], jobs=[send], on_dead_letter=lambda letter: told.append(letter.id)
    ) as env:
        await env.start(order, 5, id="a", delay=1)
        await env.enqueue(send, 6, id="b", delay=1)
        killer = Killer(env, moments)
        failpoints.armed = killer  # type: ignore[assignment]  # it passes by as an armed plan does
        try:
            await env.advance(60)
        finally:
            failpoints.arm()
        await killer.recovered()
        await env.advance(60)
        letters = (await env.dead_letters.list()).letters
        assert sorted((letter.id, letter.error) for letter in letters) == [("a", "Down"), ("b", "Down")], killer.killed
        report = await verify(env.store, [order])
        assert not report.violations, report.violations
    assert len(told) == len(set(told))
    return killer


async def test_each_is_one_letter_wherever_the_worker_is_killed() -> None:
    calm = await given_up(set())
    assert len(calm.sites) > 10
    for moment in some_of(calm.sites):
        await given_up({moment})
