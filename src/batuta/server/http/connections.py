"""Connections under uvicorn: closed when a client begins a request and does not go on."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

SLOWEST_HEADERS = 20.0
"""Seconds for the headers of a request; `endpoint.SLOWEST_BODY` is for its body."""


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # the class that fits what is installed
    """uvicorn itself waits for the first request, and for the rest of its headers, for ever."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._limit = self.loop.call_later(SLOWEST_HEADERS, self._close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._unlimit()
        elif self._limit is None:
            self._limit = self.loop.call_later(SLOWEST_HEADERS, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unlimit()
        super().connection_lost(exc)

    def _unlimit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _close(self) -> None:
        self._limit = None
        self.transport.close()
