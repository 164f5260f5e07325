"""Code that was changed under a run: found by the comparison, shown with both sides, and nothing is written."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from batuta import Handle, RunState, Workflow, activity, side_effect, workflow
from batuta.errors import Nondeterministic
from batuta.testing import Environment
from tests.engine.kit import journal_of, replay

executed: list[str] = []


@activity
async def a(text: str = "") -> str:
    executed.append("a")
    return "1"


@activity
async def b(text: str = "") -> str:
    executed.append("b")
    return "2"


@activity
async def c(text: str = "") -> str:
    executed.append("c")
    return "3"


ACTIVITIES = [a, b, c]


@workflow(name="flow")
async def original() -> str:
    first = await a("x")
    second = await b(first)
    await asyncio.gather(b("left"), c("right"))
    await asyncio.sleep(3600)
    return first + second + await c()


@workflow(name="flow")
async def reordered() -> str:
    second = await b("x")
    first = await a(second)
    await asyncio.gather(b("left"), c("right"))
    await asyncio.sleep(3600)
    return first + second + await c()


@workflow(name="flow")
async def inserted() -> str:
    first = await a("x")
    await c("in between")
    second = await b(first)
    await asyncio.gather(b("left"), c("right"))
    await asyncio.sleep(3600)
    return first + second + await c()


@workflow(name="flow")
async def removed() -> str:
    first = await a("x")
    await asyncio.gather(b("left"), c("right"))
    await asyncio.sleep(3600)
    return first + await c()


@activity(name="b2")
async def renamed_b(text: str = "") -> str:
    return "2"


@workflow(name="flow")
async def renamed() -> str:
    first = await a("x")
    second = await renamed_b(first)
    await asyncio.gather(b("left"), c("right"))
    await asyncio.sleep(3600)
    return first + second + await c()


@activity(name="b")
async def typed_b(text: str = "") -> dict[str, int]:
    return {}


@workflow(name="flow")
async def retyped() -> str:
    first = await a("x")
    second = await typed_b(first)
    await asyncio.gather(b("left"), c("right"))
    await asyncio.sleep(3600)
    return first + str(second) + await c()


@workflow(name="flow")
async def of_another_kind() -> str:
    first = await a("x")
    await asyncio.sleep(5)
    await asyncio.gather(b("left"), c("right"))
    await asyncio.sleep(3600)
    return first + await c()


@workflow(name="flow")
async def swapped() -> str:
    first = await a("x")
    second = await b(first)
    await asyncio.gather(c("right"), b("left"))
    await asyncio.sleep(3600)
    return first + second + await c()


@workflow(name="flow")
async def one_more() -> str:
    first = await a("x")
    second = await b(first)
    await asyncio.gather(b("left"), c("right"), a("more"))
    await asyncio.sleep(3600)
    return first + second + await c()


@workflow(name="flow")
async def ended_early() -> str:
    return await a("x") + await b("")


@workflow(name="flow")
async def without_the_timer() -> str:
    first = await a("x")
    second = await b(first)
    await asyncio.gather(b("left"), c("right"))
    return first + second + await c()


@workflow(name="flow")
async def with_a_side_effect() -> str:
    first = await a("x")
    await side_effect(lambda: 1)
    second = await b(first)
    await asyncio.gather(b("left"), c("right"))
    await asyncio.sleep(3600)
    return first + second + await c()


@workflow(name="flow")
async def of_another_shape(number: int) -> str:
    return str(number)


async def begun(env: Environment) -> Handle[Any]:
    executed.clear()
    handle = await env.start(original, id="changed")
    await env.settle()
    assert (await handle.describe()).state is RunState.WAITING
    return handle


def world() -> Environment:
    return Environment(workflows=[original], activities=ACTIVITIES)


@pytest.mark.parametrize(
    ("changed", "recorded", "today"),
    [
        (reordered, 'activity a ["x"]', 'activity b ["x"]'),
        (inserted, 'activity b ["1"]', 'activity c ["in between"]'),
        (removed, "nothing", 'activity c ["right"]'),
        (renamed, 'activity b ["1"]', 'activity b2 ["1"]'),
        (retyped, '"2"', "does not fit its annotation"),
        (of_another_kind, 'activity b ["1"]', "timer"),
        (swapped, 'activity b ["left"]', 'activity c ["right"]'),
        (one_more, "nothing", 'activity a ["more"]'),
        (ended_early, 'activity b ["left"]', "complete"),
        (without_the_timer, "timer", "activity c"),
        (with_a_side_effect, "activity", "side_effect"),
        (of_another_shape, '"value":[]', "the input of workflow 'flow' does not fit"),
    ],
    ids=lambda v: v.fn.__name__ if isinstance(v, Workflow) else "",
)
async def test_a_change_under_an_open_run_parks_it_with_both_sides_shown(
    changed: Workflow[..., Any], recorded: str, today: str
) -> None:  # covers B-09
    async with world() as env:
        handle = await begun(env)
        before = await journal_of(env, handle)
        await env.deploy(workflows=[changed], activities=ACTIVITIES)
        await env.advance(4000)
        found = await handle.describe()
        assert found.state is RunState.NEEDS_CODE
        shown_recorded, shown_today = _sides(found.reason)
        assert recorded in shown_recorded
        assert today in shown_today
        assert await journal_of(env, handle) == before
        assert executed == ["a", "b", "b", "c"]


def _sides(reason: str) -> tuple[str, str]:
    _, _, rest = reason.partition("recorded: ")
    recorded, _, today = rest.partition("today's code: ")
    return recorded, today


@pytest.mark.parametrize("changed", [reordered, retyped, ended_early], ids=lambda v: v.fn.__name__)
async def test_a_parked_run_goes_on_by_itself_once_code_that_fits_is_there(changed: Workflow[..., Any]) -> None:
    async with world() as env:
        handle = await begun(env)
        await env.deploy(workflows=[changed], activities=ACTIVITIES)
        await env.advance(4000)
        assert (await handle.describe()).state is RunState.NEEDS_CODE
        await env.deploy(workflows=[original])
        assert await handle.result() == "123"
        assert executed == ["a", "b", "b", "c", "c"]


async def test_code_that_failed_once_is_not_tried_again() -> None:
    async with world() as env:
        handle = await begun(env)
        await env.deploy(workflows=[reordered])
        await env.advance(4000)
        parked = await env.store.get_run(handle.run_id)
        for _ in range(3):
            await env.deploy(workflows=[reordered])
            await env.advance(4000)
        again = await env.store.get_run(handle.run_id)
        assert again.state is RunState.NEEDS_CODE
        assert again.epoch == parked.epoch
        assert again.failed_code == [reordered.fingerprint]


async def test_every_code_that_failed_is_remembered() -> None:
    async with world() as env:
        handle = await begun(env)
        for changed in (reordered, inserted, removed, reordered):
            await env.deploy(workflows=[changed])
            await env.advance(4000)
        run = await env.store.get_run(handle.run_id)
        assert set(run.failed_code) == {reordered.fingerprint, inserted.fingerprint, removed.fingerprint}


def test_fingerprints_name_the_code() -> None:
    codes = {w.fingerprint for w in (original, reordered, inserted, removed)}
    assert len(codes) == 4
    newer = workflow(name="flow", version="2")(original.fn)
    assert newer.fingerprint != original.fingerprint
    assert workflow(name="flow")(original.fn).fingerprint == original.fingerprint


# -- what may change


@workflow(name="flow")
async def with_a_longer_future() -> str:
    first = await a("x")
    second = await b(first)
    await asyncio.gather(b("left"), c("right"))
    await asyncio.sleep(3600)
    await b("new")
    return first + second + await c() + "!"


async def test_code_after_the_end_of_the_journal_may_change() -> None:
    async with world() as env:
        handle = await begun(env)
        await env.deploy(workflows=[with_a_longer_future])
        assert await handle.result() == "123!"


@workflow(name="flow")
async def with_other_input() -> str:
    first = await a("y")
    second = await b(first + "?")
    await asyncio.gather(b("left"), c("right"))
    await asyncio.sleep(3600)
    return first + second + await c()


@workflow(name="flow")
async def with_another_timer() -> str:
    first = await a("x")
    second = await b(first)
    await asyncio.gather(b("left"), c("right"))
    await asyncio.sleep(7200)
    return first + second + await c()


@pytest.mark.parametrize(("changed", "count"), [(with_other_input, 2), (with_another_timer, 1)], ids=["input", "timer"])
async def test_another_input_of_other_code_is_a_counted_warning_and_the_run_goes_on(
    changed: Workflow[..., Any], count: int
) -> None:
    from batuta.engine.machine.identity import RunIdentity
    from batuta.engine.machine.machine import Machine
    from batuta.engine.machine.replay import Replay

    async with world() as env:
        handle = await begun(env)
        warned = Replay(
            Machine(changed, RunIdentity(handle.run_id, "x", "default", "default")), await journal_of(env, handle)
        )
        warned.run()
        assert len(warned.warnings) == count
        await env.deploy(workflows=[changed])
        assert await handle.result() == "123"


# -- hidden nondeterminism: the same code, doing something else

world_outside: dict[str, Any] = {}


@workflow
async def looks_outside() -> str:
    await a(world_outside["text"])
    await asyncio.sleep(world_outside["seconds"])
    if world_outside["more"]:
        await b()
    await asyncio.sleep(3600)
    return "done"


CHANGES: dict[str, Callable[[], None]] = {
    "text": lambda: world_outside.update(text="other"),
    "seconds": lambda: world_outside.update(seconds=99),
    "more": lambda: world_outside.update(more=True),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_the_same_code_that_does_something_else_is_parked_as_nondeterministic(change: str) -> None:
    world_outside.update(text="one", seconds=40, more=False)
    async with Environment(workflows=[looks_outside], activities=ACTIVITIES) as env:
        handle = await env.start(looks_outside)
        await env.advance(100)
        CHANGES[change]()
        await env.advance(4000)
        found = await handle.describe()
        assert found.state is RunState.NEEDS_CODE
        assert "recorded: " in found.reason
        assert "today's code: " in found.reason


async def test_sets_that_are_equal_are_no_difference() -> None:
    @activity
    async def takes(names: set[str]) -> int:
        return len(names)

    names = [f"name {n}" for n in range(50)]

    @workflow
    async def sends() -> int:
        names.reverse()
        found = set[str]()
        for name in names:
            found.add(name)
        return await takes(found)

    async with Environment(workflows=[sends], activities=[takes]) as env:
        handle = await env.start(sends)
        assert await handle.result() == 50
        for _ in range(5):
            replay(sends, await journal_of(env, handle)).tear_down()


async def test_another_error_at_the_end_is_noticed() -> None:
    kind: list[type[Exception]] = [ValueError]

    @workflow
    async def fails() -> None:
        await a("x")
        raise kind[0]("no")

    async with Environment(workflows=[fails], activities=ACTIVITIES) as env:
        handle = await env.start(fails)
        await env.settle()
        entries = await journal_of(env, handle)
        replay(fails, entries).tear_down()
        kind[0] = KeyError
        with pytest.raises(Nondeterministic, match="ValueError"):
            replay(fails, entries)


async def test_a_tape_with_an_unreadable_entry_is_refused() -> None:
    async with world() as env:
        handle = await begun(env)
        entries = await journal_of(env, handle)
        entries[1].body = "{not json"
        with pytest.raises(Nondeterministic, match="cannot be read"):
            replay(original, entries)


async def test_an_answer_to_a_command_that_was_never_issued_is_refused() -> None:
    async with world() as env:
        handle = await begun(env)
        entries = await journal_of(env, handle)
        entries[1].body = entries[1].body.replace('"seq":1,', '"seq":77,', 1)
        with pytest.raises(Nondeterministic, match="77"):
            replay(original, entries)
