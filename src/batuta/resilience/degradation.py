"""Answers when a partner is slow or away: accept and go on, read from a replica, use an older value."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

from msgspec import Struct

from batuta.authoring.call_options import check_seconds, check_wait
from batuta.authoring.client.handle import Handle
from batuta.clock import Clock, SystemClock
from batuta.durations import Duration, in_seconds
from batuta.errors import InvalidInput, StoreUnavailable, told
from batuta.ids import RunId
from batuta.resilience.answers import Errors, error_classes
from batuta.resilience.deadlines import timeout_left

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

log = logging.getLogger("batuta.degradation")

SOURCE_HEADER = "X-Data-Source"
AWAY: tuple[type[BaseException], ...] = (OSError, TimeoutError, StoreUnavailable)
"""Errors that say that a source is away: those of the network, timeouts, an unavailable store."""


class Starter(Protocol):
    """A client."""

    async def start(self, workflow: Any, /, *args: Any, **options: Any) -> Handle[Any]: ...


class Accepted(Struct, Generic[T], kw_only=True):
    """A result, or the promise of one: what `accept_or_run` gives."""

    done: bool
    result: T | None = None
    id: str
    run_id: RunId
    status_url: str

    @property
    def status(self) -> int:
        """The HTTP status: 200, or 202 while the work goes on."""
        return 200 if self.done else 202

    @property
    def headers(self) -> dict[str, str]:
        """For the answer: where to ask, and when."""
        return {} if self.done else {"Location": self.status_url, "Retry-After": "1"}

    @property
    def document(self) -> Any:
        """The body of the answer: the result, or where to ask for it."""
        return self.result if self.done else {"id": self.id, "status": "PENDING", "status_url": self.status_url}


async def accept_or_run(
    client: Starter,
    workflow: Any,
    /,
    *args: Any,
    wait: Duration,
    status_url: str | Callable[[str], str] = "/api/v1/runs/{id}",
    **options: Any,
) -> Accepted[Any]:
    """Start a run and give its result if it comes within `wait` seconds; else say where to ask, while the run goes on.

    `status_url`: a text with `{id}`, or a function of the run's id. `options` are those of `client.start`: with an `id`
    a repeated request finds the same run. The wait ends with the caller's deadline, too (see `timeout_left`). Raises
    what `handle.result()` raises when the run ends without a result in time.
    """
    seconds = check_wait("wait", wait)
    if not isinstance(status_url, str) and not callable(status_url):
        raise InvalidInput(f"status_url={status_url!r} must be a text with {{id}}, or a function of the run's id")
    left = timeout_left()
    handle = await client.start(workflow, *args, **options)
    url = status_url(handle.id) if callable(status_url) else status_url.replace("{id}", quote(handle.id, safe=":@"))
    made: Accepted[Any] = Accepted(done=False, id=handle.id, run_id=handle.run_id, status_url=url)
    try:
        made.result = await handle.result(timeout=seconds if left is None else min(seconds, left))
    except TimeoutError:
        log.info("run %s is not done after %g s: its caller gets 202", handle.id, seconds)
        return made
    made.done = True
    return made


class Reading(Struct, Generic[T], kw_only=True):
    """A value, and where it comes from."""

    value: T
    source: str
    """`primary`, `replica` or `stale`."""
    age: float = 0.0
    """For a stale value: seconds since it was read."""

    @property
    def headers(self) -> dict[str, str]:
        """For the answer: where its data comes from, unless that is the primary."""
        if self.source == "primary":
            return {}
        return {SOURCE_HEADER: self.source} | ({"Age": str(int(self.age))} if self.source == "stale" else {})


class ReadFrom(Generic[P, T]):
    """Result of `read_from`: call it to read."""

    def __init__(
        self,
        primary: Callable[P, Awaitable[T]],
        replica: Callable[P, Awaitable[T]],
        *,
        timeout: Duration | None,
        recheck: Duration,
        check: Callable[[], Awaitable[object]] | None,
        errors: Errors,
        clock: Clock,
    ) -> None:
        self._primary, self._replica, self._check = primary, replica, check
        self._errors = error_classes("errors", errors)
        self._timeout: float | None = in_seconds(timeout)
        check_seconds("timeout", self._timeout)
        self._recheck = check_wait("recheck", recheck)
        self._clock = clock
        self._away_until: float | None = None

    @property
    def degraded(self) -> bool:
        """Whether the primary was away when it was asked last."""
        return self._away_until is not None

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Reading[T]:
        if await self._may_ask():
            try:
                async with asyncio.timeout(self._timeout):
                    value = await self._primary(*args, **kwargs)
            except self._errors as error:
                self._goes_away(error)
            else:
                self._comes_back()
                return Reading(value=value, source="primary")
        return Reading(value=await self._replica(*args, **kwargs), source="replica")

    async def _may_ask(self) -> bool:
        """Whether the primary is to be asked. While it is away one reader at a time finds out whether it is back."""
        if self._away_until is None:
            return True
        if self._clock.monotonic() < self._away_until:
            return False
        self._away_until = self._clock.monotonic() + self._recheck  # the others go on reading the replica
        if self._check is None:
            return True
        try:
            async with asyncio.timeout(self._timeout):
                await self._check()
        except self._errors as error:
            self._goes_away(error)
            return False
        return True

    def _goes_away(self, error: BaseException) -> None:
        if self._away_until is None:
            log.warning("degraded: the primary is away (%s), reading from the replica", told(error))
        self._away_until = self._clock.monotonic() + self._recheck

    def _comes_back(self) -> None:
        if self._away_until is not None:
            log.warning("the primary is back: reading from it again")
        self._away_until = None


def read_from(
    primary: Callable[P, Awaitable[T]],
    replica: Callable[P, Awaitable[T]],
    *,
    timeout: Duration | None = 1.0,
    recheck: Duration = 5.0,
    check: Callable[[], Awaitable[object]] | None = None,
    errors: Errors = AWAY,
) -> ReadFrom[P, T]:
    """Read from the primary, and from the replica while the primary is away: `found = await read(key)`.

    An error of `errors`, or `timeout` seconds without an answer, says that the primary is away. It is then left alone
    for `recheck` seconds; after that the next read finds out whether it is back, with `check` if there is one. Both
    changes are logged. `found.source` and `found.headers` tell the caller. Other errors, and those of the replica, are
    raised.
    """
    return ReadFrom(primary, replica, timeout=timeout, recheck=recheck, check=check, errors=errors, clock=SystemClock())


class StaleWhileError(Generic[K, T]):
    """Keeps what was read, and gives it when reading fails: `rates = StaleWhileError(load, fresh=5, stale=600)`.

    A value is given as it is for `fresh` seconds; then `load(key)` is asked, by one caller for all that wait. When it
    raises one of `errors`, a value that is at most `stale` seconds old is given, with source `stale`; without one the
    error is raised. At most `most` values are kept, in memory, the latest used.
    """

    def __init__(
        self,
        load: Callable[[K], Awaitable[T]],
        *,
        fresh: Duration,
        stale: Duration,
        errors: Errors = AWAY,
        most: int = 1_000,
        clock: Clock | None = None,
    ) -> None:
        self._load, self._errors = load, error_classes("errors", errors)
        self._fresh, self._stale = check_wait("fresh", fresh), check_wait("stale", stale)
        if self._stale < self._fresh:
            raise InvalidInput(f"stale={stale!r} must not be less than fresh={fresh!r}")
        if type(most) is not int or most < 1:
            raise InvalidInput(f"most={most!r} must be a whole number of at least 1")
        self._most, self._clock = most, clock or SystemClock()
        self._kept: OrderedDict[K, tuple[float, T]] = OrderedDict()
        self._loading: dict[K, asyncio.Future[T]] = {}

    async def get(self, key: K) -> Reading[T]:
        """The value of that key, and whether it is stale."""
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            if self._clock.monotonic() - kept[0] < self._fresh:
                return Reading(value=kept[1], source="primary")
        try:
            return Reading(value=await self._load_once(key), source="primary")
        except self._errors as error:
            age = 0.0 if kept is None else self._clock.monotonic() - kept[0]
            if kept is None or age > self._stale:
                raise
            log.warning("degraded: a value could not be read (%s), using one from %.0f s ago", told(error), age)
            return Reading(value=kept[1], source="stale", age=age)

    async def _load_once(self, key: K) -> T:
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.ensure_future(self._read(key))
            loading.add_done_callback(_seen)
        return await asyncio.shield(loading)

    async def _read(self, key: K) -> T:
        try:
            value = await self._load(key)
        finally:
            del self._loading[key]
        self._kept[key] = (self._clock.monotonic(), value)
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return value


def _seen(load: asyncio.Future[Any]) -> None:
    """Its callers may all have left: then no other code looks at its error."""
    if not load.cancelled():
        load.exception()
