"""Runs that are released because of a missing activity."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from batuta.journal.records import Change, Refusal, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.virtualtime import Stuck

T = TypeVar("T")


class Lacking:
    """Watches the commits of a store for them."""

    def __init__(self, store: Store) -> None:
        self._commit = store.commit
        self._times, self._why = 0, ""
        self._watched: dict[asyncio.Task[Any], int] = {}
        """The missing activity, and after how many releases to give up."""
        vars(store).update(commit=self._watched_commit)

    async def watch(self, work: Coroutine[Any, Any, T], patience: int) -> T:
        """Its result. Raises Stuck when runs are released that often meanwhile."""
        task, last = asyncio.create_task(work), self._times + patience
        self._watched[task] = last
        try:
            return await task
        except asyncio.CancelledError:
            if self._times >= last:
                raise Stuck(self._why) from None
            raise
        finally:
            task.cancel()
            del self._watched[task]

    async def _watched_commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        answers = await self._commit(worker_id, changes)
        for change in changes:
            if change.move is not None and change.move.state is RunState.WAITING and change.move.reason:
                self._times, self._why = self._times + 1, change.move.reason
        for task, last in self._watched.items():
            if self._times >= last:
                task.cancel()
        return answers
