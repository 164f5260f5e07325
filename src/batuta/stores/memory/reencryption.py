"""Payloads written otherwise, in memory."""

from __future__ import annotations

from heapq import nsmallest

from msgspec.structs import replace

from batuta.ids import RunId
from batuta.journal.records import Message, Output, OutputKind
from batuta.journal.reencryption import Rewrite
from batuta.stores.contract import rules
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.tables import NamespaceTables, Row
from batuta.stores.memory.unit_of_work import UnitOfWork


class RewritingVerbs(Base):
    """The part of the store that is about payloads that lie there."""

    @verb
    def inbox(self, unit: UnitOfWork, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Message]:
        inbox = unit.tables.inbox(chain_id)
        found = inbox.kept | inbox.unread
        return rules.within_page(found[one] for one in nsmallest(limit, (one for one in found if one > after)))

    @verb
    def answers_of(self, unit: UnitOfWork, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Output]:
        answers = unit.tables.answers
        names = nsmallest(limit, (name for chain, name in answers if chain == chain_id and name > after))
        return [answers[chain_id, name] for name in names]

    @verb
    def rewrite(self, unit: UnitOfWork, changed: Rewrite) -> bool:
        row = unit.tables.rows.get(changed.run_id)
        if row is None or row.is_open:
            return False
        _rewrite_run(row, changed)
        _rewrite_chain(unit.tables, row.run.chain_id, changed)
        letter = unit.tables.letters.get(changed.run_id)
        if changed.letter is not None and letter is not None:
            letter.message = changed.letter
        return True


def _rewrite_run(row: Row, changed: Rewrite) -> None:
    for entry in changed.entries:
        if entry.ord < len(row.journal):
            row.journal[entry.ord] = replace(row.journal[entry.ord], body=entry.body, crc=entry.crc)
    for attempt in changed.attempts:
        known = row.attempts.get((attempt.seq, attempt.number))
        if known is not None:
            row.attempts[attempt.seq, attempt.number] = replace(
                known, error=attempt.error, details=attempt.details, tokens=attempt.tokens
            )
    for output in changed.outputs:
        if output.kind is OutputKind.PUBLISHED and output.name in row.published:
            row.published[output.name] = _texts(row.published[output.name], output)
    row.run.memo = row.run.memo if changed.memo is None else changed.memo
    row.run.reason = row.run.reason if changed.reason is None else changed.reason


def _rewrite_chain(room: NamespaceTables, chain_id: RunId, changed: Rewrite) -> None:
    inbox = room.inbox(chain_id)
    for message in changed.messages:
        for place in (inbox.kept, inbox.unread):
            if message.message_id in place:
                place[message.message_id] = replace(place[message.message_id], body=message.body)
    for output in changed.outputs:
        known = room.answers.get((chain_id, output.name))
        if output.kind is OutputKind.ANSWER and known is not None:
            room.answers[chain_id, output.name] = _texts(known, output)


def _texts(known: Output, new: Output) -> Output:
    return replace(known, value=new.value, error=new.error)
