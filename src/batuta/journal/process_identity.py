"""Which process a worker is, in words that others on the same machine can check."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_PROC = Path("/proc")
_GONE = frozenset("ZXx")
"""States of a process that has ended and whose parent has not reaped it."""


def this_process() -> str:
    """The machine, its boot, the namespace of its process ids, the id of this process and when it began. Empty where
    that cannot be known: then only silence tells that it has ended."""
    pid = os.getpid()
    try:
        if os.readlink(_PROC / "self") != str(pid):  # the /proc of another namespace
            return ""
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        spaces = [
            os.readlink(_PROC / "self/ns" / name) for name in ("pid", "time") if (_PROC / "self/ns" / name).exists()
        ]
        return " ".join([socket.gethostname(), boot, *spaces, str(pid), _begun(pid)[1]])
    except OSError:
        return ""


def has_ended(process: str) -> bool | None:
    """Whether the process has ended. None: it is of another machine, boot or container, or cannot be looked at.

    A number may be another process's by now, which began later.
    """
    place, _, begun = process.rpartition(" ")
    here, _, mine = this_process().rpartition(" ")
    place, _, pid = place.rpartition(" ")
    if not place or place != here.rpartition(" ")[0]:
        return None
    if pid == str(os.getpid()):
        return begun != mine
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is there, and somebody else's
    try:
        state, since = _begun(int(pid))
    except OSError:  # it has just ended, or /proc hides the processes of others
        return None
    return state in _GONE or since != begun


def _begun(pid: int) -> tuple[str, str]:
    """State of a process, and when it began, in ticks since the boot."""
    # Its name, in brackets, may hold anything.
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]
