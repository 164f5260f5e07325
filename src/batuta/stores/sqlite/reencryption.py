"""Payloads written otherwise, in SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from batuta.ids import RunId
from batuta.journal.records import Message, Output, OutputKind
from batuta.journal.reencryption import Rewrite
from batuta.stores.contract import rules
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.rows import message_of, one, outputs_of
from batuta.stores.sqlite.database.writer import Writer


class RewritingVerbs:
    """The part of the store that is about payloads that lie there."""

    namespace: str
    _writer: Writer
    _readers: Readers

    async def inbox(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Message]:
        values = (chain_id.bytes, after, self.namespace, limit)

        def work(connection: sqlite3.Connection) -> list[Message]:
            with closing(connection.execute(Q["inbox"], values)) as rows:
                return rules.within_page(map(message_of, rows))

        return self._readers.read(work)

    async def answers_of(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Output]:
        values = (chain_id.bytes, after, self.namespace, limit)
        return outputs_of(self._readers.read(lambda connection: connection.execute(Q["answers_of"], values).fetchall()))

    async def rewrite(self, changed: Rewrite) -> bool:
        return await self._writer.write(lambda cursor: _rewrite(cursor, self.namespace, changed), aside=True)


def _rewrite(cursor: sqlite3.Cursor, namespace: str, changed: Rewrite) -> bool:
    run_id = changed.run_id.bytes
    row = one(cursor.execute(Q["closed_chain"], (namespace, run_id)))
    if row is None:
        return False
    chain_id = row[0]
    cursor.executemany(Q["rewrite_entry"], [(e.body, e.crc, run_id, e.ord, namespace) for e in changed.entries])
    cursor.executemany(
        Q["rewrite_attempt"],
        [(a.error, a.details, a.tokens, run_id, a.seq, a.number, namespace) for a in changed.attempts],
    )
    cursor.executemany(
        Q["rewrite_output"],
        [
            (o.value, o.error, chain_id if o.kind is OutputKind.ANSWER else run_id, o.kind.value, o.name, namespace)
            for o in changed.outputs
        ],
    )
    cursor.executemany(Q["rewrite_message"], [(m.body, chain_id, m.message_id, namespace) for m in changed.messages])
    if changed.memo is not None or changed.reason is not None:
        cursor.execute(Q["rewrite_run"], (changed.memo, changed.reason, namespace, run_id))
    if changed.letter is not None:
        cursor.execute(Q["rewrite_letter"], (changed.letter, namespace, run_id))
    return True
