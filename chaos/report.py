"""What a campaign found: one line for each scenario, and every violation."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, field

COLUMNS = {
    "cases": "cases",
    "kills": "kills",
    "zombies": "zombies",
    "messages": "messages",
    "refused": "refused",
    "lost": "lost",
    "committed twice": "twice",
    "executed again": "again",
    "storms": "storms",
}
"""Titles, and the figures under them. Two more follow: what `verify` said, and the time."""
TITLES = (*COLUMNS, "verify", "seconds")
SUMS = (*COLUMNS.values(), "verified", "unverified", "seconds")


class Tally(Struct):
    """The figures of one scenario."""

    scenario: str
    cases: int = 0
    kills: int = 0
    zombies: int = 0
    """Workers that were stopped past their lease, replaced, and woken up."""
    messages: int = 0
    """Signals, updates and answers that were acknowledged."""
    refused: int = 0
    """Those that were refused, by a closed run or a validator."""
    lost: int = 0
    twice: int = 0
    again: int = 0
    """Executed again: begun more than once under one key and attempt."""
    storms: int = 0
    """Activities that were executed more often than their attempts and the deaths of workers allow."""
    verified: int = 0
    unverified: int = 0
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Not wrong, but to be known."""
    unreached: Counter[str] = field(default_factory=Counter)
    """Failpoints that were passed fewer times than in the dry run, with how many of their cases fell away."""
    seconds: float = 0.0
    _begun: float = field(default_factory=time.monotonic)

    def violate(self, case: str, what: str) -> None:
        self.violations.append(f"{self.scenario}: {case}: {what}")

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def close(self) -> None:
        if self.unreached:
            told = ", ".join(f"{site} ({times})" for site, times in self.unreached.items())
            self.note(f"passed fewer times than in the dry run, cases left out: {told}")
        self.seconds = time.monotonic() - self._begun

    @property
    def holds(self) -> bool:
        return not (self.violations or self.lost or self.twice or self.storms)

    def row(self) -> list[str]:
        verify = f"{self.verified} ok" if not self.unverified else f"{self.unverified} BAD"
        return [*(str(getattr(self, name)) for name in COLUMNS.values()), verify, str(round(self.seconds))]


def table(tallies: list[Tally]) -> str:
    """All scenarios, with a sum."""
    total = Tally("all")
    for tally in tallies:
        for name in SUMS:
            setattr(total, name, getattr(total, name) + getattr(tally, name))
    width = max(len(tally.scenario) for tally in [*tallies, total]) + 2
    lines = ["".ljust(width) + _line(TITLES)]
    for tally in [*tallies, total]:
        mark = "" if tally.holds else "  <-- VIOLATED"
        lines.append(tally.scenario.ljust(width) + _line(tally.row()) + mark)
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "".join(cell.rjust(max(len(title) + 2, 9)) for title, cell in zip(TITLES, cells, strict=True))


def full(tallies: list[Tally]) -> str:
    """The table, then what is to be known, then what is wrong."""
    parts = [table(tallies)]
    notes = [f"  {tally.scenario}: {note}" for tally in tallies for note in tally.notes]
    wrong = [f"  {violation}" for tally in tallies for violation in tally.violations]
    if notes:
        parts.append("Notes:\n" + "\n".join(notes))
    if wrong:
        parts.append(f"{len(wrong)} violations:\n" + "\n".join(wrong))
    return "\n\n".join(parts)
