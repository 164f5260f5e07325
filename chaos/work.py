"""Jobs: a worker is killed at every failpoint that it passes while it enqueues and executes them; and workers of a
queue with limits are killed one after the other."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime

from msgspec import Struct

from batuta import Schedule, every
from batuta.authoring.client.calendar import slot_text, slots
from batuta.clock import SECOND
from batuta.journal.records import RunFilter
from chaos.case import PATIENCE_S, Case
from chaos.errands import Errands, errands, ids_of
from chaos.places import StoreKind
from chaos.process import TooSlow, WorkerProcess
from chaos.report import Tally
from chaos.stage import Stage, finish, poisoned
from chaos.sweep import Point

EARLY, MINE = "early", "mine"
"""Names: what waits for the victim, and what it enqueues itself."""
ERRANDS = sorted({*ids_of(EARLY), *ids_of(MINE)})
CLOCKWORK, CLOCKS, TICKING_S = "clockwork", 4, 2.2
MOMENTS = frozenset(
    {
        "enqueue.before",
        "enqueue.after",
        "claim.after",
        "activity.after",
        "activity.failed",
        "checkpoint.before",
        "checkpoint.after",
        "commit.before",
        "commit.inside",
        "commit.after",
        "close.durable",
        "schedule.before_fire",
        "schedule.after_fire",
    }
)
"""Where a job, a slot or a place in a queue could be lost or be had twice."""
VISITS, VISIT_KEYS, WORKERS, KILL_EVERY_S = 400, 7, 3, 0.3


class Work(Struct):
    """What a case must have done at its end."""

    ids: list[str]
    """Runs that must be there."""
    slots: set[str]
    """Runs of slots that may be there."""


async def _prepare(case: Case) -> Work:
    """Work that a worker finds, and some schedules with a few slots each."""
    for id, enqueue in errands(EARLY):
        await case.caller.enqueue(id, enqueue)
    work = Work([*ERRANDS], set())
    end = await case.store.now() + round(TICKING_S * SECOND)
    for number in range(CLOCKS):
        id, when = f"{CLOCKWORK}{number}", every(1.0, number / CLOCKS)
        until = datetime.fromtimestamp(end / SECOND, UTC)
        before = await case.store.now()
        await case.client.schedules.create(Schedule(id, when, "slot", id, overlap="allow", end_at=until))
        after = await case.store.now()  # a slot that passes while it is made may have a run, or not
        work.ids += [f"{id}:{slot_text(slot)}" for slot in slots(when, after, end)]
        work.slots |= {f"{id}:{slot_text(slot)}" for slot in slots(when, before, end)}
    return work


def _victim(case: Case, **env: str) -> WorkerProcess:
    return case.worker(env, errands=MINE, leave=True)


async def count_points(stage: Stage, kind: StoreKind, tally: Tally) -> Counter[str]:
    """How often each site is passed when nothing goes wrong."""
    case = Case(f"{kind}-jobs-dry", await stage.places.fresh(kind), stage.crew)
    counts = stage.crew.directory / f"{kind}-jobs-dry.counts"
    async with case:
        todo = await _prepare(case)
        worker = _victim(case, BATUTA_FAILPOINT_COUNTS=str(counts))
        if code := await worker.ended(PATIENCE_S):
            raise TooSlow(f"a worker that nobody disturbed ended with {code}:\n{worker.log()}")
        await _finish(case, tally, todo)
        if again := case.account.executed_again():
            tally.violate(case.name, f"executed again although nothing went wrong: {dict(again)}")
    return Counter(counts.read_text().split())


async def kill_at(stage: Stage, kind: StoreKind, point: Point, tally: Tally) -> None:
    """Kill a worker at this point; two others must finish everything."""
    site, nth = point
    case = Case(f"{kind}-jobs-{site}-{nth}", await stage.places.fresh(kind), stage.crew)
    async with case:
        todo = await _prepare(case)
        code = await _victim(case, BATUTA_FAILPOINT=f"{site}:{nth}:kill").ended(PATIENCE_S)
        if code == 0:
            tally.unreached[site] += 1
        elif code != -9:
            tally.violate(case.name, f"the victim ended with {code}")
        tally.kills += code == -9
        await _finish(case, tally, todo)


async def _finish(case: Case, tally: Tally, todo: Work) -> None:
    """Others enqueue the same again, as a client without an answer would, and work until nothing is left."""
    others = [case.worker(errands=MINE), case.worker()]
    await case.settled(todo.ids)
    for other in others:
        await other.ready()  # before that it would not listen
        if (code := await other.stop()) != 0:
            tally.violate(case.name, f"a worker ended with {code}:\n{other.log()}")
    await finish(case, tally)
    begun = Counter(run.id for run in await case.runs(RunFilter(id_prefix=CLOCKWORK)))
    for id, times in begun.items():
        if times > 1 or id not in todo.slots:
            tally.twice += 1
            tally.violate(case.name, f"{times} runs of the slot {id}, which it has: {id in todo.slots}")


async def limits_under_kills(stage: Stage, kind: StoreKind, seconds: float, tally: Tally) -> None:
    """Workers share a queue with limits; again and again one of them is killed, and its places come back."""
    case = Case(f"{kind}-limits-{stage.number()}", await stage.places.fresh(kind), stage.crew)
    async with case:
        workers = [case.worker() for _ in range(WORKERS)]
        for worker in workers:
            await worker.ready()
        ids = await _visits(case)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(KILL_EVERY_S)
            victim = workers.pop(0)
            await victim.ready()
            victim.kill()
            tally.kills += 1
            workers.append(case.worker())
        await case.settled(ids)
        for worker in workers:
            await worker.ready()
            await worker.stop()
        await finish(case, tally, parked=await poisoned(case, tally))


async def _visits(case: Case) -> list[str]:
    keys = {f"visit-{number}": f"k{number % VISIT_KEYS}" for number in range(VISITS)}
    calls = [Errands.visit.call(id, key).with_options(key=key, id=id) for id, key in keys.items()]
    await case.caller.enqueue("visit-0", lambda client: client.enqueue_many(calls))
    return list(keys)
