"""What a run that timed out has to undo is begun for that run alone: who can write to the database, and has no key, has
another run undone only by closing it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from batuta import Batuta, activity, connect, saga, workflow
from batuta.authoring.client.handle import Handle
from batuta.codecs import Encryption
from batuta.errors import RunTimedOut
from batuta.journal.states import RunState
from tests.engine.arena import PATIENCE, until
from tests.engine.forging import Forger
from tests.engine.test_sealed import K1, K2, go
from tests.engine.test_sealed import rotated as rotated_runs

pytestmark = pytest.mark.usefixtures("real_time")


@pytest.fixture
async def forger(url: str) -> AsyncIterator[Forger]:
    made = Forger(url)
    yield made
    await made.close()


class Partner:
    def __init__(self, url: str) -> None:
        self._url = url
        self.booked: list[str] = []
        self.undone: list[str] = []

    @asynccontextmanager
    async def at_work(self, keys: str = K1) -> AsyncIterator[Batuta]:
        @activity
        async def book(card: str) -> str:
            self.booked.append(card)
            return card

        @activity
        async def unbook(card: str) -> None:
            self.undone.append(card)

        @workflow
        async def trip(card: str) -> str:
            async with saga() as undo:
                undo(unbook, card)
                await book(card)
                return await go.wait()

        async with connect(self._url, codec=Encryption(keys)) as client:
            async with client.worker(workflows=[trip], activities=[book, unbook], heartbeat=0.1):
                yield client

    async def book(self, *cards: str) -> dict[str, Handle[Any]]:
        """Runs that have booked, and wait; no worker is there any more."""
        async with self.at_work() as client:
            trips = {card: await client.start("trip", card, id=card, timeout=3600) for card in cards}

            async def have_booked() -> bool:
                return all([(await trip.describe()).entries >= 2 for trip in trips.values()])

            await until(have_booked)
            return trips


async def end_time(forger: Forger, run_id: Any) -> None:
    await forger.update("runs", run_id, deadline=1)


async def compensations(client: Batuta) -> list[Any]:
    return [run for run in (await client.list(limit=50)).runs if run.workflow == "batuta.compensate"]


async def test_a_run_that_times_out_undoes_its_own_with_keys_as_without(url: str, forger: Forger) -> None:
    partner = Partner(url)
    trips = await partner.book("one", "other")
    await end_time(forger, trips["one"].run_id)
    async with partner.at_work() as client:
        with pytest.raises(RunTimedOut):
            await (await client.get("one")).result(PATIENCE)

        async def is_undone() -> bool:
            states = [run.state for run in await compensations(client)]
            return states == [RunState.COMPLETED] and partner.undone == ["one"]

        await until(is_undone)
    assert (await rotated_runs(url, f"{K2},{K1}")).sealed == 0


@pytest.mark.parametrize("whose", ["as it is", "as its own child"])
async def test_what_another_run_would_undo_is_not_begun_in_its_place(url: str, forger: Forger, whose: str) -> None:
    """Its compensation was copied over that of a run that timed out; it is as it was, or says the other parent."""
    partner = Partner(url)
    trips = await partner.book("late", "open")
    late, going_on = trips["late"].run_id, trips["open"].run_id
    query = f"SELECT value FROM {forger.schema}outputs WHERE kind = 'compensation' AND run_id = {forger.mark(1)}"
    [(value,)] = await forger.sql(query, forger.as_id(going_on))
    if whose == "as its own child":
        assert str(going_on) in value
        value = value.replace(f'"parent_run_id":"{going_on}"', f'"parent_run_id":"{late}"')
        assert str(late) in value
    await forger.update("outputs", late, value=value)
    await end_time(forger, late)
    async with partner.at_work() as client:

        async def is_parked() -> bool:
            return [run.state for run in await compensations(client)] == [RunState.NEEDS_CODE]

        await until(is_parked)
        await (await client.get("open")).signal(go, "on")
        assert await (await client.get("open")).result(PATIENCE) == "on"
        [run] = await compensations(client)
        assert run.reason.startswith("PayloadDamaged")
        if whose == "as it is":
            assert f"undoes what run {going_on} has done, which has not timed out" in run.reason
    assert partner.undone == []


DAMAGED = [
    "",
    "no JSON",
    "[]",
    "7",
    '"~3:aes.k1.00000000:AAAA"',
    "{}",
    '{"run_id":7}',
    '{"run_id":"none","id":"x","name":"y"}',
    f'{{"run_id":"{UUID(int=7)}","id":"\\u0000","name":"y"}}',
]


async def test_a_damaged_compensation_keeps_no_run_from_being_closed(url: str, forger: Forger) -> None:
    """Nor any other from being undone."""
    partner = Partner(url)
    trips = await partner.book("good", *map(str, range(len(DAMAGED))))
    for number, value in enumerate(DAMAGED):
        await forger.update("outputs", trips[str(number)].run_id, value=value)
    for trip in trips.values():
        await end_time(forger, trip.run_id)
    async with partner.at_work() as client:
        for trip in trips.values():
            with pytest.raises(RunTimedOut):
                await (await client.get(trip.id)).result(PATIENCE)

        async def is_undone() -> bool:
            return partner.undone == ["good"]

        await until(is_undone)
