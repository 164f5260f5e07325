"""Webhooks over HTTP: endpoints, deliveries, and events to be sent."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from batuta.authoring.backend import Description, RunPage
from batuta.authoring.client.handle import Handle
from batuta.journal.states import RunState
from batuta.server.filters import ReasonQuery
from batuta.server.http.call import Answer, Call, RunAnswer
from batuta.server.http.routing import Repeat, Scope, route
from batuta.server.run_actions import ReasonBody
from batuta.webhooks import Endpoint, NewEndpoint
from batuta.webhooks.deliveries import gate_name


class EndpointRow(Endpoint, kw_only=True):
    """An endpoint with its breaker and limit, which exist from its first delivery on."""

    breaker: str
    limit: str


class WebhooksPage(Struct, kw_only=True):
    """Endpoints, and a page of deliveries, newest first."""

    endpoints: list[EndpointRow]
    deliveries: list[Description]
    cursor: str | None


class DeliveriesQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which deliveries."""

    endpoint: str | None = None
    type: str | None = None
    state: list[RunState] = []
    limit: int = 50
    cursor: str | None = None


class NewEndpointBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """`types`: empty for all. `disable_after`: seconds of failures alone; null for never."""

    url: str
    types: list[str] = []
    description: str = ""
    disable_after: float | None = None
    reason: str = ""


class EndpointBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields to change. `disable_after`: 0 for never."""

    url: str | None = None
    types: list[str] | None = None
    description: str | None = None
    disable_after: float | None = None
    reason: str = ""


class RotateSecretBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """`overlap`: seconds for which the old secret signs, too."""

    overlap: float = 24 * 3600.0
    reason: str = ""


class WebhookBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """An event for the endpoints that take its type. `id`: the webhook's; one that was sent is not sent again."""

    type: str
    data: Any = None
    id: str | None = None
    endpoints: list[str] | None = None


class SentDelivery(RunAnswer, kw_only=True):
    is_new: bool


class SentWebhook(Struct, kw_only=True):
    deliveries: list[SentDelivery]


class DeletedEndpoint(Struct):
    id: str
    deleted: bool


def _sent(handle: Handle[Any], *, is_new: bool | None = None) -> SentDelivery:
    return SentDelivery(id=handle.id, run_id=handle.run_id, is_new=bool(handle.is_new if is_new is None else is_new))


async def overview(call: Call) -> WebhooksPage:
    client = call.client
    page = await deliveries(call)
    breakers = {one.name: one.state for one in await client.breakers.list()}
    limits = {one.name: one.text() for one in await client.limits.list()}
    rows = [
        EndpointRow(
            **structs.asdict(one),
            breaker=breakers.get(gate_name(one.id), ""),
            limit=limits.get(gate_name(one.id), ""),
        )
        for one in await client.webhooks.list()
    ]
    return WebhooksPage(endpoints=rows, deliveries=list(page.runs), cursor=page.cursor)


async def deliveries(call: Call) -> RunPage:
    query: DeliveriesQuery = call.query
    return await call.client.webhooks.deliveries(
        endpoint=query.endpoint, event=query.type, states=query.state, cursor=query.cursor, limit=query.limit
    )


async def show(call: Call) -> Endpoint:
    return await call.client.webhooks.get(call.id)


async def create(call: Call) -> Answer:
    made = await call.client.webhooks.create(**structs.asdict(call.body))
    return Answer(body=made, headers=call.located("webhooks", made.id))


async def update(call: Call) -> Endpoint:
    return await call.client.webhooks.update(call.id, **structs.asdict(call.body))


async def rotate(call: Call) -> NewEndpoint:
    return await call.client.webhooks.rotate(call.id, **structs.asdict(call.body))


async def enable(call: Call) -> Endpoint:
    return await call.client.webhooks.enable(call.id, call.body.reason)


async def disable(call: Call) -> Endpoint:
    return await call.client.webhooks.disable(call.id, call.body.reason)


async def delete(call: Call) -> DeletedEndpoint:
    await call.client.webhooks.delete(call.id, call.query.reason)
    return DeletedEndpoint(call.id, True)


async def test(call: Call) -> Answer:
    return Answer(body=_sent(await call.client.webhooks.test(call.id)), status=201)


async def send(call: Call) -> Answer:
    body: WebhookBody = call.body
    made = await call.client.webhooks.send(body.type, body.data, id=body.id, endpoints=body.endpoints)
    return Answer(body=SentWebhook(deliveries=[_sent(one) for one in made]), status=201)


async def resend(call: Call) -> Answer:
    return Answer(body=_sent(await call.client.webhooks.resend(call.id, call.body.reason), is_new=True), status=201)


_ALL, _ONE = "/api/v1/webhooks", "/api/v1/webhooks/{id}"
_ADMIN = {"scope": Scope.ADMIN}
_SECRET = {"scope": Scope.ADMIN, "repeat": Repeat.SECRET}
ROUTES = (
    route("GET", _ALL, overview, "Endpoints and deliveries.", WebhooksPage, query=DeliveriesQuery, payloads=True),
    route(
        "POST",
        _ALL,
        create,
        "Add an endpoint; the answer alone shows its secret.",
        NewEndpoint,
        body=NewEndpointBody,
        status=201,
        **_SECRET,
    ),
    route("POST", f"{_ALL}/send", send, "Send an event.", SentWebhook, body=WebhookBody, status=201, large=True),
    route(
        "GET",
        f"{_ALL}/deliveries",
        deliveries,
        "Deliveries, newest first.",
        RunPage,
        query=DeliveriesQuery,
        payloads=True,
    ),
    route(
        "POST",
        f"{_ALL}/deliveries/{{id}}/resend",
        resend,
        "Deliver again, with the same id and body.",
        SentDelivery,
        body=ReasonBody,
        status=201,
    ),
    route("GET", _ONE, show, "One endpoint, without its secrets.", Endpoint, payloads=True),
    route("PATCH", _ONE, update, "Change an endpoint.", Endpoint, body=EndpointBody, payloads=True, **_ADMIN),
    route("DELETE", _ONE, delete, "Delete an endpoint.", DeletedEndpoint, query=ReasonQuery, **_ADMIN),
    route(
        "POST",
        f"{_ONE}/rotate",
        rotate,
        "Sign with a new secret, which the answer alone shows.",
        NewEndpoint,
        body=RotateSecretBody,
        **_SECRET,
    ),
    route("POST", f"{_ONE}/enable", enable, "Deliver to an endpoint again.", Endpoint, body=ReasonBody, payloads=True),
    route(
        "POST", f"{_ONE}/disable", disable, "Stop deliveries to an endpoint.", Endpoint, body=ReasonBody, payloads=True
    ),
    route("POST", f"{_ONE}/test", test, "Send a test event to an endpoint.", SentDelivery, status=201),
)
