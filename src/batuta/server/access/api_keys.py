"""Keys of the server over HTTP, and the namespaces that a credential may see."""

from __future__ import annotations

from msgspec import Struct, structs

from batuta.authoring.client.api_keys import ApiKey, NewApiKey
from batuta.errors import InvalidInput
from batuta.server.access.check import EVERY_NAMESPACE
from batuta.server.filters import ReasonQuery
from batuta.server.http.call import Answer, Call
from batuta.server.http.routing import Repeat, Scope, route


class ApiKeysDocument(Struct):
    api_keys: list[ApiKey]


class NewKeyBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """`expires`: seconds from now; null: never."""

    name: str
    scope: str
    expires: float | None = None
    reason: str = ""


class RotateBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """`overlap`: seconds for which the old key still works."""

    overlap: float = 0.0
    reason: str = ""


class Revoked(Struct):
    id: str
    revoked: bool


class NamespaceDocument(Struct):
    name: str


_MOST = 1_000
"""Namespaces that are listed."""


class Namespaces(Struct):
    namespaces: list[NamespaceDocument]
    current: str


async def list_keys(call: Call) -> ApiKeysDocument:
    return ApiKeysDocument(list(await call.client.api_keys.list()))


async def create(call: Call) -> Answer:
    made = await call.client.api_keys.create(**structs.asdict(call.body))
    _keys_changed(call)
    return Answer(body=made, headers=call.located("api-keys", made.id))


async def rotate(call: Call) -> NewApiKey:
    made = await call.client.api_keys.rotate(call.id, **structs.asdict(call.body))
    _keys_changed(call)
    return made


async def revoke(call: Call) -> Revoked:
    if call.id == call.principal.key_id:
        raise InvalidInput("this is the key that you ask with: revoke it with another one, or rotate it")
    await call.client.api_keys.revoke(call.id, reason=call.query.reason)
    _keys_changed(call)
    return Revoked(call.id, True)


def _keys_changed(call: Call) -> None:
    """In an application that decides itself who asks, the server knows no keys."""
    if call.server.credentials is not None:
        call.server.credentials.keys_changed()


async def list_namespaces(call: Call) -> Namespaces:
    current = call.client.namespace.name
    if call.principal.namespace != EVERY_NAMESPACE:
        return Namespaces([NamespaceDocument(current)], current)
    names = await call.client.namespace.others(limit=_MOST)
    return Namespaces([NamespaceDocument(name) for name in sorted({current, *names})], current)


ROUTES = (
    route(
        "GET",
        "/api/v1/api-keys",
        list_keys,
        "The keys of the namespace, without their secrets.",
        ApiKeysDocument,
        scope=Scope.ADMIN,
    ),
    route(
        "POST",
        "/api/v1/api-keys",
        create,
        "Make a key; the answer alone shows it.",
        NewApiKey,
        scope=Scope.ADMIN,
        body=NewKeyBody,
        repeat=Repeat.SECRET,
        status=201,
    ),
    route(
        "POST",
        "/api/v1/api-keys/{id}/rotate",
        rotate,
        "Make a key like this one, and revoke this one.",
        NewApiKey,
        scope=Scope.ADMIN,
        body=RotateBody,
        repeat=Repeat.SECRET,
    ),
    route(
        "DELETE",
        "/api/v1/api-keys/{id}",
        revoke,
        "Refuse a key from now on.",
        Revoked,
        scope=Scope.ADMIN,
        query=ReasonQuery,
    ),
    route("GET", "/api/v1/namespaces", list_namespaces, "The namespaces that the credential may see.", Namespaces),
)
