"""Which run a log record belongs to."""

from __future__ import annotations

import logging

from batuta.authoring.attempt import current_activity
from batuta.authoring.context import current_runtime, trace_ids


class LogContext(logging.Filter):
    """Adds to each record of an activity or workflow: `run`, `run_id`, `activity` and `attempt` or `workflow`, and
    `trace_id` and `span_id` of what started the run. It lets everything pass; give it to a handler.

    Attributes that a record has already stay as they are. Records of other code have them all, empty.
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
        return _NOWHERE | found | trace_ids(of.trace)
    runtime = current_runtime.get()
    if runtime is not None:
        info = runtime.info()
        found = {"run": info.id, "run_id": str(info.run_id), "workflow": info.workflow}
        return _NOWHERE | found | trace_ids(info.trace)
    return _NOWHERE
