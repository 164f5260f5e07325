"""Customers who ask for keys and claims over HTTP, each until there is an answer, with the same idempotency key."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpcore2
from msgspec import Struct, field

from chaos.pix.parts import ISPB

CPF = "11122233300"
_PAUSE_S, _TIMEOUT_S = 0.3, 40.0
_AGAIN = frozenset({409, 429, 503})
"""Of these, 409 only while the first request with the key is under way."""


class Book(Struct):
    """What customers were told."""

    ids: dict[str, set[str]] = field(default_factory=dict)
    """By the name of a request, the ids that it was answered with: one, however often it was sent."""
    statuses: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    sent: int = 0
    """Requests, with those that were sent again."""
    cut: int = 0
    """Answers that were lost on the way to the customer."""


def key_of(number: int) -> str:
    return f"+55119{number:08}"


def key_body(number: int) -> dict[str, Any]:
    return {"key_type": "PHONE", "key_value": key_of(number), "account": account(number), "owner": person()}


def claim_body(number: int) -> dict[str, Any]:
    return {
        "type": "PORTABILITY",
        "key_type": "PHONE",
        "key_value": key_of(number),
        "account": account(number),
        "claimer": person(),
    }


def account(number: int) -> dict[str, Any]:
    """Each key has one of its own: an account of a person may have five."""
    return {
        "participant": ISPB,
        "branch": "0001",
        "account_number": str(number),
        "account_type": "CACC",
        "opening_date": "2020-01-01T03:00:00Z",
    }


def person() -> dict[str, Any]:
    return {"type": "NATURAL_PERSON", "tax_id_number": CPF, "name": "Ada"}


class Customers:
    """A pool of connections to core, and the book."""

    def __init__(self, url: str, api_key: str) -> None:
        self._url = url
        self._headers = [("content-type", "application/json"), ("authorization", f"Bearer {api_key}")]
        self._pool = httpcore2.AsyncConnectionPool(max_connections=64)
        self.book = Book()

    async def close(self) -> None:
        await self._pool.aclose()

    async def ask(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """One request. Raises OSError, TimeoutError, httpcore2's errors."""
        headers = [*self._headers, *([("idempotency-key", key)] if key else [])]
        content = None if body is None else json.dumps(body).encode()
        async with asyncio.timeout(_TIMEOUT_S):
            answer = await self._pool.request(method, self._url + path, headers=headers, content=content)
        return answer.status, json.loads(answer.content or b"null")

    async def insist(self, name: str, path: str, body: Any, field: str, seconds: float) -> int:
        """Send it until there is an answer, and note that. Its status; 0 when none came in time."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.book.sent += 1
            try:
                status, said = await self.ask("POST", path, body, name)
            except (OSError, TimeoutError, httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException):
                self.book.cut += 1
                await asyncio.sleep(_PAUSE_S)
                continue
            self.book.statuses[status] = self.book.statuses.get(status, 0) + 1
            if status in (201, 202):
                self.book.ids.setdefault(name, set()).add(said[field])
                return status
            if status == 502:  # accepted, and a person was told
                return status
            if status not in _AGAIN or (status == 409 and said["code"] != "idempotency_in_progress"):
                self.book.wrong.append(f"{name}: {status} {said}")
                return status
            await asyncio.sleep(_PAUSE_S)
        self.book.wrong.append(f"{name}: no answer within {seconds:g} s")
        return 0
