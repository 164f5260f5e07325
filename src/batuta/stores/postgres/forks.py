"""Runs made from others, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncpg import Record
from msgspec import json, to_builtins

from batuta.errors import (
    AlreadyStarted,
    BatutaError,
    LetterResolved,
    OutcomeUnknown,
    RunMoved,
    StoreUnavailable,
    UnknownRun,
)
from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.entries import decode_body
from batuta.journal.forks import Fork
from batuta.journal.records import Hint, Run
from batuta.journal.store import ForkOutcome
from batuta.stores.contract import rules
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database.row_locks import patiently
from batuta.stores.postgres.database.rows import run_ids, run_of

_MADE = ("forked", "again")
_WHY = {
    "moved": "has moved on",
    "ended": "has ended",
    "followed": "is followed by another run",
    "answered": rules.UNHEARD,
}


class ForkVerbs(Base):
    @patiently
    async def fork(self, forks: Sequence[Fork], act: Act) -> list[ForkOutcome]:
        if not forks:
            return []
        asked = json.encode([[_asked(*each) for each in fork.family()] for fork in forks]).decode()
        async with self._pool.session() as session:
            values = (self.namespace, rules.PARENT_CLOSED, asked, *act_values(act))
            rows = await session.write(self._sql["fork_runs"], *values)
            made = [fork.new.run_id for fork, row in zip(forks, rows, strict=True) if row["outcome"] in _MADE]
            self._tell_of(forks, rows)
            try:
                found = await session.read(self._sql["forked_runs"], self.namespace, made) if made else []
            except StoreUnavailable as error:  # "nothing was written" would be a lie
                raise OutcomeUnknown(str(error)) from error
        runs = {run.run_id: run for run in map(run_of, found)}
        return [self._outcome(fork, row, runs) for fork, row in zip(forks, rows, strict=True)]

    def _tell_of(self, forks: Sequence[Fork], rows: Sequence[Record]) -> None:
        done = [(fork, row) for fork, row in zip(forks, rows, strict=True) if row["outcome"] in _MADE]
        closed = [fork.source for fork, _ in done if fork.close is not None]
        told = [run_id for _, row in done for run_id in run_ids(row["told"])]
        if done:
            self._announcer.tell(Hint(due=True, messages=[*told, *closed], closed=closed))

    def _outcome(self, fork: Fork, row: Record, made: dict[RunId, Run]) -> Run | BatutaError:
        match row["outcome"]:
            case "forked" | "again":
                return made.get(fork.new.run_id) or UnknownRun(fork.new.run_id, self.namespace)
            case "unknown":
                return UnknownRun(row["said"], self.namespace)
            case "taken":
                return AlreadyStarted(fork.id, row["state"], "give another id")
            case "resolved":
                return LetterResolved(row["said"], row["state"] or "no dead letter")
            case why:
                return RunMoved(row["said"], _WHY.get(why, f"is {row['state']}"))


def _asked(fork: Fork, parent: RunId | None) -> dict[str, Any]:
    """The parameters of the function for a fork."""
    head = fork.keep + len(fork.entries)
    messages = [rules.successor_start(fork.new), *fork.messages] if head < 0 else fork.messages
    close = None if fork.close is None else to_builtins(fork.close) | {"reason": decode_body(fork.close).reason}
    return {
        "run_id": str(fork.new.run_id),
        "parent": None if parent is None else str(parent),
        "memo": fork.memo,
        "source": str(fork.source),
        "source_head": fork.head,
        "id": fork.id,
        "keep": fork.keep,
        "head": head,
        "at": rules.forked_at(fork),
        "name": fork.new.name,
        "code": fork.new.code,
        "queue": fork.new.queue,
        "version": fork.new.version,
        "delay": fork.new.delay,
        "timeout": fork.new.timeout,
        "execution_timeout": fork.new.execution_timeout,
        "entries": to_builtins(fork.entries),
        "close": close,
        "heard": fork.heard,
        "again": fork.again,
        "messages": to_builtins(messages),
        "attempts": to_builtins(fork.attempts),
        "outputs": to_builtins(fork.outputs),
        "letter": fork.letter,
        "after": rules.fork_said(fork),
    }
