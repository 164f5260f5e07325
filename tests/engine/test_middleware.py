"""Middleware is around starts, runs and attempts; where it is not, nothing is asked."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from batuta import (
    ActivityCall,
    App,
    Middleware,
    NonRetryable,
    Queue,
    Retry,
    RunCall,
    RunFailed,
    Schedule,
    Start,
    activity,
    activity_info,
    connect,
    continue_as_new,
    every,
    info,
    job,
    run_child,
    transaction,
    workflow,
)
from batuta.authoring.middleware import Proceed
from batuta.codecs import Compression
from batuta.engine.backend.native import NativeBackend
from batuta.errors import ClientError, InvalidInput
from batuta.telemetry import Event, RunEvent
from batuta.testing import Environment, crash_sweep
from tests.engine.arena import Arena
from tests.engine.crunch import Numbers, crunch, crunching
from tests.engine.kit import jobs, replay_all, world
from tests.engine.tenants import in_a_thread, on_the_loop, tenant


@activity(retry=Retry(attempts=3, first=0.01))
async def fails() -> None:
    raise ValueError("no")


@activity
async def reads_headers() -> dict[str, str]:
    return dict(activity_info().headers)


@job
def letter(name: str) -> str:
    return f"dear {name}"


@workflow
async def both(number: int) -> list[str]:
    return [await on_the_loop(number), await in_a_thread(number)]


@workflow
async def asks() -> dict[str, str]:
    return await reads_headers()


@workflow
async def gives_up() -> None:
    await fails()


class Trail(Middleware):
    """Says what it is around."""

    def __init__(self, name: str, trail: list[str]) -> None:
        self._name, self._trail = name, trail

    async def start(self, starts: Sequence[Start], proceed: Proceed) -> None:
        self._trail.append(f"{self._name} starts {', '.join(f'{one.kind} {one.name}' for one in starts)}")
        await proceed()
        self._trail.append(f"{self._name} has started")

    async def run(self, run: RunCall, proceed: Proceed) -> Any:
        self._trail.append(f"{self._name} runs {run.info.workflow}{' again' if run.replaying else ''}")
        value = await proceed()
        self._trail.append(f"{self._name} has run{' again' if run.replaying else ''}")
        return value

    async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
        facts = call.facts
        self._trail.append(f"{self._name} calls {facts.kind} {facts.name} ({facts.attempt})")
        try:
            return await proceed()
        finally:
            self._trail.append(f"{self._name} has called")


class Tenant(Middleware):
    """Sets whose work it is, for the code of activities."""

    async def start(self, starts: Sequence[Start], proceed: Proceed) -> None:
        for one in starts:
            one.headers.setdefault("tenant", "acme")
            one.tags["tenant"] = one.headers["tenant"]
        await proceed()

    async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
        token = tenant.set(call.headers.get("tenant", "nobody"))
        try:
            return await proceed()
        finally:
            tenant.reset(token)


async def test_without_middleware_there_is_nothing_on_the_way() -> None:
    async with world(both, on_the_loop, in_a_thread) as env:
        session = env.worker.session
        assert session is not None
        assert session.begins is None
        assert session.executor.within is None
        assert session.executor.activity("on_the_loop") is on_the_loop
        assert session.workflows["both"] is both
        assert session.committer._reporter is None
        assert type(env.client._backend) is NativeBackend


async def test_hooks_that_middleware_does_not_override_are_not_called() -> None:
    class Starts(Middleware):
        async def start(self, starts: Sequence[Start], proceed: Proceed) -> None:
            await proceed()

    async with world(both, on_the_loop, in_a_thread, middleware=[Starts()]) as env:
        session = env.worker.session
        assert session is not None
        assert (session.begins, session.executor.within, session.committer._reporter) == (None, None, None)
        assert session.workflows["both"] is both


async def test_the_first_is_the_outermost() -> None:
    trail: list[str] = []
    around = [Trail("a", trail), Trail("b", trail)]
    async with world(asks, reads_headers, middleware=around, always_replay=False) as env:
        await env.run(asks)
    assert trail[:2] == ["a starts workflow asks", "b starts workflow asks"]
    assert [line for line in trail if "start" not in line] == [
        "a runs asks",
        "b runs asks",
        "a calls activity reads_headers (1)",
        "b calls activity reads_headers (1)",
        "b has called",
        "a has called",
        "b has run",
        "a has run",
    ]


async def test_what_it_sets_in_the_context_is_there_on_the_loop_and_in_threads_and_gone_afterwards() -> None:
    async with world(both, on_the_loop, in_a_thread, middleware=[Tenant()]) as env:
        assert await env.run(both, 1) == ["acme 1", "acme 1 True"]
        assert tenant.get() == "nobody"
        plain = await env.client.start(both, 2, headers={"tenant": "umbrella"})
        assert await plain.result() == ["umbrella 2", "umbrella 2 True"]
        assert (await plain.describe()).tags == {"tenant": "umbrella"}


async def test_every_attempt_is_wrapped_and_sees_the_error() -> None:
    trail: list[str] = []
    async with world(gives_up, fails, middleware=[Trail("a", trail)]) as env:
        with pytest.raises(RunFailed, match="no"):
            await env.run(gives_up)
    assert [line for line in trail if "calls" in line] == [f"a calls activity fails ({n})" for n in (1, 2, 3)]
    assert "a has run" not in trail


async def test_arguments_and_results_may_be_changed() -> None:
    class Doubles(Middleware):
        async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
            call.args = (call.args[0] * 2,)
            return f"<{await proceed()}>"

    async with world(both, on_the_loop, in_a_thread, middleware=[Doubles()]) as env:
        assert await env.run(both, 4) == ["<nobody 8>", "<nobody 8 True>"]


async def test_an_activity_can_be_refused_before_it_begins() -> None:
    class Guard(Middleware):
        async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
            await asyncio.sleep(1)  # it asks somebody
            raise NonRetryable(f"{call.facts.id} may not {call.facts.name}")

    async with world(asks, reads_headers, middleware=[Guard()]) as env:
        handle = await env.start(asks, id="mallory")
        with pytest.raises(RunFailed, match="mallory may not reads_headers"):
            await handle.result()


async def test_what_middleware_returns_in_place_of_the_activity_is_the_result() -> None:
    class Cached(Middleware):
        async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
            return "cached"

    async with world(both, on_the_loop, in_a_thread, middleware=[Cached()]) as env:
        assert await env.run(both, 1) == ["cached", "cached"]


async def test_jobs_are_wrapped_alone_and_in_batches() -> None:
    trail: list[str] = []
    async with jobs(letter, middleware=[Trail("a", trail)]) as env:
        assert await env.run(letter, "ada") == "dear ada"
        batch = await env.enqueue_many([letter.call("bob"), letter.call("cy")], on_done=letter.call("all"))
        assert [await handle.result() for handle in batch] == ["dear bob", "dear cy"]
        assert batch.done is not None
        await batch.done.result()
    assert "a starts job letter, job letter, job letter" in trail
    assert trail.count("a calls job letter (1)") == 4


async def test_one_call_of_the_client_is_one_call_of_start_and_what_it_raises_the_caller_is_raised() -> None:
    class Refuses(Middleware):
        async def start(self, starts: Sequence[Start], proceed: Proceed) -> None:
            if len(starts) > 1:
                raise PermissionError("one at a time")
            await proceed()

    async with jobs(letter, middleware=[Refuses()]) as env:
        await env.enqueue(letter, "ada")
        with pytest.raises(PermissionError, match="one at a time"):
            await env.enqueue_many([letter.call("bob"), letter.call("cy")])
        assert await env.client.count(kind="any") == 1


async def test_what_middleware_adds_to_a_start_does_not_stay_with_what_the_caller_gave() -> None:
    class Marks(Middleware):
        async def start(self, starts: Sequence[Start], proceed: Proceed) -> Any:
            for one in starts:
                one.headers.setdefault("id", str(one.id))
                one.tags.setdefault("id", str(one.id))
            await proceed()

    headers: dict[str, str] = {}
    tags: dict[str, str] = {}
    async with world(asks, reads_headers, middleware=[Marks()]) as env:
        for id in ("a", "b"):
            handle = await env.start(asks, id=id, headers=headers, tags=tags)
            assert await handle.result() == {"id": id}
    assert (headers, tags) == ({}, {})


async def test_a_start_that_middleware_forgets_to_make_is_told() -> None:
    class Forgets(Middleware):
        async def start(self, starts: Sequence[Start], proceed: Proceed) -> None: ...

    async with world(asks, reads_headers, middleware=[Forgets()]) as env:
        with pytest.raises(ClientError, match="has not called proceed"):
            await env.start(asks)


async def test_headers_reach_children_routed_activities_and_the_next_run_of_a_chain() -> None:
    @workflow
    async def child() -> dict[str, str]:
        return await reads_headers()

    @workflow
    async def chain(left: int) -> list[dict[str, str]]:
        if left:
            continue_as_new(left - 1)
        there = await reads_headers.with_options(queue="far")()
        return [dict(info().headers), await run_child(child), there]

    queues = [Queue("default"), Queue("far")]
    async with world(child, chain, reads_headers, middleware=[Tenant()], queues=queues) as env:
        assert await env.run(chain, 1) == [{"tenant": "acme"}] * 3


async def test_begin_gives_headers_to_runs_of_schedules_once_and_they_stay() -> None:
    class Names(Middleware):
        missing = "who"
        begun = 0

        def begin(self, start: Start) -> None:
            self.begun += 1
            start.headers["who"] = f"{start.kind} {start.name} {self.begun}"

    @workflow
    async def slow() -> str:
        await asyncio.sleep(3600)
        return info().headers["who"]

    names = Names()
    schedule = Schedule("hourly", every(3600), slow)
    async with world(slow, middleware=[names], schedules=[schedule]) as env:
        await env.advance(3601)
        page = await env.client.list()
        handle = await env.client.get(page.runs[0].id)
        await env.crash()
        assert await handle.result() == "workflow slow 1"
        given = await env.client.start(slow, headers={"who": "me"})
        assert await given.result() == "me"


async def test_a_schedule_can_give_headers_to_its_runs() -> None:
    schedules = [Schedule("a", every(3600), asks, headers={"who": "a"}), Schedule("b", every(3600), reads_tenant)]
    things: Any = {"workflows": [asks], "activities": [reads_headers], "jobs": [reads_tenant]}
    async with Environment(**things, schedules=schedules) as env:
        await env.advance(3700)
        (mine,) = (await env.client.list(id_prefix="a:")).runs
        assert await (await env.client.get(mine.id, asks)).result() == {"who": "a"}
    with pytest.raises(InvalidInput, match="must map strings to strings"):
        Schedule("c", every(3600), asks, headers={"who": 1})


async def test_a_replay_is_told_and_changes_nothing() -> None:
    @workflow
    async def naps() -> str:
        first = await on_the_loop(1)
        await asyncio.sleep(3600)
        return first

    trail: list[str] = []
    async with world(naps, on_the_loop, middleware=[Trail("a", trail)], always_replay=False) as env:
        handle = await env.start(naps)
        await env.settle()
        await env.crash()
        assert await handle.result() == "nobody 1"
        await replay_all(env.store, {"naps": naps})  # by code that has no middleware
    assert [line for line in trail if "start" not in line] == [
        "a runs naps",
        "a calls activity on_the_loop (1)",
        "a has called",
        "a runs naps again",
        "a has run",
    ]


async def test_a_run_that_leaves_memory_goes_through_finally_and_harms_nothing(caplog: Any) -> None:
    said: list[str] = []

    class Tidies(Middleware):
        async def run(self, run: RunCall, proceed: Proceed) -> Any:
            try:
                return await proceed()
            finally:
                if not run.replaying:
                    said.append(run.info.id)

    @workflow
    async def naps() -> str:
        await asyncio.sleep(3600)
        return "awake"

    async with world(naps, middleware=[Tidies()]) as env:
        handle = await env.start(naps, id="one")
        await env.advance(1800)  # it is not in memory any more
        assert not said
        assert await handle.result() == "awake"
    assert said == ["one"]
    assert not caplog.records


async def test_a_run_can_be_refused_and_its_result_changed() -> None:
    class Door(Middleware):
        async def run(self, run: RunCall, proceed: Proceed) -> Any:
            if run.info.headers.get("who") != "ada":
                raise PermissionError("only ada")
            return {**await proceed(), "checked": "yes"}

    async with Environment(workflows=[asks], activities=[reads_headers], middleware=[Door()]) as env:
        with pytest.raises(RunFailed, match="only ada"):
            await env.run(asks)
        handle = await env.client.start(asks, headers={"who": "ada"})
        assert await handle.result() == {"who": "ada", "checked": "yes"}


async def test_middleware_that_fails_at_the_beginning_does_not_hold_up_the_run(caplog: Any) -> None:
    class Breaks(Middleware):
        def begin(self, start: Start) -> None:
            raise RuntimeError("broken")

    async with world(asks, reads_headers, middleware=[Breaks()]) as env:
        assert await env.run(asks) == {}
    assert "begins without it" in caplog.text


def test_a_sweep_with_middleware_ends_as_without() -> None:
    found = crash_sweep(both, 3, activities=[on_the_loop, in_a_thread], middleware=[Tenant(), Trail("a", [])])
    assert len(found.points) > 10


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"who": 3}, "must map strings to strings"),
        ({"": "x"}, "must map strings to strings"),
        ({"who": "a\x00b"}, "NUL"),
        ({"who": "x" * 5000}, "too much"),
        ({"w" * 101: "x"}, "too much"),
        (["who"], "must map strings to strings"),
    ],
)
async def test_headers_that_cannot_be_kept_are_refused(given: Any, said: str) -> None:
    async with world(asks, reads_headers) as env:
        with pytest.raises(InvalidInput, match=said):
            await env.client.start(asks, headers=given)
        with pytest.raises(InvalidInput, match=said):
            await env.client.enqueue("letter", headers=given)


async def test_headers_that_middleware_puts_in_are_checked_too() -> None:
    class Careless(Middleware):
        async def start(self, starts: Sequence[Start], proceed: Proceed) -> None:
            starts[0].headers["who"] = "x" * 5000
            await proceed()

    async with world(asks, reads_headers, middleware=[Careless()]) as env:
        with pytest.raises(InvalidInput, match="too much"):
            await env.start(asks)
        assert await env.client.count() == 0


@pytest.mark.parametrize("wrong", [[object()], [Middleware], Middleware(), "x"])
def test_an_object_that_is_no_middleware_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"batuta\.Middleware"):
        connect("memory://", middleware=wrong)


async def test_one_worker_can_have_middleware_of_its_own_inside_of_the_clients(real_time: None) -> None:
    trail: list[str] = []
    async with connect("memory://", middleware=[Trail("outer", trail)]) as client:
        worker = client.worker(workflows=[asks], activities=[reads_headers], middleware=[Trail("inner", trail)])
        async with worker:
            await (await client.start(asks)).result()
    assert [line for line in trail if "calls" in line] == [
        "outer calls activity reads_headers (1)",
        "inner calls activity reads_headers (1)",
    ]
    assert not [line for line in trail if "inner starts" in line]


async def test_an_activity_in_a_process_is_wrapped_in_the_worker(real_time: None) -> None:
    class Sees(Middleware):
        seen: Any = None

        async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
            self.seen = await proceed()
            return self.seen

    sees = Sees()
    async with connect("memory://", middleware=[sees]) as client:
        async with client.worker(workflows=[crunching], activities=[crunch]):
            result = await (await client.start(crunching, Numbers([3]))).result()
    assert sees.seen == result == Numbers([9, 1, 1])


async def test_an_attempt_that_is_over_before_it_comes_to_its_code_does_not_execute_it(real_time: None) -> None:
    over, seen, executed = asyncio.Event(), asyncio.Event(), []

    class Holds(Middleware):
        async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
            await over.wait()
            try:
                return await proceed()
            finally:
                seen.set()

    @activity(timeout=0.05, retry=Retry(attempts=1))
    def charge() -> None:
        executed.append("charged")

    @workflow
    async def charges() -> None:
        await charge()

    async with connect("memory://", middleware=[Holds()]) as client:
        async with client.worker(workflows=[charges], activities=[charge]):
            with pytest.raises(RunFailed):
                await (await client.start(charges)).result(30)
            over.set()
            await asyncio.wait_for(seen.wait(), 30)
    assert executed == []


async def test_a_cancelled_call_reaches_the_middleware() -> None:
    seen: list[str] = []

    class Watches(Middleware):
        async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
            try:
                return await proceed()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

    @activity
    async def forever() -> None:
        await asyncio.sleep(1e6)

    @workflow
    async def waits() -> str:
        try:
            async with asyncio.timeout(5):
                await forever()
        except TimeoutError:
            return "enough"
        return ""

    async with world(waits, forever, middleware=[Watches()]) as env:
        assert await env.run(waits) == "enough"
        await env.settle()
    assert seen == ["cancelled"]


async def test_it_is_the_same_on_every_store(arena: Arena) -> None:
    trail: list[str] = []
    client = await arena.client()
    await arena.worker(client, both, on_the_loop, in_a_thread, letter, middleware=[Tenant(), Trail("a", trail)])
    handle = await client.start(both, 7, headers={"tenant": "initech"})
    assert await handle.result() == ["initech 7", "initech 7 True"]
    line = (await handle.journal())[0]
    assert line.body.start
    assert line.body.start.headers == {"tenant": "initech"}
    assert await (await client.enqueue(letter, "ada", headers={"tenant": "initech"})).result() == "dear ada"
    assert trail.count("a calls job letter (1)") == 1


@job
async def reads_tenant() -> dict[str, str]:
    return dict(activity_info().headers)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_it_is_around_transactional_activities_and_what_they_start_has_the_headers(store: Any) -> None:
    started: list[str] = []

    def books() -> str:
        started.append(transaction().enqueue(reads_tenant))
        return tenant.get()

    async def books_too() -> str:
        return books()

    book: Any = activity(name="books", transactional=True)(books if store == "sqlite" else books_too)

    @workflow
    async def shops() -> str:
        return str(await book())

    ears = Ears()
    things: Any = {"workflows": [shops], "activities": [book], "jobs": [reads_tenant]}
    async with Environment(**things, store=store, middleware=[Tenant(), ears]) as env:
        assert await env.run(shops) == "acme"
        assert await (await env.get(started[0], reads_tenant)).result() == {"tenant": "acme"}
        assert ears.heard[:4] == ["run.started", "activity.started", "activity.completed", "run.closed"]


class Ears(Middleware):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def event(self, event: Event) -> None:
        if isinstance(event, RunEvent):
            self.heard.append(event.event)


async def test_events_and_headers_are_plain_for_code_where_payloads_are_coded(real_time: None) -> None:
    ears = Ears()
    async with connect("memory://", codec=[Compression(least=0)], middleware=[Tenant(), ears]) as client:
        async with client.worker(workflows=[asks], activities=[reads_headers]):
            assert await (await client.start(asks)).result() == {"tenant": "acme"}
    assert ears.heard == ["run.started", "activity.started", "activity.completed", "run.closed"]


async def test_an_app_carries_middleware() -> None:
    app = App(workflows=[asks], activities=[reads_headers], middleware=[Tenant()])
    async with Environment.of(app) as env:
        assert await env.run(asks) == {"tenant": "acme"}
