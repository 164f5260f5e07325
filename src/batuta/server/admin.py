"""Routes under the names that operators of the Pix directory expect."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct, field

from batuta.authoring.client.dead_letters import Reprocessed
from batuta.errors import InvalidFork, InvalidInput, LetterResolved, RunNotCompleted, UnknownLetter, UnknownRun
from batuta.ids import RunId
from batuta.server.dead_letters import DeadLetterFilter, where
from batuta.server.http.call import Call, now
from batuta.server.http.routing import route

_LONGEST = 30.0
_MOST = 1_000
_AT_ONCE = 50


class DeadLetterMetrics(Struct):
    pending_messages: int


class QueueMetrics(Struct, kw_only=True):
    name: str
    ready: int
    delayed: int
    running: int
    oldest_seconds: float | None
    paused: bool


class QueuesMetrics(Struct):
    dlq: DeadLetterMetrics
    queues: list[QueueMetrics]


class ReprocessDlqBody(Struct, kw_only=True, forbid_unknown_fields=True):
    max_messages: int = 100
    filter: DeadLetterFilter = field(default_factory=DeadLetterFilter)
    reason: str = ""


class DlqReprocessed(Struct, kw_only=True):
    successful_count: int
    failed_count: int
    """Dead letters that failed again, or could not be reprocessed."""
    pending_count: int
    """Runs that have not ended yet."""


async def queue_metrics(call: Call) -> QueuesMetrics:
    moment = now()
    pending, queues = await asyncio.gather(call.client.dead_letters.count(), call.client.queues())
    return QueuesMetrics(
        DeadLetterMetrics(pending),
        [
            QueueMetrics(
                name=queue.name,
                ready=queue.ready,
                delayed=queue.delayed,
                running=queue.running,
                oldest_seconds=None if queue.oldest is None else max(0.0, (moment - queue.oldest).total_seconds()),
                paused=queue.paused,
            )
            for queue in queues
        ],
    )


async def reprocess(call: Call) -> DlqReprocessed:
    """Reprocess the newest that match, and wait for the new runs."""
    body: ReprocessDlqBody = call.body
    if not 1 <= body.max_messages <= _MOST:
        raise InvalidInput(f"max_messages={body.max_messages} must be from 1 to {_MOST:,}: ask again for more")
    ends = asyncio.get_running_loop().time() + _LONGEST
    letters = await _find(call, body.max_messages, where(body.filter))
    failed, runs = 0, list[RunId]()
    for place in range(0, len(letters), _AT_ONCE):
        outcome = await _reprocessed(call, letters[place : place + _AT_ONCE], body.reason)
        runs += outcome.runs
        failed += sum(outcome.refused.values())
    states = await asyncio.gather(*(_outcome(call, run_id, ends) for run_id in runs))
    return DlqReprocessed(
        successful_count=states.count(True), failed_count=failed + states.count(False), pending_count=states.count(None)
    )


async def _find(call: Call, limit: int, filters: dict[str, Any]) -> list[RunId]:
    found: list[RunId] = []
    cursor: str | None = None
    while len(found) < limit:
        page = await call.client.dead_letters.list(cursor=cursor, limit=min(1_000, limit - len(found)), **filters)
        found += [letter.run_id for letter in page.letters]
        cursor = page.cursor
        if cursor is None:
            break
    return found


async def _reprocessed(call: Call, run_ids: list[RunId], reason: str) -> Reprocessed:
    try:
        return await call.client.dead_letters.reprocess(run_ids, reason=reason)
    except (InvalidFork, LetterResolved, UnknownRun, UnknownLetter):  # of one alone, why it cannot be is raised
        return Reprocessed(refused={"refused": len(run_ids)})


async def _outcome(call: Call, run_id: RunId, ends: float) -> bool | None:
    """Whether the run went well; None: it has not ended in time."""
    left = max(0.0, ends - asyncio.get_running_loop().time())
    try:
        await (await call.client.get_run(run_id)).result(timeout=left)
    except TimeoutError:
        return None
    except RunNotCompleted:
        return False
    return True


ROUTES = (
    route(
        "GET",
        "/admin/v1/metrics/queues",
        queue_metrics,
        "Counts of dead letters and of the waiting work of each queue.",
        QueuesMetrics,
    ),
    route(
        "POST",
        "/admin/v1/maintenance/reprocess-dlq",
        reprocess,
        "Reprocess dead letters, and wait up to 30 seconds for their new runs.",
        DlqReprocessed,
        body=ReprocessDlqBody,
        many=True,
    ),
)
