"""Starts and messages inside the caller's own transaction, on any connection to the same database.

One SQL function does the work, with text parameters, which every driver can pass on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct, json

from batuta.errors import RunClosed, TransactionFailed, UnknownRun, WrongTransaction
from batuta.ids import RunId
from batuta.journal.bus.messages import NewMessage
from batuta.journal.entries import Entry
from batuta.journal.records import Message, MessageKind, NewRun, Run, StartOutcome
from batuta.journal.store import Borrowed, CallerTransaction
from batuta.stores.contract import rules, stored_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.bus.messages import message_columns
from batuta.stores.postgres.database import batch_columns
from batuta.stores.postgres.database.caller_drivers import Link, link_to
from batuta.stores.postgres.database.rows import run_of_start
from batuta.stores.postgres.hints import FROM_A_GUEST
from batuta.stores.postgres.starts import outcome_of

_FAILED = "25P02"
_NOT_THERE = frozenset({"3F000", "42883", "42P01"})
_ELSEWHERE = "the transaction belongs to another database than the client's: nothing was written"


class CallerTransactions(Base):
    async def enter(self, transaction: object, runs: Sequence[NewRun]) -> CallerTransaction:
        link = link_to(transaction)
        if not self._place:
            self._place = (await self._pool.read(self._sql["place"]))[0]["place"]
        texts = (self.namespace, self._place, self._channel, FROM_A_GUEST)
        return PostgresCallerTransaction(link, self._sql, self.address.schema, texts)

    def borrow(self, connection: object) -> Borrowed:
        raise WrongTransaction("on PostgreSQL begin the transaction yourself, and pass it as `transaction=`")


class PostgresCallerTransaction:
    """A transaction of the caller's own."""

    brief = False

    def __init__(self, link: Link, sql: Mapping[str, str], schema: str, texts: Sequence[str]) -> None:
        self.blocking = link.blocking
        self._link, self._sql, self._schema, self._texts = link, sql, schema, texts

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        asked = list(runs) if after is None else [*(rules.member(run, after) for run in runs), after]
        columns = [array_literal(column) for column in batch_columns.together_columns(asked)]
        awaiting = None if after is None else after.run_id.hex
        answer = await self._write("enqueue", awaiting, *columns)
        return _outcomes(asked, after, json.decode(answer, type=_Answer))

    async def send(self, run_id: RunId, id: str, message: Message) -> bool:
        said = (message.message_id, message.kind.value, message.name, message.body)
        answer = await self._write("send", run_id.hex, *said)
        outcome, state = json.decode(answer, type=tuple[str, str | None])
        if outcome == "unknown":
            raise UnknownRun(id, self._texts[0])
        if outcome == "closed":
            raise RunClosed(id, state or "closed")
        if outcome == "full":
            raise rules.inbox_full(str(self._texts[0]), id, int(state or 0))
        return outcome == "sent"

    async def publish(self, messages: Sequence[NewMessage]) -> list[str]:
        columns = [array_literal(column) for column in message_columns(messages)]
        return json.decode(await self._write("publish", *columns), type=list[str])

    async def start_of(self, run: Run) -> Entry | Message | None:
        found = await self._ask(self._sql["start_of"], [run.chain_id.hex])
        if found is None:
            return None
        began: dict[str, Any] = json.decode(found)
        if "message_id" in began:
            return Message(kind=MessageKind.START, **began)
        return Entry(0, stored_values.ENTRY_KINDS[began["kind"]], began["at"], began["crc"], began["body"])

    async def parent_of(self, run_id: RunId) -> tuple[RunId | None, int]:
        found = await self._ask(self._sql["parent_of"], [run_id.hex])
        if found is None:
            raise UnknownRun(run_id, self._texts[0])
        return json.decode(found, type=tuple[RunId | None, int])

    async def _write(self, query: str, *texts: str | None) -> str:
        """Raises WrongTransaction when the connection is to another database."""
        answer = await self._ask(self._sql[query], [*self._texts, *texts])
        if answer is None:
            raise WrongTransaction(_ELSEWHERE)
        return answer

    async def _ask(self, query: str, texts: Sequence[str | None]) -> str | None:
        try:
            return await self._link.ask(query, texts)
        except Exception as error:
            if (meant := self._meant(error)) is None:
                raise  # the caller's own: it may know what to do about a deadlock or a lost connection
            raise meant from error

    def _meant(self, error: Exception) -> Exception | None:
        state = _sqlstate(error)
        if state == _FAILED or type(error).__name__ == "PendingRollbackError":
            return TransactionFailed(
                f"the transaction had failed before ({error}): roll it back; nothing was started or sent in it"
            )
        if state in _NOT_THERE:
            return WrongTransaction(
                f"schema {self._schema!r} is not there, or not of this version, where the connection is: it is to "
                f"another database than the client's, or `batuta migrate` was not run. Roll the transaction back "
                f"({error})"
            )
        return None


def array_literal(values: Sequence[Any]) -> str:
    """An array of PostgreSQL, written out: every driver can pass on a text."""
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return value.hex if isinstance(value, UUID) else str(value)


def _sqlstate(error: Exception) -> str | None:
    """SQLAlchemy wraps the driver's error; psycopg2 has another word for it."""
    for each in (error, getattr(error, "orig", None)):
        for name in ("sqlstate", "pgcode"):
            if isinstance(state := getattr(each, name, None), str):
                return state
    return None


class _Answer(Struct):
    """The answer of batuta.enqueue."""

    made: list[tuple[UUID, int, int | None, int | None]]
    others: list[_Other]


class _Other(Struct):
    asked: UUID
    run: dict[str, Any]


def _outcomes(asked: Sequence[NewRun], after: NewRun | None, answer: _Answer) -> list[StartOutcome]:
    made = {one[0]: one[1:] for one in answer.made}
    others = {other.asked: _with_ids(other.run) for other in answer.others}
    # Runs whose awaiting run was not inserted have no parent.
    plain = after is None or after.run_id in made
    return [
        (run_of_start(run, *times), True)
        if run is not after and plain and (times := made.get(run.run_id)) is not None
        else outcome_of(run, others.get(run.run_id))
        for run in asked
    ]


def _with_ids(row: dict[str, Any]) -> dict[str, Any]:
    ids = {name: row[name] for name in ("run_id", "chain_id", "parent_run_id", "forked_from")}
    return row | {name: None if text is None else UUID(text) for name, text in ids.items()}
