"""How a request ended, as an HTTP answer: the table of `POST /api/v1/keys`, and the same for the others.

| What happened | Answer |
|---|---|
| done within `wait` | 201 or 200, `{entry_id, status}` |
| slower | 202, status as it is |
| refused by the directory | 400, 403, 404 or 409, by the name of its problem |
| the directory was away for all attempts | 502 |
| the breaker was open on arrival | 503 "Circuit Open", nothing was written |
| a step after the directory failed | 500, and everything was undone |
| it failed, and could not be undone there | 502 |
"""

from __future__ import annotations

import re
from typing import Any

from batuta.server import Refused
from pixdict.bridge.errors import STATE
from pixdict.connect.keys.models import NOT_COMPENSATED, How, Outcome
from pixdict.dict.problems import STATUS

CIRCUIT_OPEN, KEY_CONFLICT = "Circuit Open", "Idempotency key conflict"
BAD_GATEWAY = "Bad Gateway"
_NAME = re.compile(r"[A-Z][A-Za-z]+")
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def refused(status: int, code: str, detail: str, error: str = "", **more: Any) -> Refused:
    """A problem whose `error` is the text of the document, or else the detail."""
    return Refused(status, code, detail, error=error or detail, **more)


def refusal_of(subject: str, outcome: Outcome) -> Refused:
    """The problem that an outcome is, unless it is DONE."""
    more = {"trace": outcome.trace_id} if outcome.trace_id else {}
    if outcome.how is How.UNDONE:
        return refused(500, "compensated", outcome.problem, **more)
    if outcome.how is How.EXHAUSTED:
        is_done_there = outcome.problem == NOT_COMPENSATED
        why = "it was done there, but neither kept here nor undone" if is_done_there else "the directory did not answer"
        detail = f"{why}: the {subject} stays {outcome.status}, and a person was told"
        return refused(502, "attempts_exhausted", detail, BAD_GATEWAY, **more)
    name, _, detail = outcome.problem.partition(": ")
    if not _NAME.fullmatch(name):
        return refused(400, "refused", outcome.problem, **more)
    status = STATUS.get(name, 400)
    if status == 400 and name in STATE:
        status = 409
    return refused(status, _WORD.sub("_", name).lower(), detail or name, directory_problem=name, **more)
