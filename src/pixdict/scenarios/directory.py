"""The central bank's directory is away, slow, loses answers, or lets no more requests in."""

from __future__ import annotations

import asyncio
from collections import Counter

from batuta.server import Refused
from pixdict.dev.stand import ISPB
from pixdict.dict.buckets import SECOND
from pixdict.scenarios.player import Scenario
from pixdict.scenarios.stage import ACCEPTED, Stage, new_number

_MINUTE = 60
_BEFORE_REFILL = 2
"""Seconds."""
FAILURES = 5
"""In a row, that open the breaker."""


async def outage(stage: Stage) -> None:
    """Drop connections until the breaker opens, ask once more, then let the directory come back."""
    faults, client = stage.stand.directory.faults, stage.stand.client
    first, late, numbers = new_number(), new_number(), [new_number() for _ in range(FAILURES + 1)]
    stage.say("a caller creates a key: everything works")
    await stage.create(first)
    stage.say("the directory drops every connection")
    faults.add("drop", times=None)
    stage.say(f"{len(numbers)} callers create a key each")
    callers = [asyncio.create_task(stage.create(number)) for number in numbers]
    try:
        await stage.until("the breaker opens", lambda: _is_open(stage))
        view = await client.breakers.get("bacen")
        stage.say(f"the breaker bacen is open, after {FAILURES} failures in a row: one more caller comes")
        stage.expect("breaker during the outage", "open", str(view.state))
        refused = await stage.create(late)
        stage.expect("the late caller gets", "503 Circuit Open", f"{refused.status} {refused.error}")
        stage.expect("rows of the late caller", 0, len(await stage.rows([late])))
    finally:
        faults.clear()
    stage.say(f"the directory is back; the breaker lets a probe in {stage.stand.options.open_for:g} s after it opened")
    said = Counter(one.status for one in await asyncio.gather(*callers))
    stage.expect("accepted callers get", f"201 or 202, {len(numbers)} of them", dict(said), ok=set(said) <= {201, 202})
    stage.say("work that was accepted waits at the gate and goes on")
    await stage.until_active(numbers, len(numbers))
    everyone = 1 + len(numbers)
    stage.expect("entries that the directory made", {"201": everyone}, dict(stage.at_directory("createEntry")))
    await stage.prove([first, *numbers, late], everyone)


async def _is_open(stage: Stage) -> bool:
    """In the store, and as core knows it."""
    try:
        await stage.stand.core.check_breaker()
    except Refused:
        return str((await stage.stand.client.breakers.get("bacen")).state) == "open"
    return False


async def slow(stage: Stage) -> None:
    """One answer comes later than the caller waits."""
    wait, number = stage.stand.options.wait, new_number()
    stage.say(f"the next answer to createEntry comes {wait + 1:g} s late; core waits {wait:g} s")
    stage.stand.directory.faults.add("latency", operation="createEntry", seconds=wait + 1)
    said = await stage.create(number)
    stage.expect("the caller gets", "202 PENDING", f"{said.status} {said.body.get('status')}")
    stage.expect("where to ask", f"/api/v1/keys/{said.id}", said.headers.get("location"))
    stage.say("the caller polls")

    async def active() -> bool:
        return bool((await stage.ask("GET", f"/api/v1/keys/{said.id}")).body.get("status") == "ACTIVE")

    await stage.until("the entry is ACTIVE", active)
    stage.expect("calls of the directory", {"201": 1}, dict(stage.at_directory("createEntry")))
    await stage.prove([number], 1, {ACCEPTED: 1})


async def lost(stage: Stage) -> None:
    """The directory does its work, and its answers are lost."""
    numbers = [new_number() for _ in range(3)]
    before = stage.stand.directory.storage.counts()["cid_events"]
    stage.say("the next two answers to createEntry are lost: the entries are made, and the callers do not know")
    stage.stand.directory.faults.add("lost_answer", operation="createEntry", times=2)
    stage.say("three callers create a key each; calls without an answer are made again with the same request id")
    await asyncio.gather(*(stage.create(number) for number in numbers))
    await stage.until_active(numbers, 3)
    events = stage.stand.directory.storage.counts()["cid_events"] - before
    stage.expect("identifiers that were added", 3, events)
    stage.expect("faults that are left", 0, len(stage.stand.directory.faults.all()))
    await stage.prove(numbers, 3)


async def exhausted(stage: Stage) -> None:
    """The bucket of writes is empty. The directory's time stands shortly before the refill of the minute."""
    directory = stage.stand.directory
    numbers = [new_number() for _ in range(3)]
    ahead = (_MINUTE - _BEFORE_REFILL - directory.now() / SECOND) % _MINUTE
    directory.advance(ahead)
    await stage.stand.speaks.list_policies()  # the Bridge learns the directory's time
    directory.service.set_balance("ENTRIES_WRITE", ISPB, 0)
    stage.say(f"ENTRIES_WRITE has no token; its 1,200 of the next minute come in {_BEFORE_REFILL} s")
    stage.say("three callers create a key each")
    await asyncio.gather(*(stage.create(number) for number in numbers))
    await stage.until_active(numbers, 3)
    answers = stage.at_directory("createEntry")
    refused = answers["429"]
    stage.expect(
        "requests that the directory refused", "3 at most, then the Bridge sends none", refused, ok=refused <= 3
    )
    stage.expect("creations that it let in", 3, answers["201"])
    left = directory.service.balance("ENTRIES_WRITE", ISPB)
    stage.expect("tokens that are left", "0 or more", left, ok=left >= 0)
    await stage.prove(numbers, 3)


SCENARIOS = [
    Scenario(
        name="outage",
        title="Outage of the central bank",
        happens="The directory drops every connection while six callers create keys.",
        should="After five failures the breaker opens. Work that was accepted waits; a caller that comes then gets 503 "
        "Circuit Open, and nothing is written. When the directory is back, all accepted work is done.",
        play=outage,
    ),
    Scenario(
        name="slow-answers",
        title="Slow answers",
        happens="An answer takes longer than the caller waits.",
        should="The caller gets 202 and where to ask. The work goes on, with one call; polling finds it ACTIVE.",
        play=slow,
    ),
    Scenario(
        name="lost-answers",
        title="Lost answers",
        happens="The directory makes entries, and its answers are lost.",
        should="The calls are made again with the same request id: one entry and one identifier for each request.",
        play=lost,
    ),
    Scenario(
        name="rate-limit",
        title="Rate limit exhausted",
        happens="The bucket ENTRIES_WRITE has no token left.",
        should="The Bridge learns of it from the first refusals and sends nothing until tokens come. Then all is done.",
        play=exhausted,
    ),
]
