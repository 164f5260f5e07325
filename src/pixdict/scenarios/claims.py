"""A claim whose owner never answers: 30 days, in a time that the scenario moves.

The parts are the real ones (directory over HTTP, Bridge over gRPC, worker, SQLite store), opened in a folder of their
own with one clock for all of them. Workers stop while the clock is moved, as if the machine had been off, and find what
is due when they begin again.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from batuta import Batuta, connect
from batuta.bus import Message, subscribe
from batuta.clock import SECOND, SystemClock
from pixdict.bridge import BridgeClient, BridgeSettings, serve
from pixdict.connect.database import open_database
from pixdict.connect.keys import QUEUE, KeyTables, NewClaim, NewEntry, claim_key, create_entry, keys_worker
from pixdict.connect.keys.requests import EVENTS
from pixdict.core.views import CreateKeyBody
from pixdict.dev.parts import Stoppable
from pixdict.dev.stand import ISPB
from pixdict.dict.claims import Claim, ExtendedClaim
from pixdict.dict.entries import Person
from pixdict.directory import Directory
from pixdict.scenarios.player import Scenario
from pixdict.scenarios.stage import PATIENCE, Stage, body_of, new_number

DAY = 86_400
_OVER = 5 * 60
"""Seconds after the end of a period: acts come a minute after it."""


class MovedClock(SystemClock):
    """The machine's clock, and as much as it was moved by."""

    def __init__(self) -> None:
        self.ahead = 0.0
        """Seconds."""

    def now(self) -> int:
        return super().now() + round(self.ahead * SECOND)


class Calendar:
    """An institution in a time of its own. It is donor and claimer: both of its customers are silent."""

    clock: MovedClock
    directory: Directory
    client: Batuta
    bridge: BridgeClient
    tables: KeyTables
    workers: Stoppable

    def __init__(self) -> None:
        self.clock = MovedClock()
        self.reminders: Counter[str] = Counter()
        """By side."""
        self._began = self.clock.now()

    @classmethod
    @asynccontextmanager
    async def opened(cls) -> AsyncIterator[Calendar]:
        made = cls()
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pixdict-30-days-")))
            store = f"sqlite:///{folder / 'batuta.db'}"
            directory = Directory.serve(path=folder / "directory.db", clock=made.clock)
            made.directory = await stack.enter_async_context(directory)
            made.client = await stack.enter_async_context(connect(store, clock=made.clock))
            settings = BridgeSettings(directory=made.directory.url, participant=ISPB)
            bridge = await stack.enter_async_context(serve(settings, made.client, clock=made.clock, grace=0.5))
            made.bridge = await stack.enter_async_context(BridgeClient(bridge.address))
            database = await open_database(store, made.client)
            stack.push_async_callback(database.close)
            made.tables = KeyTables(database)
            made.workers = await stack.enter_async_context(Stoppable(made._working))
            yield made

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        async def hear(message: Message[dict[str, Any]]) -> None:
            if message.type == "claim.reminder":
                self.reminders[message.payload["data"]["side"]] += 1

        duty = subscribe(EVENTS, hear, name="duty", queue="duty")
        async with (
            keys_worker(self.client, self.bridge, self.tables, participant=ISPB, grace=0.5),
            self.client.worker(queues=["duty"], subscriptions=[duty], grace=0.5),
        ):
            yield

    async def move_to(self, day: int) -> None:
        """So many days, and a little more, after the beginning."""
        await self.workers.stop()
        self.clock.ahead = float(day * DAY + _OVER)
        await self.workers.begin()

    @property
    def days(self) -> float:
        """That have passed, by the directory's time."""
        return (self.directory.now() - self._began) / SECOND / DAY

    def claims(self) -> list[ExtendedClaim]:
        """Of the directory."""
        storage, everybody = self.directory.storage, [ISPB]
        return storage.claims(
            donors=everybody, claimers=[], statuses=[], claim_type=None, after=0, before=1 << 62, limit=10
        )

    async def poll(self) -> None:
        """Ask the directory for claims that changed, now."""
        await (await self.client.schedules.trigger("poll-claims")).result(timeout=PATIENCE)


async def silent(stage: Stage) -> None:
    """Day by day, until the claim has ended."""
    number = new_number()
    stage.say("an institution with a clock of its own begins, at day 0, and creates a key")
    async with Calendar.opened() as calendar:
        client = calendar.client
        entry = msgspec.convert(body_of(number), CreateKeyBody).entry()
        creating = await client.start(create_entry, NewEntry(id="e-1", entry=entry), queue=QUEUE)
        await creating.result(timeout=PATIENCE)
        claimer = Person(type="NATURAL_PERSON", tax_id_number="99988877766", name="Ana de Souza")
        wanted = Claim(type="OWNERSHIP", key=number, key_type="PHONE", claimer_account=entry.account, claimer=claimer)
        stage.say("another customer claims it: a run of claim_key begins")
        claiming = await client.start(claim_key, NewClaim(id="1", claim=wanted), id="claim-1", queue=QUEUE)
        await _until(stage, calendar, "OPEN")
        await calendar.poll()
        claim = await _until(stage, calendar, "WAITING_RESOLUTION")
        stage.say("the donor's run, answer_claim, has acknowledged it; its owner never answers")
        await _wait_30_days(stage, calendar)
        stage.expect("run of the claimer ends with", "CANCELLED", await claiming.result(timeout=PATIENCE))
        await calendar.poll()
        donor = await client.get(f"answer-{claim.id}")
        stage.expect("run of the donor ends with", "CANCELLED", await donor.result(timeout=PATIENCE))
        await _prove(stage, calendar, number)


async def _wait_30_days(stage: Stage, calendar: Calendar) -> None:
    for day, times in ((1, 1), (3, 2), (6, 3)):
        await calendar.move_to(day)
        await _until_reminded(stage, calendar, "DONOR", times)
        stage.say(f"day {day}: the owner is reminded, {times} of 3")
    await calendar.move_to(7)
    claim = await _until(stage, calendar, "CONFIRMED")
    stage.say("day 7: silence gives the key away")
    stage.expect("day 7: confirmed because of", "DEFAULT_OPERATION", claim.confirm_reason)
    await calendar.poll()
    await _until_reminded(stage, calendar, "CLAIMER", 1)
    for day, times in ((14, 2), (21, 3), (28, 4)):
        await calendar.move_to(day)
        await _until_reminded(stage, calendar, "CLAIMER", times)
        stage.say(f"day {day}: the claimer is to prove possession, reminder {times} of 4")
    await calendar.move_to(30)
    claim = await _until(stage, calendar, "CANCELLED")
    stage.say("day 30: possession was not proved, so the claimer gives up")
    by = f"{claim.cancelled_by}, {claim.cancel_reason}"
    stage.expect("day 30: cancelled by, because of", "CLAIMER, DEFAULT_OPERATION", by)


async def _prove(stage: Stage, calendar: Calendar, number: str) -> None:
    told = calendar.reminders
    stage.expect("reminders of the owner, of the claimer", "3, 4", f"{told['DONOR']}, {told['CLAIMER']}")
    stage.expect("days that passed for directory, Bridge, store and worker", 30, int(calendar.days))
    stage.expect("claims in the directory", ["CANCELLED"], [one.status for one in calendar.claims()])
    ours = sorted(f"{row.side} {row.status}" for row in await calendar.tables.claims())
    stage.expect("claims in our table", ["CLAIMER CANCELLED", "DONOR CANCELLED"], ours)
    stage.expect("entries in the directory: the key is free", 0, int(calendar.directory.storage.has_key(number)))
    entries = [row.status for row in await calendar.tables.entries()]
    stage.expect("our entry", ["TRANSFERRED"], entries)


async def _until(stage: Stage, calendar: Calendar, status: str) -> ExtendedClaim:
    """The claim, once it has that status at the directory."""

    async def found() -> ExtendedClaim | None:
        return next((one for one in calendar.claims() if one.status == status), None)

    claim: ExtendedClaim = await stage.until(f"the claim is {status}", found)
    return claim


async def _until_reminded(stage: Stage, calendar: Calendar, side: str, times: int) -> None:
    async def told() -> bool:
        return calendar.reminders[side] >= times

    await stage.until(f"reminder {times} of the {side}", told)


SCENARIOS = [
    Scenario(
        name="silent-owner",
        title="A claim whose owner never answers",
        happens="A key is claimed. Its owner says nothing, and the claimer never proves possession. 30 days pass in "
        "seconds: the scenario moves the clock of an institution of its own.",
        should="The owner is reminded three times. After 7 days silence gives the key away; after four more reminders "
        "and 30 days the claim is cancelled, and the key is free.",
        play=silent,
    ),
]
