"""What clients ask, with every try in the history: nothing is believed that an account does not show."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from batuta.authoring.client.handle import Handle
from batuta.client import Batuta
from batuta.errors import (
    BatutaError,
    InvalidToken,
    LostAttempt,
    OutcomeUnknown,
    RunClosed,
    RunNotCompleted,
    StoreError,
    StoreFailed,
    UnknownRun,
    UpdateRejected,
)
from chaos.ledger import LedgerClient, Record
from chaos.talks import ADDS, ANSWER, NOTES, add, note

TRIES = 200
PAUSE_S = 0.1
PATIENCE_S = 20.0
"""For one try. An update may wait for its answer; asking again with its id waits on."""


class Begin(Struct):
    """A run to start: the workflow's name, the run's id, its arguments."""

    workflow: str
    id: str
    args: list[Any] = []


class Caller:
    """A client and the ledger's book of its calls."""

    def __init__(self, client: Batuta, ledger: LedgerClient) -> None:
        self._client, self._ledger = client, ledger

    async def start(self, begin: Begin, tries: int = TRIES) -> Handle[Any]:
        async def attempt() -> Handle[Any]:
            return await self._client.start(begin.workflow, *begin.args, id=begin.id)

        handle: Handle[Any] = await self.recorded("start", begin.id, attempt, tries=tries)
        return handle

    async def enqueue(self, id: str, enqueue: Callable[[Batuta], Awaitable[Any]], tries: int = TRIES) -> None:
        """Enqueue what makes the run `id`."""
        await self.recorded("enqueue", id, lambda: enqueue(self._client), tries=tries)

    async def talk(self, id: str) -> None:
        """All that `trade` waits for: notes, one after the other, and beside them updates. Ends when the run does."""
        try:
            await asyncio.gather(self._notes(id), self._adds(id))
        except (RunClosed, UnknownRun):
            pass

    async def ended(self, id: str) -> None:
        """Wait for the end of a run that is there."""
        while True:
            try:
                await ended(await self._client.get(id))
                return
            except StoreError:
                await asyncio.sleep(PAUSE_S)

    async def _notes(self, id: str) -> None:
        for number in NOTES:
            await self.signal(id, number, f"{id}-note-{number}")

    async def _adds(self, id: str) -> None:
        for number in ADDS:
            await self.update(id, number, f"{id}-add-{number}")

    async def signal(self, id: str, number: int, message: str) -> None:
        """Raises RunClosed, UnknownRun."""

        async def attempt() -> None:
            handle: Handle[Any] = await self._client.get(id)
            await handle.signal(note, number, message_id=message)

        await self.recorded("signal", id, attempt, message)

    async def update(self, id: str, number: int, message: str) -> None:
        """Raises RunClosed, UnknownRun. A rejection is an answer."""

        async def attempt() -> int:
            handle: Handle[Any] = await self._client.get(id)
            return await handle.update(add, number, update_id=message)

        await self.recorded("update", id, attempt, message)

    async def complete(self, asked: Record) -> bool:
        """Answer an activity; `asked` has its token. False: ask again later."""

        async def attempt() -> None:
            await self._client.complete(asked.text, ANSWER)

        try:
            await self.recorded("complete", asked.run, attempt, asked.key, tries=1)
        except (LostAttempt, RunClosed, InvalidToken):  # the last: its worker died before the token was kept
            return True
        except (BatutaError, TimeoutError):
            return False
        return True

    async def recorded(
        self, op: str, id: str, call: Callable[[], Awaitable[Any]], message: str = "", tries: int = TRIES
    ) -> Any:
        """Call until it works or can never work, with each try in the history."""
        for number in range(1, tries + 1):
            self._ledger.write("invoke", op=op, key=id, message=message)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    answer = await call()
            except (OutcomeUnknown, StoreFailed, TimeoutError) as error:
                self._ledger.write("info", op=op, key=id, message=message, text=repr(error))
                last: Exception = error
            except StoreError as error:
                self._ledger.write("fail", op=op, key=id, message=message, text=repr(error))
                last = error
            except UpdateRejected as error:
                self._ledger.write("rejected", op=op, key=id, message=message, text=repr(error.__cause__))
                return None
            except BatutaError as error:
                self._ledger.write("fail", op=op, key=id, message=message, text=repr(error))
                raise
            else:
                told = repr(answer) if op == "update" else ""
                self._ledger.write("ok", op=op, key=id, message=message, text=told)
                return answer
            if number == tries:
                raise last
            await asyncio.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")


async def ended(handle: Handle[Any]) -> None:
    """Wait until the run has ended, in whatever way."""
    while True:
        try:
            await handle.result()
            return
        except RunNotCompleted:
            return
        except StoreError:
            await asyncio.sleep(PAUSE_S)
