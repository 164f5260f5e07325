"""Every route, from the table: who may use it, in which namespace, and what bad input leads to."""

from collections.abc import AsyncIterator, Iterator
from itertools import product
from typing import Any, get_origin
from uuid import UUID

import msgspec
import pytest
from starlette.requests import Request

import batuta
from batuta.server import Server
from batuta.server.access.check import Admission
from batuta.server.http.call import Principal
from batuta.server.http.routing import SCOPES, Route, Scope
from batuta.server.table import TABLE
from tests.server.web import Response, Web

PUBLIC = {"/healthz", "/livez", "/readyz", "/openapi.json", "/docs", "/docs.css", "/api/v1/session"}
ADMIN = {
    ("DELETE", "/api/v1/runs/{id}"),
    ("PUT", "/api/v1/quotas/{name}"),
    ("DELETE", "/api/v1/quotas/{name}"),
    ("PUT", "/api/v1/retention"),
    ("DELETE", "/api/v1/retention"),
    ("POST", "/api/v1/retention/prune"),
    ("PUT", "/api/v1/redaction"),
    ("GET", "/api/v1/audit/verify"),
    ("GET", "/api/v1/api-keys"),
    ("POST", "/api/v1/api-keys"),
    ("POST", "/api/v1/api-keys/{id}/rotate"),
    ("DELETE", "/api/v1/api-keys/{id}"),
    ("PUT", "/api/secrets/{name}"),
    ("DELETE", "/api/secrets/{name}"),
    ("DELETE", "/api/v1/bus/subscriptions/{id}"),
    ("POST", "/api/v1/bus/prune"),
    ("POST", "/api/v1/webhooks"),
    ("PATCH", "/api/v1/webhooks/{id}"),
    ("DELETE", "/api/v1/webhooks/{id}"),
    ("POST", "/api/v1/webhooks/{id}/rotate"),
}
READS_BY_POST = {"/api/v1/runs/{id}/query", "/api/v1/runs/bulk/count"}


def expected(route: Route) -> Scope:
    """Who may use it: written here by hand, so that a route cannot be opened by mistake."""
    if route.path in PUBLIC:
        return Scope.PUBLIC
    if (route.method, route.path) in ADMIN:
        return Scope.ADMIN
    return Scope.VIEWER if route.method == "GET" or route.path in READS_BY_POST else Scope.OPERATOR


class ByHeader:
    """Recognises callers by headers of the test."""

    async def recognise(self, request: Request) -> Admission | None:
        if (word := request.headers.get("x-scope")) is None:
            return None
        namespace = request.headers.get("x-namespace", "default")
        return Admission(Principal(name="test", kind="key", scope=SCOPES[word], namespace=namespace), ambient=False)


@pytest.fixture
async def gated(client: batuta.Batuta) -> AsyncIterator[Web]:
    server = Server(client, ways=[ByHeader()])
    yield Web(server.serve)
    await server.close()


def path_of(route: Route) -> str:
    return "/".join("unknown" if part.startswith("{") else part for part in route.path.split("/"))


def body_of(route: Route) -> Any:
    """The smallest body that fits its struct."""
    return None if route.body is None else filled(route.body)


def filled(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        wanted = [field for field in msgspec.structs.fields(kind) if field.required]
        return {field.encode_name: filled(field.type) for field in wanted}
    if get_origin(kind) is list:
        return []
    known = {str: "x", int: 1, float: 1.0, bool: True}
    return known.get(kind, "pause")  # a verb of bulk operations


def is_problem(answer: Response) -> bool:
    found = answer.json
    return (
        answer.headers["content-type"] == "application/problem+json"
        and found["status"] == answer.status
        and found["code"] != ""
        and len(found["trace_id"]) == 32
        and answer.headers["x-trace-id"] == found["trace_id"]
    )


GUARDED = [route for route in TABLE if route.path not in PUBLIC]
WITH_BODY = [route for route in TABLE if route.body is not None]
UNFIT_BODIES = [
    b"{",
    b"[]",
    b'"text"',
    b"null",
    b"\xff\xfe",
    b'{"no_such_field": 1}',
    b'{"reason": "a", "reason": "b"}',
    b'{"reason": NaN}',
    b'{"reason": 1e400}',
    b"[" * 5_000,
    b'{"input": ' + b"[" * 100 + b"]" * 100 + b"}",
]
HUGE = b" " * 40_000_000


@pytest.mark.parametrize("route", TABLE, ids=lambda route: f"{route.method} {route.path}")
def test_each_route_has_the_scope_that_is_expected_of_it(route: Route) -> None:
    assert route.scope is expected(route)


async def test_no_route_answers_without_a_credential(gated: Web) -> None:
    for route in GUARDED:
        answer = await gated.ask(route.method, path_of(route), body_of(route))
        assert (answer.status, answer.json["code"]) == (401, "unauthenticated"), route
        assert answer.headers["www-authenticate"] == "Bearer", route


async def test_a_scope_that_is_too_small_is_refused_and_one_that_suffices_is_let_in(gated: Web) -> None:
    for route, (word, scope) in product(GUARDED, SCOPES.items()):
        answer = await gated.ask(route.method, path_of(route), body_of(route), headers={"x-scope": word})
        assert answer.status < 500, route
        assert (answer.status == 403) is (scope < route.scope), (route, word)


async def test_a_credential_of_another_namespace_works_nowhere_else(gated: Web) -> None:
    for route, namespace in product(GUARDED, ("other", "another")):
        asked = path_of(route) + "?namespace=default"
        headers = {"x-scope": "admin", "x-namespace": namespace}
        answer = await gated.ask(route.method, asked, body_of(route), headers=headers)
        assert (answer.status, answer.json["code"]) == (403, "forbidden"), route


async def test_a_body_that_does_not_fit_is_a_problem(gated: Web) -> None:
    for route, data in product(WITH_BODY, UNFIT_BODIES):
        answer = await gated.ask(route.method, path_of(route), data=data, headers={"x-scope": "admin"})
        assert (answer.status, answer.json["code"], is_problem(answer)) == (400, "invalid_input", True), (route, data)


async def test_a_body_that_is_huge_compressed_or_of_another_kind_is_refused(gated: Web) -> None:
    for route in WITH_BODY:
        path, admin = path_of(route), {"x-scope": "admin"}
        huge = await gated.ask(route.method, path, data=HUGE, headers=admin)
        assert (huge.status, huge.json["code"]) == (413, "too_large"), route
        said = await gated.ask(route.method, path, data=b"{}", headers=admin | {"content-length": "99999999999"})
        assert said.status == 413, route
        packed = await gated.ask(route.method, path, data=b"{}", headers=admin | {"content-encoding": "gzip"})
        assert (packed.status, packed.json["code"]) == (415, "unsupported_media_type"), route
        form = await gated.ask(route.method, path, data=b"a=b", headers=admin | {"content-type": "text/plain"})
        assert form.status == 415, route


def unfit_queries(route: Route) -> Iterator[str]:
    """Query parameters that the route must refuse."""
    known = route.query.__struct_fields__
    yield from ("no_such_parameter=1", "namespace=x&namespace=y&nothing=1", "a=%00", "a=%ff%fe")
    if "limit" in known:
        yield from ("limit=0", "limit=abc", "limit=1&limit=2")
    if "cursor" in known and route.noun != "schedules":
        yield "cursor=%27%3B--"
        yield "cursor=AA%3D%3D"  # NUL in base64
        yield "cursor=%5B%22a%5Cu0000%22%2C1%5D"
        yield f"cursor=%5B%22a%22%2C{10**20}%5D"
    if {"cursor", "event_id"} <= set(known):
        yield f"cursor=x&event_id={UUID(int=1)}"
    if "since" in known:
        yield "since=yesterday"
    if "state" in known and route.noun != "retention":
        yield "state=broken"


async def test_query_parameters_that_do_not_fit_are_problems(gated: Web) -> None:
    for route in TABLE:
        for text in unfit_queries(route):
            path = f"{path_of(route)}?{text}"
            answer = await gated.ask(route.method, path, body_of(route), headers={"x-scope": "admin"})
            assert (answer.status, is_problem(answer)) == (400, True), (route, text)


@pytest.mark.parametrize(
    "given", ["unknown", "%27%3B%20DROP%20TABLE%20runs--", "a%00b", "x" * 600, "%F0%9F%98%80"], ids=lambda id: id[:20]
)
async def test_an_unknown_thing_is_a_problem_or_an_empty_answer(gated: Web, given: str) -> None:
    for route in GUARDED:
        path = "/".join(given if part.startswith("{") else part for part in route.path.split("/"))
        answer = await gated.ask(route.method, path, body_of(route), headers={"x-scope": "admin"})
        assert answer.status < 500, route
        assert answer.status < 400 or is_problem(answer), route


async def test_an_unknown_path_and_a_wrong_method_are_problems(gated: Web) -> None:
    unknown = await gated.get("/api/v1/nothing")
    assert (unknown.status, unknown.json["code"], is_problem(unknown)) == (404, "not_found", True)
    wrong = await gated.ask("PATCH", "/api/v1/runs")
    assert (wrong.status, wrong.headers["allow"], is_problem(wrong)) == (405, "GET, HEAD, POST", True)
    streams = await gated.ask("HEAD", "/api/v1/events")
    assert (streams.status, streams.headers["allow"]) == (405, "GET")
    for method, path, status in (("POST", "/runs", 405), ("OPTIONS", "/", 405), ("GET", "/assets/none.js", 404)):
        answer = await gated.ask(method, path)
        assert (answer.status, is_problem(answer)) == (status, True)
    for route in GUARDED:
        if route.parameters:
            path = "/".join("a%00b" if part.startswith("{") else part for part in route.path.split("/"))
            answer = await gated.ask(route.method, path, body_of(route), headers={"x-scope": "admin"})
            assert (answer.status, answer.json["code"]) == (404, "not_found"), route


async def test_openapi_describes_every_route_with_its_scope(gated: Web) -> None:
    found = (await gated.get("/openapi.json")).json
    described = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in TABLE}
    assert found["paths"]["/api/v1/runs"]["post"]["x-scope"] == "operator"
    ids = [one["operationId"] for methods in found["paths"].values() for one in methods.values()]
    assert len(set(ids)) == len(ids)
    assert not [name for name in found["components"]["schemas"] if "." in name]  # two structs had one name
    start = found["paths"]["/api/v1/runs"]["post"]
    assert (start["requestBody"]["required"], found["paths"]["/api/v1/runs/{id}/pause"]["post"]["requestBody"]) == (
        True,
        {"required": False, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ReasonBody"}}}},
    )
    assert "Idempotency-Key" in [one["name"] for one in start["parameters"]]
    assert "text/event-stream" in found["paths"]["/api/v1/events"]["get"]["responses"]["200"]["content"]


async def test_the_page_of_the_api_has_every_route_and_nothing_from_elsewhere(gated: Web) -> None:
    found = (await gated.get("/openapi.json")).json
    page = await gated.get("/docs")
    text = page.body.decode()
    assert (page.status, "<script" in text, "http" in text, "style=" in text) == (200, False, False, False)
    for methods in found["paths"].values():
        for operation in methods.values():
            assert f"id='{operation['operationId']}'" in text
    for name in found["components"]["schemas"]:
        assert f"id='schema-{name}'" in text
    assert """-d '{&quot;name&quot;: &quot;…&quot;}' $BATUTA/api/v1/runs""".replace("'", "&#x27;") in text
    assert (await gated.get("/docs.css")).headers["content-type"].startswith("text/css")


async def test_an_answer_that_did_not_change_is_not_sent_again(gated: Web) -> None:
    first = await gated.ask("GET", "/api/v1/runs", headers={"x-scope": "viewer"})
    again = await gated.ask(
        "GET", "/api/v1/runs", headers={"x-scope": "viewer", "if-none-match": first.headers["etag"]}
    )
    assert (again.status, again.body) == (304, b"")


async def test_a_trace_that_came_is_kept_and_one_is_made_otherwise(gated: Web) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    came = await gated.ask("GET", "/api/v1/runs", headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
    assert came.json["trace_id"] == trace
    made = await gated.ask("GET", "/api/v1/runs", headers={"traceparent": "nonsense"})
    assert len(made.json["trace_id"]) == 32


async def test_every_answer_has_headers_that_keep_a_browser_safe(gated: Web) -> None:
    for path in ("/", "/api/v1/runs", "/healthz", "/docs", "/assets/none.js", "/some/client/route"):
        headers = (await gated.get(path)).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")


@pytest.mark.parametrize("path", ["/../pyproject.toml", "/%2e%2e/app.py", "/..%2fapp.py", "/assets/..%2f..%2fapp.py"])
async def test_no_file_outside_of_the_dashboard_is_served(gated: Web, path: str) -> None:
    answer = await gated.get(path)
    assert b"def " not in answer.body
