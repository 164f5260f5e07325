"""Workflows that are talked to, that talk to others, and that go on as new ones.

`trade` is the second reference workflow: notes (signals), updates, a child that sends it words, a routed activity with
a heartbeat, one that is completed from outside, and a chain of two runs. Its result can be told beforehand, whenever
its messages come. `listen` and `onward` are for messages that come at any moment.
"""

from __future__ import annotations

import asyncio
from typing import Any

from batuta import Signal, Update, Workflow, continue_as_new, run_child, send, workflow
from chaos import flows
from chaos.flows import LONG_WAIT_S, SHORT_WAIT_S, Effects

note = Signal("note", int)
word = Signal("word", int)
add = Update("add", int)

NOTES = (1, 2, 3)
ADDS = (5, -1, 7)
"""What is sent to `trade`. The validator rejects the one in the middle."""
ANSWER = "yes"
"""What the tester says to `ask`."""


class _Bag:
    """Handles updates, each with an activity; knows when it is at rest, and when it has all."""

    def __init__(self, total: int, taken: int) -> None:
        self.total, self.taken = total, taken
        self._working = 0
        self._changed = asyncio.Event()

    async def add(self, number: int) -> int:
        self._working += 1
        answer = await Effects.pack(number)
        self._working -= 1
        self.total += number
        self.taken += 1
        self._changed.set()
        return answer

    async def rest(self) -> None:
        while self._working:
            await self._news()

    async def full(self, count: int) -> None:
        while self.taken < count:
            await self._news()

    async def _news(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _positive(number: int) -> None:
    if number < 0:
        raise ValueError("less than nothing")


@workflow
async def trade(name: str, child: str = "", total: int = 0, taken: int = 0) -> dict[str, Any]:
    """The first run of the chain has the child and leaves words and notes alone; the second one does the rest."""
    bag = _Bag(total, taken)
    add.handle(bag.add, validator=_positive)
    if not child:
        child = await run_child(parcel, f"{name} parcel", name)
        await bag.rest()
        continue_as_new(name, child, bag.total, bag.taken)
    rendered = await Effects.render(name)
    asked = await Effects.ask(name)
    words = [await word.wait(), await word.wait()]
    notes = [await note.wait() for _ in NOTES]
    await bag.full(len(ADDS) - 1)
    return {
        "child": child,
        "rendered": rendered,
        "asked": asked,
        "words": words,
        "notes": notes,
        "total": bag.total,
    }


def expected_trade(name: str) -> dict[str, Any]:
    """What `trade` must return."""
    return {
        "child": f"reserved {name} parcel",
        "rendered": f"rendered {name} from page 1",
        "asked": ANSWER,
        "words": [1, 2],
        "notes": list(NOTES),
        "total": sum(number for number in ADDS if number > 0),
    }


@workflow
async def parcel(name: str, to: str) -> str:
    """A child that talks to its parent."""
    await send(to, word, 1)
    packed = await Effects.reserve(name)
    await send(to, word, 2)
    return packed


@workflow
async def listen(name: str) -> list[int]:
    """Has seen every note when it ends. Leaves memory once."""
    seen: list[int] = []
    note.handle(seen.append)
    add.handle(_tenfold, validator=_positive)
    await asyncio.sleep(SHORT_WAIT_S)
    await Effects.reserve(name)
    await asyncio.sleep(LONG_WAIT_S)
    await Effects.reserve(f"{name} again")
    return seen


@workflow
async def onward(name: str, left: int = 2) -> list[int]:
    """A chain of runs; the last one receives what came to any of them, until nothing comes."""
    add.handle(_tenfold, validator=_positive)
    await Effects.reserve(f"{name} {left}")
    if left:
        await asyncio.sleep(SHORT_WAIT_S)
        continue_as_new(name, left - 1)
    seen = []
    while True:
        try:
            seen.append(await note.wait(timeout=SHORT_WAIT_S))
        except TimeoutError:
            return seen


def _tenfold(number: int) -> int:
    return number * 10


ALL: list[Workflow[..., Any]] = [*flows.ALL, trade, parcel, listen, onward]
"""With those of `chaos.flows`."""
