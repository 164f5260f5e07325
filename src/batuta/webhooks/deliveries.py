"""Deliveries: a job for each webhook and endpoint, behind the endpoint's own breaker and limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from batuta.authoring.gates import (
    Gate,
    GateCall,
    GateHost,
    Keeper,
    Outcome,
    Passes,
    enter_all,
    have_lapsed,
    leave_all,
)
from batuta.authoring.jobs import job
from batuta.authoring.retry import Retry
from batuta.clock import SECOND, Clock, SystemClock
from batuta.errors import (
    AddressRefused,
    InvalidURL,
    MissingExtra,
    NonRetryable,
    PartnerUnreachable,
    ResponseTooLarge,
    UnknownEndpoint,
    WebhookNotAccepted,
    cut,
)
from batuta.resilience.answers import parse_retry_after
from batuta.resilience.breakers.gate import breaker
from batuta.resilience.limits.gate import partner_limit
from batuta.telemetry import WebhookAttempted
from batuta.webhooks.client import HttpResponse, SafeHttpClient
from batuta.webhooks.endpoints import EndpointDoc
from batuta.webhooks.signatures import sign_webhook

JOB: Final = "batuta.webhook"
"""The name of the job that delivers."""
RETRY: Final = Retry(attempts=10, first=5, factor=5, longest=86_400)
"""5 s, 25 s, 2 min, 10 min, 52 min, 4 h, 22 h, 24 h, 24 h: 75 hours in all."""
TOTAL: Final = 7 * 86_400.0
"""Seconds after which a delivery ends, also one that waited for its endpoint's breaker all the time."""
AT_ONCE: Final = 10
"""Deliveries to one endpoint at once, over all workers, unless an operator changes its limit."""
LONGEST_PAUSE: Final = 86_400.0
"""Seconds: a longer Retry-After is taken for this."""
_GONE = 410
_SAID = 200
"""Characters of a receiver's answer that an error repeats."""
_BAD_STATUSES = (408, 425, 429, *range(500, 600))


def gate_name(endpoint: str) -> str:
    """The name of the endpoint's breaker, and of its limit."""
    return f"webhook:{endpoint}"


class Delivery(Struct, kw_only=True):
    """A webhook for one endpoint."""

    endpoint: str
    id: str
    """The `webhook-id`: the same for all attempts, and for all endpoints."""
    type: str
    body: str
    """The body, byte for byte."""


class Delivered(Struct, kw_only=True):
    """The receiver's answer."""

    status: int
    bytes: int


class EndpointGates(Gate):
    """The breaker and the limit of the endpoint that a delivery goes to."""

    frees_early = False

    def bind(self, host: GateHost) -> Keeper:
        return _EndpointKeeper(host)


class _EndpointKeeper:
    frees_early = False

    def __init__(self, host: GateHost) -> None:
        self._host = host
        self._of: dict[str, list[tuple[Gate, Keeper]]] = {}

    def enter(self, call: GateCall) -> object:
        args, kwargs = call.gate_arguments()
        delivery: Delivery = args[0] if args else kwargs["delivery"]
        found = enter_all(self._of.get(delivery.endpoint) or self._bind(delivery.endpoint), call)
        if isinstance(found, tuple):
            gate, refusal = found
            return replace(refusal, gate=gate.name)
        return delivery, found

    def _bind(self, endpoint: str) -> list[tuple[Gate, Keeper]]:
        name = gate_name(endpoint)
        gates: tuple[Gate, ...] = (
            breaker(
                name,
                failures=5,
                open_for=60,
                growth=2,
                longest_open=3_600,
                counts=(PartnerUnreachable, ResponseTooLarge),
                statuses=_BAD_STATUSES,
            ),
            partner_limit(name, concurrency=AT_ONCE, longest_hold=LONGEST_PAUSE),
        )
        found = self._of[endpoint] = [(gate, gate.bind(self._host)) for gate in gates]
        return found

    def lapsed(self, ticket: Any) -> bool:
        passes: Passes = ticket[1]
        return have_lapsed(passes)

    def leave(self, ticket: Any, outcome: Outcome) -> None:
        delivery: Delivery
        passes: Passes
        delivery, passes = ticket
        leave_all(passes, outcome)
        if outcome.ran:
            event = WebhookAttempted(
                SystemClock().now() / SECOND,
                self._host.namespace,
                delivery.endpoint,
                delivery.type,
                _outcome(outcome.error),
                outcome.seconds,
            )
            self._host.report(event)


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "delivered"
    if isinstance(error, WebhookNotAccepted):
        return f"{error.status // 100}xx"
    return "refused" if isinstance(error, NonRetryable) else "unreachable"


class Endpoints(Protocol):
    """The part of the endpoints that a delivery uses."""

    async def read(self, id: str) -> EndpointDoc:
        """Raises UnknownEndpoint."""
        ...

    async def note(self, id: str, *, failed: bool, gone: bool = False) -> None: ...


class Deliverer:
    """Delivers webhooks in a worker."""

    def __init__(self, endpoints: Endpoints, http: Callable[[], SafeHttpClient], clock: Clock | None = None) -> None:
        self._endpoints, self._http, self._clock = endpoints, http, clock or SystemClock()

    @job(name=JOB, retry=RETRY, timeout=60, total_timeout=TOTAL, gates=[EndpointGates("webhook")])
    async def deliver(self, delivery: Delivery) -> Delivered:
        """One attempt. Raises NonRetryable for what no other attempt mends."""
        try:
            endpoint = await self._endpoints.read(delivery.endpoint)
        except UnknownEndpoint as error:
            raise NonRetryable(str(error)) from error
        if not endpoint.enabled:
            raise NonRetryable(f"webhook endpoint {delivery.endpoint!r} is disabled: {endpoint.reason or 'by hand'}")
        now = self._clock.now()
        try:
            response = await self._send(endpoint, delivery, now)
        except (AddressRefused, InvalidURL, MissingExtra) as refused:
            await self._endpoints.note(delivery.endpoint, failed=True)
            raise NonRetryable(str(refused)) from refused
        except (PartnerUnreachable, ResponseTooLarge):
            await self._endpoints.note(delivery.endpoint, failed=True)
            raise
        ok = 200 <= response.status < 300
        if not ok or endpoint.failing_since is not None:
            await self._endpoints.note(delivery.endpoint, failed=not ok, gone=response.status == _GONE)
        return _judged(response, now)

    async def _send(self, endpoint: EndpointDoc, delivery: Delivery, now: int) -> HttpResponse:
        body = delivery.body.encode()
        headers = sign_webhook([one.text for one in endpoint.signing(now)], delivery.id, now // SECOND, body)
        headers |= {"content-type": "application/json", "user-agent": "batuta-webhooks"}
        return await self._http().request("POST", endpoint.url, headers=headers, body=body)


def _judged(response: HttpResponse, now: int) -> Delivered:
    if 200 <= response.status < 300:
        return Delivered(status=response.status, bytes=len(response.body))
    if response.status == _GONE:
        raise NonRetryable("the receiver answered that the endpoint is gone (status 410): it is disabled")
    said = response.headers.get("retry-after")
    wait = None if said is None else parse_retry_after(said, now / SECOND)
    words = " ".join(response.body[: _SAID * 4].decode(errors="replace").split())
    raise WebhookNotAccepted(
        response.status, None if wait is None else min(wait, LONGEST_PAUSE), cut(words, _SAID) if words else ""
    )
