"""Log lines of commands: to stderr, so that stdout is data alone."""

from __future__ import annotations

import logging
import os

from batuta.authoring.log_context import LogContext
from batuta.cli.common.redaction import redactor
from batuta.errors import InvalidInput
from batuta.printable import PrintableFilter, one_line

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error", "critical")


class TextFormatter(logging.Formatter):
    """One line for people. It ends with the trace id of the run or request that it is about."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as its base has it
        line, trace_id = super().formatMessage(record), one_line(str(getattr(record, "trace_id", "") or ""))
        return line if not trace_id or trace_id in line else f"{line} [trace {trace_id}]"


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
        if shape == "text":
            handler.addFilter(LogContext())
            handler.setFormatter(TextFormatter())
        else:
            from batuta.cli.common.json_logs import log_as_json

            log_as_json(handler)
    redact_logs()


def redact_logs() -> None:
    """Make every current handler hide what BATUTA_REDACT says."""
    found = redactor()
    if found is not None:
        from batuta.redaction import redact_handlers

        redact_handlers(found)
