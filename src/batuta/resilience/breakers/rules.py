"""Rules of a circuit breaker: decisions over its document and the store's time. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field, json
from msgspec.structs import asdict

from batuta.authoring.gates import check_period
from batuta.clock import SECOND
from batuta.errors import InvalidInput
from batuta.journal.resilience.partners import CLOSED, HALF_OPEN, OPEN, is_set_back

OFF = "off"
"""Forced: it lets everything in and counts nothing."""
_PARTS = 10
"""Parts of the window that are counted together."""
_MOST = 1_000_000


class BreakerSettings(Struct, frozen=True, kw_only=True):
    """When a breaker opens and closes. Times are seconds."""

    failures: int | None = 5
    """Failures in a row that open it; None: they do not."""
    failure_rate: float | None = None
    """The share of failures in the window that opens it, more than 0 and at most 1; None: it does not."""
    window: float = 60.0
    minimum: int = 20
    """Calls in the window before the share counts."""
    open_for: float = 60.0
    growth: float = 1.0
    """It is open for so many times as long each time that a probe fails."""
    longest_open: float = 3600.0
    probes: int = 1
    """How many calls may find out at once whether the partner is back."""
    successes: int = 1
    """Successful probes that close it."""
    slow: float | None = None
    """A call that takes longer counts as a failure."""
    probe_lease: float = 15.0
    """A probe of a process that died is given back after so long."""

    def __post_init__(self) -> None:
        for name in ("failures", "minimum", "probes", "successes"):
            value = getattr(self, name)
            if (value is not None or name != "failures") and (type(value) is not int or not 1 <= value <= _MOST):
                raise InvalidInput(f"{name}={value!r} of a breaker must be a whole number from 1 to {_MOST:,}")
        for name in ("window", "open_for", "longest_open", "probe_lease", "slow"):
            if name != "slow" or self.slow is not None:
                check_period(name, getattr(self, name))
        rate: object = self.failure_rate
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1):
            raise InvalidInput(f"failure_rate={rate!r} must be more than 0 and at most 1, such as 0.5 for half")
        growth: object = self.growth
        if isinstance(growth, bool) or not isinstance(growth, int | float) or not 1 <= growth <= 100:
            raise InvalidInput(f"growth={growth!r} must be from 1 (the same time each time) to 100")
        if self.failures is None and rate is None:
            raise InvalidInput("a breaker needs failures=, failure_rate= or both: it would never open")
        if self.longest_open < self.open_for:
            raise InvalidInput(f"longest_open={self.longest_open!r} is less than open_for={self.open_for!r}")


class BreakerState(Struct, kw_only=True):
    """A breaker, as the store keeps it."""

    settings: BreakerSettings = BreakerSettings()
    state: str = CLOSED
    reason: str = ""
    """Why it is so."""
    forced: str = ""
    """open or off: an operator holds it there."""
    since: int = 0
    until: int = 0
    """When it is open: from then on probes are let in."""
    openings: int = 0
    """How often it opened since it was closed."""
    streak: int = 0
    """Failures in a row."""
    counts: list[tuple[int, int, int]] = field(default_factory=list)
    """By the end of each part of the window: calls that went well, and that failed."""
    probes: dict[str, int] = field(default_factory=dict)
    """Probes under way, with when each is given back."""
    passed: int = 0
    """Probes that went well since it is half-open."""
    turn: int = 0
    """Rises with each change of the state: outcomes of calls that were let in before do not count."""

    @property
    def lets_in(self) -> bool:
        return self.state == CLOSED

    def opens_in(self, now: int) -> float:
        """Seconds until probes are let in, when it is open. After the clock was set back: none, for nothing tells how
        long it has been open."""
        if self.state != OPEN or is_set_back(self.since, now):
            return 0.0
        return max(0, self.until - now) / SECOND

    def encode(self) -> str:
        return json.encode(self).decode()

    # -- what happens

    def report(self, outcomes: Sequence[int], turn: int, now: int) -> None:
        """Calls of a process ended: in order, so many went well (positive) or failed (negative)."""
        if self.state != CLOSED or self.forced or turn != self.turn:
            return
        settings, good, bad = self.settings, 0, 0
        for count in outcomes:
            self.streak = 0 if count > 0 else self.streak - count
            good, bad = good + max(0, count), bad - min(0, count)
            if settings.failures is not None and self.streak >= settings.failures:
                self._open(now, f"{self.streak} failures in a row")
                return
        if settings.failure_rate is not None:
            self._count(good, bad, now)
            good, bad = (sum(one[which] for one in self.counts) for which in (1, 2))
            if good + bad >= settings.minimum and bad >= settings.failure_rate * (good + bad):
                self._open(now, f"{bad} of {good + bad} calls failed in {settings.window:g} s")

    def _count(self, good: int, bad: int, now: int) -> None:
        width = max(1, round(self.settings.window * SECOND / _PARTS))
        end, since = now - now % width + width, now - round(self.settings.window * SECOND)
        self.counts = [one for one in self.counts if since < one[0] <= end]
        if self.counts and self.counts[-1][0] == end:
            _, before, failed = self.counts.pop()
            good, bad = good + before, bad + failed
        self.counts.append((end, good, bad))

    def take_probes(self, ids: Sequence[str], now: int) -> list[str]:
        """The probes that may go: with those under way never more than the quota."""
        if self.forced or self.state == CLOSED or self.opens_in(now):
            return []
        if self.state == OPEN:
            self._turn(HALF_OPEN, "it was open for long enough", now)
            self.probes, self.passed = {}, 0
        latest = now + round(self.settings.probe_lease * SECOND)
        self.probes = {id: min(until, latest) for id, until in self.probes.items() if until > now}
        granted = list(ids[: max(0, self.settings.probes - len(self.probes))])
        self.renew_probes(granted, now, new=True)
        return granted

    def renew_probes(self, ids: Sequence[str], now: int, *, new: bool = False) -> None:
        until = now + round(self.settings.probe_lease * SECOND)
        self.probes |= {id: until for id in ids if new or id in self.probes}

    def end_probe(self, id: str, well: bool | None, now: int) -> None:
        """None: it is given back, for nothing is known. A probe that was given back before does not count."""
        if self.probes.pop(id, None) is None or self.state != HALF_OPEN or well is None:
            return
        if not well:
            self._open(now, "a probe failed")
            return
        self.passed += 1
        if self.passed >= self.settings.successes:
            self._close(now, "a probe went well" if self.passed == 1 else f"{self.passed} probes went well")

    def force(self, how: str, reason: str, now: int) -> None:
        """An operator opens it, closes it or switches it off. Closed, it works by itself again."""
        if how not in (OPEN, CLOSED, OFF):
            raise InvalidInput(f"a breaker can be forced {OPEN}, {CLOSED} or {OFF}, not {how!r}")
        if how == OPEN:
            self._turn(OPEN, reason, now)
            self.until = 0
        else:
            self._close(now, reason)
        self.forced = "" if how == CLOSED else how

    def _turn(self, state: str, reason: str, now: int) -> None:
        self.state, self.reason, self.since, self.turn = state, reason, now, self.turn + 1
        self.probes, self.passed, self.streak, self.counts = {}, 0, 0, []

    def _open(self, now: int, reason: str) -> None:
        self._turn(OPEN, reason, now)
        self.openings += 1
        settings = self.settings
        seconds = settings.open_for * settings.growth ** min(self.openings - 1, 100)
        self.until = now + round(min(seconds, settings.longest_open) * SECOND)

    def _close(self, now: int, reason: str) -> None:
        self._turn(CLOSED, reason, now)
        self.openings = self.until = 0


def new_breaker(now: int, settings: BreakerSettings | None) -> BreakerState:
    """Its turns go on after those of one of the same name that was forgotten."""
    return BreakerState(since=now, turn=now, settings=settings or BreakerSettings())


def decode_breaker(doc: str | None) -> BreakerState | None:
    return None if not doc else json.decode(doc, type=BreakerState)


def differences(one: Any, other: Any) -> str:
    """The names of the fields in which two settings differ."""
    mine, theirs = asdict(one), asdict(other)
    return ", ".join(name for name in mine if mine[name] != theirs[name])
