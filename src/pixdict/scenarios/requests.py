"""Callers that repeat themselves, or contradict themselves."""

from __future__ import annotations

import asyncio

from batuta.ids import new_secret
from pixdict.scenarios.player import Scenario
from pixdict.scenarios.stage import ACCEPTED, Stage, new_number

_TIMES = 5


async def duplicates(stage: Stage) -> None:
    """One request several times: at once, and again later."""
    number, key = new_number(), f"scenario-{new_secret(8).hex()}"
    stage.say(f"{_TIMES} callers send the same request with the same idempotency key at once")
    said = await asyncio.gather(*(stage.create(number, key=key) for _ in range(_TIMES)))
    stage.say("one more comes when it is done")
    said.append(await stage.create(number, key=key))
    stage.expect("entry ids that callers got", 1, len({one.id for one in said}))
    stage.expect("different answers that callers got", 1, len({one.status for one in said}))
    await stage.until_active([number], 1)
    replayed = sum(one.headers.get("idempotency-replayed") == "true" for one in said)
    stage.expect("answers that say they are repeated", _TIMES, replayed)
    stage.expect("calls of the directory", {"201": 1}, dict(stage.at_directory("createEntry")))
    stage.expect("rows of ours", 1, len(await stage.rows([number])))
    await stage.prove([number], 1, {ACCEPTED: _TIMES + 1})


async def conflict(stage: Stage) -> None:
    """One idempotency key, two bodies."""
    first, second, key = new_number(), new_number(), f"scenario-{new_secret(8).hex()}"
    stage.say("a caller creates a key")
    await stage.create(first, key=key)
    stage.say("the same idempotency key comes with another phone number")
    said = await stage.create(second, key=key)
    stage.expect("the second request gets", "409 Idempotency key conflict", f"{said.status} {said.error}")
    await stage.until_active([first], 1)
    stage.expect("rows of the second", 0, len(await stage.rows([second])))
    stage.expect("calls of the directory", {"201": 1}, dict(stage.at_directory("createEntry")))
    await stage.prove([first, second], 1, {ACCEPTED: 1, "409": 1})


SCENARIOS = [
    Scenario(
        name="duplicates",
        title="Duplicate requests",
        happens="A caller sends one request six times with one idempotency key.",
        should="It is carried out once. Every caller gets the same answer.",
        play=duplicates,
    ),
    Scenario(
        name="same-key-other-body",
        title="The same key with another body",
        happens="An idempotency key comes again, with another request.",
        should="The second request is refused with 409, and nothing is written or sent.",
        play=conflict,
    ),
]
