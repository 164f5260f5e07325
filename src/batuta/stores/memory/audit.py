"""The audit log in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager

from msgspec.structs import replace

from batuta.journal import acts
from batuta.journal.acts import Act, ActFilter, Changed, Recorded, state_json
from batuta.journal.records import Run
from batuta.stores.memory.moment import Moment


class AuditVerbs(ABC):
    """The part of the store that reads the audit log."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Moment]: ...

    async def note_act(self, target: str, act: Act) -> None:
        with self.transaction() as moment:
            record(moment, act, [Changed(target=target)])

    async def audit(self, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        with self.transaction() as moment:
            return [replace(row) for row in moment.room.audit[after : after + limit]]

    async def audit_head(self) -> tuple[int, str]:
        with self.transaction() as moment:
            return _head(moment)

    async def acts(self, where: ActFilter, before: int | None = None, limit: int = 50) -> list[Recorded]:
        with self.transaction() as moment:
            rows = moment.room.audit if before is None else moment.room.audit[: max(before - 1, 0)]
            return [replace(row) for row in reversed(rows) if _matches(where, row)][:limit]


def record(moment: Moment, act: Act | None, changed: Iterable[Changed]) -> None:
    """Write what an act has changed into the log; nothing without an act."""
    if act is not None:
        moment.room.audit += acts.record(moment.namespace, _head(moment), moment.now, act, changed)


def changed(run: Run, after: str) -> Changed:
    """What an act does to a run, that is as it was before."""
    return Changed(target=run.id, run_id=str(run.run_id), before=state_json(run.state), after=state_json(after))


def _head(moment: Moment) -> tuple[int, str]:
    rows = moment.room.audit
    return (rows[-1].number, rows[-1].hash) if rows else (0, "")


def _matches(where: ActFilter, row: Recorded) -> bool:
    return (
        where.target in (None, row.target)
        and where.actor in (None, row.actor)
        and where.verb in (None, row.verb)
        and (where.since is None or row.at >= where.since)
        and (where.until is None or row.at < where.until)
    )
