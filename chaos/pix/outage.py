"""Outage drill: the directory is away for a minute while customers create keys at a steady rate.

What must hold: the breaker opens after five failures; callers get 201, 202, 502 or 503 as the table of `POST
/api/v1/keys` says; what was accepted is done soon after the directory is back, within its limits; nothing is lost and
nothing is made twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from batuta import Batuta, connect
from chaos.pix.books import verify_store
from chaos.pix.customers import Customers, key_body
from chaos.pix.parts import ISPB
from chaos.process import TooSlow
from chaos.report import Tally
from pixdict.bridge import BridgeClient, BridgeSettings, serve
from pixdict.connect.database import open_database
from pixdict.connect.keys import KeyTables, keys_worker
from pixdict.core import Core, CoreSettings, core_worker, serve_core
from pixdict.directory import Directory

FAILURES, MOST = 5, 20
"""Calls that open the breaker, and those that may reach a directory that is away: they were let in before it opened, or
look whether it is back."""
DONE_S = 240.0
ALLOWED = {"before": {201, 202}, "away": {201, 202, 502, 503}, "after": {201, 202, 503}}
"""By the table."""
TEXTS = {502: "Bad Gateway", 503: "Circuit Open"}


class Drill(Struct, frozen=True, kw_only=True):
    """The times of it, in seconds."""

    rate: float = 10.0
    """Creations a second."""
    before: float = 5.0
    away: float = 60.0
    after: float = 15.0
    wait: float = 25.0
    """For which core lets a caller wait."""
    open_for: float = 60.0
    """For which the breaker stays open."""
    within: float = 30.0
    """Accepted work is done so soon after the directory is back."""


class Found(Struct, kw_only=True):
    """What came of it."""

    statuses: dict[str, Counter[int]] = field(default_factory=lambda: {phase: Counter() for phase in ALLOWED})
    seen: Counter[int] = field(default_factory=Counter)
    """Statuses of the directory's answers."""
    opened_after: float = -1.0
    """Seconds from the beginning of the outage until a caller was told that the circuit is open."""
    done_after: float = 0.0
    """Seconds from the end of the outage until the last entry that was accepted during it was active."""
    accepted: int = 0
    longest: float = 0.0
    """Seconds that a caller waited."""

    def told(self) -> str:
        answers = "; ".join(f"{phase}: {_counts(statuses)}" for phase, statuses in self.statuses.items())
        return (
            f"callers {answers}. The directory was called {self.seen[503]} times while it was away; callers were"
            f" refused after {self.opened_after:.1f} s; {self.accepted} accepted, of which the last from before the"
            f" directory was back was done {self.done_after:.1f} s after that; 429: {self.seen[429]}; a caller waited"
            f" {self.longest:.1f} s at most"
        )


def _counts(statuses: Counter[int]) -> str:
    return ", ".join(f"{count} times {status}" for status, count in sorted(statuses.items()))


class _Told(Struct):
    """An answer."""

    phase: str
    number: int
    status: int
    said: Any


async def drill(folder: Path, store: str, given: Drill, tally: Tally) -> Found:
    """Run it and note in `tally` what is wrong."""
    tally.cases += 1
    found = Found()
    async with _house(folder, store, given, found) as (directory, client, customers, tables):
        asked: list[asyncio.Task[_Told]] = []
        begun = time.monotonic()
        back = away = datetime.now(UTC)
        for phase, seconds in (("before", given.before), ("away", given.away), ("after", given.after)):
            if phase == "away":
                away = datetime.now(UTC)
                directory.faults.add("status", status=503, times=None)
            elif phase == "after":
                directory.faults.clear()
                back = datetime.now(UTC)
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                asked.append(asyncio.create_task(_one(customers, len(asked), phase, away, found)))
                await asyncio.sleep(max(0.0, begun + len(asked) / given.rate - time.monotonic()))
        said = await asyncio.gather(*asked)
        await _until_done(tables, customers)
        rows = await tables.run("SELECT * FROM dict_entries")
        during = [row["updated_at"] for row in rows if row["created_at"] < back]
        found.done_after = max((at - back).total_seconds() for at in during)
        found.accepted = len(rows)
        _compare(said, rows, directory, found, tally)
        letters = (await client.dead_letters.list()).letters
    await verify_store(store, tally)
    if letters:
        tally.violate("dead letters", str(letters[:3]))
    if not FAILURES <= found.seen[503] <= MOST:
        tally.violate("breaker", f"{found.seen[503]} calls reached a directory that was away")
    if found.seen[429]:
        tally.violate("limits", f"{found.seen[429]} calls were over one")
    if found.done_after > given.within:
        tally.violate("accepted work", f"done {found.done_after:.1f} s after the directory was back")
    tally.note(found.told())
    return found


@asynccontextmanager
async def _house(
    folder: Path, store: str, given: Drill, found: Found
) -> AsyncIterator[tuple[Directory, Batuta, Customers, KeyTables]]:
    """All parts of one institution, in this process. The limits of document C are for customers, and too low."""
    async with AsyncExitStack() as stack:
        directory = await stack.enter_async_context(Directory.serve(path=folder / "directory.db"))
        handle = directory.service.handle

        def counted(request: Any, **options: Any) -> Any:
            reply = handle(request, **options)
            found.seen[reply.status] += 1
            return reply

        directory.service.handle = counted  # type: ignore[method-assign]
        client = await stack.enter_async_context(connect(store, migrate=True))
        database = await open_database(store, client)
        stack.push_async_callback(database.close)
        tables = KeyTables(database)
        settings = BridgeSettings(directory=directory.url, participant=ISPB, attempts=1, open_for=given.open_for)
        bridge = await stack.enter_async_context(serve(settings, client, grace=0.5))
        speaks = await stack.enter_async_context(BridgeClient(bridge.address))
        await stack.enter_async_context(keys_worker(client, speaks, tables, participant=ISPB, grace=1.0))
        core = Core(client, tables, CoreSettings(participant=ISPB, wait=given.wait, limits={}))
        await stack.enter_async_context(core_worker(core, grace=1.0))
        key = (await client.api_keys.create("drill", "admin")).key
        customers = Customers(await stack.enter_async_context(serve_core(core)), key)
        stack.push_async_callback(customers.close)
        yield directory, client, customers, tables


async def _one(customers: Customers, number: int, phase: str, away: datetime, found: Found) -> _Told:
    begun = time.monotonic()
    status, said = await customers.ask("POST", "/api/v1/keys", key_body(number), f"drill-{number}")
    found.longest = max(found.longest, time.monotonic() - begun)
    found.statuses[phase][status] += 1
    if status == 503 and found.opened_after < 0:
        found.opened_after = (datetime.now(UTC) - away).total_seconds()
    return _Told(phase, number, status, said)


async def _until_done(tables: KeyTables, customers: Customers) -> None:
    """Until nothing is pending. Dead letters are processed again, as a person does."""
    ends = time.monotonic() + DONE_S
    while rows := await tables.run("SELECT id FROM dict_entries WHERE status = 'PENDING'"):
        if time.monotonic() > ends:
            raise TooSlow(f"{len(rows)} entries are pending {DONE_S:g} s after all")
        await customers.ask("POST", "/admin/v1/maintenance/reprocess-dlq", {"max_messages": 100, "filter": {}})
        await asyncio.sleep(0.2)


def _compare(said: list[_Told], rows: list[dict[str, Any]], directory: Directory, found: Found, tally: Tally) -> None:
    """The table, and one entry for each request that was accepted."""
    for one in said:
        if one.status not in ALLOWED[one.phase]:
            tally.violate(f"{one.phase}, key {one.number}", f"{one.status} {one.said}")
        elif one.said.get("error") != TEXTS.get(one.status):
            tally.violate(f"{one.phase}, key {one.number}", f"{one.status} with the text {one.said.get('error')!r}")
    accepted = sorted(key_body(one.number)["key_value"] for one in said if one.status != 503)
    active = sorted(row["key_value"] for row in rows if row["status"] == "ACTIVE")
    if accepted != active:
        tally.lost += len({*accepted} - {*active})
        tally.violate("entries", f"{len(accepted)} were accepted, {len(active)} are active, of {len(rows)} rows")
    ids = {row["key_value"]: row["id"] for row in rows}
    wrong = [
        one.number
        for one in said
        if one.status in (201, 202) and one.said["entry_id"] != ids.get(key_body(one.number)["key_value"])
    ]
    if wrong:
        tally.violate("ids", f"of keys {wrong[:5]}")
    there = directory.storage.counts()
    if (there["entries"], there["cid_events"]) != (len(active), len(active)):
        tally.twice += max(0, there["cid_events"] - len(active))
        tally.violate("directory", f"{there} for {len(active)} entries")
    tally.messages += len(said)
    tally.refused += sum(statuses[503] for statuses in found.statuses.values())
