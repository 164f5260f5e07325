"""All writes of a process: one connection, one transaction at a time, one lock across processes.

SQLite before 3.51.3 can damage a WAL that two connections write or checkpoint at once, so writes and checkpoints of all
processes happen under one `flock`. A transaction's statements run on the event loop's thread when no one else writes,
and only the sync waits in a thread: on an idle loop a thread for all of it is as fast, on a busy one it is slower and
has the longer tail. A short sync is not worth the two hops either. A few statements that take milliseconds each, the
last of their transaction, go to that thread, too.
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
from batuta.durations import human_duration
from batuta.errors import BatutaError, ClientError, StoreError, StoreFailed, StoreUnavailable, told
from batuta.stores.contract import rules
from batuta.stores.sqlite.database.connection import (
    CHECKPOINT_PAGES,
    LONG_LOG,
    PATIENCE_SECONDS,
    Faults,
    connect_writer,
)
from batuta.stores.sqlite.database.errors import translate
from batuta.stores.sqlite.database.files import LockFile, identity
from batuta.stores.sqlite.database.process_fork import forks, leak

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
_LOOK_SECONDS = 0.1
"""How often a look at the log's length is worth it, while there is something to write."""
_LONG_SECONDS = 0.005
"""A transaction that took longer looks once more for its lock before it commits. A commit itself may take as long."""
_LENT_SECONDS = 0.5
"""How long a fork waits for a transaction that others go on with, and may be a part of."""


class _Hurry:
    """Switch threads faster meanwhile, so that a thread waiting for the interpreter's lock gets it soon.

    A thread that has executed a statement needs the lock to go on, and a busy event loop would keep it for five
    milliseconds each time, longer than the statement took. Only if the program has not set that interval itself.
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

    def forked(self) -> None:
        """In a forked process: its waiters do not exist."""
        self._lock = threading.Lock()
        if self._count and self._is_ours:
            self._set(_USUAL_SWITCH, instead_of=_SHORT_SWITCH)
        self._count = 0

    def _set(self, micros: int, instead_of: int) -> bool:
        if round(sys.getswitchinterval() * SECOND) != instead_of:
            return False
        sys.setswitchinterval(micros / SECOND)
        return True


_hurry = _Hurry()
os.register_at_fork(after_in_child=_hurry.forked)


class Writer:
    """The writing connection of one store object, for any thread."""

    last = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._in_turn = asyncio.Lock()  # for large writes: see `write`
        self._waiting: set[int] = set()  # threads that wait for the mutex: the event loop does not push in
        self._commit_seconds = 0.0  # a moving mean
        self._begun_at = 0.0
        self._lock = LockFile(path.with_name(path.name + "-lock"))
        self._is_inherited = False
        self._is_lent = False
        """Whether others go on with the transaction that is open."""
        self._connection: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        # Two threads: a commit must never queue behind a write that waits for that very commit.
        self._writing: ThreadPoolExecutor | None = None
        self._syncing: ThreadPoolExecutor | None = None
        self.faults: Faults | None = None
        self._file, self._log = str(path), f"{path}-wal"
        self._look_at = 0.0
        self._relief: threading.Thread | None = None
        """Checkpoints a log that has become long, so that no commit has to."""
        self._closing = threading.Event()
        self._told_long = False
        self.identity: tuple[int, int] | None = None
        """The file that is open."""

    # -- open and close

    def open(self) -> None:
        forks.refuse_inherited(self._path, identity(self._file))  # before it waits for anything
        self._in_turn = asyncio.Lock()
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="batuta-sqlite-write")
        self._syncing = ThreadPoolExecutor(1, thread_name_prefix="batuta-sqlite-sync")
        for thread in (self._writing, self._syncing):
            thread.submit(int).result()  # begun now: where none can be begun later, a transaction would stay open
        self._is_inherited = False
        self._closing.clear()
        self._lock.open()
        forks.open.add(self)
        self.write_blocking(lambda _cursor: None)
        log.debug("opened %s with SQLite %s", self._path, sqlite3.sqlite_version)

    def close(self, others: Callable[[], None] = lambda: None) -> None:
        """Wait for the current transaction, then close the connections of `others` and this one.

        The last connection to a file checkpoints when it closes: under the lock, like all checkpoints.
        """
        self._closing.set()
        if (relief := self._relief) is not None:
            relief.join()
        for thread in (self._writing, self._syncing):
            if thread is not None:
                thread.shutdown()
        self._writing = self._syncing = None
        if not self._lock.is_open:
            others()
            return
        with self._mutex:
            try:
                self._wait_for_file_lock(time.monotonic() + PATIENCE_SECONDS)
            except StoreUnavailable as error:
                log.warning("closing %s: %s", self._path.name, told(error))
            others()
            self._disconnect()
            self._lock.close()
        forks.open.discard(self)

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
                log.warning("closing %s: %s", self._path.name, told(error))

    # -- transactions

    def write(
        self, work: Work[T], *, last: Last[T] | None = None, small: bool = False, aside: bool = False
    ) -> Coroutine[Any, Any, T]:
        """Run `work` in a transaction and make it durable. If it raises, nothing was written.

        A `small` one may be synced on the event loop's thread; one that is done `aside` does not run on it at all.
        Writers wait for each other here, and not in a thread: a thread that a busy event loop keeps from the
        interpreter's lock would read a row every five milliseconds. But `last`, which gets the result of `work`, runs
        where it is synced: for a few long statements, which let the event loop go on.
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
            return await self._call(self._writing, lambda: self.write_blocking(work, last))
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
            return self._call(self._syncing, commit)
        except StoreUnavailable as error:  # closed meanwhile: who closes waits for this transaction
            self._undo(error)
            raise

    # -- a transaction that others go on with

    def try_begin(self) -> bool:
        """Begin a transaction, if that needs no waiting.

        The caller ends it, with `commit` or `abandon`; until then no one else can write.
        """
        entered = self._try_enter()
        self._is_lent = self._is_lent or entered
        return entered

    async def begin(self) -> None:
        """The same, after others if need be."""
        if self.try_begin():
            return
        entering = self._call(self._writing, self._enter)
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(self._abandon_late)
            raise
        self._is_lent = True

    def _abandon_late(self, entering: asyncio.Future[None]) -> None:
        if not entering.cancelled() and entering.exception() is None:
            self.abandon()

    @property
    def cursor(self) -> sqlite3.Cursor:
        """Of the transaction that was begun."""
        return self._cursor or self._connected()

    async def commit(self) -> None:
        """Make it durable, in a thread if that takes too long for the event loop. When it raises, nothing was
        written."""
        if self._commit_seconds < SHORT_COMMIT_SECONDS:
            self._commit()
        else:
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
        return self._call(self._syncing, work)

    def write_blocking(self, work: Work[T], last: Last[T] | None = None) -> T:
        """The same for a thread that may wait."""
        self._enter()
        result = self._work(work)
        self._end(last, result)
        return result

    def look(self, work: Work[T]) -> T | None:
        """Read on the writing connection; None while it is writing."""
        if not self._mutex.acquire(blocking=False):
            return None
        try:
            cursor = self._cursor or self._reconnected()
            return None if cursor is None else work(cursor)
        finally:
            self._mutex.release()

    def _reconnected(self) -> sqlite3.Cursor | None:
        """Connect again after a fork or a failure, if that needs no waiting."""
        if not self._lock.is_open or not self._lock.try_take():
            return None
        try:
            return self._connected()
        finally:
            self._lock.release()

    def _try_enter(self) -> bool:
        """Begin a transaction if that needs no waiting."""
        if self._waiting or not self._mutex.acquire(blocking=False):
            return False
        try:
            taken = self._lock.is_open and self._lock.try_take()
        except StoreUnavailable:
            taken = False
        if not taken:
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
                # Only a foreign program can hold SQLite's own lock.
                if time.monotonic() > give_up:
                    raise
            time.sleep(_LONGEST_PAUSE_SECONDS)

    def _wait_for_turn(self, give_up: float) -> None:
        self._has_turn()
        try:
            self._wait_for_file_lock(give_up)
        except BaseException:
            self._mutex.release()
            raise

    def _has_turn(self, give_up: float | None = None) -> bool:
        """Wait for the mutex, for ever or until then."""
        thread = threading.get_ident()
        self._waiting.add(thread)
        try:
            return self._mutex.acquire(timeout=-1 if give_up is None else max(0.0, give_up - time.monotonic()))
        finally:
            self._waiting.discard(thread)

    def _wait_for_file_lock(self, give_up: float) -> None:
        """Wait, but not for ever: a process that was stopped in the middle of a write never releases the lock."""
        if not self._lock.is_open:
            raise self._closed()
        pause = _FIRST_PAUSE_SECONDS
        while not self._lock.try_take():
            if time.monotonic() > give_up:
                raise StoreUnavailable(f"another process has been writing to {self._path.name!r} for too long")
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)

    def _begin(self) -> None:
        try:
            if self.faults is not None:
                self.faults("begin")
            (self._cursor or self._connected()).execute("BEGIN IMMEDIATE")
            self._begun_at = time.perf_counter()
            if self._begun_at >= self._look_at:
                self._look_at_log()
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
            if begun - self._begun_at > _LONG_SECONDS and not self._lock.is_in_place():
                # Deleted meanwhile: others may have made and taken another one.
                self._wait_for_file_lock(time.monotonic() + PATIENCE_SECONDS)
            (self._cursor or self._connected()).execute("COMMIT")
            if self.faults is not None:
                self.faults("committed")
        except BaseException as error:
            self._undo(error)
            raise
        self._commit_seconds += (time.perf_counter() - begun - self._commit_seconds) / 8
        self._leave()

    def _undo(self, error: BaseException) -> None:
        """Roll the transaction back and let others in. Raises the error's meaning, if that is another error."""
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
        self._is_lent = False
        self._lock.release()
        self._mutex.release()

    def _call(self, thread: ThreadPoolExecutor | None, call: Callable[[], T]) -> asyncio.Future[T]:
        try:
            if thread is not None:
                return asyncio.get_running_loop().run_in_executor(thread, call)
        except RuntimeError as error:  # it takes nothing more
            raise StoreUnavailable("the store is being closed") from error
        raise self._closed()

    def _closed(self) -> BatutaError:
        return ClientError(rules.OPENED_BY_PARENT) if self._is_inherited else StoreUnavailable("the store is closed")

    # -- a long log

    def _look_at_log(self) -> None:
        """If the log has become long, because of a long reader, let no commit checkpoint it: when the reader is
        gone, that takes seconds, and a commit may run on the event loop's thread."""
        self._look_at = self._begun_at + _LOOK_SECONDS
        if self._relief is None and _size(self._log) > LONG_LOG:
            self.cursor.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
            self._relief = threading.Thread(target=self._relieve, name="batuta-sqlite-checkpoint", daemon=True)
            self._relief.start()

    def _relieve(self) -> None:
        """Checkpoint the log again and again until it is short."""
        pause = 0.0
        while not self._closing.wait(pause):
            pause = _LOOK_SECONDS * 10
            try:
                self._wait_for_turn(time.monotonic() + PATIENCE_SECONDS)
            except BatutaError as error:
                self._tell_long(error)
                continue
            try:
                if self._shortened():
                    break
            finally:
                self._leave()
        self._relief = None

    def _shortened(self) -> bool:
        """Checkpoint the whole log, if there is no reader. Commits wait meanwhile; the event loop does not."""
        begun = time.perf_counter()
        try:
            cursor = self._connected()
            cursor.execute("PRAGMA wal_autocheckpoint = 0").fetchall()  # of a connection that is new
            is_read = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
            if not is_read:
                cursor.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
        except (sqlite3.Error, StoreError) as error:
            self._tell_long(error)
            return False
        if not is_read:
            log.info(
                "a long log of %s was checkpointed in %s",
                self._path.name,
                human_duration(round(time.perf_counter() - begun, 1)),
            )
            self._told_long = False
        return not is_read

    def _tell_long(self, error: Exception) -> None:
        """Once until it was checkpointed, not at each attempt."""
        if not self._told_long:
            self._told_long = True
            log.warning("the log of %s is long and cannot be checkpointed: %s", self._path.name, told(error))

    # -- forks

    def before_fork(self, give_up: float) -> bool:
        if self._is_lent:  # maybe to the very code that forks
            give_up = min(give_up, time.monotonic() + _LENT_SECONDS)
        if not self._has_turn(give_up):
            return False
        if self._connection is not None:
            try:
                self._wait_for_file_lock(give_up)
            except StoreUnavailable as error:
                log.warning("%s stays open during a fork: %s", self._path.name, told(error))
            else:
                self._disconnect()
                self._lock.release()
        return True

    def after_fork(self) -> None:
        self._mutex.release()

    def in_child(self) -> None:
        for thing in (self._connection, self._cursor):
            if thing is not None:
                leak(thing)
        self._connection = self._cursor = self._writing = self._syncing = self._relief = None
        self._mutex, self._waiting, self._is_inherited = threading.Lock(), set(), True
        self._closing = threading.Event()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
