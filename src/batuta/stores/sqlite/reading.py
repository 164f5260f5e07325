"""Reading runs and their journals."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

from batuta.errors import PayloadDamaged, UnknownRun, told
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import Attempt, Message, Output, Receipt, Run, StoredRun, Unread
from batuta.journal.store import SEALED
from batuta.stores.contract import rules, stored_values
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.rows import (
    attempts_of,
    entries_of,
    message_of,
    messages_of,
    one,
    outputs_of,
    run_of,
)

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


class JournalReader:
    """Reads the journals of one namespace, on the event loop's thread and in slices.

    Not in a thread: the driver takes the interpreter's lock again for every row, and a busy loop holds it.
    """

    def __init__(self, readers: Readers, namespace: str) -> None:
        self._readers = readers
        self._namespace = namespace

    def run(self, run_id: RunId) -> Run:
        return self._readers.read(lambda connection: self._run(connection, run_id))

    def run_by_id(self, id: str) -> Run:
        row = self._readers.read(lambda connection: one(connection.execute(Q["run_by_id"], (self._namespace, id))))
        if row is None:
            raise UnknownRun(id, self._namespace)
        return run_of(row)

    def received(self, chain_id: RunId, after: str, limit: int) -> list[Receipt]:
        values = (chain_id.bytes, self._namespace, after, limit)
        rows = self._readers.read(lambda connection: connection.execute(Q["received"], values).fetchall())
        return [Receipt(message_id, stored_values.MESSAGE_KINDS[kind], bool(read)) for message_id, kind, read in rows]

    def closed_among(self, run_ids: Sequence[RunId]) -> list[RunId]:
        def work(connection: sqlite3.Connection) -> list[RunId]:
            found = (
                (one, connection.execute(Q["fence_state"], (self._namespace, one.bytes)).fetchone()) for one in run_ids
            )
            return [run_id for run_id, state in found if state is None or state[2]]

        return self._readers.read(work)

    def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        def work(connection: sqlite3.Connection) -> tuple[Run, Entry | None]:
            run = self._run(connection, run_id)
            rows = connection.execute(Q["last_entry"], (run_id.bytes, self._namespace, run.head)).fetchall()
            return run, entries_of(rows)[0] if rows else None

        return self._readers.read(work)

    def epochs(self, run_id: RunId) -> list[int]:
        rows = self._readers.read(
            lambda connection: connection.execute(Q["epochs"], (run_id.bytes, self._namespace)).fetchall()
        )
        return [epoch for (epoch,) in rows]

    def attempts(self, run_id: RunId, seq: int | None) -> list[Attempt]:
        if seq is None:
            return self._readers.read(lambda connection: self._attempts(connection, run_id))
        values = (run_id.bytes, seq, self._namespace)
        return attempts_of(
            self._readers.read(lambda connection: connection.execute(Q["attempts_of_call"], values).fetchall())
        )

    def outputs(self, run_id: RunId) -> list[Output]:
        """Published values of the run."""
        values = (run_id.bytes, self._namespace)
        return outputs_of(self._readers.read(lambda connection: connection.execute(Q["published"], values).fetchall()))

    def answers(self, asked: Sequence[tuple[RunId, str]]) -> list[Output | None]:
        """The answers to updates, by chain and message id."""

        def work(connection: sqlite3.Connection) -> list[Output | None]:
            keys = ((chain_id.bytes, message_id, self._namespace) for chain_id, message_id in asked)
            found = (outputs_of(connection.execute(Q["answer"], key).fetchall()) for key in keys)
            return [each[0] if each else None for each in found]

        return self._readers.read(work)

    def unread(self, run_ids: Sequence[RunId], after: int) -> dict[RunId, Unread]:
        """Epoch (-1 when closed) and a page of unread messages of each existing run."""

        def work(connection: sqlite3.Connection) -> dict[RunId, Unread]:
            found: dict[RunId, Unread] = {}
            for run_id in run_ids:
                row = one(connection.execute(Q["epoch_and_chain"], (self._namespace, run_id.bytes)))
                if row is not None:
                    epoch, chain_id, head = row
                    try:
                        found[run_id] = Unread(epoch, *self._page(connection, chain_id, head, after))
                    except PayloadDamaged as error:
                        found[run_id] = Unread(SEALED, [], sealed=told(error))
            return found

        return self._readers.read(work)

    async def journal(self, run_id: RunId, after: int, limit: int) -> list[Entry]:
        """Entries with ord > after, in order."""
        try:
            head = self.run(run_id).head
        except UnknownRun:
            return []
        return await self._entries(run_id, after, head, limit)

    async def load(self, run_id: RunId) -> StoredRun:
        def work(connection: sqlite3.Connection) -> StoredRun:
            return self._tape(connection, self._run(connection, run_id))

        return await self._to_the_end(self._readers.read(work))

    async def load_all(self, stored_runs: list[StoredRun], places: Sequence[int]) -> None:
        """Put whole journals at these indexes, for runs that exist. The caller owns the runs."""
        for first in range(0, len(places), RUNS_AT_ONCE):
            some = places[first : first + RUNS_AT_ONCE]
            work = partial(self._tapes, runs=[stored_runs[place].run for place in some])
            for place, stored in zip(some, self._readers.read(work), strict=True):
                stored_runs[place] = stored
            await asyncio.sleep(0)
        for place in places:
            stored = stored_runs[place]
            if stored.entries and stored.entries[-1].ord < stored.run.head:
                await self._to_the_end(stored)

    def _run(self, connection: sqlite3.Connection, run_id: RunId) -> Run:
        row = one(connection.execute(Q["run_by_run_id"], (self._namespace, run_id.bytes)))
        if row is None:
            raise UnknownRun(run_id, self._namespace)
        return run_of(row)

    def _attempts(self, connection: sqlite3.Connection, run_id: RunId) -> list[Attempt]:
        return attempts_of(connection.execute(Q["attempts"], (run_id.bytes, self._namespace)).fetchall())

    def _page(
        self, connection: sqlite3.Connection, chain_id: bytes, head: int, after: int = 0
    ) -> tuple[list[Message], bool]:
        """Unread messages of a chain whose run has this head, and whether there may be more."""
        rows = connection.execute(Q["unread"], (chain_id, self._namespace, after))
        page, more = rules.first_page(map(message_of, rows))
        if more:
            rows.close()
            urgent = connection.execute(Q["unread_urgent"], (chain_id, self._namespace, page[-1].number, head < 0))
            page += messages_of(urgent.fetchall())
        return page, more

    def _tape(self, connection: sqlite3.Connection, run: Run) -> StoredRun:
        """All at one moment, but for the later entries of a long journal."""
        values = (run.run_id.bytes, self._namespace, -1, run.head, SLICE)
        try:
            messages, more = self._page(connection, run.chain_id.bytes, run.head)
            entries = entries_of(connection.execute(Q["entries"], values).fetchall()) if run.head >= 0 else []
        except PayloadDamaged as error:
            return StoredRun(run, [], [], [], told(error))
        return StoredRun(run, entries, messages, self._attempts(connection, run.run_id), more=more)

    def _tapes(self, connection: sqlite3.Connection, runs: Sequence[Run]) -> list[StoredRun]:
        try:
            return self._tapes_together(connection, runs)
        except PayloadDamaged:
            return [self._tape(connection, run) for run in runs]

    def _tapes_together(self, connection: sqlite3.Connection, runs: Sequence[Run]) -> list[StoredRun]:
        """All at one moment: what most of them have not is asked for all of them together."""
        run_ids = [run.run_id.bytes for run in runs]
        chains = [run.chain_id.bytes for run in runs]
        have_attempts = {run_id for (run_id,) in connection.execute(_HAVE_ATTEMPTS, self._padded(run_ids)).fetchall()}
        unread: dict[bytes, list[Message]] = {}
        full = False
        messages = connection.execute(_UNREAD, self._padded(chains))
        for chain_id, rows in groupby(messages, itemgetter(0)):
            page, full = rules.first_page(message_of(row[1:]) for row in rows)
            if full:
                messages.close()  # the rest of them is passed by, and the runs after it are read one by one
                break
            unread[chain_id] = page
        short = [run_id for run, run_id in zip(runs, run_ids, strict=True) if 0 <= run.head < SHORT]
        entries = self._short_journals(connection, short)
        return [
            StoredRun(run, entries.get(run_id, []), unread.get(chain_id, []), [])
            if run.head < SHORT and run_id not in have_attempts and (not full or chain_id in unread)
            else self._tape(connection, run)
            for run, run_id, chain_id in zip(runs, run_ids, chains, strict=True)
        ]

    def _short_journals(self, connection: sqlite3.Connection, run_ids: list[bytes]) -> dict[bytes, list[Entry]]:
        found: dict[bytes, list[Entry]] = {run_id: [] for run_id in run_ids}
        if run_ids:
            known = stored_values.ENTRY_KINDS
            for run_id, number, kind, at, crc, body in connection.execute(_ENTRIES, self._padded(run_ids)).fetchall():
                found[run_id].append(Entry(number, known[kind], at, crc, body))
        return found

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
            piece = self._slice(run_id, after, head, min(SLICE, limit - len(found)))
            if not piece:
                break
            found += piece
            after = piece[-1].ord
            if len(piece) == SLICE:
                await asyncio.sleep(0)
        return found

    def _slice(self, run_id: RunId, after: int, head: int, limit: int) -> list[Entry]:
        values = (run_id.bytes, self._namespace, after, head, limit)
        return entries_of(self._readers.read(lambda connection: connection.execute(Q["entries"], values).fetchall()))

    def _padded(self, keys: list[bytes]) -> list[bytearray | str]:
        """As many as the statements take: the last one again and again. For `bytearray` see `rows.blob`."""
        return [*map(bytearray, keys), *[bytearray(keys[-1])] * (RUNS_AT_ONCE - len(keys)), self._namespace]
