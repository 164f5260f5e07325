"""A published version goes on with its own document, and journals that were recorded once are replayed for ever."""

import asyncio

import pytest

from batuta.flows.program import KEPT
from batuta.flows.workflow import Flows, flow, flow_wait
from batuta.testing import Environment, assert_replays, in_virtual_time
from tests.flows.kit import DONE, ended, start, step
from tests.flows.record import GOLDEN

BEFORE_BLOCKS_WERE_APART = [
    "blocks_beside_each_other.json",
    "part_of_a_long_list.json",
    "rescue_within_a_rescue.json",
]
"""Recorded when all blocks of a run shared the compensations of the one that had begun last, and the last error."""


@pytest.mark.parametrize("file", ["every_step.json", "waiting.json", *BEFORE_BLOCKS_WERE_APART])
def test_golden_journals_are_replayed(file: str) -> None:
    assert assert_replays([flow, flow_wait], GOLDEN / file) == 1


def version(number: int) -> list[dict[str, object]]:
    return [step("pause", "delay", seconds=3600), step("which", "set", values={"version": number}), DONE]


@in_virtual_time
async def test_a_run_goes_on_with_the_version_it_began_with() -> None:
    parts = Flows().parts()
    async with Environment(**parts) as env:
        first = await env.start(flow, start(version(1), version=1), id="first")
        await asyncio.sleep(60)
        second = await env.start(flow, start(version(2), version=2), id="second")
        assert (await first.result(), await second.result()) == ({"version": 1}, {"version": 2})


@in_virtual_time
async def test_programs_that_were_forgotten_are_made_again() -> None:
    count = KEPT + 10
    async with Environment(**Flows().parts(), always_replay=True) as env:
        handles = [await env.start(flow, start(version(n), version=n), id=f"r{n}") for n in range(count)]
        found = [await ended(handle) for handle in handles]
    assert [one.run.context["version"] for one in found] == list(range(count))
