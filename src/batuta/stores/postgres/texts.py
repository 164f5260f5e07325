"""Columns of a batch as texts, which the database takes apart: the driver takes several times as long for arrays.

It asks of every element of an array whether it is an array itself, which costs more than all the rest of a step's way
to the database.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batuta.errors import BadData
from batuta.ids import RunId
from batuta.stores.postgres.batch import Columns

_BETWEEN = "\x1f"
"""Stands between bodies. JSON writes control characters with an escape, so that none can hold it."""


def entry_texts(columns: Columns) -> list[Any]:
    """For commit_entries: the columns of `entry_columns`. Numbers with commas between them, nothing for null."""
    run_ids, epochs, expected, ords, kinds, ats, crcs, bodies, states, reasons = columns
    body = _BETWEEN.join(bodies)
    if body.count(_BETWEEN) != len(bodies) - 1:
        raise BadData("a journal entry is not JSON: it holds a control character")
    return [
        ",".join([f"{run_id:032x}" for run_id in run_ids]),
        ",".join(map(str, epochs)),
        ",".join(["" if head is None else str(head) for head in expected]),
        ",".join(map(str, ords)),
        ",".join(kinds),
        ",".join(map(str, ats)),
        ",".join(map(str, crcs)),
        body,
        ",".join([state or "" for state in states]),
        reasons if any(reasons) else [],
    ]


_NUMBERS, _WORDS = (19, 20), (1, 4, 5, 6, 7)
"""Columns of a new run that every start fills: epoch and head; id, kind, name, code and queue. None of them is null."""


def start_texts(columns: Columns) -> list[Any]:
    """For commit_entries: the columns of `start_columns`, of which the others stay arrays: they are empty as a rule."""
    texts: list[Any] = list(columns)
    texts[0] = ",".join([run_id.hex for run_id in columns[0]])
    for position in _NUMBERS:
        texts[position] = ",".join(map(str, columns[position]))
    for position in _WORDS:
        words = columns[position]
        texts[position] = text = _BETWEEN.join(words)
        if words and text.count(_BETWEEN) != len(words) - 1:
            raise BadData("the id, name or queue of a run holds a control character")
    return texts


def ids_text(ids: Iterable[RunId]) -> str:
    """Run ids with commas between them."""
    return ",".join([f"{each.int:032x}" for each in ids])
