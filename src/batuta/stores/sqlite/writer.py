"""All writing of a process goes through here: one connection, one transaction at a time, one lock across processes.

SQLite before 3.51.3 can damage a WAL that two connections write or checkpoint at once, so that writes and checkpoints
of all processes happen under one `flock`. A transaction's statements run on the event loop's thread when nobody else
writes, and only the sync is waited for in a thread: on an idle loop a thread for all of it is as fast, on a busy one it
is somewhat slower and has the longer tail. A short sync is not worth the two hops either. A few statements that take
milliseconds each, the last of their transaction, go to that thread, too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from batuta.clock import SECOND
from batuta.errors import StoreFailed, StoreUnavailable
from batuta.stores.sqlite.connection import PATIENCE_SECONDS, Faults, connect_writer, identity
from batuta.stores.sqlite.errors import translate
from batuta.stores.sqlite.place import open_lock, try_lock, unlock

T = TypeVar("T")
Work = Callable[[sqlite3.Cursor], T]
Last = Callable[[sqlite3.Cursor, T], None]

log = logging.getLogger("batuta.sqlite")

SHORT_COMMIT_SECONDS = 0.002
"""Commits that take no longer may hold up the event loop."""
_USUAL_SWITCH, _SHORT_SWITCH = 5_000, 200
"""Microseconds after which a thread that runs gives up the interpreter's lock: Python's own, and in a hurry."""
_FIRST_PAUSE_SECONDS = 0.000_2
_LONGEST_PAUSE_SECONDS = 0.005


class _Hurry:
    """Meanwhile, who waits for the interpreter's lock has it soon.

    A thread that has executed a statement needs it to go on, and a busy event loop would keep it for five milliseconds
    each time, which is longer than the statement took. Only where nobody has set that time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._is_ours = False
        """Whether the time was set here."""

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._is_ours = self._set(_SHORT_SWITCH, instead_of=_USUAL_SWITCH)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._is_ours:
                self._set(_USUAL_SWITCH, instead_of=_SHORT_SWITCH)

    def _set(self, micros: int, instead_of: int) -> bool:
        if round(sys.getswitchinterval() * SECOND) != instead_of:
            return False
        sys.setswitchinterval(micros / SECOND)
        return True


_hurry = _Hurry()


class Writer:
    """The writing connection of one store object, for any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._in_turn = asyncio.Lock()  # of what is large: see `write`
        self._waiting: set[int] = set()  # threads that wait for the mutex: the event loop does not push in
        self._commit_seconds = 0.0  # a moving mean
        self._file_lock = -1
        self._connection: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        # Two threads: a commit must never queue behind a write that waits for that very commit.
        self._writing: ThreadPoolExecutor | None = None
        self._syncing: ThreadPoolExecutor | None = None
        self.faults: Faults | None = None
        self._file = str(path)
        self.identity: tuple[int, int] | None = None
        """The file that is open."""

    # -- open and close

    def open(self) -> None:
        self._in_turn = asyncio.Lock()
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="batuta-sqlite-write")
        self._syncing = ThreadPoolExecutor(1, thread_name_prefix="batuta-sqlite-sync")
        for thread in (self._writing, self._syncing):
            thread.submit(int).result()  # begun now: where none can be begun later, a transaction would stay open
        self._file_lock = open_lock(self._path.with_name(self._path.name + "-lock"))
        self.write_blocking(lambda _cursor: None)
        log.debug("opened %s with SQLite %s", self._path, sqlite3.sqlite_version)

    def close(self) -> None:
        """Wait for what is under way, then leave. Who leaves last checkpoints: under the lock, as all do."""
        for thread in (self._writing, self._syncing):
            if thread is not None:
                thread.shutdown()
        self._writing = self._syncing = None
        if self._file_lock < 0:
            return
        with self._mutex:
            try:
                self._wait_for_file_lock(time.monotonic() + PATIENCE_SECONDS)
            except StoreUnavailable as error:
                log.warning("closing the database: %s", error)
            self._disconnect()
            os.close(self._file_lock)
            self._file_lock = -1

    def _connected(self) -> sqlite3.Cursor:
        if self._cursor is None:
            self.identity = identity(self._file)
            self._connection = connect_writer(self._path)
            self._cursor = self._connection.cursor()
        return self._cursor

    def _disconnect(self) -> None:
        connection, self._connection, self._cursor = self._connection, None, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error as error:
                log.warning("closing the database: %s", error)

    # -- transactions

    def write(
        self, work: Work[T], *, last: Last[T] | None = None, small: bool = False, aside: bool = False
    ) -> Coroutine[Any, Any, T]:
        """Run `work` in a transaction and make it durable. When it raises, nothing was written.

        A `small` one may be synced on the event loop's thread; what is done `aside` does not run on it at all.
        The others wait for each other here, and not in a thread: one that is kept from the interpreter's lock by a busy
        event loop would read a row every five milliseconds. But `last`, which is given what `work` returned, runs where
        it is synced: for a few long statements, which let the event loop go on.
        """
        if small or aside:
            return self._write(work, last, small=small, aside=aside)
        return self._write_in_turn(work, last)

    async def _write_in_turn(self, work: Work[T], last: Last[T] | None) -> T:
        async with self._in_turn:
            if last is None:
                return await self._write(work, None)
            with _hurry:
                return await self._write(work, last)

    async def _write(self, work: Work[T], last: Last[T] | None, *, small: bool = False, aside: bool = False) -> T:
        if aside or not self._try_enter():
            return await _call(self._writing, lambda: self.write_blocking(work, last))
        result = self._work(work)
        commit = self._commit if last is None else partial(self._end, last, result)
        if small and self._commit_seconds < SHORT_COMMIT_SECONDS:
            commit()
        else:
            # Shielded: who gives up waiting must not leave the transaction open.
            await asyncio.shield(self._commit_aside(commit))
        return result

    def _commit_aside(self, commit: Callable[[], None]) -> asyncio.Future[None]:
        try:
            return _call(self._syncing, commit)
        except StoreUnavailable as error:  # closed meanwhile: who closes waits for this transaction
            self._undo(error)
            raise

    # -- a transaction that others go on with

    def try_begin(self) -> bool:
        """Begin a transaction, if that needs no waiting. Whoever does ends it, with `commit` or `abandon`; until then
        nobody else can write."""
        return self._try_enter()

    async def begin(self) -> None:
        """The same after others."""
        entering = _call(self._writing, self._enter)
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(self._abandon_late)
            raise

    def _abandon_late(self, entering: asyncio.Future[None]) -> None:
        if not entering.cancelled() and entering.exception() is None:
            self.abandon()

    @property
    def connection(self) -> sqlite3.Connection:
        """Of the transaction that was begun."""
        return self.cursor.connection

    @property
    def cursor(self) -> sqlite3.Cursor:
        return self._cursor or self._connected()

    def commit_now(self) -> bool:
        """Make it durable, on the event loop's thread; False, and nothing is done, when that takes too long for it.
        When it raises, nothing was written."""
        if self._commit_seconds >= SHORT_COMMIT_SECONDS:
            return False
        self._commit()
        return True

    async def commit(self) -> None:
        """The same in a thread."""
        await asyncio.shield(self._commit_aside(self._commit))

    def abandon(self) -> None:
        """Undo it."""
        try:
            if not self._rolled_back():
                self._disconnect()
        finally:
            self._leave()

    def aside(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do something in a thread that no write has to itself."""
        return _call(self._syncing, work)

    def write_blocking(self, work: Work[T], last: Last[T] | None = None) -> T:
        """The same for a thread that may wait."""
        self._enter()
        result = self._work(work)
        self._end(last, result)
        return result

    def look(self, work: Work[T]) -> T | None:
        """Read on the writing connection; None when somebody is writing."""
        if not self._mutex.acquire(blocking=False):
            return None
        try:
            return None if self._cursor is None else work(self._cursor)
        finally:
            self._mutex.release()

    def _try_enter(self) -> bool:
        """Begin a transaction if that needs no waiting."""
        if self._waiting or not self._mutex.acquire(blocking=False):
            return False
        if self._file_lock < 0 or not try_lock(self._file_lock):
            self._mutex.release()
            return False
        try:
            self._begin()
        except StoreUnavailable:
            return False
        return True

    def _enter(self) -> None:
        """Begin a transaction, after others."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._wait_for_turn(give_up)
            try:
                return self._begin()
            except StoreUnavailable:
                # Only a program that is none of ours can hold SQLite's own lock.
                if time.monotonic() > give_up:
                    raise
            time.sleep(_LONGEST_PAUSE_SECONDS)

    def _wait_for_turn(self, give_up: float) -> None:
        thread = threading.get_ident()
        self._waiting.add(thread)
        try:
            self._mutex.acquire()
        finally:
            self._waiting.discard(thread)
        try:
            self._wait_for_file_lock(give_up)
        except BaseException:
            self._mutex.release()
            raise

    def _wait_for_file_lock(self, give_up: float) -> None:
        """Wait, within reason: a process that was stopped in the middle of a write never lets go."""
        if self._file_lock < 0:
            raise StoreUnavailable("the store is closed")
        pause = _FIRST_PAUSE_SECONDS
        while not try_lock(self._file_lock):
            if time.monotonic() > give_up:
                raise StoreUnavailable(f"another process has been writing to {self._path.name!r} for too long")
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)

    def _begin(self) -> None:
        try:
            if self.faults is not None:
                self.faults("begin")
            (self._cursor or self._connected()).execute("BEGIN IMMEDIATE")
            if identity(self._file) != self.identity:
                raise StoreFailed(f"the database file {str(self._path)!r} was replaced or removed while in use")
        except BaseException as error:
            self._undo(error)
            raise

    def _work(self, work: Work[T]) -> T:
        try:
            if self.faults is not None:
                self.faults("work")
            return work(self._cursor or self._connected())
        except BaseException as error:
            self._undo(error)
            raise

    def _end(self, last: Last[T] | None, result: T) -> None:
        if last is not None:
            try:
                last(self._connected(), result)
            except BaseException as error:
                self._undo(error)
                raise
        self._commit()

    def _commit(self) -> None:
        begun = time.perf_counter()
        try:
            if self.faults is not None:
                self.faults("commit")
            (self._cursor or self._connected()).execute("COMMIT")
            if self.faults is not None:
                self.faults("committed")
        except BaseException as error:
            self._undo(error)
            raise
        self._commit_seconds += (time.perf_counter() - begun - self._commit_seconds) / 8
        self._leave()

    def _undo(self, error: BaseException) -> None:
        """Undo the transaction and let the others in. Raises what the error means, if that is another one."""
        meant = translate(error) if isinstance(error, Exception) else None
        try:
            if isinstance(meant, StoreFailed) or not self._rolled_back():
                self._disconnect()
        finally:
            self._leave()
        if meant is not None and meant is not error:
            raise meant from error

    def _rolled_back(self) -> bool:
        if self._connection is None or not self._connection.in_transaction:
            return True
        try:
            self._connection.rollback()
        except sqlite3.Error:
            return False
        return True

    def _leave(self) -> None:
        unlock(self._file_lock)
        self._mutex.release()


def _call(thread: ThreadPoolExecutor | None, call: Callable[[], T]) -> asyncio.Future[T]:
    try:
        if thread is not None:
            return asyncio.get_running_loop().run_in_executor(thread, call)
    except RuntimeError as error:  # it takes nothing more
        raise StoreUnavailable("the store is being closed") from error
    raise StoreUnavailable("the store is closed")
