"""A statement for many rows at once: one step of SQLite for some dozens of them, not for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

from batuta.stores.sqlite.database.rows import Row
from batuta.stores.sqlite.database.unit_of_work import Executor

Group = tuple[Row, Sequence[Any]]
"""The common values of some rows, and each row's own values, one row after the other."""

_SIZES = (256, 128, 64, 32, 16, 8, 4)
"""How many rows a widened statement may take. Few sizes: each is a statement that the driver keeps prepared."""
_SIZES_ALIKE = _SIZES[:-1]
"""The same for rows that are alike. Fewer are written with all others: to begin a statement costs more than to bind."""
_VALUES = re.compile(r"VALUES \(([^()]*)\)")


def execute_many(executor: Executor, statement: str, rows: Sequence[Row]) -> int:
    """`executemany` of an INSERT of values or of a plain UPDATE, in larger pieces. How many rows were written."""
    written, begin = 0, 0
    for size in _SIZES:
        while len(rows) - begin >= size:
            values = list(chain.from_iterable(rows[begin : begin + size]))
            written += executor.execute(_widened(statement, size), values).rowcount
            begin += size
    if begin < len(rows):
        written += executor.executemany(statement, rows[begin:] if begin else rows).rowcount
    return written


def execute_alike(executor: Executor, statement: str, groups: Iterable[Group], own: int = 1) -> int:
    """The same for rows that differ only in their last `own` values. Returns how many rows were not written.

    The driver binds the common values once for all of them: binding a value costs as much as writing it.
    """
    missing = 0
    odd: list[Row] = []
    for common, values in groups:
        begin, end = 0, len(values)
        if end >= _SIZES_ALIKE[-1] * own:
            for size in _SIZES_ALIKE:
                while end - begin >= size * own:
                    piece = values[begin : begin + size * own]
                    missing += size - executor.execute(_shared(statement, size, own), [*common, *piece]).rowcount
                    begin += size * own
        while begin < end:
            odd.append(common + tuple(values[begin : begin + own]))
            begin += own
    return missing + len(odd) - execute_many(executor, statement, odd)


@cache
def _widened(statement: str, size: int) -> str:
    """The statement for `size` rows. An UPDATE finds its parameters in the columns of a table of values.

    The limit tells SQLite how few they are: in a database that somebody has analysed, it would read all runs else.
    """
    if statement.startswith("INSERT"):
        return _VALUES.sub(lambda found: "VALUES " + ", ".join([f"({found[1]})"] * size), statement, count=1)
    numbers = iter(range(1, statement.count("?") + 1))
    head, _, tail = re.sub(r"\?", lambda _: f"given.column{next(numbers)}", statement).partition("WHERE")
    table = _table(statement.count("?"), size)
    return f"{head}FROM (SELECT * FROM ({table}) LIMIT {size}) AS given WHERE{tail}"  # noqa: S608 - ours


@cache
def _shared(statement: str, size: int, own: int) -> str:
    """The statement for `size` rows that have all but their last `own` parameters in common."""
    if not statement.startswith("INSERT"):
        head, _, tail = statement.rpartition("= ?")
        return f"{head}IN ({', '.join('?' * size)}){tail}"
    head, values, tail = _VALUES.split(statement, maxsplit=1)
    columns = [*values.split(", ")[:-own], *(f"column{number}" for number in range(1, own + 1))]
    # The condition keeps ON CONFLICT from being read as that of a join.
    return f"{head}SELECT {', '.join(columns)} FROM ({_table(own, size)}) WHERE true{tail}"  # noqa: S608 - ours


def _table(columns: int, size: int) -> str:
    return "VALUES " + ", ".join([f"({', '.join('?' * columns)})"] * size)
