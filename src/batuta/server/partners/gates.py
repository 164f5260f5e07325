"""Breakers and limits towards partners."""

from __future__ import annotations

from functools import partial
from typing import Literal

from msgspec import Struct

from batuta.errors import InvalidInput
from batuta.journal.queues import Rate
from batuta.resilience.limits.rules import Bucket
from batuta.resilience.operators import BreakerView, LimitView
from batuta.server.filters import ReasonQuery
from batuta.server.http.call import Call
from batuta.server.http.routing import route
from batuta.server.run_actions import ReasonBody


class Partners(Struct):
    breakers: list[BreakerView]
    limits: list[LimitView]


class ForceBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """open: hold it open. closed: close it, and let it work by itself. off: it lets everything in."""

    state: Literal["open", "closed", "off"]
    reason: str = ""


class PartnerLimitBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A limit in place of the declared one. A rate is a text such as `100/min`."""

    rates: list[str] = []
    concurrency: int | None = None
    capacity: int | None = None
    """Of a balance that the partner keeps, with `refill`."""
    refill: str | None = None
    reason: str = ""


class HoldBody(Struct, kw_only=True, forbid_unknown_fields=True):
    seconds: float
    key: str | None = None


class KeyBody(Struct, kw_only=True, forbid_unknown_fields=True):
    key: str | None = None


class SyncBody(Struct, kw_only=True, forbid_unknown_fields=True):
    balance: float
    key: str | None = None


async def list_partners(call: Call) -> Partners:
    return Partners(list(await call.client.breakers.list()), list(await call.client.limits.list()))


async def force_breaker(call: Call) -> BreakerView:
    body: ForceBody = call.body
    force = {"open": call.client.breakers.open, "closed": call.client.breakers.close, "off": call.client.breakers.off}
    with call.because(body.reason):
        return await force[body.state](call.id)


async def forget_breaker(call: Call) -> Partners:
    with call.because(call.query.reason):
        await call.client.breakers.forget(call.id)
    return await list_partners(call)


async def change_limit(call: Call) -> LimitView:
    body: PartnerLimitBody = call.body
    if (body.capacity is None) != (body.refill is None):
        raise InvalidInput("capacity and refill go together: a balance has both, any other limit has neither")
    bucket = None if body.capacity is None else Bucket(body.capacity, Rate.parse(body.refill))
    with call.because(body.reason):
        return await call.client.limits.change(call.id, rates=body.rates, concurrency=body.concurrency, bucket=bucket)


async def reset_limit(call: Call) -> LimitView:
    with call.because(call.body.reason):
        return await call.client.limits.reset(call.id)


async def forget_limit(call: Call) -> Partners:
    with call.because(call.query.reason):
        await call.client.limits.forget(call.id)
    return await list_partners(call)


async def hold(call: Call) -> LimitView:
    body: HoldBody = call.body
    await call.client.limits.hold(call.id, body.seconds, key=body.key)
    return await call.client.limits.get(call.id)


async def release(call: Call) -> LimitView:
    await call.client.limits.release(call.id, key=call.body.key)
    return await call.client.limits.get(call.id)


async def sync(call: Call) -> LimitView:
    body: SyncBody = call.body
    await call.client.limits.sync(call.id, body.balance, key=body.key)
    return await call.client.limits.get(call.id)


_BREAKER, _LIMIT = "/api/v1/partners/breakers/{name}", "/api/v1/partners/limits/{name}"
_route = partial(route, payloads=True)
ROUTES = (
    _route("GET", "/api/v1/partners", list_partners, "Breakers and limits, as of now.", Partners),
    _route("PUT", _BREAKER, force_breaker, "Force a breaker open, closed or off.", BreakerView, body=ForceBody),
    _route("DELETE", _BREAKER, forget_breaker, "Delete a breaker.", Partners, query=ReasonQuery),
    _route("PUT", _LIMIT, change_limit, "Change a limit, or make one.", LimitView, body=PartnerLimitBody),
    _route("DELETE", _LIMIT, forget_limit, "Delete a limit.", Partners, query=ReasonQuery),
    _route("POST", f"{_LIMIT}/reset", reset_limit, "Go back to what code declares.", LimitView, body=ReasonBody),
    _route("POST", f"{_LIMIT}/hold", hold, "Stop all calls to the partner for a while.", LimitView, body=HoldBody),
    _route("POST", f"{_LIMIT}/release", release, "Allow calls to the partner again.", LimitView, body=KeyBody),
    _route("POST", f"{_LIMIT}/sync", sync, "Tell the balance that the partner keeps.", LimitView, body=SyncBody),
)
