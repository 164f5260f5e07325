"""The one place that picks implementations: a URL becomes a store, a backend and a client."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from batuta.authoring.names import check_name
from batuta.client import Batuta
from batuta.errors import InvalidURL
from batuta.journal.store import Store
from batuta.settings import Settings

_FROM_ENVIRONMENT = ("schema", "direct_url", "statement_timeout", "lock_timeout")


def connect(
    url: str | None = None, *, namespace: str | None = None, migrate: bool = True, actor: str | None = None
) -> Batuta:
    """A client for the database at `url`: `sqlite:///file.db`, `postgresql://...` or `memory://`.

    Without a URL, BATUTA_DATABASE_URL is used, else `sqlite:///batuta.db`. The schema is created or brought up to
    date when the context is entered, unless `migrate` is False. `actor` is who acts with this client, for the audit
    log; without it BATUTA_ACTOR, else the user and host of this process.
    """
    from batuta.engine.native import NativeBackend  # here: `batuta --help` has no use for an engine

    store = store_for(url, namespace=namespace)

    async def opening() -> None:
        if migrate:
            await store.migrate()
        await store.open()

    backend = NativeBackend(store, actor=actor)

    async def closing() -> None:
        backend.close()
        await store.close()

    return Batuta(backend, opening, closing, Settings.from_env().max_payload)


def store_for(url: str | None = None, *, namespace: str | None = None) -> Store:
    """The store that a URL names, not opened. Raises InvalidURL, MissingExtra."""
    url = url or os.environ.get("BATUTA_DATABASE_URL") or "sqlite:///batuta.db"
    namespace = check_name(namespace or os.environ.get("BATUTA_NAMESPACE") or "default", "namespace")
    match urlsplit(url).scheme:
        case "sqlite":
            from batuta.stores.sqlite import SqliteStore

            return SqliteStore(_sqlite_path(url), namespace=namespace)
        case "postgresql" | "postgres":
            from batuta.stores.postgres import PostgresStore

            return PostgresStore(url, namespace=namespace, defaults=_database_options())
        case "memory":
            from batuta.stores.memory import MemoryStore

            return MemoryStore(namespace=namespace)
        case scheme:
            raise InvalidURL(
                f"{scheme + '://' if scheme else url!r} names no store: use sqlite:///path/to/file.db, "
                f"postgresql://user@host/database or memory://"
            )


def _database_options() -> dict[str, str]:
    """What the environment says for options that a PostgreSQL URL does not have."""
    found = {name: os.environ.get(f"BATUTA_DATABASE_{name.upper()}", "") for name in _FROM_ENVIRONMENT}
    return {name: value for name, value in found.items() if value}


def _sqlite_path(url: str) -> str:
    """`sqlite:///shop.db` is a file of this directory, `sqlite:////var/shop.db` one from the root."""
    parts = urlsplit(url)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path or path.endswith("/"):
        raise InvalidURL(f"{url!r} names no file: use sqlite:///file.db (this directory) or sqlite:////path/file.db")
    return path
