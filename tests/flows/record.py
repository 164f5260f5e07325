"""Records the golden journals, `python -m tests.flows.record`: only when old journals are meant to break."""

import asyncio
from pathlib import Path

from batuta.flows.workflow import flow
from batuta.testing import Environment, in_virtual_time, record
from tests.flows.every import PAYLOAD, STEPS, World, take_part
from tests.flows.kit import start

GOLDEN = Path(__file__).parent / "journals"


@in_virtual_time
async def finished(file: Path) -> None:
    async with Environment(**World().flows().parts()) as env:
        handle = await env.start(flow, start(STEPS, PAYLOAD), id="run")
        await take_part(env, handle)
        await handle.result()
        await record(handle, file)


@in_virtual_time
async def waiting(file: Path) -> None:
    async with Environment(**World().flows().parts()) as env:
        handle = await env.start(flow, start(STEPS, PAYLOAD), id="run")
        await asyncio.sleep(3600)
        await record(handle, file)


if __name__ == "__main__":
    finished(GOLDEN / "every_step.json")
    waiting(GOLDEN / "waiting.json")
