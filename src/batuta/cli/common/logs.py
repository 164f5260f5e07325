"""Log lines of commands, for people or as JSON: to stderr, so that stdout is data alone."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime

from msgspec import json

from batuta.authoring.log_context import LogContext
from batuta.cli.common.redaction import redactor
from batuta.errors import InvalidInput
from batuta.ids import new_trace_id
from batuta.printable import PrintableFilter, one_line

LEVELS = ("debug", "info", "warning", "error", "critical")
_CONTEXT = ("run", "run_id", "workflow", "activity", "attempt", "trace_id", "span_id")
_PLAIN = (
    frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"} | set(_CONTEXT)
)
"""Not `extra` of a call. uvicorn gives `color_message`: the message once more, for terminals."""


class TextFormatter(logging.Formatter):
    """One line for people. It ends with the trace id of the run or request that it is about."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as its base has it
        line, trace_id = super().formatMessage(record), one_line(str(getattr(record, "trace_id", "") or ""))
        return line if not trace_id or trace_id in line else f"{line} [trace {trace_id}]"


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger and message; the run, activity, attempt and trace id that it belongs to;
    the traceback; and what the call gave as `extra`. A line about no run and no request has the trace id of this
    process."""

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


FORMATS = {"text": TextFormatter, "json": JsonFormatter}


def log_to_stderr(level: str | None = None) -> None:
    """Begin to log, at `level`, else BATUTA_LOG_LEVEL, else info; as BATUTA_LOG_FORMAT says. Raises InvalidInput."""
    chosen = level or os.environ.get("BATUTA_LOG_LEVEL") or "info"
    if chosen.lower() not in LEVELS:
        raise InvalidInput(f"unknown log level {chosen!r}: use one of {', '.join(LEVELS)}")
    shape = (os.environ.get("BATUTA_LOG_FORMAT") or "text").lower()
    if shape not in FORMATS:
        raise InvalidInput(f"unknown log format BATUTA_LOG_FORMAT={shape!r}: use one of {', '.join(FORMATS)}")
    logging.basicConfig(level=chosen.upper(), force=True)
    for handler in logging.root.handlers:  # also for what other packages, and the user's code, log
        handler.addFilter(PrintableFilter())
        handler.addFilter(LogContext())
        handler.setFormatter(FORMATS[shape]())
    redact_logs()


def redact_logs() -> None:
    """Make every current handler hide what BATUTA_REDACT says."""
    found = redactor()
    if found is not None:
        from batuta.redaction import redact_handlers

        redact_handlers(found)
