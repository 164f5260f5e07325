"""Requests with an idempotency key, in SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

from batuta.journal.server.requests import PRUNE_EVERY, KeptRequest
from batuta.stores.sqlite.database.base import Base, Verb
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork

T = TypeVar("T")


class RequestVerbs(Base):
    """The part of the store that is about requests."""

    _begun = 0
    _waiting: list[tuple[Verb[Any], asyncio.Future[Any]]] | None = None
    """Requests that wait for the transaction of others; None when none is written."""
    _writing: asyncio.Future[None] | None = None

    async def begin_request(self, key: str, digest: str, owner: str, lock: int, keep: int) -> KeptRequest:
        values = {"namespace": self.namespace, "key": key, "now": self.clock_now()}
        more = values | {"digest": digest, "owner": owner, "lock": lock, "keep": keep}

        self._begun += 1
        prunes = self._begun % PRUNE_EVERY == 1

        def work(unit: UnitOfWork) -> KeptRequest:
            if prunes:
                unit.change("forget_requests", values)
            unit.change("forget_request", values)
            unit.change("begin_request", more)
            return unit.structs(KeptRequest, "kept_request", values)[0]

        return await self._together(work)

    async def renew_request(self, key: str, owner: str, lock: int) -> bool:
        values = {"key": key, "owner": owner, "until": self.clock_now() + lock}
        return await self._end_request("renew_request", values)

    async def find_request(self, key: str) -> KeptRequest | None:
        values = {"namespace": self.namespace, "key": key, "now": self.clock_now()}
        return self._struct(KeptRequest, "find_request", values)

    async def list_requests(self, after: str, limit: int, prefix: str = "") -> list[KeptRequest]:
        values = {"namespace": self.namespace, "after": after, "most": limit, "now": self.clock_now()}
        return self._structs(KeptRequest, "list_requests", values | {"prefix": prefix, "length": len(prefix)})

    async def clear_request(self, key: str) -> bool:
        return await self._end_request("clear_request", {"key": key})

    async def finish_request(self, key: str, owner: str, answer: str) -> bool:
        return await self._end_request("finish_request", {"key": key, "owner": owner, "answer": answer})

    async def drop_request(self, key: str, owner: str) -> bool:
        return await self._end_request("drop_request", {"key": key, "owner": owner})

    async def _end_request(self, statement: str, values: dict[str, Any]) -> bool:
        given = values | {"namespace": self.namespace}
        return await self._together(lambda unit: bool(unit.change(statement, given)))

    async def _together(self, work: Verb[T]) -> T:
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
                found = await self._write(partial(_all, [work for work, _ in batch]), small=True)
            except BaseException as error:  # noqa: BLE001 - each of them is told
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), value in zip(batch, found, strict=True):
                if not future.done():
                    future.set_result(value)
        self._waiting = None


def _all(works: Iterable[Verb[Any]], unit: UnitOfWork) -> list[Any]:
    return [work(unit) for work in works]
