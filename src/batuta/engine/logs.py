"""Log lines of workflow code, held back until their turn is durable."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("batuta.engine")

Line = tuple[int, Callable[[], None]]
"""How many entries the run had with its turn, and what lets it go out."""


def emit(lines: list[Line], durable: int, id: str) -> list[Line]:
    """Let those go out, in order, whose turn is among the entries that are durable. Returns the rest."""
    for index, (entries, let_go) in enumerate(lines):
        if entries > durable:
            return lines[index:]
        try:
            let_go()
        except Exception as error:  # noqa: BLE001 - somebody's log handler must not harm the run
            log.warning("a log line of run %s was lost: %r", id, error)
    return []
