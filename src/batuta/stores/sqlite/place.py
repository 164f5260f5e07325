"""Where a database file lies, who may read it, and the locks beside it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from urllib.parse import quote

from batuta.errors import StoreError, StoreUnavailable

# fcntl and flock locks, which WAL and our own fence between processes need, are not reliable on these.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs"}


def prepare(path: Path) -> None:
    """Make the file if it is not there, readable by its owner alone. Refuses a place where locks cannot be trusted."""
    folder = path.parent
    if not folder.is_dir():
        raise StoreError(f"the folder {str(folder)!r} does not exist: make it, or give another path for the database")
    if path.is_dir():
        raise StoreError(f"{str(path)!r} is a folder: give the path of a file for the database")
    kind = filesystem(folder)
    if kind in _NETWORK:
        raise StoreError(
            f"{str(path)!r} is on a network file system ({kind}), where SQLite can lose data: "
            f"put it on a local disk, or use PostgreSQL"
        )
    try:
        # Never opened when it exists: closing any descriptor of it would drop SQLite's own locks in this process.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreUnavailable(f"the database file cannot be made: {error}") from error


def filesystem(folder: Path) -> str:
    """The type of the file system that holds a folder; empty when the system does not tell."""
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    where = str(folder.resolve())
    for line in mounts:
        fields = line.split(" ")
        mount = fields[1].encode("utf-8", "surrogateescape").decode("unicode_escape")
        inside = where == mount or where.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind


def open_lock(path: Path) -> int:
    """A descriptor of a lock file, made if need be."""
    try:
        return os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise StoreUnavailable(f"the lock file {str(path)!r} cannot be opened: {error}") from error


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take a lock without waiting."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


class WorkerLocks:
    """A lock file for each worker in a folder beside the database: the system frees it when the process is gone."""

    def __init__(self, database: Path) -> None:
        self._folder = database.with_name(database.name + "-workers")

    def hold(self, worker_id: str) -> int:
        """Take the worker's lock; give the descriptor to `drop` afterwards."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = open_lock(self._file(worker_id))
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # may wait for the blink of an eye in which a peer looks
        return descriptor

    def drop(self, worker_id: str, descriptor: int) -> None:
        self.remove(worker_id)
        os.close(descriptor)

    def remove(self, worker_id: str) -> None:
        self._file(worker_id).unlink(missing_ok=True)

    def is_free(self, worker_id: str) -> bool:
        """Whether nobody holds the worker's lock. A shared lock asks: two who ask do not disturb each other."""
        try:
            descriptor = os.open(self._file(worker_id), os.O_RDWR)
        except FileNotFoundError:
            return True
        except OSError:  # too many open files, no permission: it cannot be told, and nobody is buried on a guess
            return False
        try:
            return try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def _file(self, worker_id: str) -> Path:
        return self._folder / (quote(worker_id, safe="") + ".lock")
