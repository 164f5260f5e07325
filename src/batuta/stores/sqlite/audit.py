"""The audit log in SQLite."""

from __future__ import annotations

from msgspec import structs

from batuta.journal.audit import Act, ActFilter, Changed, Recorded, state_json
from batuta.journal.records import Run
from batuta.stores.sqlite.database.base import Base

_ABOVE_ALL = 2**63 - 1


class AuditVerbs(Base):
    """The part of the store that reads the audit log."""

    async def note_act(self, target: str, act: Act) -> None:
        await self._write(lambda unit: unit.record(act, [Changed(target=target)]), small=True)

    async def audit(self, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        return await self._read_apart(lambda unit: unit.structs(Recorded, "audit", (unit.namespace, after, limit)))

    async def audit_head(self) -> tuple[int, str]:
        return self._read(lambda unit: unit.audit_head()[:2])

    async def acts(self, where: ActFilter, before: int | None = None, limit: int = 50) -> list[Recorded]:
        last = _ABOVE_ALL if before is None else before
        values = structs.asdict(where) | {"namespace": self.namespace, "before": last, "limit": limit}
        query = "acts" if where.target is None else "acts_on"
        return await self._read_apart(lambda unit: unit.structs(Recorded, query, values))


def changed(run: Run, after: str) -> Changed:
    """The effect of an action on a run that is still unchanged."""
    return Changed(target=run.id, run_id=str(run.run_id), before=state_json(run.state), after=state_json(after))
