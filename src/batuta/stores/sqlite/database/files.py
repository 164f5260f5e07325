"""The place of a database file, its permissions, and the locks beside it."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import weakref
from pathlib import Path
from urllib.parse import quote

from batuta.errors import StoreError, StoreUnavailable, told

log = logging.getLogger("batuta.sqlite")

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
        raise StoreUnavailable(f"the database file cannot be created: {error}") from error


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
    """A descriptor of a lock file, created if necessary. Never follows a link, which could lead anywhere."""
    try:
        return os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StoreUnavailable(f"the lock file {str(path)!r} is a symbolic link: remove it") from error
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


def identity(path: str, *, follow: bool = True) -> tuple[int, int] | None:
    """Identifies the file at a path: a replacement has another identity. None when there is no file."""
    try:
        found = os.stat(path, follow_symlinks=follow)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class LockFile:
    """A lock between processes: a file that is locked with `flock`.

    A program that deletes old files may delete it while it is in use, and other processes would then create and lock
    another one. So the lock counts only while the path names the locked file: this is checked when the lock is taken,
    and again before a late commit.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._descriptor = -1
        self._identity: tuple[int, int] | None = None

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def open(self) -> None:
        """Make the file if need be. Raises StoreUnavailable."""
        descriptor = open_lock(Path(self._path))
        self.close()
        found = os.fstat(descriptor)
        self._descriptor, self._identity = descriptor, (found.st_dev, found.st_ino)
        _lock_files.add(self)

    def try_take(self) -> bool:
        """Take it without waiting. Raises StoreUnavailable when the file is missing and cannot be created again."""
        while try_lock(self._descriptor):
            if self.is_in_place():
                return True
            self._reopen()
        return False

    def take(self) -> None:
        """Take it. For a lock that others hold for no longer than a look."""
        while True:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if self.is_in_place():
                return
            self._reopen()

    def is_in_place(self) -> bool:
        """Whether the path names the file that is open here."""
        return identity(self._path, follow=False) == self._identity

    def _reopen(self) -> None:
        try:
            self.open()
        except BaseException:
            unlock(self._descriptor)
            raise

    def release(self) -> None:
        unlock(self._descriptor)

    def close(self) -> None:
        """Release it. Unlocks first: a forked process may have the descriptor, too, and the lock belongs to both."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            unlock(descriptor)
            os.close(descriptor)

    def forget(self) -> None:
        """In a forked process: the lock is the parent's, and unlocking it here would take it from there."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_lock_files: weakref.WeakSet[LockFile] = weakref.WeakSet()


def _forget_lock_files() -> None:
    for lock in list(_lock_files):
        lock.forget()


os.register_at_fork(after_in_child=_forget_lock_files)


class WorkerLocks:
    """A lock file for each worker in a folder beside the database: the system releases it when the process dies."""

    def __init__(self, database: Path) -> None:
        self._folder = database.with_name(database.name + "-workers")

    def hold(self, worker_id: str) -> LockFile:
        """Take the worker's lock; close it afterwards. The file stays until `remove`: a free one tells of a death."""
        lock = LockFile(self._file(worker_id))
        self._take(lock)
        return lock

    def keep(self, lock: LockFile) -> None:
        """Make the file again, and lock it, if it was deleted while the lock is held."""
        if not lock.is_open or lock.is_in_place():
            return
        try:
            self._take(lock)
            log.warning("the lock file of this worker was deleted, and was made again in %s", self._folder)
        except StoreUnavailable as error:  # its lease says that it lives
            log.warning("the lock file of this worker was deleted: %s", told(error))

    def _take(self, lock: LockFile) -> None:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"the folder {str(self._folder)!r} cannot be created: {error}") from error
        if not self._is_folder():
            raise StoreUnavailable(f"{str(self._folder)!r} is a symbolic link: remove it")
        lock.open()
        lock.take()  # may wait for the blink of an eye in which a peer looks

    def _is_folder(self) -> bool:
        """Refuse a link: files would be created, checked and deleted elsewhere."""
        try:
            return stat.S_ISDIR(os.lstat(self._folder).st_mode)
        except OSError:
            return False

    def remove(self, worker_id: str) -> None:
        if self._is_folder():
            self._file(worker_id).unlink(missing_ok=True)

    def is_free(self, worker_id: str) -> bool:
        """Whether the worker's lock is known to be free. A shared lock asks: two who ask do not disturb each other.

        Without the file it is not known: the worker may live, and make it again. Its lease tells.
        """
        try:
            if not self._is_folder():
                return False
            descriptor = os.open(self._file(worker_id), os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # not there, a link, too many open files, no permission: no one is buried on a guess
            return False
        try:
            return try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            unlock(descriptor)
            os.close(descriptor)

    def _file(self, worker_id: str) -> Path:
        return self._folder / (quote(worker_id, safe="") + ".lock")
