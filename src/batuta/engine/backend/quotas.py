"""Starts are let in as far as the quotas of their namespace go."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, TypeVar

from batuta.authoring.backend import StartRequest
from batuta.authoring.client.enqueue import JobRequest
from batuta.clock import SECOND
from batuta.engine.backend.follow_chain import find_current
from batuta.errors import QuotaExceeded, StoreError, StoreUnavailable
from batuta.journal.quotas import OPEN_RUNS, PAYLOAD, STARTS, Quota
from batuta.journal.records import IfExists
from batuta.journal.store import Store

T = TypeVar("T")
Request = StartRequest | JobRequest

log = logging.getLogger("batuta.quotas")

_EVERY = 1.0
"""How many seconds a client uses the quotas that it has read."""
_SHARE = 0.05
"""The share of the time that reading takes at most: counting many open runs takes a while."""
_AGAIN = 0.05
"""Seconds after which it reads again before it refuses a start: runs may have ended since."""
_PATIENCE = 0.5
"""How many seconds a closing client waits for the database."""
_SOON = 0.5
"""Seconds after which others learn of a start."""
_ROUNDING = 1e-6
_GIVES = (IfExists.RETURN, IfExists.REJECT, IfExists.SAME)


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


class Guard:
    """Admits the starts of one client.

    It reads the quotas of the namespace about once a second, and only while there are starts. In between it uses its
    own copy, so clients together may start somewhat more than the quota.
    """

    def __init__(self, store: Store, monotonic: Callable[[], float]) -> None:
        self._store, self._monotonic = store, monotonic
        self._home: asyncio.AbstractEventLoop | None = None
        self.awake = True
        """A start has to ask: there are quotas, or the last look is a second old.

        Other starts only pay for this check.
        """
        self._found: dict[str, Quota] = {}
        self._fresh_until = self._again_at = -inf
        self._look: asyncio.Task[None] | None = None
        self._waking: asyncio.TimerHandle | None = None
        self._pace = StartRate(store, monotonic)
        self._admitted = self._counted = 0
        """All starts that were ever let in, and how many those were when the open runs were counted."""
        self._on_their_way = 0
        """Admitted starts that may not be in the store yet."""
        self._open: float = 0

    async def open(self) -> None:
        """Its looks and timers are of this event loop. Starts may come from others, which end before."""
        self._home = asyncio.get_running_loop()
        await self._learn()

    async def learn(self) -> None:
        """Read the quotas. If they cannot be read, the next start tries again."""
        await self._at_home(self._learn)

    async def _learn(self) -> None:
        if self._look is not None:
            await asyncio.wait([self._look])  # it may have begun before they were changed
        with suppress(StoreError):
            await self._fresh()

    async def close(self) -> None:
        """No more starts. A database that does not answer delays the close only for a short time."""
        self._home, look = None, self._look
        if look is not None:
            try:
                await asyncio.wait([look], timeout=_PATIENCE)
            finally:
                look.cancel()
            await asyncio.wait([look])
        if self._waking is not None:
            self._waking.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._pace.close()

    # -- what starts ask

    async def let_in(self, requests: Sequence[Request], begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Admit the starts. Raises QuotaExceeded; then nothing was written."""
        if not self._found:
            self.awake = False
            self._begin_at_home(self._begin_look)  # beside the start, which does not wait for it
            return await begin()
        if not await self._at_home(partial(self._admit, requests)):
            return await begin()
        several = len(requests)
        self._admitted += several
        self._on_their_way += several
        self._begin_at_home(partial(self._pace.spend, several))
        try:
            return await begin()
        finally:
            self._on_their_way -= several

    def _begin_at_home(self, act: Callable[[], object]) -> None:
        home = self._home
        if home is None or home is asyncio.get_running_loop():
            act()
        else:
            home.call_soon_threadsafe(act)

    async def _at_home(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        home = self._home
        if home is None or home is asyncio.get_running_loop():
            return await work()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), home))

    async def _admit(self, requests: Sequence[Request]) -> bool:
        """False: they do not count, because nothing would begin. Raises QuotaExceeded."""
        if self._monotonic() >= self._fresh_until:
            await self._fresh()
        error = self._refusal(requests)
        if error is not None and error.quota == OPEN_RUNS and self._monotonic() >= self._again_at:
            await self._fresh()
            error = self._refusal(requests)
        if error is not None and not await self._begins_nothing(requests):
            raise error
        return error is None

    def _refusal(self, requests: Sequence[Request]) -> QuotaExceeded | None:
        judged = (_JUDGES[name](self, quota, requests) for name, quota in self._found.items() if requests)
        return next(filter(None, judged), None)

    def _too_large(self, quota: Quota, requests: Sequence[Request]) -> QuotaExceeded | None:
        limit, size = quota.limit or 0, max(len(request.input) for request in requests)
        if size <= limit:
            return None
        told = f"an input is {size:,} bytes of JSON, of {limit:,}: pass a reference to where the data lies"
        return self._exceeded(quota, size, None, told)

    def _too_many(self, quota: Quota, requests: Sequence[Request]) -> QuotaExceeded | None:
        limit, several = quota.limit or 0, len(requests)
        used = self._open + self._admitted - self._counted
        if used + several <= limit:
            return None
        wait = None if several > limit else max(_AGAIN, self._again_at - self._monotonic())
        return self._exceeded(quota, used, wait, f"{used:,.0f} of {limit:,} are open" + _asked(several, wait))

    def _too_fast(self, quota: Quota, requests: Sequence[Request]) -> QuotaExceeded | None:
        limit, several, at_once = quota.limit or 1, len(requests), quota.at_once
        left = self._pace.left()
        missing = several - left
        if missing < _ROUNDING:
            return None
        wait = None if several > at_once else missing / limit
        told = f"{limit:,} a second are allowed, and {at_once:,} at once" + _asked(several, wait)
        return self._exceeded(quota, at_once - left, wait, told)

    def _exceeded(self, quota: Quota, used: float, wait: float | None, told: str) -> QuotaExceeded:
        return QuotaExceeded(quota.name, self._store.namespace, quota.limit or 0, used, wait, told)

    async def _begins_nothing(self, requests: Sequence[Request]) -> bool:
        """Whether a start would only be given a run that is there, or be refused because of it."""
        named = _named(requests[0]) if len(requests) == 1 else None
        if named is None:
            return False
        id, if_exists, fresh = named
        run = await find_current(self._store, id)
        if run is None:
            return False
        if run.closed_at is None or if_exists in _GIVES:
            return True
        return fresh > 0 and await self._store.now() < run.created_at + fresh

    # -- looking

    async def _fresh(self) -> None:
        """Read the quotas, together with all who want that now. Raises StoreErrors."""
        look = self._begin_look()
        await asyncio.wait([look])  # which does not end with one of its waiters
        if look.cancelled():
            raise StoreUnavailable("the client was closed while it read the quotas")
        look.result()

    def _begin_look(self) -> asyncio.Task[None]:
        if self._look is None:
            # Not in the starter's context, nor ended with the starter's task: it looks for others, too.
            self._look = asyncio.get_running_loop().create_task(
                self._read(), name="batuta-quotas", context=contextvars.Context()
            )
            self._look.add_done_callback(self._looked)
        return self._look

    async def _read(self) -> None:
        begun, counted, on_their_way = self._monotonic(), self._admitted, self._on_their_way
        found = {quota.name: quota for quota in await self._store.quotas() if quota.limit is not None}
        self._found = found = {name: quota for name, quota in found.items() if name in _JUDGES}
        now = self._monotonic()
        self._fresh_until = now + max(_EVERY, (now - begun) / _SHARE)
        self._again_at = now + max(0.0 if self._store.poll_seconds is None else _AGAIN, (now - begun) / _SHARE)
        if OPEN_RUNS in found:
            self._open, self._counted = (found[OPEN_RUNS].used or 0) + on_their_way, counted
        self._pace.learn(found.get(STARTS))

    def _looked(self, look: asyncio.Task[None]) -> None:
        self._look = None
        if not look.cancelled() and (error := look.exception()) is not None:
            level = logging.DEBUG if isinstance(error, StoreError) else logging.ERROR
            log.log(level, "the quotas cannot be read: %s", error)
        self.awake = bool(self._found)
        if not self.awake:
            if self._waking is not None:
                self._waking.cancel()
            self._waking = asyncio.get_running_loop().call_later(_EVERY, self._wake)

    def _wake(self) -> None:
        self.awake = True


_JUDGES = {OPEN_RUNS: Guard._too_many, PAYLOAD: Guard._too_large, STARTS: Guard._too_fast}


def _asked(several: int, wait: float | None) -> str:
    if several == 1:
        return ""
    return f", and these are {several:,}" + (": start fewer at once" if wait is None else "")


def _named(request: Request) -> tuple[str, IfExists, int] | None:
    """The caller's id, the policy when it is taken, and how long a closed run keeps it anyway."""
    if isinstance(request, StartRequest):
        return None if request.id is None else (request.id, request.if_exists, 0)
    if (unique_id := request.unique_id) is not None and request.debounce is None:
        return unique_id, IfExists.RENEW, round((request.unique_for or 0) * SECOND)
    return None if request.id is None else (request.id, request.if_exists, 0)
