"""Retention of closed runs, in the words of users."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from batuta.authoring.services import Backend
from batuta.journal.audit import Verb
from batuta.journal.retention import Retention


class Retentions:
    """How long closed runs of a namespace are kept: `client.retention`. Without any rule: for ever."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._access, self._store = backend, backend.access, backend.access.store

    async def list(self) -> Sequence[Retention]:
        """All rules, by workflow and state; `keep` is in seconds."""
        return await self._store.retention()

    async def set(self, keep: float | str | timedelta | None, *, workflow: str = "", state: str = "") -> bool:
        """Add a rule, or replace the one of this workflow and state: see `Retention`. Returns False when nothing
        changed.

        Workers apply it within about a minute.
        """
        return await self._store.set_retention(Retention(keep, workflow, state), self._access.act(Verb.SET_RETENTION))

    async def delete(self, *, workflow: str = "", state: str = "") -> bool:
        """Remove the rule of exactly this workflow and state. Returns False when there is none."""
        rule = Retention(None, workflow, state)  # raises InvalidInput where there could be none
        return await self._store.drop_retention(rule.workflow, rule.state, self._access.act(Verb.SET_RETENTION))

    async def prune(self, *, dry_run: bool = False) -> int:
        """Delete now what workers would delete in their time; how many runs were, or with `dry_run` would be, deleted.

        It goes from the oldest run to the newest in short steps, with pauses between them."""
        return await self._backend.prune(dry_run=dry_run)
