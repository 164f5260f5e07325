"""Requests with an idempotency key, in SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from batuta.journal.server.requests import PRUNE_EVERY, KeptRequest
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.writer import Writer

T = TypeVar("T")
_COLUMNS = KeptRequest.__struct_fields__


class RequestVerbs(ABC):
    """The part of the store that is about requests."""

    namespace: str
    _writer: Writer
    _readers: Readers
    _begun = 0
    _waiting: list[tuple[Callable[[sqlite3.Cursor], Any], asyncio.Future[Any]]] | None = None
    """Requests that wait for the transaction of others; None when none is written."""
    _writing: asyncio.Future[None] | None = None

    @abstractmethod
    def clock_now(self) -> int: ...

    async def begin_request(self, key: str, digest: str, owner: str, lock: int, keep: int) -> KeptRequest:
        values: dict[str, Any] = {"namespace": self.namespace, "key": key, "now": self.clock_now()}
        more = values | {"digest": digest, "owner": owner, "lock": lock, "keep": keep}

        self._begun += 1
        prunes = self._begun % PRUNE_EVERY == 1

        def work(cursor: sqlite3.Cursor) -> KeptRequest:
            if prunes:
                cursor.execute(Q["forget_requests"], values)
            cursor.execute(Q["forget_request"], values)
            cursor.execute(Q["begin_request"], more)
            row = cursor.execute(Q["kept_request"], values).fetchone()
            return _requests([row])[0]

        return await self._together(work)

    async def renew_request(self, key: str, owner: str, lock: int) -> bool:
        values = {"key": key, "owner": owner, "until": self.clock_now() + lock}
        return await self._end_request("renew_request", values)

    async def find_request(self, key: str) -> KeptRequest | None:
        values = {"namespace": self.namespace, "key": key, "now": self.clock_now()}
        rows = self._readers.read(lambda connection: connection.execute(Q["find_request"], values).fetchall())
        return _requests(rows)[0] if rows else None

    async def list_requests(self, after: str, limit: int, prefix: str = "") -> list[KeptRequest]:
        values = {"namespace": self.namespace, "after": after, "most": limit, "now": self.clock_now()}
        values |= {"prefix": prefix, "length": len(prefix)}
        return _requests(
            self._readers.read(lambda connection: connection.execute(Q["list_requests"], values).fetchall())
        )

    async def clear_request(self, key: str) -> bool:
        return await self._end_request("clear_request", {"key": key})

    async def finish_request(self, key: str, owner: str, answer: str) -> bool:
        return await self._end_request("finish_request", {"key": key, "owner": owner, "answer": answer})

    async def drop_request(self, key: str, owner: str) -> bool:
        return await self._end_request("drop_request", {"key": key, "owner": owner})

    async def _end_request(self, statement: str, values: dict[str, Any]) -> bool:
        given = values | {"namespace": self.namespace}
        return await self._together(lambda cursor: bool(cursor.execute(Q[statement], given).rowcount))

    async def _together(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Requests that come while others are written share the next transaction."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = [(work, future)]
            self._writing = asyncio.ensure_future(self._write_all())
        else:
            self._waiting.append((work, future))
        return await future

    async def _write_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                found = await self._writer.write(partial(_all, [work for work, _ in batch]), small=True)
            except BaseException as error:  # noqa: BLE001 - each of them is told
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), value in zip(batch, found, strict=True):
                if not future.done():
                    future.set_result(value)
        self._waiting = None


def _requests(rows: Iterable[tuple[Any, ...]]) -> list[KeptRequest]:
    return [KeptRequest(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]


def _all(works: Iterable[Callable[[sqlite3.Cursor], Any]], cursor: sqlite3.Cursor) -> list[Any]:
    return [work(cursor) for work in works]
