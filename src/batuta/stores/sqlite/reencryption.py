"""Payloads written otherwise, in SQLite."""

from __future__ import annotations

from contextlib import closing

from batuta.ids import RunId
from batuta.journal.records import Message, Output, OutputKind
from batuta.journal.reencryption import Rewrite
from batuta.stores.contract import rules
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.rows import message_of, outputs_of
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork


class RewritingVerbs(Base):
    """The part of the store that is about payloads that lie there."""

    async def inbox(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Message]:
        values = (chain_id.bytes, after, self.namespace, limit)

        def work(unit: UnitOfWork) -> list[Message]:
            with closing(unit.execute("inbox", values)) as rows:
                return rules.within_page(map(message_of, rows))

        return self._read(work)

    async def answers_of(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Output]:
        return outputs_of(self._rows("answers_of", (chain_id.bytes, after, self.namespace, limit)))

    async def rewrite(self, changed: Rewrite) -> bool:
        return await self._write(lambda unit: _rewrite(unit, changed), aside=True)


def _rewrite(unit: UnitOfWork, changed: Rewrite) -> bool:
    run_id = changed.run_id.bytes
    chain_id = unit.value("closed_chain", (unit.namespace, run_id))
    if chain_id is None:
        return False
    unit.change_each("rewrite_entry", [(e.body, e.crc, run_id, e.ord, unit.namespace) for e in changed.entries])
    unit.change_each(
        "rewrite_attempt",
        [(a.error, a.details, a.tokens, run_id, a.seq, a.number, unit.namespace) for a in changed.attempts],
    )
    unit.change_each(
        "rewrite_output",
        [
            (
                o.value,
                o.error,
                chain_id if o.kind is OutputKind.ANSWER else run_id,
                o.kind.value,
                o.name,
                unit.namespace,
            )
            for o in changed.outputs
        ],
    )
    unit.change_each("rewrite_message", [(m.body, chain_id, m.message_id, unit.namespace) for m in changed.messages])
    if changed.memo is not None or changed.reason is not None:
        unit.change("rewrite_run", (changed.memo, changed.reason, unit.namespace, run_id))
    if changed.letter is not None:
        unit.change("rewrite_letter", (changed.letter, unit.namespace, run_id))
    return True
