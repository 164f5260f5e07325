"""A call to the directory as it should be made: within its limits, behind the breaker, tried again, carried out once.

Three attempts of 5 s with 1 s and 2 s between them (D-01), for failures after which the directory may be asked again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from math import ceil
from typing import Any, cast

import msgspec
from msgspec import Struct

from batuta import Batuta
from batuta.cache import Cache
from batuta.clock import Clock, SystemClock, as_datetime
from batuta.resilience import breaker
from pixdict.bridge.answers import Answers
from pixdict.bridge.balances import Balances, Charge, charge, lookup_charges
from pixdict.bridge.directory import BrokenAnswer, DirectoryClient, DirectoryRequest, DirectoryUnreachable
from pixdict.bridge.errors import DeadlineExceeded
from pixdict.bridge.settings import BridgeSettings
from pixdict.dict.headers import END_TO_END_ID, PAYER_ID
from pixdict.dict.keys import key_type_of
from pixdict.dict.messages import DeleteEntryResponse, GetEntryResponse, ListPoliciesResponse
from pixdict.dict.operations import OPERATIONS, list_claims_policy
from pixdict.dict.problems import DirectoryRefused, RetryClass

log = logging.getLogger("pixdict.bridge")

BREAKER = "bacen"
_LONGEST_WAIT = 30.0
_NO_READING = 10.0
"""Seconds after a 429 in which the policies are not read: its bucket fills up within a minute."""

_DOUBTS = 10_000
"""Requests of unknown outcome that are remembered."""

Recover = Callable[[datetime], Awaitable[Struct | None]]
"""After an attempt whose outcome is not known: the answer, if it had its effect since that time of the directory."""


class Doubt(Struct):
    """Whether a request may have had its effect already."""

    since: datetime | None = None
    """When an attempt began whose outcome is not known, by the directory's clock."""


class Calls:
    """Calls for one participant."""

    def __init__(
        self,
        directory: DirectoryClient,
        batuta: Batuta,
        settings: BridgeSettings,
        *,
        cache: Cache | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`batuta` is open; its store has the breaker and the kept answers."""
        self._directory, self._batuta, self._settings, self._sleep = directory, batuta, settings, sleep
        self._clock = SystemClock() if clock is None else clock
        self.balances = Balances(refill=settings.refill, bridges=settings.bridges, clock=clock)
        self.answers = Answers(batuta, settings.keep_answers, cache, lock=settings.lock)
        self._breaker = breaker(
            BREAKER,
            failures=settings.failures,
            open_for=settings.open_for,
            counts=_is_outage,
            on_refusal="fail",
        )
        self._reading: asyncio.Task[ListPoliciesResponse] | None = None
        self._no_reading_until = 0.0
        """By the monotonic clock: when the policies may be read again after a 429, while nothing is known."""
        self._doubts: OrderedDict[tuple[str, str], Doubt] = OrderedDict()
        """Of requests that failed and may have had their effect, by their id and digest."""

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._reading

    async def write(
        self,
        request: DirectoryRequest,
        request_id: str,
        until: float,
        *,
        recover: Recover | None = None,
    ) -> Struct:
        """Carried out once for each request id. Raises what `call` does, IdempotencyKeyReused,
        IdempotencyInProgress."""
        asked = msgspec.json.encode([request.operation.name, request.path, request.message])
        name = request_id, hashlib.sha256(asked).hexdigest()
        doubt = Doubt()

        async def carried_out() -> Struct:
            nonlocal doubt
            doubt, began = self._doubts.pop(name, Doubt()), self.directory_time()
            answer = await self.call(request, until, recover=recover, doubt=doubt)
            doubt.since = doubt.since or began  # it is done, but its answer is not kept yet
            return answer

        try:
            return await self.answers.once(request_id, asked, request.operation.response, carried_out)
        except BaseException:
            if doubt.since is not None:
                self._doubts[name] = doubt
            if len(self._doubts) > _DOUBTS:
                self._doubts.popitem(last=False)
            raise

    async def call(
        self, request: DirectoryRequest, until: float, *, recover: Recover | None = None, doubt: Doubt | None = None
    ) -> Struct:
        """The answer of the directory. `until`: by the monotonic clock. `doubt`: what is known of an earlier call of
        the same request. Raises DirectoryRefused, DirectoryUnreachable, BrokenAnswer, BreakerOpen, GateRefused,
        DeadlineExceeded."""
        await self._know_balances(request, until)
        wait, doubt = self._settings.first_wait, doubt or Doubt()
        for attempt in range(1, self._settings.attempts + 1):
            if doubt.since is not None and recover is not None and (found := await recover(doubt.since)) is not None:
                return found
            began = self.directory_time()
            try:
                return await self._attempt(request, until)
            except (asyncio.CancelledError, DeadlineExceeded):  # the caller waits no longer
                doubt.since = doubt.since or began
                raise
            except (DirectoryRefused, DirectoryUnreachable, BrokenAnswer) as error:
                if doubt.since is not None and _is_gone(request, error):
                    return _deleted(request, self._clock)
                if not isinstance(error, DirectoryRefused) or error.status == 500:
                    doubt.since = doubt.since or began
                pause = _pause(error, wait)
                if pause is None or attempt == self._settings.attempts or self._left(until) <= pause:
                    raise
                log.warning("attempt %d of %s: %s", attempt, request.operation.name, error)
            await self._sleep(pause)
            wait *= 2
        raise AssertionError("unreachable")

    async def policies(self, until: float) -> ListPoliciesResponse:
        """All policies of the participant; the balances are those from now on."""
        request = DirectoryRequest(operation=OPERATIONS["listPolicies"])
        return cast(ListPoliciesResponse, await self.call(request, until))

    def directory_time(self) -> datetime:
        """By the directory's clock."""
        return as_datetime(self.balances.now())

    def time_left(self, seconds: float | None) -> float:
        """Until when a call with that much time may take, by the monotonic clock."""
        return self._clock.monotonic() + (self._settings.call_timeout if seconds is None else seconds)

    async def _attempt(self, request: DirectoryRequest, until: float) -> Struct:
        seconds = min(self._settings.timeout, self._left(until))
        if seconds <= 0:
            raise DeadlineExceeded(f"{request.operation.name}: the time of the call is over")
        charges = charges_of(request)
        try:
            async with self._batuta.gates(self.balances, self._breaker, args=[charges]):
                answer = await self._directory.send(request, seconds)
                self.balances.observe(cast(datetime, getattr(answer, "response_time")))  # noqa: B009
                if isinstance(answer, ListPoliciesResponse):
                    self.balances.sync(answer.policies)
                elif isinstance(answer, GetEntryResponse):
                    self.balances.found(request.headers[END_TO_END_ID], request.headers[PAYER_ID], charges)
                return answer
        except DirectoryRefused as error:
            if error.status == 429:
                error.retry_after = error.retry_after or ceil(self.balances.wait(charges_of(request)))
                if request.operation.name == "listPolicies":
                    self._no_reading_until = self._clock.monotonic() + _NO_READING
                else:
                    self._read_policies()
            raise
        except DirectoryUnreachable as error:
            if seconds < self._settings.timeout and self._left(until) <= 0:
                raise DeadlineExceeded(str(error)) from error
            raise

    def _left(self, until: float) -> float:
        return until - self._clock.monotonic()

    async def _know_balances(self, request: DirectoryRequest, until: float) -> None:
        """Before the first call: what would be 429 can only be told when the balances are known."""
        if self.balances.synchronised:
            return
        if (left := self._no_reading_until - self._clock.monotonic()) > 0:
            raise DirectoryRefused("RateLimited", "no tokens were left to read the policies", retry_after=ceil(left))
        if request.operation.name == "listPolicies":
            return
        reading = self._read_policies()
        try:
            async with asyncio.timeout(max(0.0, self._left(until))):
                await asyncio.shield(reading)
        except TimeoutError as error:
            raise DeadlineExceeded("the policies were not read within the time of the call") from error

    def _read_policies(self) -> asyncio.Task[ListPoliciesResponse]:
        """One reading at a time, however many ask."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self.policies(self.time_left(None)))
            self._reading.add_done_callback(_log_failure)
        return self._reading


def _log_failure(reading: asyncio.Task[Any]) -> None:
    if not reading.cancelled() and reading.exception() is not None:
        log.warning("the policies were not read: %s", reading.exception())


def charges_of(request: DirectoryRequest) -> list[Charge]:
    """What a request takes from which buckets."""
    name = request.operation.name
    if name == "getEntry":
        return lookup_charges(str(key_type_of(request.path["Key"])), request.headers[PAYER_ID])
    if name == "listClaims":
        roles = dict(request.query)
        return charge(
            list_claims_policy(is_donor=roles.get("IsDonor") == "true", is_claimer=roles.get("IsClaimer") == "true")
        )
    return charge(request.operation.policy)


def _is_outage(error: BaseException) -> bool:
    """What the breaker counts: no answer, 500 and 503. Refusals are answers."""
    if isinstance(error, DirectoryRefused):
        return error.status in (500, 503)
    return isinstance(error, DirectoryUnreachable | BrokenAnswer)


def _pause(error: Exception, usual: float) -> float | None:
    """Seconds before the next attempt; None: another one does not help."""
    if isinstance(error, DirectoryRefused):
        if error.retry is not RetryClass.AGAIN:
            return None
        return min(max(usual, float(error.retry_after or 0)), _LONGEST_WAIT)
    return usual


def _is_gone(request: DirectoryRequest, error: Exception) -> bool:
    """A deletion that is repeated finds no entry: the first one had its effect."""
    return request.operation.name == "deleteEntry" and isinstance(error, DirectoryRefused) and error.status == 404


def _deleted(request: DirectoryRequest, clock: Clock) -> Struct:
    return DeleteEntryResponse(response_time=as_datetime(clock.now()), correlation_id="0" * 32, key=request.path["Key"])
