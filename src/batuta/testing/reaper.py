"""Ends a test server when the process that started it is gone, however it went.

Run as a script: ``python reaper.py DIRECTORY``. Its standard input is a pipe whose other end only the
launching process holds, so the kernel closes it even after ``kill -9``. Standard library only: it is
started with ``-I -S``.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

GRACE_S = 10.0


def postmaster(data: Path) -> int | None:
    """The process id of the server that runs on this data directory, or None."""
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid if _belongs(pid, data) else None


def _belongs(pid: int, data: Path) -> bool:
    # A stale file may name a process id that something else has by now: never signal a stranger.
    cmdline = Path(f"/proc/{pid}/cmdline")
    if not Path("/proc/self").exists():
        return True
    try:
        return os.fsencode(data) in cmdline.read_bytes()
    except OSError:
        return False


def end(data: Path) -> None:
    """Stop the server on this data directory: at once, and by force when it does not obey."""
    deadline = time.monotonic() + GRACE_S
    signal_now = signal.SIGQUIT
    while (pid := postmaster(data)) is not None:
        try:
            os.kill(pid, signal_now)
        except ProcessLookupError:
            return
        if time.monotonic() > deadline:
            signal_now = signal.SIGKILL
        time.sleep(0.05)


def main(directory: Path) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(directory / "data")
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
