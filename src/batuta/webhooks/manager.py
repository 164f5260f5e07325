"""Webhooks to other people's endpoints: `client.webhooks`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import convert, json

from batuta.authoring.activity.attempt import current_activity
from batuta.authoring.backend import RunPage
from batuta.authoring.jobs import JobCall
from batuta.authoring.retry import Retry
from batuta.authoring.services import StoreAccess
from batuta.clock import SECOND, Clock, SystemClock, as_datetime
from batuta.durations import Duration
from batuta.errors import InvalidInput, NotParked, StoreError, UnknownEndpoint, UnknownLetter
from batuta.ids import digest_of, new_message_id
from batuta.journal.audit import Act, Verb
from batuta.journal.resilience.partners import (
    BREAKER,
    LIMIT,
    WEBHOOK,
    PartnerChange,
    PartnerDocs,
    PartnerRule,
    all_partners,
)
from batuta.journal.states import CLOSED, RunState
from batuta.names import check_name, check_reason
from batuta.serde import encode
from batuta.webhooks.client import SafeHttpClient
from batuta.webhooks.deliveries import JOB, Delivered, Deliverer, Delivery, gate_name
from batuta.webhooks.endpoints import (
    LONGEST_OVERLAP,
    Endpoint,
    EndpointDoc,
    NewEndpoint,
    Secret,
    check_description,
    check_disable_after,
    check_message_id,
    check_period,
    check_type,
    check_types,
    check_url,
    decode_endpoint,
    new_view_of,
    view_of,
)
from batuta.webhooks.signatures import check_secret, new_signing_secret

T = TypeVar("T")

log = logging.getLogger("batuta.webhooks")

LARGEST = 256 * 1024
"""Bytes of a webhook's body."""
OVERLAP = 24 * 3600.0
"""Seconds for which an old secret signs with the new one, unless told otherwise."""
TEST = "webhook.test"
"""The type of the event that `test` sends."""
_CHECKS: dict[str, Callable[[object], Any]] = {
    "url": check_url,
    "types": check_types,
    "description": check_description,
}


class Client(Protocol):
    """The part of a client that webhooks use."""

    @property
    def dead_letters(self) -> Any: ...
    @property
    def enqueue(self) -> Any: ...
    @property
    def enqueue_many(self) -> Any: ...
    @property
    def list(self) -> Any: ...
    @property
    def get(self) -> Any: ...
    @property
    def get_run(self) -> Any: ...


class Webhooks:
    """Endpoints, and the webhooks that are sent to them. Workers with `webhooks=True` deliver."""

    def __init__(self, client: Client, backend: StoreAccess, clock: Clock | None = None) -> None:
        self._client, self._backend, self._clock = client, backend, clock or SystemClock()
        self._http: SafeHttpClient | None = None

    async def close(self) -> None:
        """Close connections to receivers."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    # -- endpoints

    async def create(
        self,
        url: str,
        *,
        types: Sequence[str] = (),
        description: str = "",
        disable_after: Duration | None = None,
        secret: str | None = None,
        reason: str = "",
    ) -> NewEndpoint:
        """Add an endpoint. Its secret is in the answer, and is shown never again.

        `types`: the events that it is told of, such as "order.paid", or "order.*" for all that begin so; all without
        any. `disable_after`: it is disabled by itself when nothing but failures has come of it for so long. `secret`:
        one that the receiver has already. Raises InvalidInput, InvalidURL.
        """
        chosen = new_signing_secret() if secret is None else check_secret(secret)
        fields: dict[str, Any] = {
            "url": check_url(url),
            "types": check_types(types),
            "description": check_description(description),
            "disable_after": check_disable_after(disable_after),
        }
        id = f"ep_{new_message_id()}"
        act = self._backend.act(Verb.CREATE_WEBHOOK, check_reason(reason))

        def rule(docs: PartnerDocs) -> PartnerChange[NewEndpoint]:
            doc = EndpointDoc(secrets=[Secret(text=chosen, created_at=docs.now)], created_at=docs.now, **fields)
            return PartnerChange(new_view_of(id, doc, docs.now), doc.encode())

        return await self._do(id, rule, act)

    async def list(self) -> Sequence[Endpoint]:
        """All endpoints, in the order of their creation."""
        now = self._clock.now()
        found = [view_of(id, doc, now) for id, doc in await self._all()]
        return sorted(found, key=lambda one: (one.created_at, one.id))

    async def get(self, id: str) -> Endpoint:
        """Raises UnknownEndpoint."""
        return view_of(id, await self.read(id), self._clock.now())

    async def update(
        self,
        id: str,
        *,
        url: str | None = None,
        types: Sequence[str] | None = None,
        description: str | None = None,
        disable_after: Duration | None = None,
        reason: str = "",
    ) -> Endpoint:
        """Change the given fields; the others stay. `disable_after=0`: never. Raises UnknownEndpoint, InvalidInput."""
        given = {"url": url, "types": types, "description": description}
        changes = {name: _CHECKS[name](value) for name, value in given.items() if value is not None}
        if disable_after is not None:
            changes["disable_after"] = check_disable_after(disable_after or None)
        if not changes:
            raise InvalidInput("nothing to change: give url=, types=, description= or disable_after=")
        return await self._set(id, reason, **changes)

    async def enable(self, id: str, reason: str = "") -> Endpoint:
        """Deliver again. What failed meanwhile is among the dead letters. Raises UnknownEndpoint."""
        return await self._set(id, reason, enabled=True, reason="", failing_since=None)

    async def disable(self, id: str, reason: str = "") -> Endpoint:
        """Deliver no more: events are not sent to it, and deliveries that are under way fail. Raises
        UnknownEndpoint."""
        return await self._set(id, reason, enabled=False, reason=check_reason(reason) or "by hand")

    async def rotate(
        self, id: str, *, overlap: Duration = OVERLAP, secret: str | None = None, reason: str = ""
    ) -> NewEndpoint:
        """Sign with a new secret, which the answer alone shows; the old one signs, too, for `overlap`. Raises
        UnknownEndpoint, InvalidInput."""
        chosen = new_signing_secret() if secret is None else check_secret(secret)
        lasts = check_period("overlap", overlap, LONGEST_OVERLAP)

        def rule(docs: PartnerDocs) -> PartnerChange[NewEndpoint]:
            doc = self._known(id, docs)
            doc.rotate(chosen, lasts, docs.now)
            return PartnerChange(new_view_of(id, doc, docs.now), doc.encode())

        return await self._do(id, rule, self._backend.act(Verb.ROTATE_WEBHOOK, check_reason(reason)))

    async def delete(self, id: str, reason: str = "") -> None:
        """Forget it, with its breaker and limit. Deliveries that are under way fail. Raises UnknownEndpoint."""

        def rule(docs: PartnerDocs) -> PartnerChange[None]:
            self._known(id, docs)
            return PartnerChange(None, "")

        await self._do(id, rule, self._backend.act(Verb.DELETE_WEBHOOK, check_reason(reason)))
        name = gate_name(id)
        for one in await all_partners(self._backend.store, keys=True):
            if one.name == name and one.kind in (BREAKER, LIMIT):
                await self._backend.store.change_partner(
                    one.kind, name, one.key, lambda _: PartnerChange(None, "", tell=True)
                )

    # -- webhooks

    async def send(
        self,
        event: str,
        data: Any,
        *,
        id: str | None = None,
        endpoints: Sequence[str] | None = None,
        transaction: Any = None,
        retry: Retry | None = None,
        queue: str | None = None,
    ) -> Sequence[Any]:
        """Send an event of that type to every enabled endpoint that takes it: a job for each, durable when this
        returns. Returns their handles.

        `id`: the `webhook-id`; an id that was sent before is not sent again. Without one, an activity derives it from
        its key and the data, so that a retry sends the same; elsewhere it is new. `endpoints`: only these.
        `transaction`, `retry` and `queue`: as for `enqueue`. Raises InvalidInput, UnknownEndpoint,
        NotSerialisable, TooLarge.
        """
        check_type(event)
        payload = encode(data, f"the data of webhook {event!r}", LARGEST)
        chosen = _default_id(event, payload) if id is None else check_message_id(id)
        body = json.encode({"type": event, "timestamp": _iso(self._clock.now()), "data": json.decode(payload)}).decode()
        options: dict[str, Any] = {name: value for name, value in (("retry", retry), ("queue", queue)) if value}
        takers = await self._takers(event, endpoints)
        deliveries = [Delivery(endpoint=one, id=chosen, type=event, body=body) for one in takers]
        calls = [_call(one).with_options(**options) for one in deliveries]
        return [*await self._client.enqueue_many(calls, transaction=transaction)] if calls else []

    async def test(self, id: str) -> Any:
        """Send an event `webhook.test` to one endpoint. Returns the handle of its delivery. Raises UnknownEndpoint."""
        [handle] = await self.send(TEST, {"endpoint": id}, endpoints=[id])
        return handle

    async def deliveries(
        self,
        /,
        *,
        endpoint: str | None = None,
        event: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
        **where: Any,
    ) -> RunPage:
        """Deliveries, newest first: a page of jobs. `endpoint`, `event` (its type), and filters as of `client.list`."""
        tags = {name: value for name, value in (("endpoint", endpoint), ("type", event)) if value is not None}
        found: RunPage = await self._client.list(job=JOB, tags=tags, cursor=cursor, limit=limit, **where)
        return found

    async def resend(self, delivery: str, reason: str = "") -> Any:
        """Deliver again what was delivered or has failed, with the same id and body; `delivery`: its id or run id. One
        that waits for its next attempt is tried now. Returns the handle of the job. Raises UnknownRun, LetterResolved;
        InvalidInput when it is under way."""
        handle = await self._find(delivery)
        run = await handle.describe()
        if run.workflow != JOB:
            raise InvalidInput(f"run {run.id!r} is of {run.workflow!r}, and no delivery of a webhook")
        if run.state not in CLOSED:
            try:
                await handle.retry(reason)
            except NotParked:
                why = f" ({run.reason})" if run.reason else ""
                raise InvalidInput(
                    f"delivery {run.id!r} is under way{why}, and no attempt of it waits for the next"
                ) from None
            return handle
        if run.state is RunState.COMPLETED:
            given = (await handle.timeline()).steps[0].input
            call = _call(convert(given["args"][0] if isinstance(given, dict) else given[0], Delivery))
            return await self._client.enqueue(call.with_options(if_exists="restart"))
        try:
            done = await self._client.dead_letters.reprocess(run.run_id, reason=reason)
        except UnknownLetter:
            await handle.retry(reason)
            return handle
        return await self._client.get_run(done.runs[0])

    async def _find(self, delivery: str) -> Any:
        check_name(delivery, "id of a delivery")
        try:
            return await self._client.get_run(delivery)
        except InvalidInput:
            return await self._client.get(delivery)

    async def _takers(self, event: str, only: Sequence[str] | None) -> Sequence[str]:
        known: dict[str, EndpointDoc] = dict(await self._all())
        if only is None:
            return sorted(id for id, doc in known.items() if doc.enabled and doc.takes(event))
        for id in only:
            if id not in known:
                raise UnknownEndpoint(id)
        return list(dict.fromkeys(only))

    # -- for workers

    def deliverer(self, http: SafeHttpClient | None = None) -> Deliverer:
        """The parts of a worker that deliver. `http`: a client of your own, which you close. Raises MissingExtra."""
        if http is None:
            self._own_http()  # without the extra it is said here, and not by dead letters
        return Deliverer(self, lambda: http or self._own_http(), self._clock)

    def _own_http(self) -> SafeHttpClient:
        if self._http is None:
            self._http = SafeHttpClient()
        return self._http

    async def read(self, id: str) -> EndpointDoc:
        """Raises UnknownEndpoint."""
        return await self._do(id, lambda docs: PartnerChange(self._known(id, docs)), None)

    async def note(self, id: str, *, failed: bool, gone: bool = False) -> None:
        """How an attempt went. A store that is away is no reason to send a webhook twice."""

        def noted(docs: PartnerDocs, disable: bool) -> PartnerChange[str]:
            if docs.doc is None:
                return PartnerChange("")
            doc = decode_endpoint(id, docs.doc)
            was = doc.enabled
            changed = doc.noted(failed=failed, gone=gone, now=docs.now)
            disabled = doc.reason if was and not doc.enabled else ""
            return PartnerChange(disabled, doc.encode() if changed and bool(disabled) == disable else None)

        try:
            why = await self._do(id, lambda docs: noted(docs, disable=False), None)
            if why:  # once more, for the audit log
                act = self._backend.act(Verb.CHANGE_WEBHOOK, why, after={"enabled": False})
                why = await self._do(id, lambda docs: noted(docs, disable=True), act)
        except StoreError as error:
            log.warning("webhook endpoint %s: how an attempt went is not noted: %r", id, error)
            return
        if why:
            log.warning("webhook endpoint %s is disabled: %s", id, why)

    # -- the store

    async def _all(self) -> Sequence[tuple[str, EndpointDoc]]:
        rows = await all_partners(self._backend.store)
        return [(one.name, decode_endpoint(one.name, one.doc)) for one in rows if one.kind == WEBHOOK]

    async def _set(self, id: str, why: str, /, **changes: Any) -> Endpoint:
        def rule(docs: PartnerDocs) -> PartnerChange[Endpoint]:
            doc = self._known(id, docs)
            for name, value in changes.items():
                setattr(doc, name, value)
            return PartnerChange(view_of(id, doc, docs.now), doc.encode())

        shown = {name: value for name, value in changes.items() if name != "url"}
        return await self._do(id, rule, self._backend.act(Verb.CHANGE_WEBHOOK, check_reason(why), after=shown))

    async def _do(self, id: str, rule: PartnerRule[T], act: Act | None) -> T:
        check_name(id, "id of a webhook endpoint")
        return (await self._backend.store.change_partner(WEBHOOK, id, "", rule, act)).answer

    @staticmethod
    def _known(id: str, docs: PartnerDocs) -> EndpointDoc:
        if docs.doc is None:
            raise UnknownEndpoint(id)
        return decode_endpoint(id, docs.doc)


def _call(delivery: Delivery) -> JobCall[Delivered]:
    """The id of the job says which webhook it is: another delivery of it would be the same job."""
    call: JobCall[Delivered] = Deliverer.deliver.call(delivery)
    tags = {"endpoint": delivery.endpoint, "type": delivery.type}
    return call.with_options(id=f"webhook:{delivery.endpoint}:{delivery.id}", tags=tags, key=delivery.endpoint)


def _default_id(event: str, payload: bytes) -> str:
    attempt = current_activity.get()
    if attempt is None:
        return f"msg_{new_message_id()}"
    return f"msg_{digest_of(attempt.info().key, event, payload.decode(), size=16).hex()}"


def _iso(micros: int) -> str:
    return as_datetime(micros // SECOND * SECOND).isoformat().replace("+00:00", "Z")


def delivering(webhooks: Webhooks, given: bool | SafeHttpClient) -> list[Deliverer]:
    """The jobs of a worker that delivers. Raises InvalidInput, MissingExtra."""
    if not isinstance(given, bool | SafeHttpClient):
        raise InvalidInput(f"webhooks={given!r} must be True, False or a batuta.webhooks.SafeHttpClient")
    if given is False:
        return []
    return [webhooks.deliverer(None if given is True else given)]
