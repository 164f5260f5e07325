"""Runs that are being claimed: rows with all that is needed to own most of them and to bring them into memory."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from msgspec import Struct, field, json

from batuta.ids import uuid_of
from batuta.journal.entries import Entry
from batuta.journal.records import Run, Tape
from batuta.journal.states import RunState
from batuta.stores import rules
from batuta.stores.claimed import Rare
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.rows import ENTRY_KINDS, RUN_KINDS, Row

# What few runs have comes as one text: see `Rare`. A run that sleeps after its start has a journal of one entry, and
# nothing else: that comes with the run, so that nothing is to be read of it afterwards. Of the others it says that
# there may be more.
_COLUMNS: Final = """
    runs.rowid, -priority, wake_at,
    iif(deaths = 0 AND deadline IS NULL AND expires_at IS NULL AND debounce IS NULL AND chain_id = runs.run_id
        AND parent_run_id IS NULL AND parent_seq = 0 AND forked_from IS NULL AND flow_key = '' AND version = ''
        AND tags = '{}' AND memo = 'null' AND failed_code = '[]' AND awaits = 0 AND forked_at = -1, NULL,
        json_array(iif(head = claimed_head, deaths, 0), deadline, hex(chain_id), nullif(hex(parent_run_id), ''),
            parent_seq, nullif(hex(forked_from), ''), forked_at, flow_key, version, tags, memo, json(failed_code),
            awaits, expires_at, debounce IS NOT NULL)),
    runs.run_id, id, kind, name, queue, epoch, head, created_at, code,
    iif(head = 0, EXISTS (SELECT 1 FROM attempts WHERE attempts.run_id = runs.run_id)
        OR EXISTS (SELECT 1 FROM inbox WHERE inbox.chain_id = runs.chain_id AND consumed_at IS NULL), 1),
    first_kind, first_at, first_crc, first_body"""

_RUNS: Final = """runs LEFT JOIN (
        SELECT run_id AS first_of, ord AS first_ord, kind AS first_kind, at AS first_at, crc AS first_crc,
            body AS first_body
        FROM journal
    ) ON head = 0 AND first_of = runs.run_id AND first_ord = 0"""

DUE, DUE_SUSPECT, BY_ROWID = (
    Q[name].replace("SELECT *", f"SELECT {_COLUMNS}", 1).replace("FROM runs", f"FROM {_RUNS}", 1)
    for name in ("due", "due_suspect", "runs_by_rowid")
)
"""The statements whose rows the functions below take."""

place = itemgetter(1, 2)
"""Where a row stands among what is due."""


class _Rare(Rare, array_like=True):
    """With what becomes of it when it is claimed."""

    expires_at: int | None
    debounced: int


_RUNNING: Final = RunState.RUNNING
_rare = json.Decoder(_Rare).decode


class Owned(Struct):
    """What a claim took."""

    worker_id: str = ""
    rowids: list[int] = field(default_factory=list)
    anew: list[Row] = field(default_factory=list)
    """What could expire or was debounced, until it is claimed, as `own_anew` takes it. The row ids are of the rest."""
    tapes: list[Tape] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    """The places of those tapes that only have their run so far."""
    held: bool = False
    again_at: int | None = None
    """As a `Claim` says."""

    @classmethod
    def of(cls, rows: Sequence[Row], worker_id: str, now: int) -> Owned:
        """From rows as they are before they are owned."""
        owned = cls(worker_id)
        for row in rows:
            owned._add(row, now)
        return owned

    def _add(self, row: Row, now: int) -> None:
        (rowid, negative, _, rare, run, id, kind, name, queue, epoch, head, created_at, code, more, entry_kind, at, crc,
         body) = row  # fmt: skip
        run_id = uuid_of(int.from_bytes(run))
        found = Run(
            run_id,
            id,
            run_id,
            RUN_KINDS[kind],
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
        if rare is None:
            self.rowids.append(rowid)
        else:
            self._add_rare(_rare(rare), found, rowid, now)
        entries = []
        if more or body is None:
            self.unread.append(len(self.tapes))
        else:
            entries.append(Entry(0, ENTRY_KINDS[entry_kind], at, crc, body))
        self.tapes.append(Tape(found, entries, [], []))

    def _add_rare(self, rare: _Rare, run: Run, rowid: int, now: int) -> None:
        rare.put_into(run)
        if rare.expires_at is not None or rare.debounced:
            run.deadline = rules.claimed_deadline(rare.deadline, rare.expires_at, now)
            self.anew.append((run.owner, run.deadline, rowid))
        else:
            self.rowids.append(rowid)
