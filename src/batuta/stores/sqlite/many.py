"""A statement for many rows at once: one step of SQLite for some dozens of them, not for each."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain

from batuta.stores.sqlite.rows import Row

_SIZES = (128, 32, 8)
"""How many rows a widened statement may take. Few sizes: each is a statement that the driver keeps prepared."""
_VALUES = re.compile(r"VALUES (\([^()]*\))")


def execute_many(cursor: sqlite3.Cursor, statement: str, rows: Sequence[Row]) -> int:
    """`executemany` of an INSERT of values or of a plain UPDATE, in larger pieces. How many rows were written."""
    written, begin = 0, 0
    for size in _SIZES:
        while len(rows) - begin >= size:
            values = list(chain.from_iterable(rows[begin : begin + size]))
            written += cursor.execute(_widened(statement, size), values).rowcount
            begin += size
    if begin < len(rows):
        written += cursor.executemany(statement, rows[begin:] if begin else rows).rowcount
    return written


@cache
def _widened(statement: str, size: int) -> str:
    """The statement for `size` rows. An UPDATE finds its parameters in the columns of a table of values."""
    if statement.startswith("INSERT"):
        return _VALUES.sub(lambda found: "VALUES " + ", ".join([found[1]] * size), statement, count=1)
    numbers = iter(range(1, statement.count("?") + 1))
    head, _, tail = re.sub(r"\?", lambda _: f"given.column{next(numbers)}", statement).partition("WHERE")
    row = f"({', '.join('?' * statement.count('?'))})"
    return f"{head}FROM (VALUES {', '.join([row] * size)}) AS given WHERE{tail}"
