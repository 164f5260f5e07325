"""Middleware is on the way of what it is for, and of nothing else; it may say so before each start and attempt."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any

import pytest
from msgspec import Raw

from batuta import ActivityCall, Middleware, Sent, Signal, Start, activity_info, info, job, workflow
from batuta.authoring.middleware import AroundStart, Proceed
from batuta.errors import InvalidInput
from tests.engine.kit import jobs, world
from tests.engine.tenants import in_a_thread, on_the_loop, tenant


class Spares(Middleware):
    """Around the attempts of those that it does not know."""

    def __init__(self) -> None:
        self.around: list[str] = []

    def before(self, trace: str, headers: Any) -> bool:
        if headers.get("tenant") == "broken":
            raise ValueError("no such tenant")
        tenant.set(headers.get("tenant", "nobody"))
        return "tenant" not in headers

    async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
        self.around.append(call.facts.name)
        token = tenant.set(f"around {call.headers.get('tenant', '')}")
        try:
            return await proceed()
        finally:
            tenant.reset(token)


async def test_middleware_that_only_sets_the_context_wraps_no_attempt() -> None:
    @workflow
    async def both(number: int) -> list[str]:
        return [await on_the_loop(number), await in_a_thread(number), await on_the_loop(number)]

    spares = Spares()
    async with world(both, on_the_loop, in_a_thread, middleware=[spares]) as env:
        known = await env.client.start(both, 1, headers={"tenant": "acme"})
        assert await known.result() == ["acme 1", "around acme 1 True", "acme 1"]
        assert spares.around == ["in_a_thread"]
        unknown, broken = await env.client.start(both, 2), await env.client.start(both, 3, headers={"tenant": "broken"})
        assert await unknown.result() == ["around  2", "around  2 True", "around  2"]
        assert await broken.result() == ["around broken 3", "around broken 3 True", "around broken 3"]


async def test_what_is_set_for_one_attempt_is_not_there_in_the_next_that_nothing_is_set_for() -> None:
    class SetsWhatIsThere(Middleware):
        def before(self, trace: str, headers: Any) -> bool:
            if "tenant" in headers:
                tenant.set(headers["tenant"])
            return False

        async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
            return await proceed()

    @workflow
    async def one(number: int) -> str:
        return await on_the_loop(number)

    async with world(one, on_the_loop, middleware=[SetsWhatIsThere()], always_replay=False) as env:
        headers = [{"tenant": "acme"} if number % 2 else {} for number in range(20)]
        handles = await asyncio.gather(*(env.client.start(one, n, headers=each) for n, each in enumerate(headers)))
        found = [await handle.result() for handle in handles]
    assert found == [f"{each.get('tenant', 'nobody')} {number}" for number, each in enumerate(headers)]


async def test_middleware_with_only_activity_wraps_every_attempt() -> None:
    class Counts(Spares):
        async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
            counted.append(call.facts.name)
            return await super().activity(call, proceed)

    @workflow
    async def one(number: int) -> str:
        return await on_the_loop(number)

    counted: list[str] = []
    async with world(one, on_the_loop, middleware=[Counts()]) as env:
        handle = await env.client.start(one, 1, headers={"tenant": "acme"})
        assert await handle.result() == "around acme 1"
    assert counted == ["on_the_loop"]


async def test_of_several_each_is_around_every_attempt() -> None:
    @workflow
    async def one(number: int) -> str:
        return await on_the_loop(number)

    first, second = Spares(), Spares()
    async with world(one, on_the_loop, middleware=[first, second]) as env:
        handle = await env.client.start(one, 1, headers={"tenant": "acme"})
        assert await handle.result() == "around acme 1"
    assert first.around == second.around == ["on_the_loop"]


class Prepares(Middleware):
    """Says once how the context of a run's attempts is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.prepared: list[str] = []

    def before(self, trace: str, headers: Any) -> bool | Callable[[], object]:
        name = headers["tenant"]
        self.asked.append(name)
        return partial(self._prepare, name)

    def _prepare(self, name: str) -> None:
        self.prepared.append(name)
        if name == "broken":
            raise ValueError("no such tenant")
        tenant.set(name)

    async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
        token = tenant.set(f"around {call.headers['tenant']}")
        try:
            return await proceed()
        finally:
            tenant.reset(token)


async def test_before_may_say_once_for_all_attempts_of_a_run_how_their_context_is_set() -> None:
    @workflow
    async def three(number: int) -> list[str]:
        return [await on_the_loop(number), await in_a_thread(number), await on_the_loop(number)]

    prepares = Prepares()
    async with world(three, on_the_loop, in_a_thread, middleware=[prepares]) as env:
        names = ["acme", "bolt", "coal"]
        handles = [await env.client.start(three, n, headers={"tenant": name}) for n, name in enumerate(names)]
        for number, handle in enumerate(handles):
            name = names[number]
            found = [f"{name} {number}", f"around {name} {number} True", f"{name} {number}"]
            assert await handle.result() == found
    assert sorted(prepares.asked) == names
    assert sorted(prepares.prepared) == sorted(names * 2)


async def test_where_setting_the_context_fails_the_middleware_is_put_around_the_attempt(caplog: Any) -> None:
    @workflow
    async def two(number: int) -> list[str]:
        return [await on_the_loop(number), await on_the_loop(number)]

    async with world(two, on_the_loop, middleware=[Prepares()]) as env:
        handle = await env.client.start(two, 1, headers={"tenant": "broken"})
        assert await handle.result() == ["around broken 1", "around broken 1"]
    assert "middleware failed before an attempt of on_the_loop" in caplog.text


async def test_before_is_asked_once_for_a_job_too() -> None:
    @job
    async def says() -> str:
        return tenant.get()

    prepares = Prepares()
    async with jobs(says, middleware=[prepares]) as env:
        handle = await env.enqueue(says, headers={"tenant": "acme"})
        assert await handle.result() == "acme"
    assert prepares.asked == prepares.prepared == ["acme"]


# -- starts


class Marks(Middleware):
    """Around the starts of those that nobody has named."""

    def __init__(self) -> None:
        self.around: list[str] = []

    def before_start(self) -> Mapping[str, str] | str | AroundStart:
        name = tenant.get()
        return self.start if name == "nobody" else {"tenant": name}

    async def start(self, starts: Sequence[Start], proceed: Proceed) -> None:
        for one in starts:
            self.around.append(one.name)
            one.headers["tenant"] = f"around {tenant.get()}"
        await proceed()


@job
async def told() -> dict[str, str]:
    return dict(activity_info().headers)


async def test_middleware_that_only_adds_headers_wraps_no_start() -> None:
    marks, given = Marks(), {"who": "me"}
    async with jobs(told, middleware=[marks]) as env:
        nobody = await env.enqueue(told)
        tenant.set("acme")
        alone = await env.enqueue(told, headers=given)
        many = await env.client.enqueue_many([told.call(), told.call().with_options(headers={"tenant": "theirs"})])
        assert await nobody.result() == {"tenant": "around nobody"}
        assert await alone.result() == {"who": "me", "tenant": "acme"}
        assert [await each.result() for each in many] == [{"tenant": "acme"}] * 2
    assert marks.around == ["told"]
    assert given == {"who": "me"}


async def test_a_start_that_headers_are_added_to_is_as_any_other() -> None:
    @workflow
    async def says() -> dict[str, str]:
        return dict(info().headers)

    marks = Marks()
    async with world(says, middleware=[marks]) as env:
        tenant.set("acme")
        assert await (await env.client.start(says)).result() == {"tenant": "acme"}
        assert await (await env.client.start(says, delay=60, headers={"a": "b"})).result() == {
            "a": "b",
            "tenant": "acme",
        }
    assert marks.around == []


async def test_headers_that_are_given_in_place_of_a_start_are_checked_and_errors_reach_the_caller() -> None:
    class Fails(Marks):
        def before_start(self) -> Mapping[str, str] | str | AroundStart:
            if tenant.get() == "nobody":
                raise PermissionError("say who you are")
            return {"tenant": tenant.get() * 5000}

        async def start(self, starts: Sequence[Start], proceed: Proceed) -> None:
            raise AssertionError("nobody asked for it")

    async with jobs(told, middleware=[Fails()]) as env:
        with pytest.raises(PermissionError, match="say who you are"):
            await env.enqueue(told)
        tenant.set("acme")
        with pytest.raises(InvalidInput, match="too much"):
            await env.enqueue(told)
        assert await env.client.count(kind="any") == 0


@pytest.mark.parametrize(("trace", "said"), [("a\x00b", "NUL"), ("t" * 5000, "too much")])
async def test_a_string_that_is_given_in_place_of_a_start_is_its_trace_and_checked_too(trace: str, said: str) -> None:
    class Traces(Marks):
        given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"

        def before_start(self) -> str:
            return self.given

    traces = Traces()
    async with jobs(told, middleware=[traces]) as env:
        handle = await env.enqueue(told, headers={"who": "me"})
        assert await handle.result() == {"who": "me"}
        start = (await handle.journal())[0].body.start
        assert start
        assert start.trace == traces.given
        traces.given = trace
        with pytest.raises(InvalidInput, match=said):
            await env.enqueue(told)
        assert await env.client.count(kind="any") == 1


async def test_each_middleware_with_only_start_wraps_every_start() -> None:
    class Counts(Marks):
        async def start(self, starts: Sequence[Start], proceed: Proceed) -> None:
            self.around.append("counted")
            await super().start(starts, proceed)

    tenant.set("acme")
    counts, first, second = Counts(), Marks(), Marks()
    async with jobs(told, middleware=[counts]) as env:
        assert await (await env.enqueue(told)).result() == {"tenant": "around acme"}
    async with jobs(told, middleware=[first, second]) as env:
        assert await (await env.enqueue(told)).result() == {"tenant": "around acme"}
    assert counts.around == ["counted", "told"]
    assert first.around == second.around == ["told"]


async def test_without_middleware_a_run_calls_what_it_calls_with_some_that_does_nothing() -> None:
    """So nothing of it is on the way where it is switched off."""

    @workflow
    async def three() -> list[str]:
        return [await on_the_loop(number) for number in range(3)]

    async def called(*middleware: Middleware) -> Counter[str]:
        found: Counter[str] = Counter()

        def count(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and "batuta/engine" in frame.f_code.co_filename:
                found[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1

        async with world(three, on_the_loop, middleware=middleware) as env:
            await (await env.client.start(three)).result()  # whatever is made once
            sys.setprofile(count)
            try:
                await (await env.client.start(three)).result()
            finally:
                sys.setprofile(None)
        return found

    without = await called()
    assert without.total() > 0
    assert await called(Middleware()) == without
    assert not [name for name in without if "middleware.py" in name or "reporter.py" in name]


async def test_middleware_that_is_around_messages_alone_is_around_them() -> None:
    class Sends(Middleware):
        async def send(self, message: Sent, proceed: Proceed) -> None:
            said.append(f"{message.kind} {message.name} {message.id}")
            message.headers["tenant"] = "acme"
            await proceed()

    @workflow
    async def waits() -> bool:
        return await go_on.wait()

    said: list[str] = []
    go_on = Signal("go_on", bool)
    async with world(waits, middleware=[Sends()]) as env:
        handle = await env.client.start(waits, id="x")
        await handle.signal(go_on, True)
        assert await handle.result() is True
        [read] = [line.body for line in await handle.journal() if line.kind == "signal"]
    assert said == ["signal go_on x"]
    assert isinstance(read.headers, Raw)
    assert bytes(read.headers) == b'{"tenant":"acme"}'
