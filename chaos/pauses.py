"""Operators hold all runs and let them go on, again and again, while workers work on them and are killed."""

from __future__ import annotations

import asyncio

from batuta.journal.records import RunFilter
from batuta.journal.states import RunState
from chaos.calls import Begin
from chaos.case import Case
from chaos.errands import Errands
from chaos.places import StoreKind
from chaos.process import TooSlow
from chaos.report import Tally
from chaos.stage import Stage, finish, poisoned

HELD = "held-"
WORKERS, ROUNDS, AT_ONCE, BATCH = 2, 4, 100, 500
STEPS, STEP_S = 3, 0.05
HOLD_S = 1.0
PATIENCE_S = 300.0


async def under_load(stage: Stage, kind: StoreKind, runs: int, tally: Tally) -> None:
    """Every run is started, paused and resumed several times, and ends as if nothing had been."""
    case = Case(f"{kind}-pauses-{stage.number()}", await stage.places.fresh(kind), stage.crew)
    async with case:
        workers = [case.worker() for _ in range(WORKERS)]
        for worker in workers:
            await worker.ready()
        ids = [f"{HELD}{number}" for number in range(runs)]
        selection = case.client.select(id_prefix=HELD, kind="any")
        await case.client.pause_queue("default")
        await _start(case, ids)
        held, acts = (await selection.pause("before they begin")).done, 2  # the queue's are two acts, too
        await case.client.resume_queue("default")
        for number in range(ROUNDS):
            acts += (await selection.resume()).done
            await asyncio.sleep(stage.chance.uniform(0.0, HOLD_S))
            held += (await selection.pause(f"round {number}")).done
            if number % 2:
                workers.pop(0).kill()
                tally.kills += 1
                workers.append(case.worker())
        await _all_held(case)
        acts += (await selection.resume()).done
        if held < runs:
            tally.violate(case.name, f"of {runs} runs, {held} were ever held")
        acts += held + await _settled(case, ids)
        for worker in workers:
            await worker.ready()
            if (code := await worker.stop()) != 0:
                tally.violate(case.name, f"a worker ended with {code}:\n{worker.log()}")
        await finish(case, tally, parked=await poisoned(case, tally))
        report = await case.client.verify_audit()
        if report.problem or report.rows != acts:
            tally.violate(case.name, f"the audit log has {report.rows} rows for {acts} acts: {report.problem}")


async def _start(case: Case, ids: list[str]) -> None:
    """Of ten, nine are jobs."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(id: str) -> None:
        async with room:
            await case.caller.start(Begin("steps", id, [id, STEPS, STEP_S]))

    async def batch(first: int) -> None:
        some = jobs[first : first + BATCH]
        calls = [Errands.settle.call(id).with_options(id=id) for id in some]
        await case.caller.enqueue(some[0], lambda client: client.enqueue_many(calls))

    workflows, jobs = ids[::10], [id for number, id in enumerate(ids) if number % 10]
    await asyncio.gather(*map(one, workflows), *map(batch, range(0, len(jobs), BATCH)))


async def _all_held(case: Case) -> None:
    """Until nobody works on any of them. A worker that was killed leaves that to the next."""
    going = RunFilter(id_prefix=HELD, states=(RunState.RUNNING, RunState.WAITING, RunState.PENDING))
    async with asyncio.timeout(PATIENCE_S):
        while left := await case.store.count_runs(going):
            await asyncio.sleep(0.1)
            if left and not any(process.code is None for process in case.processes):
                raise TooSlow("no worker is left")


async def _settled(case: Case, ids: list[str]) -> int:
    """All ended. What a worker that died was to hold may be held only now: how many were to be resumed once more. Only
    what is held is looked for: going through all of them again and again would take longer than their work."""
    held = case.client.select(id_prefix=HELD, kind="any", state="paused")
    ended = asyncio.create_task(case.settled(ids, seconds=PATIENCE_S))
    resumed = 0
    while not ended.done():
        await asyncio.wait({ended}, timeout=1.0)
        resumed += (await held.resume()).done
    await ended
    return resumed
