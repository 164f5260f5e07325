"""What a campaign found: one line for each scenario, and every violation."""

from __future__ import annotations

import time
from collections import Counter

from msgspec import Struct, field

COLUMNS = ("cases", "kills", "zombies", "lost", "committed twice", "executed again", "verify", "seconds")


class Tally(Struct):
    """The figures of one scenario."""

    scenario: str
    cases: int = 0
    kills: int = 0
    zombies: int = 0
    """Workers that were stopped past their lease, replaced, and woken up."""
    lost: int = 0
    twice: int = 0
    again: int = 0
    """Executed again: begun more than once under one key and attempt."""
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
        return not (self.violations or self.lost or self.twice)

    def row(self) -> list[str]:
        verify = f"{self.verified} ok" if not self.unverified else f"{self.unverified} BAD"
        figures = [self.cases, self.kills, self.zombies, self.lost, self.twice, self.again, verify, round(self.seconds)]
        return [str(figure) for figure in figures]


def table(tallies: list[Tally]) -> str:
    """All scenarios, with a sum."""
    total = Tally("all")
    for tally in tallies:
        for name in ("cases", "kills", "zombies", "lost", "twice", "again", "verified", "unverified", "seconds"):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
    width = max(len(tally.scenario) for tally in [*tallies, total]) + 2
    lines = ["".ljust(width) + "".join(f"{column:>17}" for column in COLUMNS)]
    for tally in [*tallies, total]:
        mark = "" if tally.holds else "  <-- VIOLATED"
        lines.append(tally.scenario.ljust(width) + "".join(f"{figure:>17}" for figure in tally.row()) + mark)
    return "\n".join(lines)


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
