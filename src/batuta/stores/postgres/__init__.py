"""The store on PostgreSQL (asyncpg): one round trip a commit, many processes on one database."""

from __future__ import annotations

from batuta.errors import MissingExtra

try:
    import asyncpg  # noqa: F401 (asked for here so that its absence is explained)
except ImportError as error:
    raise MissingExtra("postgresql:// URLs", "postgres") from error

from batuta.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
