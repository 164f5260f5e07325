"""Log lines of commands: to stderr, so that stdout is data alone."""

from __future__ import annotations

import logging
import os

from batuta.cli.redacting import redactor
from batuta.errors import InvalidInput

LEVELS = ("debug", "info", "warning", "error", "critical")


def log_to_stderr(level: str | None = None) -> None:
    """Begin to log, at `level`, else BATUTA_LOG_LEVEL, else info. Raises InvalidInput."""
    chosen = level or os.environ.get("BATUTA_LOG_LEVEL") or "info"
    if chosen.lower() not in LEVELS:
        raise InvalidInput(f"log level {chosen!r} is none of {', '.join(LEVELS)}")
    logging.basicConfig(level=chosen.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", force=True)
    redact_logs()


def redact_logs() -> None:
    """Have every handler that there is hide what BATUTA_REDACT says."""
    found = redactor()
    if found is not None:
        from batuta.redaction import redact_handlers

        redact_handlers(found)
