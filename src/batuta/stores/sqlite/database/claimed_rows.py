"""Runs that are being claimed: rows with all that is needed to own most of them and to bring them into memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from msgspec import MsgspecError, Raw, Struct, json

from batuta.errors import PayloadDamaged
from batuta.ids import RunId
from batuta.journal.entries import Entry, EntryKind
from batuta.journal.records import Run, RunKind, StoredRun
from batuta.journal.states import RunState
from batuta.stores.contract import rules
from batuta.stores.contract.claimed_run import Rare
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import Row
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork, Values


class _Rare(Rare, array_like=True):
    """With what becomes of it when it is claimed."""

    expires_at: int | None
    debounced: int

    @property
    def is_anew(self) -> bool:
        """Whether it could expire or was debounced, until it is claimed."""
        return self.expires_at is not None or bool(self.debounced)


Due = tuple[
    int, int, int, _Rare | None, RunId, str, RunKind, str, str, int, int, int, str, int, EntryKind | None, int | None,
    int | None, str | None,
]  # fmt: skip
"""A row, as it is before it is owned: `_COLUMNS`."""

# All rows come as one JSON text: SQLite makes it without the interpreter's lock, and it is decoded in one go, with ids
# and kinds as they are needed. What few runs have comes as an array of its own: see `Rare`. A run that sleeps after its
# start has a journal of one entry, and nothing else: that comes with the run, so that nothing is to be read of it
# afterwards. Of the others it says that there may be more; of long ones, too, for the text has its limits.
_COLUMNS: Final = """
    runs.rowid, -priority, wake_at,
    json(iif(deaths = 0 AND deadline IS NULL AND expires_at IS NULL AND debounce IS NULL AND chain_id = runs.run_id
        AND parent_run_id IS NULL AND parent_seq = 0 AND forked_from IS NULL AND flow_key = '' AND version = ''
        AND tags = '{}' AND memo = 'null' AND failed_code = '[]' AND awaits = 0 AND forked_at = -1, NULL,
        json_array(iif(head = claimed_head, deaths, 0), deadline, hex(chain_id), nullif(hex(parent_run_id), ''),
            parent_seq, nullif(hex(forked_from), ''), forked_at, flow_key, version, tags, memo,
            json(iif(json_valid(failed_code), failed_code, '[]')),
            awaits, expires_at, debounce IS NOT NULL))),
    hex(runs.run_id), id, kind, name, queue, epoch, head, created_at, code,
    iif(head = 0, EXISTS (SELECT 1 FROM attempts AS a WHERE a.run_id = runs.run_id AND a.namespace = runs.namespace)
        OR EXISTS (SELECT 1 FROM inbox AS i
            WHERE i.chain_id = runs.chain_id AND i.namespace = runs.namespace AND consumed_at IS NULL), 1),
    first_kind, first_at, first_crc, first_body"""

_RUNS: Final = """runs LEFT JOIN (
        SELECT run_id AS first_of, namespace AS first_in, ord AS first_ord, kind AS first_kind, at AS first_at,
            crc AS first_crc, iif(length(body) <= 10000, body, NULL) AS first_body
        FROM journal
    ) ON head = 0 AND first_of = runs.run_id AND first_in = runs.namespace AND first_ord = 0"""


def _as_text(query: str) -> str:
    rows = query.replace("SELECT *", f"SELECT json_array({_COLUMNS}) AS due", 1).rstrip(";")
    return f"SELECT group_concat(due, ',') FROM ({rows.replace('FROM runs', f'FROM {_RUNS}', 1)})"  # noqa: S608 - ours


DUE, DUE_SUSPECT, BY_ROWID = (_as_text(Q[name]) for name in ("due", "due_suspect", "runs_by_rowid"))
"""The statements that `read_due` takes."""

_RUNNING: Final = RunState.RUNNING
_rows = json.Decoder(list[Due]).decode
_row = json.Decoder(Due).decode
_parts = json.Decoder(list[Raw]).decode

place = itemgetter(1, 2)
"""The rank of a row among the due ones."""


def read_due(unit: UnitOfWork, statement: str, values: Values) -> list[Due]:
    """The rows of one of the statements above."""
    ((text,),) = unit.executor.execute(statement, values).fetchall()
    try:
        return [] if text is None else _rows(f"[{text}]")
    except MsgspecError as error:
        return _readable(unit, text, error)


def _readable(unit: UnitOfWork, text: str, error: MsgspecError) -> list[Due]:
    """The rows without those that cannot be read: they are parked, so that the others go on."""
    if isinstance(unit.executor, sqlite3.Connection):  # of a reader
        raise PayloadDamaged(f"a due run cannot be read: {error}")
    rows: list[Due] = []
    for part in _parts(f"[{text}]"):
        try:
            rows.append(_row(part))
        except MsgspecError as damage:
            reason = f"PayloadDamaged: its row cannot be read: {damage}; restore it from a backup"
            unit.change("park_damaged", (reason, json.decode(_parts(part)[0], type=int)))
    return rows


class Owned(Struct):
    """The claimed runs."""

    worker_id: str = ""
    now: int = 0
    rows: list[Due] = []
    """Their state before."""
    choose: Callable[[], list[Due]] | None = None
    """Finds the rows, if they are not known yet."""
    held: bool = False
    again_at: int | None = None
    """As a `Claim` says."""

    def rowids(self) -> list[int]:
        """For runs that are owned in the usual way."""
        return [row[0] for row in self.rows if row[3] is None or not row[3].is_anew]

    def anew(self) -> list[Row]:
        """The others, as `own_anew` takes them."""
        found = [(row[0], row[3]) for row in self.rows if row[3] is not None and row[3].is_anew]
        return [(self.worker_id, self._deadline(rare), rowid) for rowid, rare in found]

    def _deadline(self, rare: _Rare) -> int | None:
        return rules.claimed_deadline(rare.deadline, rare.expires_at, self.now)

    def stored_runs(self) -> tuple[list[StoredRun], list[int]]:
        """All of them, and the indexes of those that only have their run so far."""
        stored_runs: list[StoredRun] = []
        unread: list[int] = []
        for row in self.rows:
            (_, negative, _, rare, run_id, id, kind, name, queue, epoch, head, created_at, code, more, entry_kind, at,
             crc, body) = row  # fmt: skip
            run = Run(
                run_id,
                id,
                run_id,
                kind,
                name,
                queue,
                -negative,
                _RUNNING,
                epoch + 1,
                head,
                self.worker_id,
                None,
                created_at,
                None,
                None,
                0,
                "",
                [],
                "",
                "{}",
                "null",
                code,
            )
            if rare is not None:
                rare.put_into(run)
                run.deadline = self._deadline(rare)
            entries = []
            if more or entry_kind is None or at is None or crc is None or body is None:
                unread.append(len(stored_runs))
            else:
                entries.append(Entry(0, entry_kind, at, crc, body))
            stored_runs.append(StoredRun(run, entries, [], []))
        return stored_runs, unread
