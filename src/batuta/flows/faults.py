"""Faults of a flow: all of them, each with its path and a hint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice

from msgspec import Struct

from batuta.errors import InvalidInput

MOST_FAULTS = 100
_MOST_GUESSES, _MOST_COMPARED, _LENGTHS_APART = 20, 50, 4


class Fault(Struct, frozen=True, order=True):
    """One thing that is wrong."""

    path: str
    """Where: `steps[2].config.onTrue`; empty: the whole document."""
    message: str
    hint: str = ""
    """The advice."""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.message}{f' ({self.hint})' if self.hint else ''}"


def guess(word: str, known: Iterable[str], faults: Sequence[Fault]) -> str:
    """The hint which of the known words was meant; empty: none, or there are many faults already. Comparing each wrong
    key with hundreds of others would take minutes."""
    if len(faults) >= _MOST_GUESSES:
        return ""
    alike = (one for one in known if abs(len(one) - len(word)) <= _LENGTHS_APART)
    close = get_close_matches(word[:100], islice(alike, _MOST_COMPARED), 1)
    return f"did you mean {close[0]!r}?" if close else ""


class InvalidFlow(InvalidInput):
    """A flow that cannot be. `faults` has everything that is wrong with it."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = list(faults[:MOST_FAULTS])
        first = "; ".join(str(one) for one in self.faults[:5])
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        super().__init__(f"the flow has {len(faults)} fault{'s' if len(faults) != 1 else ''}: {first}{more}")
