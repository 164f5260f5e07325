"""The first page, in one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from statistics import quantiles
from typing import Any

from msgspec import Struct

from batuta.authoring.backend import Description
from batuta.authoring.client.documents import STOPPED, queue_document, read_status
from batuta.authoring.client.workers import WorkerRow
from batuta.errors import InvalidInput
from batuta.journal.records import RunKind
from batuta.journal.states import CLOSED, RunState
from batuta.server.filters import RunQuery, where
from batuta.server.http.call import Call, RunAnswer, ago, now
from batuta.server.http.routing import route
from batuta.server.queues import QueueDocument
from batuta.server.runs import states_of

_SAMPLE = 1_000
_BARS = 36
_BUCKETS = 30
_SHORTEST, _SHORTEST_CUT = timedelta(minutes=5), timedelta(seconds=30)
"""The shortest times that a chart shows."""
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
_OFTEN = 5
_BAD = (RunState.FAILED, RunState.TIMED_OUT)


class StatusQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    tries: int = _OFTEN


class StatusDocument(Struct, kw_only=True):
    """Workers, queues, and runs that need a person."""

    workers: list[WorkerRow]
    queues: list[QueueDocument]
    stopped: dict[str, int]
    more_stopped: bool
    retrying: int
    tries: int
    retrying_often: int
    dead_letters: int


class Bar(RunAnswer, kw_only=True):
    state: RunState
    created_at: datetime | None
    closed_at: datetime | None
    seconds: float | None


class WorkflowBars(Struct, kw_only=True):
    """The last runs of one workflow or job, newest first."""

    name: str
    kind: str
    last: list[Bar]
    open: int = 0
    completed: int = 0
    failed: int = 0
    p50: float | None = None
    p95: float | None = None
    """Seconds from creation to close, as all numbers here of all its runs in the sample, not of the last ones alone."""


class Bucket(Struct, kw_only=True):
    at: datetime
    started: int = 0
    completed: int = 0
    failed: int = 0
    p50: float | None = None
    p95: float | None = None
    """Seconds from creation to close, of runs that closed in this piece of time."""


class Chart(Struct, kw_only=True):
    seconds: float
    """Seconds of one bucket."""
    buckets: list[Bucket]


class Overview(Struct, kw_only=True):
    as_of: datetime
    states: dict[str, int]
    total: int
    needs_attention: dict[str, int]
    workflows: list[WorkflowBars]
    chart: Chart
    sampled: int
    """Bars, chart and durations are made of the newest runs that match: so many."""
    p50: float | None
    p95: float | None
    """Seconds from creation to close, of runs in the sample that have closed."""
    queues: list[QueueDocument]
    workers: list[WorkerRow]


async def status(call: Call) -> dict[str, Any]:
    tries = call.query.tries
    if not 1 <= tries <= 1_000_000:
        raise InvalidInput(f"tries={tries} must be from 1 to 1000000")
    return (await read_status(call.client, tries)).document()


async def overview(call: Call) -> dict[str, Any]:
    query: RunQuery = call.query
    filters, moment = where(query), now()
    counted, page, found = await asyncio.gather(
        states_of(call, dict(filters)),
        call.client.list(limit=_SAMPLE, **filters),
        read_status(call.client, _OFTEN),
    )
    attention = {
        **{str(state): found.stopped[str(state)] for state in STOPPED},
        "retrying": found.retrying,
        "retrying_often": found.retrying_often,
        "dead_letters": found.dead_letters,
    }
    since = _drawable(ago(query.since, "since") or moment - timedelta(hours=1))
    until = _drawable(ago(query.until, "until") or moment)
    p50, p95 = _middle_and_slow(page.runs)
    return {
        "as_of": moment,
        "states": counted.states,
        "total": counted.total,
        "needs_attention": attention,
        "workflows": _bars(page.runs),
        "chart": _chart(page.runs, since, until, is_cut=page.cursor is not None),
        "sampled": len(page.runs),
        "p50": p50,
        "p95": p95,
        "queues": [queue_document(queue) for queue in found.queues],
        "workers": found.workers,
    }


def _drawable(moment: datetime) -> datetime:
    """Away from the ends of the calendar, so that there is time before and after it."""
    return min(max(moment, _FIRST), _LAST)


def _bars(runs: Sequence[Description]) -> list[WorkflowBars]:
    """Workflows first, then jobs and activities."""
    found: dict[tuple[bool, str, str], list[Description]] = {}
    for run in runs:
        found.setdefault((run.kind is not RunKind.WORKFLOW, run.workflow, str(run.kind)), []).append(run)
    return [_bars_of(name, kind, found[is_other, name, kind]) for is_other, name, kind in sorted(found)]


def _bars_of(name: str, kind: str, runs: Sequence[Description]) -> WorkflowBars:
    p50, p95 = _middle_and_slow(runs)
    return WorkflowBars(
        name=name,
        kind=kind,
        last=[
            Bar(
                id=run.id,
                run_id=run.run_id,
                state=run.state,
                created_at=run.created_at,
                closed_at=run.closed_at,
                seconds=_seconds(run),
            )
            for run in runs[:_BARS]
        ],
        open=sum(run.state not in CLOSED for run in runs),
        completed=sum(run.state is RunState.COMPLETED for run in runs),
        failed=sum(run.state in _BAD for run in runs),
        p50=p50,
        p95=p95,
    )


def _seconds(run: Description) -> float | None:
    return None if run.closed_at is None or run.created_at is None else (run.closed_at - run.created_at).total_seconds()


def _middle_and_slow(runs: Sequence[Description]) -> tuple[float | None, float | None]:
    """The median of how long runs took, and what 95 % of them stayed below; None when none has closed."""
    return _quantiles([seconds for run in runs if (seconds := _seconds(run)) is not None])


def _quantiles(times: Sequence[float]) -> tuple[float | None, float | None]:
    if len(times) < 2:
        return (times[0], times[0]) if times else (None, None)
    parts = quantiles(times, n=20, method="inclusive")
    return parts[9], parts[18]


def _chart(runs: Sequence[Description], since: datetime, until: datetime, *, is_cut: bool) -> Chart:
    """Pieces of time of the same length. Time of which no run is known, for there was none, or (`is_cut`) because there
    are more than these, is not drawn."""
    oldest = min((run.created_at for run in runs if run.created_at is not None), default=since)
    since = max(since, min(oldest, until - (_SHORTEST_CUT if is_cut else _SHORTEST)))
    length = max((until - since).total_seconds() / _BUCKETS, 1.0)
    start = since.timestamp()
    buckets = [Bucket(at=datetime.fromtimestamp(start + place * length, UTC)) for place in range(_BUCKETS)]
    took: list[list[float]] = [[] for _ in buckets]

    def place_of(moment: datetime | None) -> int | None:
        place = -1 if moment is None else int((moment.timestamp() - start) // length)
        return place if 0 <= place < _BUCKETS else None

    for run in runs:
        if (place := place_of(run.created_at)) is not None:
            buckets[place].started += 1
        if (place := place_of(run.closed_at)) is not None:
            buckets[place].completed += run.state is RunState.COMPLETED
            buckets[place].failed += run.state in _BAD
            took[place].append(_seconds(run) or 0.0)
    for bucket, times in zip(buckets, took, strict=True):
        bucket.p50, bucket.p95 = _quantiles(times)
    return Chart(seconds=length, buckets=buckets)


ROUTES = (
    route(
        "GET",
        "/api/v1/overview",
        overview,
        "Counts by state, the last runs of each workflow, a chart, queues and workers.",
        Overview,
        query=RunQuery,
        shared=True,
    ),
    route(
        "GET",
        "/api/v1/status",
        status,
        "Workers, queues, and runs that need a person.",
        StatusDocument,
        query=StatusQuery,
        shared=True,
    ),
)
