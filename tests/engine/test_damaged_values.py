"""Whatever lies in the database in place of a stored value: the run that needs it is parked, or a client is told.
Nothing crashes, nothing hangs, and no wrong value is believed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from batuta import Batuta, Handle, connect
from batuta.codecs import PayloadCodec
from batuta.ids import RunId
from batuta.journal.codec_envelope import is_coded
from tests.engine.arena import PATIENCE, until
from tests.engine.forging import Forger, Place
from tests.engine.test_bound_payloads import (
    CODECS,
    asking,
    asks,
    elder,
    stuck,
    stumbles,
    tokens,
    until_entries,
    younger,
)
from tests.engine.test_sealed import ask, charge, go, pay, until_charged

pytestmark = pytest.mark.usefixtures("real_time")

DEEP = 100_000
COPIES = 10
"""Runs for each sort of value: one for each damage, and one that is left as it is."""

WAITING = ("error", "details")
"""Of attempts that are not due for an hour: nobody reads them as they lie there, but for codecs, which read all."""

WORK: dict[str, Any] = {
    "workflows": [pay, asking, elder, stuck],
    "activities": [charge, asks, stumbles],
    "heartbeat": 0.1,
}


def damages(text: str, other: str, dice: random.Random) -> list[str]:
    """What may stand there instead: nothing, noise, a part, JSON of another form, JSON too deep to be read; where
    values are encrypted, also another run's value and one with a character changed."""
    noise = "".join(chr(dice.randrange(*dice.choice(((32, 0xD7FF), (32, 127))))) for _ in range(60))
    at = dice.randrange(1, len(text) - 1)
    found = ["", text[:at], noise, f"{text[:at]}\x01{text[at + 1 :]}", f'{{"value":{"[" * DEEP}', "[" * DEEP]
    if is_coded(text):
        changed = "A" if text[at] != "A" else "B"
        return [*found, other, f"{text[:at]}{changed}{text[at + 1 :]}", '{"seq":1,"value":"forged"}']
    return [*found, f'{{"value":{"[" * DEEP}{"]" * DEEP}}}', f"{text}{text}", "{"]


@pytest.fixture
async def forger(url: str) -> AsyncIterator[Forger]:
    made = Forger(url)
    yield made
    await made.close()


async def begun(client: Batuta) -> dict[str, list[Handle[Any]]]:
    """Runs that wait, so that nobody works on them: of each sort that needs one stored value to go on."""
    tokens.clear()
    runs: dict[str, list[Handle[Any]]] = defaultdict(list)
    async with client.worker(**WORK):
        for number in range(COPIES):
            for sort in ("signal", "update", "journal"):
                runs[sort].append(await client.start(pay, f"card {number}"))
                await until_charged(runs[sort][-1])
            for sort, workflow in (("child", elder), ("error", stuck), ("details", stuck), ("activity", asking)):
                runs[sort].append(await client.start(workflow, f"card {number}"))
                await until_entries(runs[sort][-1], 1)
            await until(lambda: _is(len(tokens) > number))  # noqa: B023 - awaited here
        for sort in ("error", "details"):
            for handle in runs[sort]:
                await until(lambda: _has_failed(handle))  # noqa: B023 - awaited here
    return runs


async def _is(answer: bool) -> bool:
    return answer


async def _has_failed(handle: Handle[Any]) -> bool:
    return "no line" in str((await handle.describe()).attempts)


async def told(client: Batuta, forger: Forger, runs: dict[str, list[Handle[Any]]]) -> None:
    """Send them what they wait for, and start some more."""
    runs["start"] = [await client.start(pay, f"card {number}") for number in range(COPIES)]
    for sort in ("signal", "journal", "update", "start"):
        for handle in runs[sort]:
            await handle.signal(go, "it")
    asked = [asyncio.ensure_future(handle.update(ask, "what")) for handle in runs["update"]]
    await until(lambda: _have_update(forger, runs["update"]))
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    for token in tokens:
        await client.complete(token, "done")
    async with client.worker(workflows=[younger], heartbeat=0.1):
        for child in (await client.list(workflow="younger", limit=2 * COPIES)).runs:
            await (await client.get(child.id)).signal(go, "it")
            await (await client.get(child.id)).result(PATIENCE)


async def _have_update(forger: Forger, handles: Sequence[Handle[Any]]) -> bool:
    messages = [one.more for handle in handles for one in await forger.messages(handle.run_id)]
    return messages.count("update") == len(handles)


def value_of(sort: str, places: Sequence[Place], owner: Any) -> Place:
    mine = [one for one in places if one.values[0] == owner]
    match sort:
        case "start":
            return next(one for one in mine if one.column == "start" or one.more == "start")
        case "journal":
            return next(one for one in mine if one.table == "journal" and one.values[1] == 1)
        case "error" | "details":
            return next(one for one in mine if one.table == "attempts" and one.column == sort)
    return next(one for one in mine if one.more == sort)


@pytest.mark.parametrize(
    ("url", "codecs"),
    [("sqlite", CODECS), ("postgres", [])],
    indirect=["url"],
    ids=["sqlite-encrypted", "postgres-plain"],
)
async def test_a_run_whose_stored_value_is_damaged_is_parked_and_the_others_go_on(
    url: str, forger: Forger, codecs: list[PayloadCodec], caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(url, codec=codecs) as client:
        runs = await begun(client)
        await told(client, forger, runs)
        hurt = await damage(forger, runs, random.Random(7))
        with caplog.at_level(logging.WARNING, "batuta"):
            async with client.worker(**WORK):
                for sort in ("signal", "start", "update", "journal"):
                    assert await runs[sort][-1].result(PATIENCE) == f"charged card {COPIES - 1} for it"
                assert await runs["activity"][-1].result(PATIENCE) == "done"
                assert await runs["child"][-1].result(PATIENCE) == f"card {COPIES - 1} it"
                await until(lambda: _are_parked(client, hurt))
                found = {run.run_id: run for run in (await client.list(state="needs_code", limit=200)).runs}
    assert set(found) == set(hurt)
    assert all(run.reason for run in found.values())
    assert "will be read again" not in caplog.text


async def damage(forger: Forger, runs: dict[str, list[Handle[Any]]], dice: random.Random) -> dict[RunId, str]:
    """The runs whose values were damaged, and how. The last of each sort is left as it is."""
    places, hurt = await forger.places(coded=False), dict[RunId, str]()
    for sort, handles in runs.items():
        values = [value_of(sort, places, forger.as_id(handle.run_id)) for handle in handles]
        texts = damages(values[0].text, values[-1].text, dice)
        assert len(texts) == COPIES - 1
        for place, text, handle in zip(values, texts, handles[:-1], strict=False):
            if sort not in WAITING or is_coded(place.text):
                await forger.write(place, text)
                hurt[handle.run_id] = f"{sort}: {text[:60]}"
        for handle in handles:
            await forger.update("runs", handle.run_id, wake_at=1)
    return hurt


async def _are_parked(client: Batuta, hurt: dict[RunId, str]) -> bool:
    return len((await client.list(state="needs_code", limit=200)).runs) >= len(hurt)
