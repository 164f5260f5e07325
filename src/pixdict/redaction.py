"""What pixdict hides in logs, spans and on the dashboard (BATUTA_REDACT=pixdict.redaction:REDACTOR), and a safe log."""

from __future__ import annotations

from batuta.printable import guard_loggers
from batuta.redaction import Redactor, redact_handlers

FIELDS = ("key_value", "account_number", "name")
REDACTOR = Redactor(fields=FIELDS)
"""The usual personal data, and the fields of keys and accounts."""

LOGGERS = (
    "pixdict.bridge",
    "pixdict.caches",
    "pixdict.connect",
    "pixdict.core",
    "pixdict.directory",
    "pixdict.monitor",
    "pixdict.scenarios",
)
"""Every logger of this package."""


def guard_logs() -> None:
    """Personal data stays out of the log, and what the directory or a caller says forges no line of it."""
    redact_handlers(REDACTOR)
    guard_loggers(LOGGERS)
