"""Faults inside a store, armed in a worker process by a text: `verb:step:nth:fault`, several separated by commas."""

from __future__ import annotations

from batuta.journal.store import Store


def arm(store: Store, text: str) -> None:
    """Make the store fail as the text says."""
    raise NotImplementedError(text)
