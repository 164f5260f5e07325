"""Signals, updates and cancels at every moment of a worker's life: it is stopped there, its runs are sent notes or a
cancel each, and then it is killed, or goes on."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any, Literal

from batuta.authoring.client.handle import Handle
from batuta.errors import RunClosed, UnknownRun
from chaos.calls import Begin
from chaos.case import PATIENCE_S, Case
from chaos.places import StoreKind
from chaos.process import TooSlow, WorkerProcess
from chaos.report import Tally
from chaos.stage import Stage, finish
from chaos.sweep import Point

HELD_S = 0.3
"""How long to wait for a message to be taken: not while the stopped process holds the SQLite file."""
MOMENTS = frozenset(
    {
        "claim.after",
        "claim.loaded",
        "replay.after",
        "turn.after",
        "commit.before",
        "commit.inside",
        "commit.after",
        "evict.before",
        "evict.after",
        "message.read",
        "close.durable",
    }
)
"""Where a message could fall between two owners, two runs of a chain, or a run and its end."""
Then = Literal["kill", "go on"]
What = Literal["notes", "cancel"]

_BEGIN = [Begin("listen", "listens", ["listens"]), Begin("onward", "goes-on", ["goes-on"])]
_TAIL = [Begin("listen", "tail", ["tail"])]
_QUEUED = Begin("onward", "queued", ["queued"])
_ORPHAN = "orphan"
IDS = [_ORPHAN, _QUEUED.id, *(begin.id for begin in _BEGIN), *(begin.id for begin in _TAIL)]


async def _prepare(case: Case) -> None:
    await case.leave_orphan(_ORPHAN, "listen")
    await case.caller.start(_QUEUED)


def _victim(case: Case, **env: str) -> WorkerProcess:
    return case.worker(env, begin=_BEGIN, found=[_ORPHAN, _QUEUED.id], tail=_TAIL, leave=True)


async def count_points(stage: Stage, kind: StoreKind, tally: Tally) -> Counter[str]:
    """How often each site is passed when nothing goes wrong, and nobody sends anything."""
    case = Case(f"{kind}-letters-dry", await stage.places.fresh(kind), stage.crew)
    counts = stage.crew.directory / f"{kind}-letters-dry.counts"
    async with case:
        await _prepare(case)
        worker = _victim(case, BATUTA_FAILPOINT_COUNTS=str(counts))
        if code := await worker.ended(PATIENCE_S):
            raise TooSlow(f"a worker that nobody disturbed ended with {code}:\n{worker.log()}")
        await _finish(case, tally)
    return Counter(counts.read_text().split())


async def send_at(stage: Stage, kind: StoreKind, point: Point, what: What, then: Then, tally: Tally) -> None:
    """Stop a worker at this point, send to all its runs, and kill it or let it go on."""
    site, nth = point
    name = f"{kind}-letters-{site}-{nth}-{what}-{then.replace(' ', '-')}"
    case = Case(name, await stage.places.fresh(kind), stage.crew)
    async with case:
        await _prepare(case)
        worker = _victim(case, BATUTA_FAILPOINT=f"{site}:{nth}:stop")
        stopped = await worker.stopped_or_ended(PATIENCE_S)
        if not stopped:
            tally.unreached[site] += 1
        send = _send if what == "notes" else _cancel
        sending = [asyncio.create_task(send(case, id, number)) for number, id in enumerate(IDS, start=1)]
        await asyncio.wait(sending, timeout=HELD_S)
        if stopped:
            await _let(case, worker, then, tally)
        await _finish(case, tally, sending)


async def _let(case: Case, worker: WorkerProcess, then: Then, tally: Tally) -> None:
    if then == "kill":
        worker.kill()
        tally.kills += 1
        return
    worker.go_on()
    if code := await worker.ended(PATIENCE_S):
        tally.violate(case.name, f"the worker went on, and ended with {code}:\n{worker.log()}")


async def _send(case: Case, id: str, number: int) -> None:
    """An update, and beside it two notes in their order. Refused ones are in the history, too."""

    async def notes() -> None:
        for which in (number, number + 100):
            await case.caller.signal(id, which, f"{id}-note-{which}")

    updating = case.caller.update(id, number, f"{id}-add-{number}")
    for error in await asyncio.gather(notes(), updating, return_exceptions=True):
        if error is not None and not isinstance(error, RunClosed | UnknownRun):
            raise error


async def _cancel(case: Case, id: str, number: int) -> None:
    async def attempt() -> None:
        handle: Handle[Any] = await case.client.get(id)
        await handle.cancel(f"cancel {number}")

    with suppress(RunClosed, UnknownRun):
        await case.caller.recorded("cancel", id, attempt)


async def _finish(case: Case, tally: Tally, sending: list[asyncio.Task[None]] | None = None) -> None:
    after = case.worker(begin=[*_BEGIN, *_TAIL])
    await case.settled(IDS)
    await asyncio.gather(*(sending or []))
    await after.stop()
    await finish(case, tally)
