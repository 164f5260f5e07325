"""Forking a process that has a SQLite file open.

SQLite keeps a list of the files that a process has open, with its locks on them. A forked process inherits that list,
but none of the locks: a file that it opens trusts locks that do not exist, and another process deletes the write-ahead
log under it. Closing an inherited connection does not help either: it may checkpoint, or wait for a mutex of a thread
that does not exist. So all connections are closed before a fork, between two transactions, and each side opens its own
when it needs them. A file that is still open (a transaction that lasts too long, the program's own connection) cannot
be used in the forked process.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
import weakref
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Protocol

from batuta.errors import ClientError

log = logging.getLogger("batuta.sqlite")

QUIESCE_SECONDS = 5.0
"""How long a fork waits for transactions and reads that are under way."""
_MOST_DESCRIPTORS = 65_536


class Connections(Protocol):
    """Connections of one object."""

    last: bool
    """Whether they are closed after the others: the last connection to a file checkpoints."""

    def before_fork(self, give_up: float) -> bool:
        """Close them, and let none be used until `after_fork`. False when they are in use for too long."""
        ...

    def after_fork(self) -> None:
        """In the parent, if `before_fork` was true."""
        ...

    def in_child(self) -> None:
        """In the forked process. Connections that are still open must not be touched there."""
        ...


class _Forks:
    """The state of one process."""

    def __init__(self) -> None:
        self.open: weakref.WeakSet[Connections] = weakref.WeakSet()
        self.connecting = threading.RLock()
        """Held while a connection is made, and during a fork."""
        self._forking = threading.Lock()
        self._held: list[Connections] = []
        self._inherited: dict[int, tuple[int, int]] = {}
        """Files that were open when this process was forked, by descriptor."""

    def before(self) -> None:
        self._forking.acquire()
        give_up = time.monotonic() + QUIESCE_SECONDS
        try:
            for connections in sorted(self.open, key=lambda each: each.last):
                if connections.before_fork(give_up):
                    self._held.append(connections)
        finally:
            # Last: making a connection holds a lock of one of those.
            self.connecting.acquire()

    def in_parent(self) -> None:
        self.connecting.release()
        held, self._held = self._held, []
        for connections in held:
            connections.after_fork()
        self._forking.release()

    def in_child(self) -> None:
        self.connecting, self._forking, self._held = threading.RLock(), threading.Lock(), []
        for connections in list(self.open):
            connections.in_child()
        self.open.clear()
        self._inherited = _open_files()

    def refuse_inherited(self, path: Path, file: tuple[int, int] | None) -> None:
        """Raise ClientError when the file was open at the fork that made this process, and has not been closed here."""
        for descriptor, name in list(self._inherited.items()):
            if name != file:
                continue
            if _file(descriptor) == name:
                raise ClientError(
                    f"{str(path)!r} was open when this process was forked, and would be damaged if it were used here: "
                    f"fork while no transaction is open, with your own connections to it closed, or use the start "
                    f"method 'spawn'"
                )
            del self._inherited[descriptor]


def _open_files() -> dict[int, tuple[int, int]]:
    try:
        descriptors = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:  # a place without it: all that may be there
        descriptors = list(range(min(os.sysconf("SC_OPEN_MAX"), _MOST_DESCRIPTORS)))
    found = {descriptor: _file(descriptor) for descriptor in descriptors}
    return {descriptor: name for descriptor, name in found.items() if name is not None}


def _file(descriptor: int) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            return found.st_dev, found.st_ino
    return None


def leak(thing: object) -> None:
    """Let it never be finalized, not even when the interpreter ends."""
    ctypes = import_module("ctypes")  # here: hardly any process needs it
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


forks = _Forks()
os.register_at_fork(before=forks.before, after_in_parent=forks.in_parent, after_in_child=forks.in_child)
