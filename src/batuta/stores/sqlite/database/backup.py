"""An online copy of the file, while others write to it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from batuta.errors import InvalidInput, StoreFailed, StoreUnavailable
from batuta.ids import new_message_id
from batuta.stores.sqlite.database.connection import PATIENCE_SECONDS, connect_reader
from batuta.stores.sqlite.database.errors import translate
from batuta.stores.sqlite.database.files import filesystem
from batuta.stores.sqlite.database.writer import Writer

_BESIDE = ("-wal", "-shm", "-journal")
"""Endings of files that SQLite would take for the copy's own."""


@contextmanager
def copied(source: Path, target: Path) -> Iterator[Path]:
    """A copy under another name beside `target`, of one moment; it becomes `target` when the block succeeds.

    Writers to the source do not wait for it. Raises InvalidInput when `target`, or a file of a database of that name,
    exists already; it is never overwritten, also when it appears meanwhile.
    """
    _refuse_if_there(target)
    draft = target.with_name(f".{target.name}.{new_message_id()}")
    try:
        _copy(source, draft)
        yield draft
        _sync(draft)
        _publish(draft, target)
    finally:
        for end in ("", *_BESIDE, "-lock"):
            draft.with_name(draft.name + end).unlink(missing_ok=True)


def _refuse_if_there(target: Path) -> None:
    if not target.parent.is_dir():
        raise InvalidInput(f"the folder {str(target.parent)!r} does not exist: make it, or give another path")
    for end in ("", *_BESIDE):
        if os.path.lexists(f"{target}{end}"):
            raise InvalidInput(f"{target}{end} exists already: a backup does not overwrite files, choose another name")


def _copy(source: Path, draft: Path) -> None:
    # A writer is open around it, so that the reader's leftovers are checkpointed under the lock, as always.
    writer = Writer(source)
    writer.open()
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(connect_reader(source)) as reader, closing(sqlite3.connect(draft)) as copy:
            copy.execute("PRAGMA synchronous = OFF")  # synced once, at the end
            reader.backup(copy, pages=-1, progress=_patience())  # all at once: in parts, every commit starts it over
            _check(copy)
    except (sqlite3.Error, OSError) as error:
        kind = filesystem(draft.parent)
        meant = translate(error) or StoreUnavailable(f"the copy cannot be written ({kind}): {error}")
        raise meant from error
    finally:
        writer.close()


def _patience() -> Callable[[int, int, int], None]:
    """Give up when the source stays locked: only a foreign program locks out readers."""
    give_up = time.monotonic() + PATIENCE_SECONDS

    def progress(status: int, _remaining: int, _total: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > give_up:
            raise StoreUnavailable("another program has locked the database: try again")

    return progress


def _check(copy: sqlite3.Connection) -> None:
    found = copy.execute("PRAGMA integrity_check(1)").fetchone()
    if found != ("ok",):
        raise StoreFailed(f"the database file is damaged: {found[0]}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(draft: Path, target: Path) -> None:
    _refuse_if_there(target)
    try:
        os.link(draft, target)  # unlike a rename, it never writes over
    except FileExistsError:
        raise InvalidInput(
            f"{target} was created meanwhile: a backup does not overwrite files, choose another name"
        ) from None
    except OSError:  # a file system without links
        os.rename(draft, target)
    _sync(target.parent)
