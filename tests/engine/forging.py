"""What somebody does who can write to the database, and has no key: rows read, changed and put there with SQL alone."""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

CODED = [
    ("journal", "body", ("run_id", "ord")),
    ("inbox", "body", ("chain_id", "message_id")),
    ("runs", "memo", ("run_id",)),
    ("runs", "reason", ("run_id",)),
    ("runs", "start", ("run_id",)),
    ("attempts", "error", ("run_id", "seq", "number")),
    ("attempts", "details", ("run_id", "seq", "number")),
    ("attempts", "tokens", ("run_id", "seq", "number")),
    ("outputs", "value", ("run_id", "kind", "name")),
    ("outputs", "error", ("run_id", "kind", "name")),
    ("dead_letters", "message", ("run_id",)),
    ("schedules", "spec", ("id",)),
    ("flows", "document", ("workflow_id",)),
    ("flows", "description", ("workflow_id",)),
    ("events", "payload", ("event_id",)),
    ("bus_messages", "body", ("number", "topic")),
    ("partners", "doc", ("kind", "name", "key")),
    ("documents", "body", ("kind", "key")),
    ("requests", "answer", ("key",)),
    ("api_keys", "digest", ("id",)),
]
"""Every column that holds coded texts, and what its rows are known by."""


class Place(NamedTuple):
    """Where a coded text lies."""

    table: str
    column: str
    keys: tuple[str, ...]
    values: tuple[Any, ...]
    text: str
    more: str = ""
    """Of an inbox: the kind of the message."""

    @property
    def sort(self) -> str:
        more = self.more or (str(self.values[1]) if self.table == "outputs" else "")
        return f"{self.table}.{self.column} {more}".strip()


class Forger:
    """Somebody with the database's password."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.is_sqlite = url.startswith("sqlite")
        self._database: asyncpg.Connection | None = None
        self._file: sqlite3.Connection | None = None

    async def places(self, *, coded: bool = True) -> list[Place]:
        """Every coded text that lies in the database; or every text in a column that may hold one."""
        found: list[Place] = []
        for table, column, keys in CODED:
            if column == "start" and self.is_sqlite:
                continue
            more = "kind" if table == "inbox" else "''"
            query = f"SELECT {column}, {more}, {', '.join(keys)} FROM {self.schema}{table}"
            where = f"{column} LIKE '\"~%'" if coded else f"{column} IS NOT NULL"
            for text, kind, *values in await self.sql(f"{query} WHERE {where} ORDER BY {', '.join(keys)}"):
                found.append(Place(table, column, keys, tuple(values), text, kind))
        return found

    async def write(self, place: Place, text: str | None) -> None:
        """Put a text there."""
        where = " AND ".join(f"{key} = {self.mark(number)}" for number, key in enumerate(place.keys, 2))
        statement = f"UPDATE {self.schema}{place.table} SET {place.column} = {self.mark(1)} WHERE {where}"
        await self.sql(statement, text, *place.values)

    async def insert(self, table: str, **values: Any) -> None:
        marks = ", ".join(self.mark(number) for number, _ in enumerate(values, 1))
        given = [self.as_id(value) if isinstance(value, UUID) else value for value in values.values()]
        await self.sql(f"INSERT INTO {self.schema}{table} ({', '.join(values)}) VALUES ({marks})", *given)

    async def update(self, table: str, run_id: UUID, **values: Any) -> None:
        sets = ", ".join(f"{name} = {self.mark(number)}" for number, name in enumerate(values, 2))
        statement = f"UPDATE {self.schema}{table} SET {sets} WHERE run_id = {self.mark(1)}"
        await self.sql(statement, self.as_id(run_id), *values.values())

    async def child_of(self, run_id: UUID) -> UUID:
        """The only child of a run."""
        query = f"SELECT run_id FROM {self.schema}runs WHERE parent_run_id = {self.mark(1)}"
        [(found,)] = await self.sql(query, self.as_id(run_id))
        return UUID(bytes=found) if isinstance(found, bytes) else found

    async def messages(self, chain_id: UUID) -> list[Place]:
        """Of a chain, encrypted or not."""
        query = f"SELECT message_id, body, kind FROM {self.schema}inbox WHERE chain_id = {self.mark(1)}"
        owner, keys = self.as_id(chain_id), ("chain_id", "message_id")
        rows = await self.sql(query, owner)
        return [Place("inbox", "body", keys, (owner, message_id), body, kind) for message_id, body, kind in rows]

    async def starts(self, run_id: UUID) -> Place:
        """What a run that was not begun is to begin with."""
        owner = self.as_id(run_id)
        found = [one for one in await self.places(coded=False) if one.values[0] == owner]
        return next(one for one in found if one.column == "start" or one.more == "start")

    async def move(self, place: Place, chain_id: Any) -> None:
        """A message into the inbox of another chain."""
        where = f"chain_id = {self.mark(2)} AND message_id = {self.mark(3)}"
        statement = f"UPDATE {self.schema}inbox SET chain_id = {self.mark(1)} WHERE {where}"
        await self.sql(statement, chain_id, *place.values)

    def as_id(self, run_id: UUID) -> Any:
        return run_id.bytes if self.is_sqlite else run_id

    def mark(self, number: int) -> str:
        return f"?{number}" if self.is_sqlite else f"${number}"

    @property
    def schema(self) -> str:
        return "" if self.is_sqlite else "batuta."

    async def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        if self.is_sqlite:
            if self._file is None:
                self._file = sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=20)
            with self._file:
                return self._file.execute(statement, {str(n): value for n, value in enumerate(values, 1)}).fetchall()
        if self._database is None:
            self._database = await asyncpg.connect(self._url)
        return [tuple(row) for row in await self._database.fetch(statement, *values)]

    async def close(self) -> None:
        if self._database is not None:
            await self._database.close()
        if self._file is not None:
            self._file.close()
