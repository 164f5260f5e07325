"""Kill sweep: core, connect, Bridge and directory are killed in turn while keys are created and claimed, and answers
are lost. In the end there is one entry and one identifier for each request, nothing is pending, and all books agree.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import httpcore2
import msgspec
from msgspec import Struct

from batuta import Batuta, connect
from batuta.testing.valkey import ValkeyServer
from chaos.pix.books import Books, compare, rows_of, verify_store
from chaos.pix.customers import CPF, Book, Customers, account, claim_body, key_body, key_of
from chaos.pix.parts import ROLES, House, Role
from chaos.process import TooSlow
from chaos.report import Tally
from pixdict.bridge import BridgeSettings
from pixdict.bridge.directory import DirectoryClient, DirectoryRequest
from pixdict.connect.reconciliation import Options, Report, reconcile_keys
from pixdict.connect.reconciliation.workflow import QUEUE
from pixdict.dict import messages
from pixdict.dict.entries import Account, Entry, Person
from pixdict.dict.operations import OPERATIONS

OTHER = "87654321"
_FIRST_CLAIMED = 50_000_000
"""Keys from this number on are those of the other institution."""
_LOST = ("createEntry", "createClaim")
_PATIENCE_S, _SETTLED_S = 240.0, 240.0


class Size(Struct, frozen=True, kw_only=True):
    """How much of it."""

    creations: int = 500
    claims: int = 200
    rounds: int = 4
    """Of kills of each part. Runs with which five workers died would be parked."""
    pause: float = 1.5
    """Seconds between a kill and the next."""
    at_once: int = 12
    """Customers. Each waits for its answer before the next request."""


async def sweep(folder: Path, store: str, size: Size, tally: Tally, seed: int = 1) -> Book:
    """Run it and note in `tally` what is wrong."""
    chance = random.Random(seed)
    tally.cases += 1
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(ValkeyServer())
        house = stack.enter_context(House(folder, store, redis.url))
        client = await stack.enter_async_context(connect(store, migrate=True))
        api_key = (await client.api_keys.create("chaos", "admin")).key
        await house.start()
        customers = Customers(house.url, api_key)
        stack.push_async_callback(customers.close)
        await _give_keys_to_other(house.directory, size.claims)
        asking = asyncio.create_task(_ask(customers, size, chance))
        await _kill(house, size, chance, asking, tally)
        await asking
        await _all_alive(house)
        await _settle(customers, store, size)
        reports = await _reconcile(client)
        house.parts["directory"].kill()
        rows = await rows_of(store)
        books = Books.read(rows, folder / "directory.db")
        compare(books, customers.book, tally, creations=size.creations, claimed=size.claims)
        tally.messages += len(rows["entries"]) + len(rows["claims"])
        tally.refused += customers.book.cut
        for report in reports:
            if report.outcome != "AGREES":
                tally.violate("reconciliation", str(report))
        tally.note(_told(customers.book))
        for wrong in customers.book.wrong:
            tally.violate("customer", wrong)
        for part in house.parts.values():
            part.kill()
    await verify_store(store, tally)
    return customers.book


def _told(book: Book) -> str:
    statuses = ", ".join(f"{count} times {status}" for status, count in sorted(book.statuses.items()))
    return f"{book.sent} requests sent, {book.cut} answers lost on the way to customers; answers: {statuses}"


# -- what happens


async def _ask(customers: Customers, size: Size, chance: random.Random) -> None:
    wanted = [("keys", number) for number in range(size.creations)]
    wanted += [("claims", _FIRST_CLAIMED + number) for number in range(size.claims)]
    chance.shuffle(wanted)
    waiting = iter(wanted)

    async def customer() -> None:
        for what, number in waiting:
            body, field = (key_body(number), "entry_id") if what == "keys" else (claim_body(number), "claim_id")
            await customers.insist(f"{what}-{number}", f"/api/v1/{what}", body, field, _PATIENCE_S)

    await asyncio.gather(*(customer() for _ in range(size.at_once)))


async def _kill(house: House, size: Size, chance: random.Random, asking: asyncio.Task[None], tally: Tally) -> None:
    """One after the other, and answers of the directory are lost in between."""
    for _ in range(size.rounds):
        roles: list[Role] = list(ROLES)
        chance.shuffle(roles)
        for role in roles:
            await _lose_answers(house.directory)
            await asyncio.wait({asking}, timeout=size.pause * chance.uniform(0.5, 1.5))
            part = house.parts[role]
            part.kill()
            tally.kills += 1
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            part.start()
            await part.ready()
            if asking.done():
                tally.note(f"all was asked after {tally.kills} kills")
                return


async def _lose_answers(directory: str) -> None:
    """The next answers of the directory do not arrive."""
    async with httpcore2.AsyncConnectionPool() as pool:
        for operation in _LOST:
            fault = msgspec.json.encode({"kind": "lost_answer", "operation": operation, "times": 2})
            headers = [("content-type", "application/json")]
            await pool.request("POST", f"{directory}/admin/v1/faults", headers=headers, content=fault)


async def _all_alive(house: House) -> None:
    for part in house.parts.values():
        if not part.is_alive:
            raise TooSlow(f"{part.role} has ended by itself:\n{part.said()[-2000:]}")


async def _settle(customers: Customers, store: str, size: Size) -> None:
    """Until nothing is pending. Dead letters are processed again, as a person does when the outage is over."""
    ends = time.monotonic() + _SETTLED_S
    while True:
        rows = await rows_of(store)
        pending = [row["id"] for table in rows.values() for row in table if row["status"] == "PENDING"]
        if not pending and len(rows["entries"]) == size.creations:
            return
        if time.monotonic() > ends:
            raise TooSlow(f"{len(pending)} are pending after {_SETTLED_S:g} s, such as {pending[:3]}")
        asked = {"max_messages": 1000, "filter": {}}
        await customers.ask("POST", "/admin/v1/maintenance/reprocess-dlq", asked)
        await asyncio.sleep(0.5)


async def _give_keys_to_other(directory: str, count: int) -> None:
    """Keys of another institution, whose owners are ours from now on."""
    settings = BridgeSettings(directory=directory, participant=OTHER)
    async with DirectoryClient(settings) as other:
        for number in range(_FIRST_CLAIMED, _FIRST_CLAIMED + count):
            given = account(number) | {"participant": OTHER, "opening_date": datetime(2020, 1, 1, tzinfo=UTC)}
            owner = Person(type="NATURAL_PERSON", tax_id_number=CPF, name="Ada")
            entry = Entry(key=key_of(number), key_type="PHONE", account=Account(**given), owner=owner)
            message = messages.CreateEntryRequest(entry=entry, reason="USER_REQUESTED", request_id=uuid4())
            await other.send(DirectoryRequest(operation=OPERATIONS["createEntry"], message=message), 30.0)


async def _reconcile(client: Batuta) -> list[Report]:
    options = Options(settle=0.0, pause=1.0, rounds=3)
    handle = await client.start(reconcile_keys, options, queue=QUEUE, id="after-the-kills")
    async with asyncio.timeout(_SETTLED_S):
        found: list[Report] = await handle.result()
    return found
