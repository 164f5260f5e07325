"""Every scenario, in the order in which they run, and how much of each."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from batuta.testing.servers import PostgresServer
from chaos import (
    blips,
    bugs,
    clocks,
    deploys,
    disk,
    failover,
    letters,
    locked,
    once,
    outages,
    partners,
    pauses,
    replies,
    storm,
    sweep,
    work,
    zombies,
)
from chaos.pix import kills, outage
from chaos.places import StoreKind
from chaos.report import Tally
from chaos.stage import Stage, each

Scenario = Callable[[Stage, Tally], Awaitable[None]]

KILLS_A_SITE, STOPS_A_SITE = 2, 1
SENDS_A_MOMENT, SENDS_ELSEWHERE = 2, 1
JOBS_A_MOMENT, JOBS_ELSEWHERE = 2, 1
PAUSED_RUNS = 10_000


def scenarios(kinds: Sequence[StoreKind]) -> dict[str, Scenario]:
    """By name, which `--only` looks for."""
    found: dict[str, Scenario] = {}
    for kind in kinds:
        found[f"kill at every failpoint, {kind}"] = partial(_kills, kind)
        found[f"stop at every failpoint, {kind}"] = partial(_stops, kind)
        found[f"messages at every failpoint, {kind}"] = partial(_letters, kind)
        found[f"jobs, kill at every failpoint, {kind}"] = partial(_jobs, kind)
        found[f"exactly once, kill and stop at every failpoint, {kind}"] = partial(_once, kind)
        found[f"exactly once, storm, {kind}"] = partial(_once_storm, kind)
        found[f"limits while workers are killed, {kind}"] = partial(_limits, kind)
        found[f"a flaky partner while workers are killed, {kind}"] = partial(_partners, kind)
        found[f"paused and resumed under load, {kind}"] = partial(_pauses, kind)
        found[f"woken after others acted, {kind}"] = partial(_woken, kind)
        found[f"reply lost, {kind}"] = partial(_replies, kind)
        found[f"unexpected errors at every verb, {kind}"] = partial(_bugs, kind)
        found[f"drained and killed, {kind}"] = partial(
            _together, kind, (deploys.drained, deploys.killed_while_draining)
        )
        found[f"changed code, {kind}"] = partial(_together, kind, (deploys.changed_code,))
        found[f"poison run, {kind}"] = partial(_together, kind, (deploys.poison,))
        found[f"clocks skewed and set by an hour, {kind}"] = partial(_clocks, kind)
        found[f"storm, {kind}"] = partial(_storms, kind)
    if "postgres" in kinds:
        found["requests, every reply lost, postgres"] = _requests
        found["backends terminated, postgres"] = outages.backends_terminated
        found["blips shorter than the lease, postgres"] = partial(blips.blips, silent=False)
        found["connections that die in silence, postgres"] = partial(blips.blips, silent=True)
        found["restarts and kills, postgres"] = outages.restarted
        found["outage beyond the lease, postgres"] = outages.longer_than_a_lease
        found["frozen beyond the lease, postgres"] = outages.frozen
        found["recovery races restart, postgres"] = outages.recovery_races_restart
        found["lossy failover, postgres"] = failover.lossy
        found["locked rows, postgres"] = locked.rows
        found["pixdict, parts killed in turn"] = _keys_under_kills
        found["pixdict, directory away for a minute"] = _directory_away
    if "sqlite" in kinds:
        found["EIO, ENOSPC, BUSY, sqlite"] = _disk
    return found


async def _keys_under_kills(stage: Stage, tally: Tally) -> None:
    with await _own_server() as server:
        await each(
            stage, tally, [partial(kills.sweep, stage.folder("kills"), server.create_database(), kills.Size(), tally)]
        )


async def _directory_away(stage: Stage, tally: Tally) -> None:
    with await _own_server() as server:
        await each(
            stage,
            tally,
            [partial(outage.drill, stage.folder("outage"), server.create_database(), outage.Drill(), tally)],
        )


async def _own_server() -> PostgresServer:
    return await asyncio.to_thread(PostgresServer, fsync=True)


async def _kills(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    counts = await sweep.count_points(stage, kind, tally)
    points = sweep.points(counts, None if stage.long else KILLS_A_SITE)
    await each(stage, tally, [partial(sweep.kill_at, stage, kind, point, tally) for point in points])


async def _stops(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    counts = await sweep.count_points(stage, kind, tally)
    points = sweep.points(counts, 5 if stage.long else STOPS_A_SITE)
    await each(stage, tally, [partial(zombies.stop_at, stage, kind, point, tally) for point in points])


async def _letters(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    counts = await letters.count_points(stage, kind, tally)
    moments = Counter({site: times for site, times in counts.items() if site in letters.MOMENTS})
    many = 4 if stage.long else 1
    sends: list[tuple[letters.What, letters.Then, list[sweep.Point]]] = [
        ("notes", "kill", sweep.points(moments, SENDS_A_MOMENT * many)),
        ("notes", "kill", sweep.points(counts - moments, SENDS_ELSEWHERE * many)),
        ("notes", "go on", sweep.points(moments, SENDS_ELSEWHERE * many)),
        ("cancel", "kill", sweep.points(counts, SENDS_ELSEWHERE * many)),
        ("cancel", "go on", sweep.points(moments, SENDS_ELSEWHERE * many)),
    ]
    await each(
        stage,
        tally,
        [
            partial(letters.send_at, stage, kind, point, what, then, tally)
            for what, then, points in sends
            for point in points
        ],
    )


async def _jobs(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    counts = await work.count_points(stage, kind, tally)
    moments = Counter({site: times for site, times in counts.items() if site in work.MOMENTS})
    many = 4 if stage.long else 1
    points = sweep.points(moments, JOBS_A_MOMENT * many) + sweep.points(counts - moments, JOBS_ELSEWHERE * many)
    await each(stage, tally, [partial(work.kill_at, stage, kind, point, tally) for point in points])


async def _once(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    points = await once.points_of(stage, kind, tally)
    cases = [partial(once.kill_at, stage, kind, point, tally) for point in points]
    stops = [point for point in points if point[0].startswith(once.OURS) and (stage.long or point[1] == 1)]
    await each(stage, tally, cases + [partial(once.stop_at, stage, kind, point, tally) for point in stops])


async def _once_storm(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    count, seconds = (10, 15.0) if stage.long else (1, 6.0)
    await each(stage, tally, [partial(once.storm, stage, kind, seconds, tally) for _ in range(count)])


async def _limits(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    count, seconds = (10, 15.0) if stage.long else (1, 6.0)
    await each(stage, tally, [partial(work.limits_under_kills, stage, kind, seconds, tally) for _ in range(count)])


async def _partners(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    count, seconds = (10, 20.0) if stage.long else (1, 8.0)
    await each(stage, tally, [partial(partners.flaky, stage, kind, seconds, tally) for _ in range(count)])


async def _pauses(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    await each(stage, tally, [partial(pauses.under_load, stage, kind, PAUSED_RUNS, tally)])


async def _woken(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    cases: list[Callable[[], Awaitable[Any]]] = [
        partial(zombies.terminated_meanwhile, stage, kind, site, tally) for site in zombies.BEFORE_A_WRITE
    ]
    cases.append(partial(zombies.stopped_before_a_retry, stage, kind, tally))
    await each(stage, tally, cases)


async def _replies(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    plans = replies.plans(kind, long=stage.long)
    await each(stage, tally, [partial(replies.lose, stage, kind, plan, tally) for plan in plans])


async def _bugs(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    before, after = await bugs.count_verbs(stage, kind, tally)
    plans = bugs.passing(before, after, stage.chance, long=stage.long)
    cases: list[Callable[[], Awaitable[Any]]] = [partial(bugs.passes, stage, kind, plan, tally) for plan in plans]
    cases += [partial(bugs.begins, stage, kind, plan, tally) for plan in bugs.early(before)]
    cases += [partial(bugs.lasts, stage, kind, plan, tally) for plan in bugs.lasting(long=stage.long)]
    await each(stage, tally, cases)


async def _requests(stage: Stage, tally: Tally) -> None:
    count = await replies.count_requests(stage, tally)
    chosen = range(1, count + 1, 1 if stage.long else 8)
    await each(stage, tally, [partial(replies.lose_request, stage, nth, tally) for nth in chosen])


async def _together(kind: StoreKind, parts: Sequence[Any], stage: Stage, tally: Tally) -> None:
    rounds = 5 if stage.long else 1
    await each(stage, tally, [partial(part, stage, kind, tally) for part in parts for _ in range(rounds)])


async def _clocks(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    cases: list[Callable[[], Awaitable[Any]]] = [partial(clocks.skewed, stage, kind, tally)]
    cases += [partial(clocks.stepped, stage, kind, steps, tally) for steps in clocks.STEPS_S]
    await each(stage, tally, cases)


async def _storms(kind: StoreKind, stage: Stage, tally: Tally) -> None:
    count, seconds = (40, 20.0) if stage.long else (1, 8.0)
    await each(stage, tally, [partial(storm.storm, stage, kind, number, seconds, tally) for number in range(count)])


async def _disk(stage: Stage, tally: Tally) -> None:
    plans = disk.plans(long=stage.long)
    plans = plans if stage.long else stage.chance.sample(plans, len(plans) // 2)
    cases: list[Callable[[], Awaitable[Any]]] = [partial(disk.fail_at, stage, plan, tally) for plan in plans]
    cases.append(partial(disk.no_room, stage, tally))
    if shutil.which("strace"):
        cases += [partial(disk.fail_syscall, stage, inject, tally) for inject in disk.syscalls(long=stage.long)]
    else:
        tally.note("strace is not installed: no faults of real system calls")
    cases += [partial(disk.held_by_another, stage, tally, seconds) for seconds in (1.0, 4.0)]
    await each(stage, tally, cases)
