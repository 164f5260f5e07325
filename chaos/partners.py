"""A partner that is away, slow, answers late or lies about Retry-After, while workers that call it are killed."""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import Process
from bisect import bisect_left

import msgspec

from batuta import connect
from batuta.connect import store_for
from batuta.verify import verify
from chaos import payer
from chaos.places import Place, StoreKind
from chaos.process import ROOT
from chaos.report import Tally
from chaos.stage import Stage

PATIENCE_S = 120.0
KILLS = 4
"""A run that five workers died with would be parked."""
MOODS = ("well", "away", "slow", "late", "lies")
LIES = ("-5", "soon", "999999999", "0", "nan", "Thu, 01 Jan 1970 00:00:01 GMT", "1")


class Partner:
    """Counts what it sees."""

    def __init__(self, stage: Stage) -> None:
        self._chance = stage.chance
        self.mood = "well"
        self.seen: list[float] = []
        self.paid: dict[str, int] = {}

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            order = (await reader.readline()).decode().strip()
            self.seen.append(time.time())
            answer = await self._answer(order)
            if answer:
                writer.write(answer.encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _answer(self, order: str) -> str:
        if self.mood == "away":
            return ""
        if self.mood == "slow":
            await asyncio.sleep(self._chance.uniform(0.1, 0.6))
        if self.mood == "late":
            await asyncio.sleep(1.5)  # after the caller has given up: it is done all the same
        if self.mood == "lies" and self._chance.random() < 0.7:
            return f"{self._chance.choice((429, 503))} {self._chance.choice(LIES)}"
        self.paid[order] = self.paid.get(order, 0) + 1
        return "OK"

    def most_in_a_second(self) -> int:
        times = sorted(self.seen)
        return max((bisect_left(times, at + 1) - number for number, at in enumerate(times)), default=0)


async def flaky(stage: Stage, kind: StoreKind, seconds: float, tally: Tally) -> None:
    """All is paid in the end, the partner never sees more than its limit, and the store is sound."""
    name, place, partner = f"{kind}-partner-{stage.number()}", await stage.places.fresh(kind), Partner(stage)
    tally.cases += 1
    async with connect(place.url, namespace=place.namespace):
        pass
    async with await asyncio.start_server(partner.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        processes = [await _worker(place, port) for _ in range(3)]
        ends, kills = time.monotonic() + seconds, KILLS
        while time.monotonic() < ends:
            partner.mood = stage.chance.choice(MOODS)
            await asyncio.sleep(stage.chance.uniform(0.3, 1.0))
            one = stage.chance.randrange(len(processes))
            if processes[one].returncode is None and kills:
                processes[one].kill()
                await processes[one].wait()
                tally.kills += 1
                kills -= 1
                processes[one] = await _worker(place, port)
        partner.mood = "well"
        for process in processes:
            if code := await asyncio.wait_for(process.wait(), PATIENCE_S):
                tally.violate(name, f"a worker ended with {code}")
    if len(partner.paid) != payer.RUNS:
        tally.lost += payer.RUNS - len(partner.paid)
        tally.violate(name, f"{payer.RUNS - len(partner.paid)} orders were never paid")
    if (most := partner.most_in_a_second()) > payer.A_SECOND + _IN_FLIGHT:
        tally.violate(name, f"the partner saw {most} calls in a second, and allows {payer.A_SECOND}")
    await _verify(place, name, tally)


_IN_FLIGHT = 8
"""Calls that were admitted before and arrive later: of a process that stood still between the two."""


async def _worker(place: Place, port: int) -> Process:
    task = msgspec.json.encode(payer.Task(place.url, place.namespace, port)).decode()
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "chaos.payer", task, cwd=ROOT)


async def _verify(place: Place, name: str, tally: Tally) -> None:
    store = store_for(place.url, namespace=place.namespace)
    await store.open()
    try:
        report = await verify(store, [payer.pays])
    finally:
        await store.close()
    if report.violations:
        tally.unverified += 1
        tally.violate(name, f"verify: {report.violations[:3]}")
    else:
        tally.verified += 1
