"""The starts of one client, against a rate that holds for all clients of its namespace."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from contextlib import suppress
from math import inf

from batuta.clock import SECOND
from batuta.errors import StoreError
from batuta.journal.quotas import Quota
from batuta.journal.store import Store

log = logging.getLogger("batuta.quotas")

_SOON = 0.5
"""Seconds after which others learn of a start."""


class StartRate:
    """How many may be started now.

    Each client counts for itself, reports its starts to the store a little later, and learns there of the starts of
    others. If clients exceeded the rate together, all of them start less afterwards.
    """

    def __init__(self, store: Store, monotonic: Callable[[], float]) -> None:
        self._store, self._monotonic = store, monotonic
        self._quota: Quota | None = None
        self._left, self._left_at = inf, 0.0
        """Of the burst, as far as is known here."""
        self._untold, self._untold_since = 0, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None

    def learn(self, quota: Quota | None) -> None:
        """The rest according to the store. None: there is no such quota."""
        self._quota = quota
        if quota is None:
            self._left, self._untold = inf, 0
            return
        known = quota.at_once - (quota.used or 0) - self._untold
        if self._untold:  # plus what has come back since then
            known += (quota.limit or 0) * (self._monotonic() - self._untold_since)
        self._left = min(self.left(), known)

    def left(self) -> float:
        """How many may be started; below zero when clients together have started too many."""
        now = self._monotonic()
        if self._quota is not None:
            come_back = (self._quota.limit or 0) * (now - self._left_at)
            self._left = min(self._quota.at_once, self._left + come_back)
        self._left_at = now
        return self._left

    def spend(self, several: int) -> None:
        """Count that many starts."""
        if self._quota is None:
            return
        self._left -= several
        if not self._untold:
            self._untold_since = self._monotonic()
        self._untold += several
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SOON, self._tell_beside)

    async def close(self) -> None:
        """No more starts."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        telling = self._telling
        if telling is not None:
            try:
                await asyncio.wait([telling])
            finally:
                telling.cancel()  # if its caller no longer waits
        with suppress(StoreError):
            await self._tell()

    def _tell_beside(self) -> None:
        # No start waits for it: a start in the caller's own transaction may hold the lock that it needs.
        self._timer = None
        self._telling = asyncio.get_running_loop().create_task(
            self._told(), name="batuta-quotas", context=contextvars.Context()
        )

    async def _told(self) -> None:
        try:
            await self._tell()
        except StoreError as error:
            log.debug("other clients cannot be told how many runs this one started: %s", error)
        finally:
            self._telling = None

    async def _tell(self) -> None:
        several, ago = self._untold, round((self._monotonic() - self._untold_since) * SECOND)
        if self._quota is None or not several:
            return
        self._untold = 0
        try:
            await self._store.spend_starts(several, self._quota, ago)
        except StoreError:
            self._untold += several  # with the next ones
            raise
