"""Which run a log record belongs to."""

from __future__ import annotations

import logging
from contextvars import ContextVar

from batuta.authoring.activity.attempt import current_activity
from batuta.authoring.workflow.context import current_runtime, span_of

request_trace: ContextVar[str] = ContextVar("batuta_request_trace", default="")
"""The trace id of the request that is being answered."""


class LogContext(logging.Filter):
    """Adds to each record of an activity or workflow: `run`, `run_id`, `activity` and `attempt` or `workflow`, and
    `trace_id` and `span_id` of its start. A record of a request to the server has its `trace_id`.

    It drops no record; add it to a handler. Existing attributes of a record stay. Records of other code get empty
    attributes.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in _found().items():
            if not getattr(record, name, ""):
                setattr(record, name, value)
        return True


_NOWHERE = dict.fromkeys(("run", "run_id", "workflow", "activity", "attempt", "trace_id", "span_id"), "")


def _found() -> dict[str, str]:
    attempt = current_activity.get()
    if attempt is not None:
        of = attempt.info()
        found = {"run": of.id, "run_id": str(of.run_id), "activity": of.name, "attempt": str(of.attempt)}
        return _NOWHERE | found | {"trace_id": of.trace_id} | span_of(of.trace)
    runtime = current_runtime.get()
    if runtime is not None:
        info = runtime.info()
        return _NOWHERE | runtime.logged | {"workflow": info.workflow} | span_of(info.trace)
    return _NOWHERE | {"trace_id": request_trace.get()}
