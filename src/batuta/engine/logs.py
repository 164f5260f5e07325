"""Log lines of workflow code, held back until their turn is durable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

log = logging.getLogger("batuta.engine")


def emit_all(lines: Sequence[Callable[[], None]], id: str) -> None:
    """Let them go out, in order."""
    for emit in lines:
        try:
            emit()
        except Exception as error:  # noqa: BLE001 - somebody's log handler must not harm the run
            log.warning("a log line of run %s was lost: %r", id, error)
