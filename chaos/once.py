"""Exactly-once activities: processes that write rows with their results are killed, stopped and cut off from their
database. In the end there is one row for each entry, and one job for each row."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing

import asyncpg
import msgspec

from batuta.connect import store_for
from batuta.journal.entries import EntryKind, decode_body
from batuta.journal.records import RunFilter, RunKind
from batuta.verify import verify
from chaos import booker
from chaos.case import PATIENCE_S, SETTINGS
from chaos.places import Place, StoreKind
from chaos.process import ROOT
from chaos.report import Tally
from chaos.stage import Stage
from chaos.sweep import Point, points

FEW, MANY = 2, 30
STOPPED_S = 2.5
"""Longer than a lease."""
OURS = "transaction."


class Ledger:
    """A place with a table of its own, and the processes that write to it."""

    def __init__(self, stage: Stage, place: Place, name: str) -> None:
        self.place, self.name = place, name
        self.table = f"orders_{place.namespace}"
        self._log = stage.crew.directory / f"{name}.log"
        self._processes: list[asyncio.subprocess.Process] = []

    async def ask(self, query: str) -> list[str]:
        if self.place.kind == "sqlite":
            with closing(sqlite3.connect(self.place.url.removeprefix("sqlite:///"), timeout=30)) as file:
                return [str(row[0]) for row in file.execute(query).fetchall()]
        connection = await asyncpg.connect(self.place.url)
        rows = await connection.fetch(query)
        await connection.close()
        return [str(row[0]) for row in rows]

    async def work(self, runs: int, env: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
        """A process that works until all of its runs have ended."""
        task = booker.Task(self.place.url, self.place.namespace, self.table, runs)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("BATUTA_")}
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "chaos.booker", msgspec.json.encode(task).decode()),
                cwd=ROOT,
                env=clean | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"} | SETTINGS | dict(env or {}),
                stderr=log,
            )
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()

    async def check(self, tally: Tally) -> None:
        """One row for each entry, and one job for each row."""
        tally.cases += 1
        store = store_for(self.place.url, namespace=self.place.namespace)
        await store.open()
        entries = 0
        for run in (await store.list_runs(RunFilter(kind=RunKind.WORKFLOW), None, 1000)).runs:
            for entry in await store.journal(run.run_id):
                entries += entry.kind is EntryKind.ACTIVITY_DONE and decode_body(entry).name == "book"
        jobs = await store.count_runs(RunFilter(kind=RunKind.JOB))
        report = await verify(store)
        await store.close()
        rows = Counter(await self.ask(f"SELECT * FROM {self.table}"))
        tally.twice += sum(times - 1 for times in rows.values())
        tally.lost += max(0, entries - len(rows))
        tally.verified += not report.violations
        if not entries == rows.total() == jobs or report.violations:
            tally.violate(self.name, f"{entries} entries, {rows.total()} rows, {jobs} jobs; {report.violations[:3]}")


async def _open(stage: Stage, kind: StoreKind, name: str) -> Ledger:
    ledger = Ledger(stage, await stage.places.fresh(kind), name)
    await ledger.ask(f"CREATE TABLE {ledger.table} (key TEXT)")
    return ledger


async def _done(ledger: Ledger, process: asyncio.subprocess.Process, tally: Tally) -> int:
    async with asyncio.timeout(PATIENCE_S):
        code = await process.wait()
    if code not in (0, -signal.SIGKILL):
        tally.violate(ledger.name, f"a worker ended with {code}")
    return code


async def points_of(stage: Stage, kind: StoreKind, tally: Tally) -> list[Point]:
    """Where a worker can be killed: more often where transactions are."""
    ledger = await _open(stage, kind, f"{kind}-once-dry")
    counts = stage.crew.directory / f"{kind}-once.counts"
    await _done(ledger, await ledger.work(FEW, {"BATUTA_FAILPOINT_COUNTS": str(counts)}), tally)
    await ledger.check(tally)
    found = Counter(counts.read_text().split())
    ours = Counter({site: times for site, times in found.items() if site.startswith(OURS)})
    return points(ours, None if stage.long else 4) + points(found - ours, 4 if stage.long else 1)


async def kill_at(stage: Stage, kind: StoreKind, point: Point, tally: Tally) -> None:
    """Kill a worker there; another goes on."""
    site, nth = point
    ledger = await _open(stage, kind, f"{kind}-once-{site}-{nth}")
    code = await _done(ledger, await ledger.work(FEW, {"BATUTA_FAILPOINT": f"{site}:{nth}:kill"}), tally)
    tally.kills += code != 0
    if code == 0:
        tally.unreached[site] += 1
    await _done(ledger, await ledger.work(FEW), tally)
    await ledger.check(tally)


async def stop_at(stage: Stage, kind: StoreKind, point: Point, tally: Tally) -> None:
    """Stop a worker there until its lease is over and another goes on; then let it wake up."""
    site, nth = point
    ledger = await _open(stage, kind, f"{kind}-once-stop-{site}-{nth}")
    stopped = await ledger.work(FEW, {"BATUTA_FAILPOINT": f"{site}:{nth}:stop"})
    async with asyncio.timeout(PATIENCE_S):
        while stopped.returncode is None and not _is_stopped(stopped.pid):
            await asyncio.sleep(0.05)
    held = ledger.place.is_held()  # then nobody can write until it wakes up
    other = None if held else await ledger.work(FEW)
    await asyncio.sleep(STOPPED_S)
    if stopped.returncode is None:
        tally.zombies += 1
        stopped.send_signal(signal.SIGCONT)
    for process in (other or await ledger.work(FEW), stopped):
        await _done(ledger, process, tally)
    await ledger.check(tally)


def _is_stopped(pid: int) -> bool:
    found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    return found is not None and found.si_pid == pid


async def storm(stage: Stage, kind: StoreKind, seconds: float, tally: Tally) -> None:
    """Several workers, killed again and again; on PostgreSQL their connections are cut, too."""
    ledger = await _open(stage, kind, f"{kind}-once-storm-{stage.number()}")
    processes = [await ledger.work(MANY) for _ in range(3)]
    ends = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < ends:
        await asyncio.sleep(stage.chance.uniform(0.2, 0.8))
        if kind == "postgres":
            await ledger.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'batuta' "
                "AND datname = current_database() "
                "ORDER BY random() LIMIT 3"
            )
        place = stage.chance.randrange(len(processes))
        if processes[place].returncode is None:
            processes[place].kill()
            tally.kills += 1
        processes[place] = await ledger.work(MANY)
    for process in processes:
        await _done(ledger, process, tally)
    await ledger.check(tally)
