"""Payloads written otherwise, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batuta.ids import RunId
from batuta.journal.records import Message, Output
from batuta.journal.reencryption import Rewrite
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database.rows import message_of, output_of


class RewritingVerbs(Base):
    """The part of the store that is about payloads that lie there."""

    async def inbox(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Message]:
        return await self._read_all(message_of, "inbox", chain_id, after, limit)

    async def answers_of(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Output]:
        return await self._read_all(output_of, "answers_of", chain_id, after, limit)

    async def rewrite(self, changed: Rewrite) -> bool:
        rows = await self._execute(
            "rewrite",
            changed.run_id,
            *_columns(changed.entries, "ord", "crc", "body"),
            *_columns(changed.attempts, "seq", "number", "error", "details", "tokens"),
            *_columns(changed.outputs, "kind", "name", "value", "error"),
            *_columns(changed.messages, "message_id", "body"),
            changed.memo,
            changed.reason,
            changed.letter,
        )
        return bool(rows)


def _columns(records: Iterable[Any], *names: str) -> list[list[Any]]:
    records = list(records)
    return [[getattr(record, name) for record in records] for name in names]
