"""The page "Simulator": the knobs of the directory, and requests to use its tokens."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from batuta import Batuta
from batuta.clock import as_datetime
from batuta.errors import InvalidInput
from batuta.server import Action, Gauges, Page, Table
from pixdict.bridge import Bridge, BridgeClient
from pixdict.connect.monitor import SCHEDULE_ID
from pixdict.dict.policies import OFFICIAL, Scope
from pixdict.directory import Directory

_SHOWN = 30
_AT_ONCE = 50


class Advance(Struct, kw_only=True, forbid_unknown_fields=True):
    minutes: Annotated[float, Meta(gt=0, le=60 * 24 * 60)] = 1.0


class SetBalance(Struct, kw_only=True, forbid_unknown_fields=True):
    policy: str = "CLAIMS_READ"
    tokens: Annotated[int, Meta(ge=-100_000, le=1_000_000)] = 0


class AddFault(Struct, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["latency", "status", "timeout", "drop", "lost_answer"] = "status"
    operation: str = "*"
    times: Annotated[int, Meta(ge=1, le=1_000_000)] = 10
    seconds: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    status: Literal[409, 429, 500, 503] = 503


class Payment(Struct, kw_only=True, forbid_unknown_fields=True):
    end_to_end_id: Annotated[str, Meta(min_length=1, max_length=35, pattern="^[A-Za-z0-9]+$")]
    payer_id: Annotated[str, Meta(pattern="^([0-9]{11}|[0-9]{14})$")]


class Lookups(Struct, kw_only=True, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=5_000)] = 100


class Nothing(Struct, forbid_unknown_fields=True):
    pass


def simulator_page(
    directory: Directory, client: BridgeClient, bridge: Bridge, participant: str, more: Sequence[Action] = ()
) -> Page:
    """What the simulator has and knows, and its knobs. `more`: further actions."""

    async def read(_: Batuta) -> Sequence[Table | Gauges]:
        return [_state(directory, bridge), _balances(directory, bridge, participant), _requests(directory)]

    async def advance(_: Batuta, given: Advance) -> str:
        directory.advance(given.minutes * 60)
        return f"The directory's time is {as_datetime(directory.now()):%Y-%m-%d %H:%M:%S} UTC."

    async def set_balance(_: Batuta, given: SetBalance) -> str:
        try:
            directory.service.set_balance(given.policy, participant, given.tokens)
        except ValueError as error:
            raise InvalidInput(str(error)) from error
        return f"{given.policy} has {given.tokens:,} tokens. The Bridge learns of it with the next check."

    async def add_fault(_: Batuta, given: AddFault) -> str:
        options = {"operation": given.operation, "times": given.times, "seconds": given.seconds, "status": given.status}
        try:
            directory.faults.add(given.kind, **options)
        except ValueError as error:
            raise InvalidInput(str(error)) from error
        return f"The next {given.times} requests of {given.operation} meet {given.kind}."

    async def clear_faults(_: Batuta, __: Nothing) -> str:
        directory.faults.clear()
        return "The directory works again."

    async def look_up(_: Batuta, given: Lookups) -> str:
        return await _look_up(client, given.count)

    async def pay(_: Batuta, given: Payment) -> str:
        credited = directory.service.payment_sent(given.end_to_end_id, given.payer_id)
        counted = await client.payment_sent(given.end_to_end_id, given.payer_id)
        return f"Look-ups that get tokens back: the directory has {credited}, the Bridge {int(counted)}."

    async def check(batuta: Batuta, __: Nothing) -> str:
        handle = await batuta.schedules.trigger(SCHEDULE_ID)
        return f"The monitor checks: run {handle.id}."

    actions = [
        Action(title="Check now", form=Nothing, act=check, about="Starts the monitor, whatever its schedule says."),
        Action(title="Read claims", form=Lookups, act=look_up, about="Each takes a token of CLAIMS_READ."),
        Action(title="Send a payment", form=Payment, act=pay, about="Its look-ups get their tokens back."),
        Action(title="Advance time", form=Advance, act=advance, about="Of the directory: buckets fill up."),
        Action(title="Set a balance", form=SetBalance, act=set_balance, danger=True),
        Action(title="Add a fault", form=AddFault, act=add_fault, danger=True, about="* is every operation."),
        Action(title="Clear faults", form=Nothing, act=clear_faults),
        *more,
    ]
    return Page("Simulator", "/simulator", read, actions=actions)


async def _look_up(client: BridgeClient, count: int) -> str:
    gate, found = asyncio.Semaphore(_AT_ONCE), Counter[str]()

    async def one() -> None:
        async with gate:
            try:
                await client.get_claim("00000000-0000-4000-8000-000000000000")
                found["found"] += 1
            except Exception as error:  # noqa: BLE001 - counted and told
                found[type(error).__name__] += 1

    await asyncio.gather(*(one() for _ in range(count)))
    return ", ".join(f"{times} {name}" for name, times in found.most_common())


def _state(directory: Directory, bridge: Bridge) -> Table:
    faults = [f"{one.operation}: {one.kind} ({one.times or 'all'})" for one in directory.faults.all()]
    counts = [f"{number} {name.replace('_', ' ')}" for name, number in directory.storage.counts().items()]
    rows = [
        ["Directory", directory.url],
        ["Bridge", bridge.address],
        ["Time of the directory", f"{as_datetime(directory.now()):%Y-%m-%d %H:%M:%S} UTC"],
        ["Faults", ", ".join(faults) or "none"],
        ["It has", ", ".join(counts)],
    ]
    return Table(title="Simulator", columns=["What", "Now"], rows=[list[object](row) for row in rows])


def _balances(directory: Directory, bridge: Bridge, participant: str) -> Table:
    rows = []
    for name, rule in OFFICIAL.items():
        if rule.scope is Scope.PSP:
            truth, predicted = directory.service.balance(name, participant), bridge.calls.balances.balance(name)
            rows.append([name, truth, predicted])
    rows.sort(key=lambda row: (row[1] == row[2], row[0]))
    columns = ["Policy", "Directory", "As the Bridge counts"]
    return Table(title="Balances", columns=columns, rows=rows, note="those that differ first")


def _requests(directory: Directory) -> Table:
    rows = [
        [one.at, one.operation, one.participant, one.status, one.problem or None]
        for one in list(reversed(directory.service.seen))[:_SHOWN]
    ]
    columns = ["When", "Operation", "Participant", "Status", "Problem"]
    return Table(title="Requests", columns=columns, rows=rows, note="newest first" if rows else "None came yet.")
