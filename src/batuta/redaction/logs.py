"""Redaction of log records, whatever formats them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from batuta.redaction.environment import from_env
from batuta.redaction.redactor import Redactor

_OWN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
"""Attributes of every record; all others are `extra`."""
_FORMATTER = logging.Formatter()


class RedactingFilter(logging.Filter):
    """Hides personal data and secrets in the message, arguments, traceback, stack and `extra` of each record. It lets
    everything pass; give it to a handler, behind filters that add something.

    Without a redactor: that of BATUTA_REDACT, else the usual one. Records keep the text of an error, not the error
    itself: `exc_info` goes, `exc_text` stays.
    """

    def __init__(self, redactor: Redactor | None = None) -> None:
        super().__init__()
        self.redactor = redactor or from_env() or Redactor()

    def filter(self, record: logging.LogRecord) -> bool:
        text = self.redactor.text
        record.msg, record.args = text(self._message(record)), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = _FORMATTER.formatException(record.exc_info)
        record.exc_info = None
        if record.exc_text:
            record.exc_text = text(record.exc_text)
        if record.stack_info:
            record.stack_info = text(record.stack_info)
        for name, value in vars(record).items():
            if name not in _OWN:
                setattr(record, name, self._extra(name, value))
        return True

    def _message(self, record: logging.LogRecord) -> str:
        """With each argument redacted before a format may cut it off."""
        if isinstance(record.args, Mapping):
            record.args = self.redactor.value(record.args)
        elif record.args:
            record.args = tuple(self.redactor.text(one) if isinstance(one, str) else one for one in record.args)
        try:
            return record.getMessage()
        except Exception:  # noqa: BLE001 - logging would print the unredacted arguments
            return f"{record.msg!s} {record.args!r}"

    def _extra(self, name: str, value: Any) -> Any:
        try:
            return self.redactor.named(name, value)
        except Exception:  # noqa: BLE001 - somebody's object must not harm who logs it
            return f"[{type(value).__name__}]"


def redact_handlers(redactor: Redactor | None) -> None:
    """Make every current handler of this process hide what this redactor hides; None: nothing."""
    if redactor is None:
        return
    for handler in _handlers():
        if not any(isinstance(one, RedactingFilter) for one in handler.filters):
            handler.addFilter(RedactingFilter(redactor))


def _handlers() -> Iterator[logging.Handler]:
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield from logger.handlers
    if logging.lastResort is not None:
        yield logging.lastResort
