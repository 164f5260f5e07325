"""The store for one machine: a SQLite file."""

from __future__ import annotations

from batuta.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
