"""Reading runs and their journals."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

from batuta.errors import UnknownRun
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import Attempt, Message, Output, Run, Tape
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.readers import Readers
from batuta.stores.sqlite.rows import ENTRY_KINDS, attempts_of, entries_of, messages_of, one, outputs_of, run_of

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


class Tapes:
    """Reads the journals of one namespace, on the event loop's thread and in slices.

    Not in a thread: the driver takes the interpreter's lock anew for every row, and a busy loop holds it.
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

    def closed_among(self, run_ids: Sequence[RunId]) -> list[RunId]:
        def work(connection: sqlite3.Connection) -> list[RunId]:
            found = (
                (one, connection.execute(Q["fence_state"], (self._namespace, one.bytes)).fetchone()) for one in run_ids
            )
            return [run_id for run_id, state in found if state is not None and state[2]]

        return self._readers.read(work)

    def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        def work(connection: sqlite3.Connection) -> tuple[Run, Entry | None]:
            run = self._run(connection, run_id)
            rows = connection.execute(Q["last_entry"], (run_id.bytes, run.head)).fetchall()
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
        """What the run has published."""
        values = (run_id.bytes, self._namespace)
        return outputs_of(self._readers.read(lambda connection: connection.execute(Q["published"], values).fetchall()))

    def answers(self, asked: Sequence[tuple[RunId, str]]) -> list[Output | None]:
        """The answers to updates, by chain and message id."""

        def work(connection: sqlite3.Connection) -> list[Output | None]:
            keys = ((chain_id.bytes, message_id, self._namespace) for chain_id, message_id in asked)
            found = (outputs_of(connection.execute(Q["answer"], key).fetchall()) for key in keys)
            return [each[0] if each else None for each in found]

        return self._readers.read(work)

    def unread(self, run_ids: Sequence[RunId]) -> dict[RunId, tuple[int, list[Message]]]:
        """Epoch (-1 when closed) and unread messages of each run that there is."""

        def work(connection: sqlite3.Connection) -> dict[RunId, tuple[int, list[Message]]]:
            found: dict[RunId, tuple[int, list[Message]]] = {}
            for run_id in run_ids:
                row = one(connection.execute(Q["epoch_and_chain"], (self._namespace, run_id.bytes)))
                if row is not None:
                    found[run_id] = row[0], messages_of(connection.execute(Q["unread"], (row[1],)).fetchall())
            return found

        return self._readers.read(work)

    async def journal(self, run_id: RunId, after: int, limit: int) -> list[Entry]:
        """Entries with ord > after, in order."""
        try:
            head = self.run(run_id).head
        except UnknownRun:
            return []
        return await self._entries(run_id, after, head, limit)

    async def load(self, run_id: RunId) -> Tape:
        def work(connection: sqlite3.Connection) -> Tape:
            return self._tape(connection, self._run(connection, run_id))

        return await self._to_the_end(self._readers.read(work))

    async def load_all(self, tapes: list[Tape], places: Sequence[int]) -> None:
        """Put whole tapes at these places, for those that are there. Their caller owns the runs."""
        for first in range(0, len(places), RUNS_AT_ONCE):
            some = places[first : first + RUNS_AT_ONCE]
            work = partial(self._tapes, runs=[tapes[place].run for place in some])
            for place, tape in zip(some, self._readers.read(work), strict=True):
                tapes[place] = tape
            await asyncio.sleep(0)
        for place in places:
            tape = tapes[place]
            if tape.entries and tape.entries[-1].ord < tape.run.head:
                await self._to_the_end(tape)

    def _run(self, connection: sqlite3.Connection, run_id: RunId) -> Run:
        row = one(connection.execute(Q["run_by_run_id"], (self._namespace, run_id.bytes)))
        if row is None:
            raise UnknownRun(run_id, self._namespace)
        return run_of(row)

    def _attempts(self, connection: sqlite3.Connection, run_id: RunId) -> list[Attempt]:
        return attempts_of(connection.execute(Q["attempts"], (run_id.bytes, self._namespace)).fetchall())

    def _tape(self, connection: sqlite3.Connection, run: Run) -> Tape:
        """All at one moment, but for the later entries of a long journal."""
        messages = messages_of(connection.execute(Q["unread"], (run.chain_id.bytes,)).fetchall())
        values = (run.run_id.bytes, -1, run.head, SLICE)
        entries = entries_of(connection.execute(Q["entries"], values).fetchall()) if run.head >= 0 else []
        return Tape(run, entries, messages, self._attempts(connection, run.run_id))

    def _tapes(self, connection: sqlite3.Connection, runs: Sequence[Run]) -> list[Tape]:
        """All at one moment: what most of them have not is asked for all of them together."""
        run_ids = [run.run_id.bytes for run in runs]
        chains = [run.chain_id.bytes for run in runs]
        have_attempts = {run_id for (run_id,) in connection.execute(_HAVE_ATTEMPTS, _padded(run_ids)).fetchall()}
        unread: dict[bytes, list[Message]] = {}
        for chain_id, rows in groupby(connection.execute(_UNREAD, _padded(chains)).fetchall(), itemgetter(0)):
            unread[chain_id] = messages_of(row[1:] for row in rows)
        short = [run_id for run, run_id in zip(runs, run_ids, strict=True) if 0 <= run.head < SHORT]
        entries = self._short_journals(connection, short)
        return [
            Tape(run, entries.get(run_id, []), unread.get(chain_id, []), [])
            if run.head < SHORT and run_id not in have_attempts
            else self._tape(connection, run)
            for run, run_id, chain_id in zip(runs, run_ids, chains, strict=True)
        ]

    def _short_journals(self, connection: sqlite3.Connection, run_ids: list[bytes]) -> dict[bytes, list[Entry]]:
        found: dict[bytes, list[Entry]] = {run_id: [] for run_id in run_ids}
        if run_ids:
            kinds = ENTRY_KINDS
            for run_id, number, kind, at, crc, body in connection.execute(_ENTRIES, _padded(run_ids)).fetchall():
                found[run_id].append(Entry(number, kinds[kind], at, crc, body))
        return found

    async def _to_the_end(self, tape: Tape) -> Tape:
        # Only up to the head that was read with the run: what was added since belongs to another moment.
        if tape.entries and tape.entries[-1].ord < tape.run.head:
            tape.entries += await self._entries(tape.run.run_id, tape.entries[-1].ord, tape.run.head, tape.run.head)
        return tape

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
        values = (run_id.bytes, after, head, limit)
        return entries_of(self._readers.read(lambda connection: connection.execute(Q["entries"], values).fetchall()))


def _padded(keys: list[bytes]) -> list[bytearray]:
    """As many as the statements take: the last one again and again. For `bytearray` see `rows.blob`."""
    return [*map(bytearray, keys), *[bytearray(keys[-1])] * (RUNS_AT_ONCE - len(keys))]
