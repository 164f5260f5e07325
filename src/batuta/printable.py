"""Makes foreign text safe for terminals and logs: control characters are shown, never executed.

An id, a tag, an error or a reason may come from a stranger. An operator's terminal would execute an escape sequence in
it, and a newline would forge a log line.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterable, Mapping
from textwrap import indent
from typing import Any

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""C0 without newline and tab, C1, separators of lines, marks that turn the direction of text, halves of characters."""
_control = re.compile(f"[{_CONTROLS}]")
_control_or_newline = re.compile(f"[\n\t{_CONTROLS}]")

LOGGERS = (
    "batuta.asgi",
    "batuta.bus",
    "batuta.cache",
    "batuta.degradation",
    "batuta.flows",
    "batuta.idempotency",
    "batuta.engine",
    "batuta.keys",
    "batuta.lease",
    "batuta.dead_letters",
    "batuta.metrics",
    "batuta.otel",
    "batuta.postgres",
    "batuta.quotas",
    "batuta.server",
    "batuta.resilience",
    "batuta.retention",
    "batuta.schedules",
    "batuta.sqlite",
    "batuta.watchdog",
    "batuta.webhooks",
    "batuta.worker",
    "batuta.workflow",
)
"""Every logger of this package."""


def printable(text: str) -> str:
    """The text with control characters written out (`\\x1b`), but for newlines and tabs."""
    return text if _is_plain(text) else _control.sub(_escaped, text)


def one_line(text: str) -> str:
    """The same without newlines and tabs, which are written out, too."""
    return text if _is_plain(text) else _control_or_newline.sub(_escaped, text)


def number_of(count: int, one: str, many: str = "") -> str:
    """`1 file`, `2,000 files`. `many`: what stands after other numbers than one; without it, `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def paragraph(text: str) -> str:
    """The same for a line that is printed. What follows a newline in it is indented, so that it looks like no other."""
    return printable(text).rstrip("\n").replace("\n", "\n  ")


def printable_json(text: str) -> str:
    """JSON that means the same and has no control characters but for newlines and tabs between its values."""
    return _control.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


class PrintableFilter(logging.Filter):
    """Escapes the control characters of a record's message, arguments and traceback.

    Lines of a traceback are indented, so that none of them looks like a record. The filter drops no record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str):
            record.msg = one_line(record.msg)
        if isinstance(record.args, Mapping):
            record.args = {name: _shown(value) for name, value in record.args.items()}
        elif record.args:
            record.args = tuple(map(_shown, record.args))
        if record.exc_info and not record.exc_text:
            record.exc_text = indent(printable("".join(traceback.format_exception(*record.exc_info)).rstrip()), "  ")
        return True


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    safe = one_line(text)
    return value if safe == text else safe


_FILTER = PrintableFilter()


def guard_loggers(names: Iterable[str] = LOGGERS) -> None:
    """Escape control characters in these loggers, by default in all of this package, whatever handles their records."""
    for name in names:
        logging.getLogger(name).addFilter(_FILTER)
