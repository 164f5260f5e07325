"""SQLite on a disk that fails, is full, or is held by another program: what was acknowledged is there."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import time
from pathlib import Path

from chaos.case import LEASE_S, Case, reference_begin
from chaos.report import Tally
from chaos.stage import Stage, finish
from chaos.sweep import CANCEL, ids, prepare, successor, victim

STEPS = {
    "begin": ("BUSY", "EIO"),
    "work": ("ENOSPC", "EIO"),
    "commit": ("ENOSPC", "EIO", "BUSY"),
    "committed": ("EIO", "UNKNOWN"),
}
"""Where a write can fail, and how. After `committed` it is durable, and nobody is told."""
VERBS = ("register", "start", "send", "claim", "commit", "beat", "reap", "retire")
READS = ("unread", "load")


def plans(*, long: bool) -> list[str]:
    """All faults at all verbs: once, and for commits also later and again and again."""
    made = [f"{verb}:{step}:1:{fault}" for verb in VERBS for step, faults in STEPS.items() for fault in faults]
    made += [f"{verb}:read:1:{fault}" for verb in READS for fault in ("BUSY", "EIO")]
    made += [f"commit:{step}:9:{fault}:4" for step, faults in STEPS.items() for fault in faults]
    if long:
        made += [
            f"{verb}:{step}:{nth}:{fault}:{times}"
            for verb in ("commit", "claim", "beat")
            for nth, times in ((2, 1), (3, 2), (5, 6), (20, 1))
            for step, faults in STEPS.items()
            for fault in faults
        ]
    return made


async def fail_at(stage: Stage, plan: str, tally: Tally) -> None:
    """One fault; the same worker, or the next one, must finish everything."""
    case = Case(f"disk-{plan.replace(':', '-')}", await stage.places.fresh("sqlite"), stage.crew)
    async with case:
        await prepare(case)
        worker = case.worker(begin=reference_begin(), cancel=CANCEL, leave=True, faults=plan)
        code = await case.ended(worker, CANCEL)
        if code != 0 and not plan.startswith("register:"):
            tally.violate(case.name, f"the worker did not survive: {code}\n{worker.log()}")
        case.processes.clear()
        after = successor(case)
        await case.settled(ids(), CANCEL)
        await after.stop()
        times = plan.split(":")[4:]
        await finish(case, tally, deaths=int(times[0]) if times else 1)  # a failed sync drops all runs


async def fail_syscall(stage: Stage, inject: str, tally: Tally) -> None:
    """The kernel itself fails a call or kills the worker there. `inject` is in the words of strace."""
    case = Case(f"disk-{inject.replace(':', '-').replace('+', '-on')}", await stage.places.fresh("sqlite"), stage.crew)
    async with case:
        await prepare(case)
        trace = stage.crew.directory / f"{case.name}.strace"
        calls = inject.partition(":")[0]
        under = ["strace", "-f", "-qq", "-o", str(trace), "-e", f"trace={calls}", "-e", f"inject={inject}"]
        worker = victim(case, under)
        code = await case.ended(worker, CANCEL)
        if code not in (0, -9):
            tally.violate(case.name, f"the worker did not survive: {code}\n{worker.log()}")
        tally.kills += code == -9
        after = successor(case)
        await case.settled(ids(), CANCEL)
        await after.stop()
        # Each failed sync drops all runs. Several threads may have one.
        failed = sum("sync" in line and "INJECTED" in line for line in trace.read_text().splitlines())
        await finish(case, tally, deaths=max(1, failed))


def syscalls(*, long: bool) -> list[str]:
    """Every sync is the last one, or fails; writes find no room for a while."""
    nths = range(1, 60) if long else range(3, 48, 9)
    syncs = "fsync,fdatasync"
    made = [f"{syncs}:signal=SIGKILL:when={nth}" for nth in nths]
    # strace counts the calls of each thread, and a worker that registers anew has new threads. With a small number the
    # disk would fail again and again, and no worker would ever get beyond that.
    made += [f"{syncs}:error=EIO:when={nth + 1}" for nth in nths if nth > 10]
    made += [f"pwrite64:error=ENOSPC:when={nth}..{nth + 8}" for nth in range(20, 400, 20 if long else 120)]
    return made


async def no_room(stage: Stage, tally: Tally) -> None:
    """The file may not grow for a while, for real: nothing is acknowledged meanwhile, and work goes on afterwards."""
    case = Case("disk-no-room", await stage.places.fresh("sqlite"), stage.crew)
    async with case:
        await prepare(case)
        worker = victim(case)
        await worker.ready()
        largest = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
        wal = Path(case.place.url.removeprefix("sqlite:///") + "-wal")
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (wal.stat().st_size, largest[1]))
        await asyncio.sleep(LEASE_S * 1.2)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, largest)
        code = await case.ended(worker, CANCEL)
        if code != 0:
            tally.violate(case.name, f"the worker did not survive a full disk: {code}\n{worker.log()}")
        after = successor(case)
        await case.settled(ids(), CANCEL)
        await after.stop()
        await finish(case, tally, deaths=1)  # the lease ends meanwhile


async def held_by_another(stage: Stage, tally: Tally, seconds: float) -> None:
    """Another program holds SQLite's own lock, for real."""
    case = Case(f"disk-held-{seconds:g}", await stage.places.fresh("sqlite"), stage.crew)
    async with case:
        await prepare(case)
        worker = victim(case)
        await worker.ready()
        intruder = sqlite3.connect(case.place.url.removeprefix("sqlite:///"), timeout=5, isolation_level=None)
        deadline = time.monotonic() + 10
        while True:
            try:
                intruder.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
        await asyncio.sleep(seconds)
        intruder.execute("ROLLBACK")
        intruder.close()
        code = await case.ended(worker, CANCEL)
        if code != 0:
            tally.violate(case.name, f"the worker did not survive a locked file: {code}\n{worker.log()}")
        after = successor(case)
        await case.settled(ids(), CANCEL)
        await after.stop()
        await finish(case, tally)
