"""Retention of closed runs, in the words of users."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from batuta.journal.retention import Retention


class RetentionService(Protocol):
    """Stores the rules, and enforces them."""

    async def set(self, rule: Retention) -> bool: ...
    async def delete(self, workflow: str, state: str) -> bool: ...
    async def list(self) -> Sequence[Retention]: ...
    async def prune(self, *, dry_run: bool) -> int: ...


class Retentions:
    """How long closed runs of a namespace are kept: `client.retention`. Without any rule: for ever."""

    def __init__(self, backend: RetentionService) -> None:
        self._backend = backend

    async def list(self) -> Sequence[Retention]:
        """All rules, by workflow and state; `keep` is in seconds."""
        return await self._backend.list()

    async def set(self, keep: float | str | timedelta | None, *, workflow: str = "", state: str = "") -> bool:
        """Add a rule, or replace the one of this workflow and state: see `Retention`. Returns False when nothing
        changed.

        Workers apply it within about a minute.
        """
        return await self._backend.set(Retention(keep, workflow, state))

    async def delete(self, *, workflow: str = "", state: str = "") -> bool:
        """Remove the rule of exactly this workflow and state. Returns False when there is none."""
        rule = Retention(None, workflow, state)  # raises InvalidInput where there could be none
        return await self._backend.delete(rule.workflow, rule.state)

    async def prune(self, *, dry_run: bool = False) -> int:
        """Delete now what workers would delete in their time; how many runs were, or with `dry_run` would be, deleted.

        It goes from the oldest run to the newest in short steps, with pauses between them."""
        return await self._backend.prune(dry_run=dry_run)
