"""Deleting and pruning in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from msgspec.structs import replace

from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.retention import Pruned, Retention, keep_json, target_of
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database.rows import run_ids as standard_ids
from batuta.stores.postgres.database.rows import standard

MOST_ENTRIES = 5_000
"""Journal entries that one step deletes, unless a single chain has more."""


class RetentionVerbs(Base):
    """The part of the store that is about how long runs are kept."""

    async def delete_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        act = replace(act, after="null")
        rows = await self._execute("delete_runs", list(run_ids), *act_values(act))
        return standard_ids(rows[0]["gone"])

    async def set_retention(self, rule: Retention, act: Act | None = None) -> bool:
        keep, target = rule.micros, target_of(rule.workflow, rule.state)
        said = (rule.workflow, rule.state, keep, target, keep_json(keep))
        return bool(await self._execute("set_retention", *said, *act_values(act)[:4]))

    async def drop_retention(self, name: str, state: str, act: Act | None = None) -> bool:
        said = (name, state, target_of(name, state), *act_values(act)[:4])
        return bool(await self._execute("drop_retention", *said))

    async def retention(self) -> list[Retention]:
        return [Retention.stored(row["name"], row["state"], row["keep"]) for row in await self._read("retention")]

    async def prune(self, limit: int, after: RunId | None = None, *, dry_run: bool = False) -> Pruned:
        asked = monotonic()
        [row] = await self._execute("prune", limit, after, dry_run, MOST_ENTRIES)
        busy = min(row["busy"], monotonic() - asked)  # by a clock that may have been set meanwhile
        return Pruned(row["deleted"], None if row["last"] is None else standard(row["last"]), busy)
