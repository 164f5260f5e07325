"""The result of a verification: checks and violations."""

from __future__ import annotations

from msgspec import Struct, field

from batuta.ids import RunId

INVARIANTS = {
    "I1": "every started run exists: open, or closed with its end in the journal",
    "I2": "an id has one current run, and an open run is the current one",
    "I3": "no entry was changed, and no command has two answers",
    "I4": "entries and commands are numbered without gaps, times never fall",
    "I5": "a journal has one end, and nothing after it",
    "I6": "epochs never fall, and none is above the run's",
    "I7": "today's code replays the journal",
    "I9": "timers fire once, and never early",
    "I10": "an accepted message is read once, by an entry of a journal, and before its run ends",
    "I12": "every open run has an owner, is due at some time, waits for a message, or is parked with a reason",
    "I15": "a dead letter belongs to a failed run, a reprocessed one has a successor, and groups have the right counts",
}
"""The invariants of every run. The numbers are those of the failure-mode catalogue."""

_KEPT = 1_000


class Violation(Struct, frozen=True):
    """One promise that one run does not keep."""

    invariant: str
    id: str
    run_id: RunId
    what: str


class Stranded(Struct, frozen=True):
    """An open run that no live worker may take. No promise is broken: it goes on when such a worker starts."""

    id: str
    run_id: RunId
    why: str


class Report(Struct):
    """The outcome of a verification."""

    runs: int = 0
    checked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    """How many runs (I9: fired timers, I15: dead letters) each invariant was checked on."""
    found: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    """How many violations of each."""
    violations: list[Violation] = field(default_factory=list)
    """The first thousand."""
    stranded: list[Stranded] = field(default_factory=list)
    """At most a thousand. Empty when no worker is alive at all: then every open run waits for one."""

    sealed: int = 0
    """Runs of which only the rows were checked: their payloads cannot be read here."""

    @property
    def holds(self) -> bool:
        return not any(self.found.values())

    def add(self, violation: Violation) -> None:
        self.found[violation.invariant] += 1
        if len(self.violations) < _KEPT:
            self.violations.append(violation)
