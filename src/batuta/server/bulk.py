"""One verb for many runs: counted first, then carried out as an operation."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from batuta.authoring.client.bulk_operations import Counts, Course, Selection
from batuta.client import Batuta
from batuta.errors import InvalidInput, MatchesEverything, NothingMatches
from batuta.server.filters import Filter, since_now, where
from batuta.server.http.call import Answer, Call, Refused
from batuta.server.http.routing import Scope, route
from batuta.server.operations import Left, Operation, Task, earlier
from batuta.server.run_actions import because, edits

Verb = Literal["pause", "resume", "cancel", "terminate", "retry", "reset", "fork", "delete"]
_STAYS = ("resume", "reset", "fork", "cancel")
"""Runs that these were done to still match the filter: how many are left cannot be counted."""


class CountBody(Struct, kw_only=True, forbid_unknown_fields=True):
    verb: Verb
    filter: Filter = field(default_factory=Filter)
    everything: bool = False
    """Every run of the namespace, in place of filters."""


class BulkBody(CountBody, kw_only=True, forbid_unknown_fields=True):
    """`to` is for reset; `id` (with `{id}` in it) and `at` are for fork; edits are for both."""

    reason: str
    expected: int | None = None
    """The number that was counted: nothing is done when more match now."""
    to: int | None = None
    at: int | None = None
    id: str | None = None
    args: list[Any] | None = None
    input: dict[int, list[Any]] | None = None
    output: dict[int, Any] | None = None
    wait: float = 0.0


class Matched(Struct):
    verb: str
    matched: int


def _select(client: Batuta, body: CountBody) -> Selection:
    if not body.everything and body.filter == Filter(kind=body.filter.kind):
        raise MatchesEverything("no filter is given: give everything=true for every run of the namespace")
    return client.select(everything=body.everything, **where(body.filter))


async def count(call: Call) -> Matched:
    body: CountBody = call.body
    return Matched(body.verb, await _select(call.client, body).count(body.verb))


async def apply(call: Call) -> Answer:
    body: BulkBody = call.body
    because(body.reason)
    if body.verb == "delete" and call.principal.scope < Scope.ADMIN:
        raise Refused(403, "forbidden", "only an admin may delete runs: use another key")
    if body.verb == "reset" and body.to is None:
        raise InvalidInput("reset needs `to`, the last entry to keep; -1: none")
    if body.verb == "fork" and body.id is None:
        raise InvalidInput('fork needs `id`, with {id} in it, such as "{id}-again"')
    call.body = body = replace(body, filter=since_now(body.filter))
    matched = await _select(call.client, body).count(body.verb)
    if not matched:
        raise NothingMatches(f"no run matches that could be had to {body.verb}: ask for the list to see what there is")
    if body.expected is not None and matched > body.expected:
        raise Refused(
            409,
            "count_changed",
            f"{matched} runs match now, and {body.expected} were expected: count again",
            matched=matched,
        )
    answer: Answer = await call.server.operations.begin(call, TASK, body.verb, matched, wait=body.wait)
    return answer


async def _work(client: Batuta, body: BulkBody, operation: Operation) -> None:
    def tell(counts: Counts) -> None:
        operation.done, operation.refused = counts.done, counts.refused

    began = operation.started_at if operation.resumed else None
    course = Course(operation=operation.id, began=began, tell=tell)
    counts = await _do(_select(client, body).on(course), body, body.reason)
    operation.matched, operation.done, operation.refused = counts.matched, counts.done, counts.refused


def _left(client: Batuta, body: BulkBody) -> Left | None:
    selection = _select(client, body)
    return None if body.verb in _STAYS else lambda: selection.count(body.verb)


def _rest(body: BulkBody, began: datetime) -> BulkBody:
    """Runs that it was done to are not met again: those that it made are younger."""
    return replace(body, filter=replace(body.filter, until=earlier(body.filter.until, began)))


TASK = Task(name="runs", body=BulkBody, work=_work, left=_left, rest=_rest, counts_all=True)


async def _do(selection: Selection, body: BulkBody, reason: str) -> Counts:
    if body.verb == "reset" and body.to is not None:
        return await selection.reset(body.to, reason=reason, **edits(body))
    if body.verb == "fork" and body.id is not None:
        return await selection.fork(body.id, at=body.at, reason=reason, **edits(body))
    return await selection.apply(body.verb, reason)


ROUTES = (
    route(
        "POST",
        "/api/v1/runs/bulk/count",
        count,
        "Count the runs that an operation would change.",
        Matched,
        scope=Scope.VIEWER,
        body=CountBody,
    ),
    route(
        "POST",
        "/api/v1/runs/bulk",
        apply,
        "Start an operation on all matching runs.",
        Operation,
        body=BulkBody,
        status=202,
        many=True,
        large=True,
        payloads=True,
    ),
)
