"""Filters of runs, in query parameters and in bodies: the words of `batuta runs list`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from batuta.durations import parse_duration
from batuta.errors import InvalidInput
from batuta.journal.states import RunState
from batuta.server.http.call import ago, moment

Kind = Literal["workflow", "job", "activity", "any"]


class _Filter(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which runs or jobs: the part that is the same in queries and bodies."""

    state: list[RunState] = []
    name: str | None = None
    queue: str | None = None
    id_prefix: str | None = None
    key: str | None = None
    parent: str | None = None
    since: str | None = None
    until: str | None = None
    older_than: str | None = None
    """A duration such as `1h`: created longer ago."""
    retrying: bool = False
    tries: int | None = None


class JobQuery(_Filter, kw_only=True, forbid_unknown_fields=True):
    """Which jobs."""

    tag: list[str] = []


class RunQuery(JobQuery, kw_only=True, forbid_unknown_fields=True):
    """Which runs."""

    kind: Kind = "workflow"


class JobPageQuery(JobQuery, kw_only=True, forbid_unknown_fields=True):
    """A page of jobs."""

    limit: int = 50
    cursor: str | None = None


class RunPageQuery(RunQuery, kw_only=True, forbid_unknown_fields=True):
    """A page of runs."""

    limit: int = 50
    cursor: str | None = None
    waiting_for: str | None = None


class PageQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    limit: int = 50
    cursor: str | None = None


class ReasonQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Why; it is kept in the audit log."""

    reason: str = ""


class Filter(_Filter, kw_only=True, forbid_unknown_fields=True):
    """Which runs, in a body."""

    kind: Kind = "workflow"
    tags: dict[str, str] = {}


def since_now(given: Filter) -> Filter:
    """The same filter with points in time for `1h` and the like: read later, it lets the same runs through."""
    until = _until(given)
    return replace(
        given,
        since=moment(given.since, "since"),
        until=None if until is None else until.isoformat(),
        older_than=None,
    )


def where(given: JobQuery | Filter, kind: str | None = None) -> dict[str, Any]:
    """Filters for the client. An empty text is a mistake, often of a form: it would match more."""
    kind = kind or getattr(given, "kind", "workflow")
    found: dict[str, Any] = {"kind": kind}
    for name in ("name", "queue", "id_prefix", "key", "parent"):
        value = getattr(given, name)
        if value == "":
            raise InvalidInput(f"{name} is empty: leave it out, or say what it must be")
        if value is not None:
            found["workflow" if name == "name" else name] = value
    if given.state:
        found["states"] = tuple(given.state)
    if given.since is not None:
        found["created_after"] = ago(given.since, "since")
    if (until := _until(given)) is not None:
        found["created_before"] = until
    if given.tries is not None:
        found["retrying"] = given.tries
    elif given.retrying:
        found["retrying"] = True
    tags = given.tags if isinstance(given, Filter) else _tags(given.tag)
    return found | ({"tags": tags} if tags else {})


def _until(given: JobQuery | Filter) -> datetime | None:
    """The end of the time of creation: the earlier of `until` and `older_than`."""
    until, text = ago(given.until, "until"), given.older_than
    if text is not None and parse_duration(text) is None:
        raise InvalidInput(f"older_than={text[:100]!r} must be a duration such as 1h, 30min or 2d")
    return min((end for end in (until, ago(text, "older_than")) if end is not None), default=None)


def _tags(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InvalidInput(f"tag={pair[:100]!r} must be KEY=VALUE")
        found[key] = value
    return found
