"""What all routes of core have in common: idempotency keys, trace ids, limits, and pages of lists."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct

from batuta.errors import IdempotencyKeyReused, InvalidInput, LimitReached
from batuta.resilience.idempotency import KeptResponse
from batuta.server import Answer, Call, Refused
from pixdict.core.outcomes import KEY_CONFLICT, refused
from pixdict.core.service import Core
from pixdict.dict.entries import is_spelled_in_utc
from pixdict.dict.problems import Violation
from pixdict.errors import DatabaseTimeout

log = logging.getLogger("pixdict.core")

KEPT = frozenset({200, 201, 202, 400, 403, 404, 409, 500})
"""Answers that are kept for a key. Others may be another one later."""
NOT_KEPT = frozenset({"entry_busy", "claim_busy", "idempotency_in_progress"})
MEDIA_TYPE = "application/problem+json"
_MOST = 200

Work = Callable[[], Awaitable[Answer]]
Handler = Callable[[Call], Awaitable[Answer]]


class PageQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """A page of a list."""

    limit: int = 50
    cursor: str = ""


def answering(handler: Handler) -> Handler:
    """Errors of ours as problems."""

    async def answer(call: Call) -> Answer:
        try:
            return await handler(call)
        except LimitReached as error:
            raise refused(
                429, "limit_reached", str(error), "Rate limit exceeded", retry_after=error.retry_after
            ) from None
        except DatabaseTimeout as error:
            log.error("the database is away, trace id %s: %s", call.trace_id, error)
            raise refused(503, "database_away", "the database does not answer: try again", retry_after=1) from error

    return answer


def refuse_violations(violations: list[Violation]) -> None:
    """Raises Refused when there are any."""
    if violations:
        said = "; ".join(f"{one.property}: {one.reason}" for one in violations)
        listed = [{"property": one.property, "reason": one.reason} for one in violations]
        raise refused(400, "invalid_input", said, violations=listed)


def refuse_others(core: Core, ispb: str) -> None:
    """Raises Refused for an account of another institution."""
    if ispb != core.settings.participant:
        why = f"account.participant is {ispb!r}: this is the institution {core.settings.participant}"
        raise refused(403, "participant_invalid", why)


def key_of(call: Call, given: str | None) -> str:
    """The idempotency key, of the header or of the body. "": there is none. Raises Refused."""
    header = call.request.headers.get("idempotency-key")
    if header is not None and given is not None and header != given:
        raise refused(400, "invalid_input", "the header Idempotency-Key and idempotency_key of the body differ")
    return (header if header is not None else given) or ""


def callers(call: Call, key: str) -> str:
    """An idempotency key as that of its caller alone. "": there is none."""
    return f"{call.principal.caller}\0{key}" if key else ""


async def once(core: Core, call: Call, key: str, work: Work) -> Answer:
    """Carry it out once for each key; the same request gets the same answer again."""
    if not key:
        return await work()
    asked = msgspec.json.encode([call.route.method, call.route.path, call.values, call.query, _asked(call.body)])
    made: list[Answer] = []

    async def carry_out() -> tuple[str, bool]:
        answer = await _answered(call, work)
        made.append(answer)
        status = answer.status or 200
        code = answer.body["code"] if isinstance(answer.body, dict) else ""
        keep = status in KEPT and code not in NOT_KEPT
        headers = list(answer.headers.items())
        return KeptResponse.of(status, headers, msgspec.json.encode(answer.body)).encode(), keep

    try:
        text, before = await core.once.once(call.principal.caller, key, asked, carry_out)
    except IdempotencyKeyReused as error:
        raise refused(409, "idempotency_key_reused", str(error), KEY_CONFLICT) from None
    except InvalidInput as error:
        raise refused(400, "invalid_input", str(error)) from None
    if not before:
        return made[0]
    kept = KeptResponse.decode(text)
    headers = dict(kept.headers) | {"Idempotency-Replayed": "true"}
    return Answer(body=Raw(kept.content or b"null"), status=kept.status, headers=headers)


def _asked(body: Any) -> Any:
    """The body without the key itself: it may come in the header the next time."""
    found = msgspec.to_builtins(body)
    if isinstance(found, dict):
        found.pop("idempotency_key", None)
    return found


async def _answered(call: Call, work: Work) -> Answer:
    """A refusal as an answer, so that it can be kept."""
    try:
        return await work()
    except LimitReached:
        raise
    except Refused as error:
        problem = error.problem
        if problem.status >= 500:
            log.error("%s %s: %s, trace id %s", call.route.method, call.route.path, problem.detail, call.trace_id)
        return Answer(
            body=problem.document(call.trace_id), status=problem.status, headers=problem.headers(call.trace_id)
        )


def before_of(query: PageQuery) -> dict[str, Any]:
    """Where a page begins. Raises Refused."""
    if not 1 <= query.limit <= _MOST:
        raise refused(400, "invalid_input", f"limit must be from 1 to {_MOST}", path="limit")
    if not query.cursor:
        return {"limit": query.limit}
    time, _, id = query.cursor.partition("|")
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not is_spelled_in_utc(moment) or not id:
        raise refused(400, "invalid_input", "cursor is not one of a page before", path="cursor")
    return {"limit": query.limit, "before": (moment, id)}
