"""Keys and claims over the real thing: gRPC to the Bridge, HTTP to the directory, a worker on SQLite."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from batuta import connect
from batuta.client import Batuta
from pixdict.bridge import BridgeClient, BridgeSettings, serve
from pixdict.connect.database import open_database
from pixdict.connect.keys import (
    QUEUE,
    EntryChange,
    KeyTables,
    NewClaim,
    claim_key,
    confirm_claim,
    create_entry,
    delete_entry,
    keys_worker,
    update_entry,
)
from pixdict.directory import Directory
from tests.pixdict.directory.kit import PHONE, A, B, Bank, account, claim, person
from tests.pixdict.keys.kit import new_entry


class Stand:
    """Our institution A; institution B acts by hand."""

    def __init__(self, directory: Directory, client: Batuta, tables: KeyTables) -> None:
        self.directory, self.client, self.tables = directory, client, tables
        self.b = Bank(directory.service, B)

    async def run(self, workflow: Any, *arguments: Any) -> Any:
        handle = await self.client.start(workflow, *arguments, queue=QUEUE)
        return await asyncio.wait_for(handle.result(), 30)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    database = await open_database(f"sqlite:///{tmp_path}/pixdict.db")
    tables = KeyTables(database)
    async with (
        Directory.serve(path=tmp_path / "directory.db") as directory,
        connect(f"sqlite:///{tmp_path}/batuta.db", migrate=True) as client,
        serve(BridgeSettings(directory=directory.url, participant=A, first_wait=0.01), client, grace=0.5) as bridge,
        BridgeClient(bridge.address) as speaks,
        keys_worker(client, speaks, tables, participant=A, period=timedelta(seconds=1), grace=0.5),
    ):
        yield Stand(directory, client, tables)
    await database.close()


async def eventually(found: Callable[[], Any]) -> Any:
    """What is found once it is there."""
    async with asyncio.timeout(30):
        while not (value := found()):
            await asyncio.sleep(0.02)
    return value


async def test_a_key_lives_its_life_although_answers_are_lost(stand: Stand) -> None:
    for operation in ("createEntry", "updateEntry", "deleteEntry"):
        stand.directory.faults.add("lost_answer", operation=operation)
    assert await stand.run(create_entry, new_entry()) == PHONE
    row = await stand.tables.entry("e-1")
    stored = stand.directory.storage.entry(PHONE)
    assert row is not None
    assert stored is not None
    assert (row.status, row.cid) == ("ACTIVE", stored.cid)
    await stand.run(update_entry, "e-1", EntryChange(account=account(number="9")))
    assert stand.b.look_up(PHONE).message.entry.account.account_number == "9"
    await stand.run(delete_entry, "e-1")
    assert stand.b.look_up(PHONE).problem == "NotFound"
    assert stand.directory.storage.counts()["cid_events"] == 4, "everything was done once"


async def test_a_claim_for_a_key_of_others_is_completed(stand: Stand) -> None:
    stand.b.create(at=account(B))
    stand.directory.faults.add("lost_answer", operation="createClaim")
    wanted = claim("PORTABILITY", at=account(A), claimer=person()).claim
    handle = await stand.client.start(claim_key, NewClaim(id="1", claim=wanted), id="claim-1", queue=QUEUE)

    def seen() -> Any:
        return stand.b.ask("getClaim", value=str(found[0])).message.claim if (found := claims(stand)) else None

    opened = await eventually(seen)
    stand.b.act("acknowledge", opened.id)
    stand.b.act("confirm", opened.id, "USER_REQUESTED")
    assert await asyncio.wait_for(handle.result(), 30) == "COMPLETED"
    assert len(claims(stand)) == 1
    entry = stand.b.look_up(PHONE).message.entry
    assert entry.account.participant == A


def claims(stand: Stand) -> list[Any]:
    listed = stand.directory.storage.claims(
        donors=[A, B], claimers=[], statuses=[], claim_type=None, after=0, before=1 << 62, limit=10
    )
    return [one.id for one in listed]


async def test_a_claim_for_one_of_our_keys_is_found_and_answered(stand: Stand) -> None:
    await stand.run(create_entry, new_entry())
    claim_id = stand.b.claim("PORTABILITY").message.claim.id

    def waiting() -> bool:
        return bool(stand.b.ask("getClaim", value=str(claim_id)).message.claim.status == "WAITING_RESOLUTION")

    await eventually(waiting)
    handle = await stand.client.get(f"answer-{claim_id}")
    assert await handle.update(confirm_claim, "USER_REQUESTED", timeout=30) == "CONFIRMED"
    assert stand.b.act("complete", claim_id).status == 200
    assert await asyncio.wait_for(handle.result(), 30) == "COMPLETED"
    row = await stand.tables.entry("e-1")
    assert row is not None
    assert row.status == "TRANSFERRED"
