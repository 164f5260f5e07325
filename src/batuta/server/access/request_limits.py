"""How often a caller may ask: counts in windows, the limit on wrong keys, and the limit on costly requests."""

from __future__ import annotations

from collections import OrderedDict

from batuta.clock import Clock, SystemClock
from batuta.journal.queues import Rate
from batuta.server.http.call import Principal, Refused
from batuta.server.http.routing import Route, Scope

MOST_WRONG = 10
"""Wrong keys from one address in a minute; ten times as many from all together."""
COSTLY_RATE = Rate(1_000, 60.0)
"""Costly requests with one key; ten times as many with all keys of a namespace."""
_MINUTE = 60.0
_EVERYBODY = ""
"""In place of an address."""
_KEPT = 1_000


class Windows:
    """Counts by name. A window begins with the first count. Bounded: names counted longest ago are forgotten."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def left(self, name: str, most: int) -> float:
        """Seconds until the name may go on; not above 0: it may."""
        since, count = self._counts.get(name, (0.0, 0))
        return since + self._seconds - self._clock.monotonic() if count >= most else 0.0

    def count(self, name: str) -> None:
        moment = self._clock.monotonic()
        since, count = self._counts.get(name, (moment, 0))
        self._counts[name] = (moment, 1) if moment - since > self._seconds else (since, count + 1)
        self._counts.move_to_end(name)
        while len(self._counts) > _KEPT:
            self._counts.popitem(last=False)


class WrongKeys:
    """Counts wrong keys by address, so that they cannot be guessed at speed."""

    def __init__(self, clock: Clock) -> None:
        self._windows = Windows(clock, _MINUTE)

    def check(self, address: str) -> None:
        """Raises Refused when there were too many."""
        left = self._windows.left(address, MOST_WRONG if address else 10 * MOST_WRONG)
        if left > 0:
            raise Refused(429, "too_many_requests", "too many wrong keys: wait, then try again", retry_after=left)

    def note(self, address: str) -> None:
        """A wrong key came from there. Raises Refused when there were too many."""
        for name in (address, _EVERYBODY):
            self.check(name)
        for name in (address, _EVERYBODY):
            self._windows.count(name)


class CostlyRequests:
    """Limits administration and changes of many runs, by key and by namespace. Only keys are counted: this machine
    without a key, and the users of an application that the server is mounted in, are not."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._windows = Windows(SystemClock(), rate.per)

    def admit(self, principal: Principal, route: Route) -> None:
        """Raises Refused when there were too many."""
        if not principal.key_id or not (route.scope is Scope.ADMIN or route.many):
            return
        names = {f"key {principal.key_id}": 1, f"namespace {principal.namespace}": 10}
        for name, times in names.items():
            left = self._windows.left(name, times * self._rate.count)
            if left > 0:
                kind = name.partition(" ")[0]
                detail = (
                    f"the {kind} has made more than {times * self._rate.count} costly requests in {self._rate.per:g} s"
                )
                raise Refused(429, "too_many_requests", f"{detail}: wait, then try again", retry_after=left)
        for name in names:
            self._windows.count(name)
