"""Dead letters: list, group, reprocess, discard."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeVar

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from batuta.authoring.client.dead_letters import Reprocessed
from batuta.client import Batuta
from batuta.errors import InvalidInput, MatchesEverything, PayloadSealed, UnknownRun
from batuta.journal.dead_letters import DeadLetter, DeadLetterGroups
from batuta.journal.records import LetterReason, RunKind
from batuta.journal.tracebacks import traceback_of
from batuta.server.http.call import Answer, Call, ago, moment
from batuta.server.http.routing import route
from batuta.server.operations import Left, Operation, Task, earlier
from batuta.server.run_actions import because
from batuta.server.runs import Count

_MOST = 1_000
"""Dead letters that one request names."""


class DeadLetterFilter(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters."""

    fingerprint: str | None = None
    cause: LetterReason | None = None
    name: str | None = None
    kind: RunKind | None = None
    queue: str | None = None
    key: str | None = None
    error: str | None = None
    activity: str | None = None
    id_prefix: str | None = None
    since: str | None = None
    until: str | None = None


class DeadLetterQuery(DeadLetterFilter, kw_only=True, forbid_unknown_fields=True):
    state: Literal["open", "reprocessed", "discarded", "any"] = "open"


class DeadLetterPageQuery(DeadLetterQuery, kw_only=True, forbid_unknown_fields=True):
    limit: int = 50
    cursor: str | None = None


class DeadLetters(Struct):
    dead_letters: list[DeadLetter]
    cursor: str | None


class DeadLetterDocument(DeadLetter, kw_only=True):
    """A dead letter with the traceback that its run has kept."""

    traceback: str = ""


class Selected(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: one of these."""

    ids: list[str] | None = None
    filter: DeadLetterFilter | None = None
    everything: bool = False


class ReprocessBody(Selected, kw_only=True, forbid_unknown_fields=True):
    """Which: `ids`, or `filter`, or `everything`."""

    mode: Literal["failed_step", "start"] = "failed_step"
    input: list[Any] | None = None
    rate: float | None = None
    dry_run: bool = False
    reason: str = ""
    wait: float = 2.0


class DiscardBody(Selected, kw_only=True, forbid_unknown_fields=True):
    """Which: `ids`, or `filter`, or `everything`. The reason must be given."""

    dry_run: bool = False
    reason: str
    wait: float = 2.0


_RENAMED = {"cause": "reason", "since": "after", "until": "before"}


def where(given: DeadLetterFilter) -> dict[str, Any]:
    """Filters for the client."""
    found: dict[str, Any] = {}
    for name in given.__struct_fields__:
        value = getattr(given, name)
        if name in ("limit", "cursor") or value is None:
            continue
        if value == "":
            raise InvalidInput(f"{name} is empty: leave it out, or say what it must be")
        found[_RENAMED.get(name, name)] = ago(value, name) if name in ("since", "until") else value
    return found


async def list_letters(call: Call) -> DeadLetters:
    query: DeadLetterPageQuery = call.query
    page = await call.client.dead_letters.list(cursor=query.cursor, limit=query.limit, **where(query))
    return DeadLetters(page.letters, page.cursor)


async def groups(call: Call) -> DeadLetterGroups:
    query: DeadLetterPageQuery = call.query
    return await call.client.dead_letters.groups(cursor=query.cursor, limit=query.limit, **where(query))


async def count(call: Call) -> Count:
    return Count(await call.client.dead_letters.count(**where(call.query)))


async def show(call: Call) -> dict[str, Any]:
    letter = await call.client.dead_letters.get(call.id)
    return {**to_builtins(letter), "traceback": await _traceback(call, letter)}


async def _traceback(call: Call, letter: DeadLetter) -> str:
    try:
        handle = await call.client.get_run(letter.run_id)
        entries = (await handle.describe()).entries
        lines = await handle.journal(after=entries - 2, limit=2)
    except (UnknownRun, PayloadSealed):
        return ""
    errors = [command.error for command in lines[-1].body.commands[-1:] if command.error] if lines else []
    return "".join(map(traceback_of, errors))


def _which(body: Selected) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and options for the client."""
    given = [body.ids is not None, body.filter is not None, body.everything]
    if sum(given) != 1:
        raise MatchesEverything("no dead letters are selected: give one of ids, filter and everything=true")
    if body.ids is not None:
        if not 1 <= len(body.ids) <= _MOST:
            raise InvalidInput(f"ids must name 1 to {_MOST:,} dead letters: use a filter for more")
        return [body.ids[0] if len(body.ids) == 1 else body.ids], {}
    filters = {} if body.filter is None else where(body.filter)
    if body.filter is not None and not filters:
        raise MatchesEverything("the filter is empty: give everything=true for all open dead letters")
    return [], filters | {"everything": body.everything}


async def _matched(client: Batuta, body: Selected) -> int:
    if body.ids is not None:
        return len(body.ids)
    return await client.dead_letters.count(**({} if body.filter is None else where(body.filter)))


def _left(client: Batuta, body: Selected) -> Left | None:
    return None if body.ids is not None else lambda: _matched(client, body)


B = TypeVar("B", bound=Selected)


def _since_now(body: B) -> B:
    """The same with points in time for `1h` and the like: read later, they mean the same."""
    if body.filter is None:
        return body
    since, until = moment(body.filter.since, "since"), moment(body.filter.until, "until")
    return replace(body, filter=replace(body.filter, since=since, until=until))


def _rest(body: B, began: datetime) -> B:
    """A dead letter of something that was begun again, and failed again, is younger."""
    if body.ids is not None:
        return body
    found = body.filter or DeadLetterFilter()
    return replace(body, filter=replace(found, until=earlier(found.until, began)), everything=False)


async def _reprocess(client: Batuta, body: ReprocessBody, operation: Operation) -> None:
    which, options = _which(body)
    done: Reprocessed = await client.dead_letters.reprocess(
        *which,
        mode=body.mode,
        input=body.input,
        rate=body.rate,
        reason=body.reason,
        dry_run=body.dry_run,
        **options,
    )
    operation.matched, operation.done = done.matched, done.reprocessed
    operation.refused, operation.result = done.refused, done


async def _discard(client: Batuta, body: DiscardBody, operation: Operation) -> None:
    which, options = _which(body)
    found = await client.dead_letters.discard(*which, reason=body.reason, dry_run=body.dry_run, **options)
    operation.matched, operation.done = found, 0 if body.dry_run else found
    operation.result = {"matched": found, "discarded": operation.done}


REPROCESS = Task(name="reprocess", body=ReprocessBody, work=_reprocess, left=_left, rest=_rest)
DISCARD = Task(name="discard", body=DiscardBody, work=_discard, left=_left, rest=_rest)


async def reprocess(call: Call) -> Answer:
    return await _begin(call, REPROCESS)


async def discard(call: Call) -> Answer:
    because(call.body.reason)
    return await _begin(call, DISCARD)


async def _begin(call: Call, task: Task) -> Answer:
    _which(call.body)
    call.body = _since_now(call.body)
    matched = await _matched(call.client, call.body)
    answer: Answer = await call.server.operations.begin(call, task, task.name, matched, wait=call.body.wait)
    return answer


_ALL = "/api/v1/dead-letters"


ROUTES = (
    route(
        "GET",
        _ALL,
        list_letters,
        "Dead letters, newest first.",
        DeadLetters,
        query=DeadLetterPageQuery,
        payloads=True,
        shared=True,
    ),
    route(
        "GET",
        f"{_ALL}/groups",
        groups,
        "Dead letters grouped by error, with counts.",
        DeadLetterGroups,
        query=DeadLetterPageQuery,
        payloads=True,
        shared=True,
    ),
    route("GET", f"{_ALL}/count", count, "Count the dead letters that match filters.", Count, query=DeadLetterQuery),
    route("GET", f"{_ALL}/{{id}}", show, "One dead letter.", DeadLetterDocument, payloads=True),
    route(
        "POST",
        f"{_ALL}/reprocess",
        reprocess,
        "Reprocess dead letters, one or many.",
        Operation,
        body=ReprocessBody,
        many=True,
        large=True,
        payloads=True,
    ),
    route(
        "POST",
        f"{_ALL}/discard",
        discard,
        "Discard dead letters, with a reason.",
        Operation,
        body=DiscardBody,
        many=True,
        payloads=True,
    ),
)
