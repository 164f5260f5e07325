"""Whether the process lives, and whether it should be sent requests."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from batuta.errors import SchemaMismatch, StoreError
from batuta.problems import problem_of
from batuta.server.http.call import Answer, Call
from batuta.server.http.routing import public


class Health(Struct):
    status: str


class Check(Struct, kw_only=True):
    ok: bool
    why: str | UnsetType = UNSET


class Readiness(Struct):
    status: str
    """`ready` or `not_ready`."""
    checks: dict[str, Check]


async def healthz(_: Call) -> Health:
    return Health("ok")


async def readyz(call: Call) -> Answer:
    checks = {"store": Check(ok=True), "schema": Check(ok=True), "draining": Check(ok=True)}
    if call.server.draining:
        checks["draining"] = Check(ok=False, why="the server is shutting down: send requests elsewhere")
    try:
        await call.client.namespace.check()
    except SchemaMismatch as error:
        checks["schema"] = Check(ok=False, why=problem_of(error).detail)
    except StoreError as error:
        checks["store"] = Check(ok=False, why=problem_of(error).detail)
    ready = all(check.ok for check in checks.values())
    found = Readiness("ready" if ready else "not_ready", checks)
    return Answer(body=found, status=200 if ready else 503, headers={} if ready else {"Retry-After": "1"})


ROUTES = (
    public("/healthz", healthz, "The process lives. Asks nothing of the database.", Health),
    public("/livez", healthz, "The same as /healthz.", Health),
    public(
        "/readyz", readyz, "The database can be used, its schema is current, and the server is not ending.", Readiness
    ),
)
