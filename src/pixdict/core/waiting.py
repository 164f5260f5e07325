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
        self._waiting: dict[str, tuple[Waiting, list[asyncio.Future[Outcome]]]] = {}
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def expect(self, table: Table, id: str, request: str) -> Iterator[asyncio.Future[Outcome]]:
        """The outcome of a request that is about to be published."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        _, futures = self._waiting.setdefault(request, ((table, id), []))  # the same request may come twice
        futures.append(future)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="pixdict-outcomes")
        try:
            yield future
        finally:
            futures.remove(future)
            if not futures:
                self._waiting.pop(request, None)
            future.cancel()

    def tell(self, outcome: Outcome) -> None:
        """It has ended."""
        _, futures = self._waiting.get(outcome.request, (None, ()))
        for future in futures:
            if not future.done():
                future.set_result(outcome)

    async def close(self) -> None:
        """Stop telling waiters."""
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._poll)
            tables: dict[Table, list[str]] = {"dict_entries": [], "dict_claims": []}
            for (table, id), futures in self._waiting.values():
                if not all(future.done() for future in futures):
                    tables[table].append(id)
            for table, ids in tables.items():
                try:
                    for outcome in await self._tables.outcomes(table, ids):
                        self.tell(outcome)
                except DatabaseTimeout as error:
                    log.warning("outcomes of requests cannot be read: %s", error)
