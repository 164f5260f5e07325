"""Log lines as JSON: one object a line, for programs that collect logs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from msgspec import json

from batuta.authoring.log_context import LogContext
from batuta.ids import new_trace_id

_CONTEXT = ("run", "run_id", "workflow", "activity", "attempt", "trace_id", "span_id")
_PLAIN = (
    frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"} | set(_CONTEXT)
)
"""Not `extra` of a call. uvicorn gives `color_message`: the message once more, for terminals."""


class JsonFormatter(logging.Formatter):
    """Time, level, logger and message; the run, activity, attempt and trace id that the line belongs to; the traceback;
    and what the call gave as `extra`. A line about no run and no request has the trace id of this process."""

    def __init__(self) -> None:
        super().__init__()
        self._process_trace = new_trace_id()

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in _CONTEXT if (value := getattr(record, name, ""))}
        line.setdefault("trace_id", self._process_trace)
        if record.exc_info or record.exc_text:
            line["error"] = record.exc_text or self.formatException(record.exc_info)  # type: ignore[arg-type]
        if record.stack_info:
            line["stack"] = record.stack_info
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN}
        try:
            return json.encode(line, enc_hook=str).decode()
        except (TypeError, ValueError):  # half a character, or a key that JSON has not
            return json.encode({name: ascii(value) for name, value in line.items()}).decode()


def log_as_json(handler: logging.Handler) -> None:
    """Have the handler write JSON."""
    handler.addFilter(LogContext())
    handler.setFormatter(JsonFormatter())
