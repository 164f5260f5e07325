"""What a scenario expected and what was seen: the proof, line by line."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct, field


class Line(Struct, frozen=True, kw_only=True):
    """One fact."""

    fact: str
    expected: str
    seen: str
    ok: bool


class Ledger(Struct, kw_only=True):
    """Of one play. It proves nothing until it has lines, and all of them are as expected."""

    name: str
    title: str
    began_at: datetime
    took: float = 0.0
    """Seconds."""
    lines: list[Line] = field(default_factory=list)
    steps: list[tuple[float, str]] = field(default_factory=list)
    """What was done, and when: seconds since the beginning."""
    runs: list[str] = field(default_factory=list)
    """Runs that took part."""
    missing: str = ""
    """What is not there to play it, and how to get it."""
    failure: str = ""
    """Why it did not come to its end."""
    is_over: bool = False

    def expect(self, fact: str, expected: Any, seen: Any, *, ok: bool | None = None) -> bool:
        """Add a line. Without `ok` both must look the same."""
        one, two = shown(expected), shown(seen)
        line = Line(fact=fact, expected=one, seen=two, ok=one == two if ok is None else ok)
        self.lines.append(line)
        return line.ok

    @property
    def passed(self) -> bool:
        return (
            self.is_over
            and not self.missing
            and not self.failure
            and bool(self.lines)
            and self.right == len(self.lines)
        )

    @property
    def right(self) -> int:
        """How many lines are as expected."""
        return sum(line.ok for line in self.lines)

    @property
    def verdict(self) -> str:
        if not self.is_over:
            return "is being played"
        if self.missing:
            return "cannot be played here"
        if self.failure:
            return "did not come to its end"
        return "proved" if self.passed else "NOT as expected"

    @property
    def sentence(self) -> str:
        """For a person."""
        why = self.missing or self.failure or f"{self.right} of {len(self.lines)} lines as expected"
        return f"{self.title}: {self.verdict}, {why}"


def shown(value: Any) -> str:
    """For a cell: `3 x 201, 1 x 503` for counts."""
    if isinstance(value, Mapping):
        return ", ".join(f"{count} x {name}" for name, count in sorted(value.items(), key=str)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(shown(one) for one in value) or "none"
    return str(value)
