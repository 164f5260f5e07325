"""Log lines of workflow code, held back until their turn is durable."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from batuta.errors import told

log = logging.getLogger("batuta.engine")

Line = tuple[int, Callable[[], None]]
"""How many entries the run had with its turn, and what lets it go out."""


def is_printable(error: BaseException) -> bool:
    """Whether a log handler can print its traceback: Python asks its class for attributes, which may refuse."""
    try:
        "".join(traceback.format_exception(error))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - as of a `__getattr__` that raises another error than AttributeError
        return False
    return True


def emit(lines: list[Line], durable: int, id: str) -> list[Line]:
    """Let those go out, in order, whose turn is among the entries that are durable. Returns the rest."""
    for index, (entries, let_go) in enumerate(lines):
        if entries > durable:
            return lines[index:]
        try:
            let_go()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - somebody's log handler must not harm the run
            log.warning("a log line of run %s was lost: %s", id, told(error))
    return []
