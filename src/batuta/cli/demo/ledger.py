"""The demo's witness: a file outside the system, to which every activity writes when it begins and when it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, json

from batuta.authoring.activity.attempt import activity_info
from batuta.clock import SystemClock

_clock = SystemClock()


class Event(Struct):
    """One line of the ledger."""

    key: str
    """The activity call's stable key."""
    order: str
    name: str
    what: str
    """began, finished or failed."""
    attempt: int
    pid: int
    at: int


class Ledger:
    """Append-only. Lines are written whole, straight to the file: a killed process loses none that it wrote."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @contextmanager
    def witness(self) -> Iterator[None]:
        """Around the body of an activity."""
        self._write("began")
        try:
            yield
        except Exception:
            self._write("failed")
            raise
        self._write("finished")

    def _write(self, what: str) -> None:
        info = activity_info()
        event = Event(info.key, info.id, info.name, what, info.attempt, os.getpid(), _clock.now())
        os.write(self._file, json.encode(event) + b"\n")


def read_ledger(path: Path) -> list[Event]:
    """All whole lines so far."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [json.decode(line, type=Event) for line in data.split(b"\n")[:-1]]
