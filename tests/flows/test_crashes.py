"""A worker dies at every point of a flow with a step of every type: nothing is lost, and the end is the same."""

import pytest

from batuta.flows.workflow import flow
from batuta.testing import Environment, crash_sweep, in_virtual_time
from tests.flows.every import CONTEXT, PAYLOAD, STEPS, World, parts, take_part
from tests.flows.kit import ended, outputs, start


@in_virtual_time
async def test_the_flow_of_every_step_ends_well() -> None:
    world = World()
    async with Environment(**world.flows().parts()) as env:
        handle = await env.start(flow, start(STEPS, PAYLOAD), id="run")
        await take_part(env, handle)
        found = await ended(handle)
    world.check()
    assert found.run.error is None
    assert {name: value for name, value in found.run.context.items() if name != "steps"} == CONTEXT
    assert outputs(found)["all"] == {"count": 3, "results": ["out"] * 3}
    assert outputs(found)["never"] == {"timedOut": True}
    assert {str(one.status) for one in found.steps} == {"COMPLETED", "SKIPPED", "FAILED"}


@in_virtual_time
async def test_every_turn_can_be_replayed() -> None:
    world = World()
    async with Environment(**world.flows().parts(), always_replay=True) as env:
        handle = await env.start(flow, start(STEPS, PAYLOAD), id="run")
        await take_part(env, handle)
        assert await handle.result() == CONTEXT
    world.check()


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_end_is_the_same_wherever_the_worker_dies(store: str) -> None:
    # covers E-11
    worlds: list[World] = []

    def begin() -> list[object]:
        worlds.append(World())
        return list(parts(worlds[-1].flows())["activities"])

    sweep = crash_sweep(
        flow,
        start(STEPS, PAYLOAD),
        activities=begin,
        workflows=parts(World().flows())["workflows"],
        script=take_part,
        store=store,  # type: ignore[arg-type]
        most=90 if store == "memory" else 15,
    )
    assert sweep.ending == CONTEXT
    assert len(sweep.points) >= 10
    assert len(worlds) >= len(sweep.points)
    for world in worlds:
        world.check()
