"""Secrets of flows. Their values come in, and never go out."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from batuta.server.http.call import Call
from batuta.server.http.routing import Scope, route


class SecretBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The value that actions find as `secret://store/NAME`."""

    value: str
    reason: str = ""

    def __repr__(self) -> str:
        return "<a secret>"


class DeleteSecretQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    reason: str = ""


class SecretNames(Struct):
    secrets: list[str]


class SecretSet(Struct):
    name: str
    reference: str


class SecretDeleted(Struct):
    name: str
    deleted: bool


async def list_secrets(call: Call) -> SecretNames:
    return SecretNames(await call.client.flows.secrets.names())


async def set_secret(call: Call) -> SecretSet:
    body: SecretBody = call.body
    await call.client.flows.secrets.set(call.id, body.value, reason=body.reason)
    return SecretSet(call.id, f"secret://store/{call.id}")


async def delete_secret(call: Call) -> SecretDeleted:
    return SecretDeleted(call.id, await call.client.flows.secrets.remove(call.id, reason=call.query.reason))


_ONE = "/api/secrets/{name}"
_route = partial(route, changes=Scope.ADMIN)
ROUTES = (
    _route("GET", "/api/secrets", list_secrets, "The names of secrets of flows.", SecretNames),
    _route("PUT", _ONE, set_secret, "Store a secret. It is never shown again.", SecretSet, body=SecretBody, large=True),
    _route("DELETE", _ONE, delete_secret, "Delete a secret.", SecretDeleted, query=DeleteSecretQuery),
)
