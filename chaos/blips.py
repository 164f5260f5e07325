"""The way to PostgreSQL breaks for less than a lease, again and again: nobody died, and nothing is executed again."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from itertools import chain

from chaos.case import Case
from chaos.outages import PATIENCE_S, WORKERS, load
from chaos.places import Place
from chaos.report import Tally
from chaos.stage import Stage, finish
from chaos.wire import Wire

LEASE_S, HEARTBEAT_S = 8.0, 0.5
LONGEST_S = 3.0
"""Of a blip. With the heartbeat before it, and the time to connect anew, much less than the lease."""
SETTINGS = {"BATUTA_LEASE": str(LEASE_S), "BATUTA_HEARTBEAT": str(HEARTBEAT_S)}


async def blips(stage: Stage, tally: Tally, *, silent: bool) -> None:
    """Each worker has a wire of its own. It is cut, or falls silent without a word, while the others work on."""
    seconds, runs = (60.0, 300) if stage.long else (8.0, 60)
    name = "silence" if silent else "blips"
    case = Case(name, await stage.places.fresh("postgres"), stage.crew)
    async with case, AsyncExitStack() as stack:
        place = case.place
        loads = [load(f"w{number}", runs // WORKERS) for number in range(WORKERS)]
        wires = [await stack.enter_async_context(Wire(place.url)) for _ in loads]
        workers = []
        for wire, begin in zip(wires, loads, strict=True):
            case.place = Place(place.kind, wire.url, place.namespace)
            workers.append(case.worker(SETTINGS, begin=begin))
        case.place = place
        for worker in workers:
            await worker.ready()
        disturbed = await _disturb(stage, wires, seconds, silent=silent)
        await case.settled([begin.id for begin in chain(*loads)], seconds=PATIENCE_S)
        for worker in workers:
            code = await worker.stop()
            if code != 0:
                tally.violate(case.name, f"a worker did not survive: {code}\n{worker.log()}")
        tally.note(f"{disturbed} times in {seconds:g} s")
        await finish(case, tally)


async def _disturb(stage: Stage, wires: list[Wire], seconds: float, *, silent: bool) -> int:
    count, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        wire = stage.chance.choice(wires)
        if silent:
            wire.fall_silent()
        else:
            wire.cut()
        await asyncio.sleep(stage.chance.uniform(0.2, LONGEST_S if not silent else 1.0))
        wire.mend()  # what is silent stays so: those who use it must find that out
        count += 1
        await asyncio.sleep(stage.chance.uniform(0.1, 0.5))
    return count
