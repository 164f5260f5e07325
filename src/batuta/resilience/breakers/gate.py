"""A circuit breaker as a gate: asked in memory, told in batches, shared by all workers through the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from batuta.authoring.gates import Gate, GateCall, GateHost, Keeper, Outcome, Refusal
from batuta.clock import SECOND
from batuta.durations import Duration, in_seconds
from batuta.errors import BreakerOpen, InvalidInput
from batuta.ids import jitter, new_message_id
from batuta.journal.resilience.partners import BREAKER, CLOSED, OPEN, PartnerChange, PartnerDocs
from batuta.resilience.answers import STATUSES, Errors, check_statuses, error_classes, is_failure
from batuta.resilience.breakers.rules import (
    BreakerSettings,
    BreakerState,
    decode_breaker,
    differences,
    new_breaker,
)
from batuta.resilience.partners import SOON, Partners, wake_runs
from batuta.telemetry import BreakerChanged

log = logging.getLogger("batuta.resilience")

Counts = Errors | Callable[[BaseException], bool]

_SUCCESSES_WAIT = 0.25
"""Seconds in which calls that went well are told together."""
_MOST_NOTES = 1_000
_SCOUT = "scout"


class Breaker(Gate):
    """Made by `breaker`."""

    def __init__(
        self,
        name: str,
        settings: BreakerSettings | None,
        counts: Counts,
        ignores: Errors,
        statuses: Sequence[int],
        *,
        watch: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        self.settings, self.watch = settings, watch
        self._predicate: Callable[[BaseException], bool] | None = None
        self._counts: tuple[type[BaseException], ...] = ()
        if isinstance(counts, type) or not callable(counts):
            self._counts = error_classes("counts", counts)
        else:
            self._predicate = counts
        self._ignores = error_classes("ignores", ignores)
        self._statuses = frozenset(check_statuses("statuses", statuses))

    def bind(self, host: GateHost) -> Keeper:
        partners = host.service(Partners)
        keeper = partners.keep(BREAKER, self.name, lambda: BreakerKeeper(self.name, self.settings, partners))
        keeper.agree(self.settings)
        return _BoundBreaker(self, keeper)

    def error(self, refusal: Refusal) -> BreakerOpen:
        return BreakerOpen(self.name, refusal.why, refusal.wait)

    def verdict(self, outcome: Outcome, slow: float | None) -> bool | None:
        """Whether the call went well for the partner; None: nothing is known."""
        error = outcome.error
        if not outcome.ran or isinstance(error, self._ignores):
            return None
        if error is not None:
            try:
                if isinstance(error, self._counts) or (self._predicate is not None and self._predicate(error)):
                    return False
            except KeyboardInterrupt:
                raise
            except BaseException:
                log.exception("breaker %s: counts= raised, so the call does not count", self.name)
                return None
            failed = is_failure(error, self._statuses)
            if failed is None or failed:
                return None if failed is None else False
        return slow is None or outcome.seconds <= slow


class _BoundBreaker:
    """One declaration of a breaker, at the breaker of its name."""

    frees_early = True

    def __init__(self, gate: Breaker, keeper: BreakerKeeper) -> None:
        self._gate, self._keeper = gate, keeper

    def enter(self, call: GateCall) -> object:
        return self._keeper.watch() if self._gate.watch else self._keeper.enter()

    def leave(self, ticket: Any, outcome: Outcome) -> None:
        keeper = self._keeper
        if self._gate.watch:
            keeper.watched(ticket)
        elif ticket is not None:
            keeper.ended(ticket, self._gate.verdict(outcome, keeper.slow))

    def lapsed(self, ticket: Any) -> bool:
        return False


def _report(notes: Sequence[int], turn: int, state: BreakerState, now: int) -> None:
    state.report(notes, turn, now)


class BreakerKeeper:
    """The breaker of one name in one process. Implements `Shared`."""

    kind = BREAKER

    def __init__(self, name: str, settings: BreakerSettings | None, partners: Partners) -> None:
        self.name, self._settings, self._partners, self._host = name, settings, partners, partners.host
        self.known: BreakerState | None = None
        self.slow: float | None = None
        self._notes: list[int] = []
        """Outcomes that are not told yet, in order: so many went well, or (negative) failed."""
        self._turn = 0
        self._telling = self._asking = self._renewing = False
        self._ready: list[str] = []
        """Probes of this process that no call has taken yet."""
        self._under_way: set[str] = set()
        self._scouts = 0
        """Calls that were let in while it is not closed, by gates that only watch."""
        self._refused = self._candidates = 0
        """Calls that were refused, and of those the ones that wait here for a probe."""
        self._denied_until = 0.0
        self._declare()

    def agree(self, settings: BreakerSettings | None) -> None:
        """Two declarations of one name must not differ. Raises InvalidInput."""
        if settings is None or settings == self._settings:
            return
        if self._settings is not None:
            differ = differences(settings, self._settings)
            raise InvalidInput(
                f"breaker {self.name!r} is declared twice with other settings ({differ}): declare it once, and use that"
            )
        self._settings = settings
        self._declare()

    # -- calls

    def enter(self) -> object:
        known = self.known
        if known is None:
            self._partners.check(BREAKER, self.name)
            return Refusal(SOON, "its state is not known yet", self.name, pending=True)
        if known.state == CLOSED:
            return None if known.forced else known.turn
        if self._ready:
            probe = self._ready.pop()
            self._under_way.add(probe)
            return probe
        return self._refuse(known)

    def _refuse(self, known: BreakerState) -> Refusal:
        """Later ones come back later: not all at once when probes are let in. When it closes all are woken."""
        spread = known.settings.open_for * (0.5 + jitter())
        why = f"{known.state}: {known.reason}"
        self._refused += 1
        if known.forced == OPEN:
            return Refusal(spread, f"forced {why}", self.name)
        left = known.opens_in(self._partners.now())
        first = self._refused <= known.settings.probes
        if left > 0:
            return Refusal(left, why, self.name, 0.0 if first else spread)
        self._partners.check(BREAKER, self.name)
        denied = self._host.monotonic() < self._denied_until
        if not denied:
            self._ask()
        self._candidates += 1
        if self._candidates <= known.settings.probes:
            return Refusal(SOON, why, self.name, pending=not denied)
        return Refusal(known.settings.probe_lease, why, self.name, spread)

    def watch(self) -> object:
        """As `enter`, for calls that others count: when the time is over, as many as there are probes go on to them."""
        known = self.known
        if known is None or known.lets_in:
            return Refusal(SOON, "its state is not known yet", self._watchers, pending=True) if known is None else None
        spread, why = known.settings.open_for * jitter(), f"{known.state}: {known.reason}"
        self._refused += 1
        left = known.opens_in(self._partners.now())
        if known.forced == OPEN or left > 0:
            return Refusal(max(left, SOON), why, self._watchers, spread)
        if self._scouts < known.settings.probes:
            self._scouts += 1
            return _SCOUT
        return Refusal(SOON, why, self._watchers, spread)

    def watched(self, ticket: object) -> None:
        """A call that `watch` let in has ended."""
        if ticket is _SCOUT:
            self._scouts -= 1
            self._host.wake(self._watchers, 1)

    @property
    def _watchers(self) -> str:
        """The topic of watching calls, which take no probes."""
        return f"{self.name} watched"

    def ended(self, ticket: int | str, well: bool | None) -> None:
        """A call that was let in has ended."""
        if isinstance(ticket, str):
            self._under_way.discard(ticket)
            self._end_probe(ticket, well)
            return
        known = self.known
        if well is None or known is None or known.turn != ticket:
            return
        if well and not (known.streak or self._notes or known.settings.failure_rate is not None):
            return  # a breaker that has seen no failure needs no word of success
        notes, count = self._notes, 1 if well else -1
        if notes and (notes[-1] > 0) == well:
            notes[-1] += count
        else:
            notes.append(count)
            del notes[:-_MOST_NOTES]
        self._turn = ticket
        if not self._telling:
            self._telling = True
            if well:
                self._host.call_later(_SUCCESSES_WAIT, self._tell)
            else:
                self._tell()

    # -- the store

    def _declare(self) -> None:
        settings = self._settings

        def rule(docs: PartnerDocs) -> PartnerChange[BreakerState]:
            state = decode_breaker(docs.doc) or new_breaker(docs.now, settings)
            state.settings = settings or state.settings
            return PartnerChange(state, state.encode())

        async def work() -> None:
            self._take(await self._partners.change(BREAKER, self.name, "", rule))
            self._host.wake(self.name)
            self._host.wake(self._watchers)

        self._partners.begin(work, self._declare)

    async def _change(self, act: Callable[[BreakerState, int], Any]) -> Any:
        """Have the breaker change, and see to what follows if its state does."""

        def rule(docs: PartnerDocs) -> PartnerChange[tuple[str, BreakerState, Any]]:
            state = decode_breaker(docs.doc) or new_breaker(docs.now, self._settings)
            before, turn, troubled = state.state, state.turn, state.streak > 0
            answer = act(state, docs.now)
            tell = state.turn != turn or (state.streak > 0) != troubled
            return PartnerChange((before if state.turn != turn else "", state, answer), state.encode(), tell)

        before, state, answer = await self._partners.change(BREAKER, self.name, "", rule)
        self.learn(state)
        if before:
            await self._turned(before, state)
        return answer

    async def _turned(self, before: str, state: BreakerState) -> None:
        """This process made it change."""
        log.warning("breaker %s is %s (was %s): %s", self.name, state.state, before, state.reason)
        self._host.report(
            BreakerChanged(state.since / SECOND, self._host.namespace, self.name, state.state, before, state.reason)
        )
        if state.lets_in:
            await wake_runs(self._host.store, self.name)

    def _tell(self) -> None:
        async def work() -> None:
            try:
                while self._notes:
                    notes, turn, self._notes = self._notes, self._turn, []
                    await self._change(partial(_report, notes, turn))
            finally:
                self._telling = False

        self._partners.begin(work)

    def _ask(self) -> None:
        """For as many probes as calls could make."""
        known = self.known
        if self._asking or known is None:
            return
        self._asking = True
        ids = [new_message_id() for _ in range(min(known.settings.probes, self._host.waiting(self.name) + 1))]

        async def work() -> None:
            try:
                granted = await self._change(lambda state, now: state.take_probes(ids, now))
                self._asking, self._candidates = False, 0
                self._ready += granted
                if granted:
                    self._host.call_later(1.0, self._give_back)
                    if not self._renewing:
                        self._renewing = True
                        self._host.call_later(known.settings.probe_lease / 4, self._renew)
                else:
                    self._denied_until = self._host.monotonic() + SOON
                self._host.wake(self.name, len(ids))
            finally:
                self._asking, self._candidates = False, 0

        self._partners.begin(work)

    def _give_back(self) -> None:
        """Calls that asked for them are gone."""
        unused, self._ready = self._ready, []
        for probe in unused:
            self._end_probe(probe, None)

    def _end_probe(self, probe: str, well: bool | None) -> None:
        self._partners.begin(
            lambda: self._change(lambda state, now: state.end_probe(probe, well, now)),
            again=lambda: self._end_probe(probe, well),
        )

    def _renew(self) -> None:
        """While probes are under way, say that this process lives."""
        held = [*self._ready, *self._under_way]
        self._renewing = bool(held)
        if held and self.known is not None:
            self._host.call_later(self.known.settings.probe_lease / 4, self._renew)
            self._partners.begin(lambda: self._change(lambda state, now: state.renew_probes(held, now)))

    def tick(self) -> bool:
        known = self.known
        if known is None or known.lets_in or known.forced or not self._host.waiting(self.name):
            return False
        if not known.opens_in(self._partners.now()):
            self._ask()
        return True

    def learn_doc(self, doc: str | None) -> None:
        state = decode_breaker(doc)
        if state is not None:
            self.learn(state)
        elif self.known is not None:
            self._declare()  # it was forgotten

    def learn(self, state: BreakerState) -> None:
        """Take a state of the store; an older one than ours changes nothing."""
        if self.known is None or state.turn >= self.known.turn:
            self._take(state)

    def _take(self, state: BreakerState) -> None:
        known = self.known
        self.known, self.slow = state, state.settings.slow
        if known is None or state.turn != known.turn:
            refused, self._refused, self._ready, self._notes = self._refused, 0, [], []
            if state.lets_in:
                self._host.wake(self.name)
                self._host.wake(self._watchers)
                if refused:
                    self._partners.wake_refused(self.name)


def breaker(
    name: str,
    *,
    failures: int | None = None,
    failure_rate: float | None = None,
    window: Duration | None = None,
    minimum: int | None = None,
    open_for: Duration | None = None,
    growth: float | None = None,
    longest_open: Duration | None = None,
    probes: int | None = None,
    successes: int | None = None,
    slow: Duration | None = None,
    probe_lease: Duration | None = None,
    counts: Counts = (),
    ignores: Errors = (),
    statuses: Sequence[int] = tuple(sorted(STATUSES)),
    on_refusal: str = "wait",
    longest_wait: Duration | None = None,
    watch: bool = False,
) -> Breaker:
    """A circuit breaker of this name, shared by all workers of the namespace: a gate for `@activity(gates=[...])`.

    It opens after `failures` in a row (5), or when `failure_rate` of the calls in `window` (60 s) failed, with at least
    `minimum` (20) of them. It is open for `open_for` (60 s), each time `growth` times as long, up to `longest_open`.
    Then `probes` calls (1) may find out whether the partner is back; `successes` of them (1) close it, a failure opens
    it again. A call slower than `slow` counts as a failure.

    Network errors, timeouts and the HTTP `statuses` 500 and 503 count, and `counts`: a class, several, or a function
    that is given the error. `ignores`: classes that do not count.

    Without any setting the breaker has those that it was declared with elsewhere, or the defaults. `watch`: this gate
    waits while the breaker is open, and counts nothing; for calls that go to another process which counts them.
    """
    given: dict[str, Any] = {
        "failures": failures,
        "failure_rate": failure_rate,
        "window": in_seconds(window),
        "minimum": minimum,
        "open_for": in_seconds(open_for),
        "growth": growth,
        "longest_open": in_seconds(longest_open),
        "probes": probes,
        "successes": successes,
        "slow": in_seconds(slow),
        "probe_lease": in_seconds(probe_lease),
    }
    given = {option: value for option, value in given.items() if value is not None}
    if failure_rate is not None and failures is None:
        given["failures"] = None
    if open_for is not None and longest_open is None:
        given["longest_open"] = max(3600.0, given["open_for"]) if isinstance(given["open_for"], int | float) else 3600.0
    settings = BreakerSettings(**given) if given else None
    return Breaker(
        name, settings, counts, ignores, statuses, watch=watch, on_refusal=on_refusal, longest_wait=longest_wait
    )
