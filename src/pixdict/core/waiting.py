"""Requests that wait for their outcome: woken by the response, or by a look at their rows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from pixdict.connect.keys import KeyTables
from pixdict.connect.keys.models import Outcome
from pixdict.errors import DatabaseTimeout

log = logging.getLogger("pixdict.core")

Table = Literal["dict_entries", "dict_claims"]
Waiting = tuple[Table, str]


class Waiters:
    """Those of one process. A response may have come to another one, so all rows that are waited for are looked at
    together, every `poll` seconds."""

    def __init__(self, tables: KeyTables, poll: float) -> None:
        self._tables, self._poll = tables, poll
        self._waiting: dict[str, tuple[Waiting, asyncio.Future[Outcome]]] = {}
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def expect(self, table: Table, id: str, request: str) -> Iterator[asyncio.Future[Outcome]]:
        """The outcome of a request that is about to be published."""
        found = self._waiting.get(request)
        if found is not None:  # the same request came twice
            yield found[1]
            return
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[request] = ((table, id), future)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="pixdict-outcomes")
        try:
            yield future
        finally:
            self._waiting.pop(request, None)
            future.cancel()

    def tell(self, outcome: Outcome) -> None:
        """It has ended."""
        found = self._waiting.get(outcome.request)
        if found is not None and not found[1].done():
            found[1].set_result(outcome)

    async def close(self) -> None:
        """Nobody is told any more."""
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._poll)
            tables: dict[Table, list[str]] = {"dict_entries": [], "dict_claims": []}
            for (table, id), future in self._waiting.values():
                if not future.done():
                    tables[table].append(id)
            for table, ids in tables.items():
                try:
                    for outcome in await self._tables.outcomes(table, ids):
                        self.tell(outcome)
                except DatabaseTimeout as error:
                    log.warning("outcomes of requests cannot be read: %s", error)
