"""Reading runs and their journals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

from batuta.errors import PayloadDamaged, UnknownRun, told
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import SEALED, Attempt, Message, Output, Receipt, Run, StoredRun, Unread
from batuta.stores.contract import rules, stored_values
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import (
    attempts_of,
    entries_of,
    message_of,
    messages_of,
    outputs_of,
    run_of,
)
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork

SLICE = 1_000
"""Entries that are read before others get their turn on the event loop."""
RUNS_AT_ONCE = 32
"""The same for tapes, which are short as a rule."""
SHORT = 30
"""Entries of a journal that is read together with others."""

_MANY = f"IN ({', '.join('?' * RUNS_AT_ONCE)})"
_ENTRIES, _UNREAD, _HAVE_ATTEMPTS = (
    Q[name].replace("IN (?)", _MANY) for name in ("entries_of_many", "unread_of_many", "have_attempts")
)


class ReadingVerbs(Base):
    """The part of the store that reads runs and their journals, on the event loop's thread and in slices.

    Not in a thread: the driver takes the interpreter's lock again for every row, and a busy loop holds it.
    """

    async def get(self, id: str) -> Run:
        row = self._read(lambda unit: unit.row("run_by_id", (unit.namespace, id)))
        if row is None:
            raise UnknownRun(id, self.namespace)
        return run_of(row)

    async def get_run(self, run_id: RunId) -> Run:
        return self._read(lambda unit: unit.run(run_id))

    async def received(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Receipt]:
        rows = self._rows("received", (chain_id.bytes, self.namespace, after, limit))
        return [Receipt(message_id, stored_values.MESSAGE_KINDS[kind], bool(read)) for message_id, kind, read in rows]

    async def closed_among(self, run_ids: Sequence[RunId]) -> list[RunId]:
        def work(unit: UnitOfWork) -> list[RunId]:
            found = ((run_id, unit.row("fence_state", (unit.namespace, run_id.bytes))) for run_id in run_ids)
            return [run_id for run_id, state in found if state is None or state[2]]

        return self._read(work)

    async def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        def work(unit: UnitOfWork) -> tuple[Run, Entry | None]:
            run = unit.run(run_id)
            rows = unit.rows("last_entry", (run_id.bytes, unit.namespace, run.head))
            return run, entries_of(rows)[0] if rows else None

        return self._read(work)

    async def epochs(self, run_id: RunId) -> list[int]:
        return [epoch for (epoch,) in self._rows("epochs", (run_id.bytes, self.namespace))]

    async def attempts(self, run_id: RunId, seq: int | None = None) -> list[Attempt]:
        if seq is None:
            return attempts_of(self._rows("attempts", (run_id.bytes, self.namespace)))
        return attempts_of(self._rows("attempts_of_call", (run_id.bytes, seq, self.namespace)))

    async def outputs(self, run_id: RunId) -> list[Output]:
        return outputs_of(self._rows("published", (run_id.bytes, self.namespace)))

    async def answers(self, asked: Sequence[tuple[RunId, str]]) -> list[Output | None]:
        def work(unit: UnitOfWork) -> list[Output | None]:
            keys = ((chain_id.bytes, message_id, unit.namespace) for chain_id, message_id in asked)
            found = (outputs_of(unit.rows("answer", key)) for key in keys)
            return [each[0] if each else None for each in found]

        return self._read(work)

    async def unread(self, run_ids: Sequence[RunId], *, after: int = 0) -> dict[RunId, Unread]:
        def work(unit: UnitOfWork) -> dict[RunId, Unread]:
            found: dict[RunId, Unread] = {}
            for run_id in run_ids:
                row = unit.row("epoch_and_chain", (unit.namespace, run_id.bytes))
                if row is not None:
                    epoch, chain_id, head = row
                    try:
                        found[run_id] = Unread(epoch, *_page(unit, chain_id, head, after))
                    except PayloadDamaged as error:
                        found[run_id] = Unread(SEALED, [], sealed=told(error))
            return found

        return self._read(work)

    async def journal(self, run_id: RunId, after: int = -1, limit: int = 10_000) -> list[Entry]:
        try:
            run = await self.get_run(run_id)
        except UnknownRun:
            return []
        return await self._entries(run_id, after, run.head, limit)

    async def load(self, run_id: RunId) -> StoredRun:
        return await self._to_the_end(self._read(lambda unit: _tape(unit, unit.run(run_id))))

    async def _load_all(self, stored_runs: list[StoredRun], places: Sequence[int]) -> None:
        """Put whole journals at these indexes, for runs that exist. The caller owns the runs."""
        for first in range(0, len(places), RUNS_AT_ONCE):
            some = places[first : first + RUNS_AT_ONCE]
            work = partial(_tapes, runs=[stored_runs[place].run for place in some])
            for place, stored in zip(some, self._read(work), strict=True):
                stored_runs[place] = stored
            await asyncio.sleep(0)
        for place in places:
            stored = stored_runs[place]
            if stored.entries and stored.entries[-1].ord < stored.run.head:
                await self._to_the_end(stored)

    async def _to_the_end(self, stored: StoredRun) -> StoredRun:
        # Only up to the head that was read with the run: later entries belong to another moment.
        if stored.entries and stored.entries[-1].ord < stored.run.head:
            run = stored.run
            try:
                stored.entries += await self._entries(run.run_id, stored.entries[-1].ord, run.head, run.head)
            except PayloadDamaged as error:
                return StoredRun(run, [], [], [], told(error))
        return stored

    async def _entries(self, run_id: RunId, after: int, head: int, limit: int) -> list[Entry]:
        found: list[Entry] = []
        while after < head and len(found) < limit:
            values = (run_id.bytes, self.namespace, after, head, min(SLICE, limit - len(found)))
            piece = entries_of(self._rows("entries", values))
            if not piece:
                break
            found += piece
            after = piece[-1].ord
            if len(piece) == SLICE:
                await asyncio.sleep(0)
        return found


def _page(unit: UnitOfWork, chain_id: bytes, head: int, after: int = 0) -> tuple[list[Message], bool]:
    """Unread messages of a chain whose run has this head, and whether there may be more."""
    rows = unit.execute("unread", (chain_id, unit.namespace, after))
    page, more = rules.first_page(map(message_of, rows))
    if more:
        rows.close()
        page += messages_of(unit.rows("unread_urgent", (chain_id, unit.namespace, page[-1].number, head < 0)))
    return page, more


def _tape(unit: UnitOfWork, run: Run) -> StoredRun:
    """All at one moment, but for the later entries of a long journal."""
    run_id, namespace = run.run_id.bytes, unit.namespace
    try:
        messages, more = _page(unit, run.chain_id.bytes, run.head)
        entries = entries_of(unit.rows("entries", (run_id, namespace, -1, run.head, SLICE))) if run.head >= 0 else []
    except PayloadDamaged as error:
        return StoredRun(run, [], [], [], told(error))
    return StoredRun(run, entries, messages, attempts_of(unit.rows("attempts", (run_id, namespace))), more=more)


def _tapes(unit: UnitOfWork, runs: Sequence[Run]) -> list[StoredRun]:
    try:
        return _tapes_together(unit, runs)
    except PayloadDamaged:
        return [_tape(unit, run) for run in runs]


def _tapes_together(unit: UnitOfWork, runs: Sequence[Run]) -> list[StoredRun]:
    """All at one moment: what most of them have not is asked for all of them together."""
    run_ids = [run.run_id.bytes for run in runs]
    chains = [run.chain_id.bytes for run in runs]
    connection = unit.connection
    have_attempts = {run_id for (run_id,) in connection.execute(_HAVE_ATTEMPTS, _padded(unit, run_ids)).fetchall()}
    unread: dict[bytes, list[Message]] = {}
    full = False
    messages = connection.execute(_UNREAD, _padded(unit, chains))
    for chain_id, rows in groupby(messages, itemgetter(0)):
        page, full = rules.first_page(message_of(row[1:]) for row in rows)
        if full:
            messages.close()  # the rest of them is passed by, and the runs after it are read one by one
            break
        unread[chain_id] = page
    short = [run_id for run, run_id in zip(runs, run_ids, strict=True) if 0 <= run.head < SHORT]
    entries = _short_journals(unit, short)
    return [
        StoredRun(run, entries.get(run_id, []), unread.get(chain_id, []), [])
        if run.head < SHORT and run_id not in have_attempts and (not full or chain_id in unread)
        else _tape(unit, run)
        for run, run_id, chain_id in zip(runs, run_ids, chains, strict=True)
    ]


def _short_journals(unit: UnitOfWork, run_ids: list[bytes]) -> dict[bytes, list[Entry]]:
    found: dict[bytes, list[Entry]] = {run_id: [] for run_id in run_ids}
    if run_ids:
        known = stored_values.ENTRY_KINDS
        rows = unit.connection.execute(_ENTRIES, _padded(unit, run_ids)).fetchall()
        for run_id, number, kind, at, crc, body in rows:
            found[run_id].append(Entry(number, known[kind], at, crc, body))
    return found


def _padded(unit: UnitOfWork, keys: list[bytes]) -> list[bytearray | str]:
    """As many as the statements take: the last one again and again. For `bytearray` see `rows.blob`."""
    return [*map(bytearray, keys), *[bytearray(keys[-1])] * (RUNS_AT_ONCE - len(keys)), unit.namespace]
