"""How long runs are kept once they are closed."""

from __future__ import annotations

from msgspec import Struct

from batuta.ids import RunId


class Retention(Struct, kw_only=True, frozen=True):
    """One rule. The most specific one holds: of the name and state, of the name, of the state, of all."""

    name: str = ""
    """Of the workflow or job; empty: any."""
    state: str = ""
    """A closed state; empty: any."""
    keep: int | None = None
    """Microseconds from the close; None: for ever."""


class Pruned(Struct):
    """What one step of pruning did."""

    deleted: int
    """Runs."""
    last: RunId | None
    """Where the next step goes on; None: all were looked at, begin from the oldest again."""
