"""Whatever lies in the database in place of a memo, reason, tag, published value, dead letter, schedule or mark:
clients and commands say what is wrong, and workers go on with everything else."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner

from batuta import Batuta, BatutaError, Retry, RunFailed, Schedule, connect, every, job, publish, workflow
from batuta.cli import root
from batuta.codecs import PayloadCodec
from tests.engine.arena import PATIENCE, until
from tests.engine.forging import Forger, Place
from tests.engine.test_bound_payloads import CODECS
from tests.engine.test_damaged_values import damages
from tests.engine.test_sealed import K1, ask

pytestmark = pytest.mark.usefixtures("real_time")


@workflow
async def answers(card: str) -> str:
    publish("card", card)
    answered = asyncio.Event()

    @ask.handle
    async def answer(what: str) -> str:
        answered.set()
        return f"{what} {card}"

    await answered.wait()
    return card


@workflow(on_error="park")
async def breaks(card: str) -> str:
    raise ValueError(f"the card {card} is bad")


@job(retry=Retry(attempts=1))
async def bounces(card: str) -> None:
    raise ValueError(f"nobody takes {card}")


@job
async def ticks(card: str) -> str:
    return card


WORK: dict[str, Any] = {"workflows": [answers, breaks], "jobs": [bounces, ticks], "heartbeat": 0.1}

COLUMNS = {
    "runs": ("memo", "reason", "tags"),
    "outputs": ("value", "error"),
    "dead_letters": ("message", "error", "trace", "note"),
    "schedules": ("spec", "state", "note"),
    "marks": ("value",),
}
"""Texts that clients, commands and workers read, besides those of runs that go on."""

KEYS = {
    "runs": ("run_id",),
    "outputs": ("run_id", "kind", "name"),
    "dead_letters": ("run_id",),
    "schedules": ("id",),
    "marks": ("name",),
}

LEFT_ALONE = "sound"
"""The id of what is not damaged, and must go on."""

LOOKS: list[Callable[[Batuta], Awaitable[object]]] = [
    lambda client: client.list(limit=100),
    lambda client: client.list(tags={"kind": "card"}),
    lambda client: client.count(state="needs_code"),
    lambda client: client.dead_letters.list(),
    lambda client: client.dead_letters.groups(),
    lambda client: client.dead_letters.get("bounced"),
    lambda client: client.schedules.list(),
    lambda client: client.schedules.get("often"),
    lambda client: client.schedules.next_times("often", 3),
    lambda client: client.schedules.trigger("often"),
    lambda client: client.schedules.pause("often", "to see"),
    lambda client: client.schedules.resume("often"),
    lambda client: client.workers.list(),
    lambda client: client.queues(),
    lambda client: client.start(answers, "card 1", id="answered", if_exists="same"),
]

COMMANDS = [
    "runs list",
    "runs show answered",
    "runs show broken",
    "runs published answered",
    "runs timeline answered",
    "runs list --state needs_code",
    "jobs list",
    "jobs show bounced",
    "dead-letters list",
    "dead-letters groups",
    "dead-letters show bounced",
    "schedules list",
    "schedules show often",
    "status",
    "workers",
    "redaction show",
    "verify",
]


@pytest.fixture
async def forger(url: str) -> AsyncIterator[Forger]:
    made = Forger(url)
    yield made
    await made.close()


async def furnish(client: Batuta) -> None:
    answered = await client.start(answers, "card 1", id="answered", memo={"card": 1}, tags={"kind": "card"})
    assert await answered.update(ask, "is it", update_id="asked", timeout=PATIENCE) == "is it card 1"
    await answered.result(PATIENCE)
    await client.start(breaks, "card 2", id="broken", memo={"card": 2})
    await until(lambda: _is_parked(client))
    with pytest.raises(RunFailed):
        await (await client.enqueue(bounces, "card 3", id="bounced")).result(PATIENCE)
    await client.schedules.create(Schedule("often", every(1), ticks, "card 4"))
    await client.schedules.create(Schedule(LEFT_ALONE, every(1), ticks, "card 5", overlap="allow"))


async def _is_parked(client: Batuta) -> bool:
    return await client.count(state="needs_code") == 1


async def places_of(forger: Forger) -> list[Place]:
    found: list[Place] = []
    for table, columns in COLUMNS.items():
        keys = KEYS[table]
        for column in columns:
            query = f"SELECT {column}, {', '.join(keys)} FROM {forger.schema}{table} WHERE {column} IS NOT NULL"
            rows = await forger.sql(query)
            found += [
                Place(table, column, keys, tuple(values), text) for text, *values in rows if isinstance(text, str)
            ]
    return [place for place in found if LEFT_ALONE not in place.values]


async def look_at_all(client: Batuta) -> list[str]:
    """What clients were told. Any other error than Batuta's own fails the test."""
    told: list[str] = []
    for look in [*LOOKS, *(_of_run(id) for id in ("answered", "broken", "bounced"))]:
        try:
            await look(client)
        except BatutaError as error:
            told.append(str(error))
    return told


def _of_run(id: str) -> Callable[[Batuta], Awaitable[object]]:
    async def look(client: Batuta) -> None:
        handle = await client.get(id)
        for call in (
            handle.describe,
            handle.published,
            handle.progress,
            handle.attempts,
            handle.journal,
            handle.timeline,
        ):
            with suppress(BatutaError):
                await call()
        if id == "answered":
            await handle.update(ask, "is it", update_id="asked", timeout=PATIENCE)

    return look


@asynccontextmanager
async def replaced(forger: Forger, places: list[Place], number: int) -> AsyncIterator[None]:
    """Another text in each of these places, for a while."""
    dice = random.Random(number)
    for place in places:
        text = place.text if len(place.text) > 2 else '{"a":"b"}'
        with suppress(*CANNOT_STORE):
            await forger.write(place, damages(text, places[-1].text, dice)[number])
    yield
    for place in places:
        await forger.write(place, place.text)


CANNOT_STORE = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.StatementTooComplexError)
"""PostgreSQL does not take the text for the type of the column."""
DAMAGES = 9


@pytest.mark.parametrize(
    ("url", "codecs"),
    [("sqlite", []), ("postgres", CODECS)],
    indirect=["url"],
    ids=["sqlite-plain", "postgres-encrypted"],
)
async def test_clients_are_told_of_damaged_rows_and_workers_go_on(
    url: str, forger: Forger, codecs: list[PayloadCodec], caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(url, codec=codecs) as client, client.worker(**WORK):
        await furnish(client)
        places = await places_of(forger)
        assert {place.table for place in places} >= {"runs", "outputs", "dead_letters", "schedules"}
        told: list[str] = []
        caplog.clear()
        with caplog.at_level(logging.WARNING, "batuta"):
            for number in range(DAMAGES):
                async with replaced(forger, places, number):
                    told += await look_at_all(client)
                    assert await (await client.enqueue(ticks, f"{number}")).result(PATIENCE) == f"{number}"
                    if number in (2, 8):
                        before = (await client.schedules.get(LEFT_ALONE)).last_at
                        await until(lambda: has_fired_since(client, before))  # noqa: B023 - awaited here
        assert told
        assert not [one for one in told if "\n  File" in one]
        assert not [record for record in caplog.records if record.exc_info]
        assert await (await client.enqueue(ticks, "at the end")).result(PATIENCE) == "at the end"


async def has_fired_since(client: Batuta, before: object) -> bool:
    return (await client.schedules.get(LEFT_ALONE)).last_at != before


@pytest.mark.parametrize(
    ("url", "keys"), [("sqlite", K1), ("postgres", "")], indirect=["url"], ids=["sqlite-encrypted", "postgres-plain"]
)
async def test_commands_say_what_is_wrong_with_damaged_rows(
    url: str, forger: Forger, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATUTA_DATABASE_URL", url)
    monkeypatch.setenv("BATUTA_KEYS", keys)
    async with connect(url) as client, client.worker(**WORK):
        await furnish(client)
    places = await places_of(forger)
    for number in (0, 2, 5, 7):
        async with replaced(forger, places, number):
            for words in COMMANDS:
                result = await asyncio.to_thread(CliRunner().invoke, root, words.split())
                assert result.exception is None or isinstance(result.exception, SystemExit), (words, number)
                assert result.output, (words, number)
