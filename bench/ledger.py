"""The outside ledger of W6: one line when an activity begins, one when it ends, in a file no engine knows about.

Appends are single writes of short lines to a file opened with O_APPEND, so a kill -9 tears nothing apart and two
processes may write at once. What the process wrote before it died stays, since the kernel has it.
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class Ledger:
    """The writing side: held by the worker processes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def all_started(self) -> None:
        """Every run's start was acknowledged: from here on a kill may lose nothing."""
        os.write(self._file, b"S\n")

    def begin(self, key: str) -> None:
        os.write(self._file, f"B {key}\n".encode())

    def end(self, key: str) -> None:
        os.write(self._file, f"E {key}\n".encode())


@dataclass(frozen=True)
class Account:
    """How often each activity began and ended, by its key."""

    begun: Counter[str]
    ended: Counter[str]

    @classmethod
    def read(cls, path: Path) -> "Account":
        lines = path.read_text().splitlines() if path.exists() else []
        return cls(_counted(lines, "B "), _counted(lines, "E "))

    def in_flight(self) -> set[str]:
        return {key for key in self.begun if key not in self.ended}

    def begun_twice(self) -> set[str]:
        return {key for key, times in self.begun.items() if times > 1}

    def ended_twice(self) -> set[str]:
        return {key for key, times in self.ended.items() if times > 1}


def _counted(lines: Iterable[str], mark: str) -> Counter[str]:
    return Counter(line[2:] for line in lines if line.startswith(mark))


def ended_count(path: Path) -> int:
    """How many activities ended so far; cheap enough to ask every few milliseconds."""
    return path.read_bytes().count(b"E ") if path.exists() else 0


def all_started(path: Path) -> bool:
    """Whether every start was acknowledged."""
    return path.exists() and b"S\n" in path.read_bytes()
