"""Starts and messages inside the caller's own transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from batuta.authoring.backend import RunRef
from batuta.engine.backend.id_conflicts import StartOf
from batuta.journal.bus.messages import NewMessage
from batuta.journal.records import Message, NewRun, StartOutcome
from batuta.journal.store import CallerTransaction


class CallerStarts:
    """Implements `authoring.backend.Entering`: runs for which all is ready but for the write."""

    def __init__(
        self,
        caller: CallerTransaction,
        runs: Sequence[NewRun],
        after: NewRun | None,
        ref_of: Callable[[int, NewRun, StartOutcome, StartOf], Awaitable[RunRef]],
        messages: Sequence[Message | None] = (),
    ) -> None:
        """`messages`: for the runs that the starts come to, in their order."""
        self.suits_a_loop = caller.brief or not caller.blocking
        self.suits_a_thread = caller.blocking
        self._caller, self._runs, self._after, self._ref_of, self._messages = caller, runs, after, ref_of, messages

    async def write(self) -> list[RunRef]:
        outcomes = await self._caller.start_many(self._runs, self._after) if self._runs else []
        start_of = self._caller.start_of
        asked = self._runs if self._after is None else [*self._runs, self._after]
        refs = [
            await self._ref_of(place, new, outcome, start_of)
            for place, (new, outcome) in enumerate(zip(asked, outcomes, strict=True))
        ]
        for ref, message in zip(refs, self._messages, strict=False):
            if message is not None:
                await self._caller.send(ref.run_id, ref.id, message)
        return refs


class CallerSignal:
    """The same for a signal."""

    def __init__(self, caller: CallerTransaction, ref: RunRef, message: Message) -> None:
        self.suits_a_loop = caller.brief or not caller.blocking
        self.suits_a_thread = caller.blocking
        self._caller, self._ref, self._message = caller, ref, message

    async def write(self) -> list[RunRef]:
        await self._caller.send(self._ref.run_id, self._ref.id, self._message)
        return []


class CallerPublish:
    """The same for messages of the bus."""

    def __init__(self, caller: CallerTransaction, messages: Sequence[NewMessage]) -> None:
        self.suits_a_loop = caller.brief or not caller.blocking
        self.suits_a_thread = caller.blocking
        self._caller, self._messages = caller, messages

    async def write(self) -> list[RunRef]:
        await self._caller.publish(self._messages)
        return []
