"""Runs that are being claimed: rows with all that is needed to own most of them and to bring them into memory."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from batuta.ids import uuid_of
from batuta.journal.entries import Entry
from batuta.journal.records import Run, Tape
from batuta.journal.states import RunState
from batuta.stores import rules
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.rows import ENTRY_KINDS, RUN_KINDS, Row, strings_of

# A run that sleeps after its start has a journal of one entry, and nothing else: it comes with the run, as one text, so
# that nothing is to be read of it afterwards. Of the others it says that there may be more.
_COLUMNS: Final = """
    rowid, priority, wake_at, deaths, head, claimed_head, expires_at, debounce, deadline,
    run_id, id, nullif(chain_id, run_id), kind, name, queue, epoch, created_at, failed_code, version, tags, memo, code,
    parent_run_id, parent_seq, flow_key, awaits, forked_from, forked_at,
    iif(head = 0, EXISTS (SELECT 1 FROM attempts WHERE attempts.run_id = runs.run_id)
        OR EXISTS (SELECT 1 FROM inbox WHERE inbox.chain_id = runs.chain_id AND consumed_at IS NULL), 1),
    iif(head = 0, (SELECT kind || ' ' || at || ' ' || crc || ' ' || body FROM journal
        WHERE journal.run_id = runs.run_id AND ord = 0), NULL)"""

DUE, DUE_SUSPECT, BY_ROWID = (
    Q[name].replace("SELECT *", f"SELECT {_COLUMNS}", 1) for name in ("due", "due_suspect", "runs_by_rowid")
)
"""The statements whose rows the functions below take."""


class Owned(Struct):
    """What a claim took."""

    tapes: list[Tape] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    """The places of those tapes that only have their run so far."""
    held: bool = False
    again_at: int | None = None
    """As a `Claim` says."""

    def add(self, row: Row, worker_id: str, now: int) -> None:
        """A row as it was before it was owned."""
        (_, priority, _, deaths, head, claimed_head, _, _, _, run, id, chain, kind, name, queue, epoch, created_at,
         failed_code, version, tags, memo, code, parent, parent_seq, flow_key, awaits, forked_from, forked_at, more,
         first) = row  # fmt: skip
        run_id = uuid_of(int.from_bytes(run))
        found = Run(
            run_id,
            id,
            run_id if chain is None else uuid_of(int.from_bytes(chain)),
            RUN_KINDS[kind],
            name,
            queue,
            priority,
            RunState.RUNNING,
            epoch + 1,
            head,
            worker_id,
            None,
            created_at,
            None,
            claimed_deadline(row, now),
            deaths if head == claimed_head else 0,
            "",
            strings_of(failed_code),
            version,
            tags,
            memo,
            code,
            None if parent is None else uuid_of(int.from_bytes(parent)),
            parent_seq,
            flow_key,
            None,
            awaits,
            None,
            None,
            None if forked_from is None else uuid_of(int.from_bytes(forked_from)),
            forked_at,
        )
        entries = []
        if more or first is None:
            self.unread.append(len(self.tapes))
        else:
            entry_kind, at, crc, body = first.split(" ", 3)
            entries.append(Entry(0, ENTRY_KINDS[entry_kind], int(at), int(crc), body))
        self.tapes.append(Tape(found, entries, [], []))


def is_suspect(row: Row) -> bool:
    """Whether it is one to be run alone."""
    return rules.is_suspect(deaths=row[3], head=row[4], claimed_head=row[5])


def place(row: Row) -> tuple[int, int]:
    """Where it stands among what is due."""
    return -row[1], row[2]


def is_anew(row: Row) -> bool:
    """Whether the run could expire or was debounced, until it is claimed."""
    return row[6] is not None or row[7] is not None


def claimed_deadline(row: Row, now: int) -> int | None:
    """Its deadline once it is claimed."""
    deadline: int | None = row[8]
    return deadline if row[6] is None else rules.claimed_deadline(deadline, row[6], now)
