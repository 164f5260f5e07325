"""The audit log in memory."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from batuta.journal import audit
from batuta.journal.audit import Act, ActFilter, Changed, Recorded, state_json
from batuta.journal.records import Run
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.unit_of_work import UnitOfWork


class AuditVerbs(Base):
    @verb
    def note_act(self, unit: UnitOfWork, target: str, act: Act) -> None:
        record(unit, act, [Changed(target=target)])

    @verb
    def audit(self, unit: UnitOfWork, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        return [replace(row) for row in unit.tables.audit[after : after + limit]]

    @verb
    def audit_head(self, unit: UnitOfWork) -> tuple[int, str]:
        return _head(unit)[:2]

    @verb
    def acts(self, unit: UnitOfWork, where: ActFilter, before: int | None = None, limit: int = 50) -> list[Recorded]:
        rows = unit.tables.audit if before is None else unit.tables.audit[: max(before - 1, 0)]
        return [replace(row) for row in reversed(rows) if _matches(where, row)][:limit]


def record(unit: UnitOfWork, act: Act | None, changed: Iterable[Changed]) -> None:
    """Write the changes of an action into the log; nothing without an action."""
    if act is not None:
        unit.tables.audit += audit.record(unit.namespace, _head(unit), unit.now, act, changed)


def changed(run: Run, after: str) -> Changed:
    """The effect of an action on a run that is still unchanged."""
    return Changed(target=run.id, run_id=str(run.run_id), before=state_json(run.state), after=state_json(after))


def _head(unit: UnitOfWork) -> tuple[int, str, str]:
    rows = unit.tables.audit
    return (rows[-1].number, rows[-1].hash, rows[-1].salt) if rows else (0, "", "")


def _matches(where: ActFilter, row: Recorded) -> bool:
    return (
        where.target in (None, row.target)
        and where.actor in (None, row.actor)
        and where.verb in (None, row.verb)
        and (where.since is None or row.at >= where.since)
        and (where.until is None or row.at < where.until)
    )
