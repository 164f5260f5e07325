"""The one place that picks implementations: a URL becomes a store, a backend and a client."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit

from batuta.authoring.middleware import Middleware, check_middleware
from batuta.errors import InvalidInput, InvalidURL
from batuta.names import check_name

if TYPE_CHECKING:  # imported by the first use: `import batuta` in modules that only define workflows needs no client
    from batuta.bus.broker import Broker
    from batuta.client import Batuta
    from batuta.clock import Clock
    from batuta.codecs import PayloadCodec
    from batuta.journal.store import Store
    from batuta.settings import Settings

Codecs: TypeAlias = "PayloadCodec | Sequence[PayloadCodec] | None"

_YES, _NO = frozenset({"1", "true", "yes", "on"}), frozenset({"", "0", "false", "no", "off"})
_FROM_ENVIRONMENT = ("schema", "direct_url", "statement_timeout", "lock_timeout", "busy_wait")


def connect(
    url: str | None = None,
    *,
    namespace: str | None = None,
    migrate: bool = True,
    codec: Codecs = None,
    middleware: Sequence[Middleware] = (),
    actor: str | None = None,
    reason: str = "",
    bus: Broker | str | None = None,
    clock: Clock | None = None,
) -> Batuta:
    """A client for the database at `url`: `sqlite:///file.db`, `postgresql://...` or `memory://`.

    Without a URL, BATUTA_DATABASE_URL is used, else `sqlite:///batuta.db`. Entering the context creates the schema or
    brings it up to date, unless `migrate` is False.

    `codec`: one or several codecs for payloads, in order, such as `[Compression(), Encryption(keys)]` of
    `batuta.codecs`. Without it, BATUTA_COMPRESS and BATUTA_KEYS (or BATUTA_KEYS_FILE) decide; `[]` means none.

    `middleware` goes around what this client starts, and what its workers execute.

    `bus`: where messages go: a broker, such as `batuta.bus.pulsar.PulsarBus(url)`, or its URL; without it BATUTA_BUS,
    else the store itself.

    `actor` names the operator in the audit log; without it BATUTA_ACTOR, else the user and host of this process.
    `reason` is the default reason of actions. The log's hashes have a key when BATUTA_AUDIT_KEY is set or payloads are
    encrypted.

    `clock`: the time of a store on SQLite or in memory, for simulations; the machine's unless told. A clock that is
    moved is noticed by workers that begin afterwards. PostgreSQL has a clock of its own.
    """
    from batuta.client import Batuta
    from batuta.codecs import Encryption
    from batuta.engine.backend.actor import Actor, AuditKeys
    from batuta.engine.backend.middleware import backend_for
    from batuta.stores.coded import guarded

    codecs = _codecs(codec)
    store = guarded(store_for(url, namespace=namespace, codec=codecs, clock=clock))
    payload_keys = next((one.keys for one in codecs if isinstance(one, Encryption)), None)

    async def opening() -> None:
        if migrate:
            await store.migrate()
        await store.open()

    backend = backend_for(
        store, clock, check_middleware(middleware), Actor(actor, AuditKeys.from_env(payload_keys), reason)
    )
    settings, broker = _broker_for(bus)
    return Batuta(backend, opening, store.close, settings, broker)


def _broker_for(given: Broker | str | None) -> tuple[Settings, Broker | None]:
    """The settings of a client, and its broker. Raises InvalidURL, MissingExtra."""
    from batuta.settings import Settings

    if given is not None and not isinstance(given, str):
        return Settings.from_env(bus=given.name), given
    settings = Settings.from_env() if given is None else Settings.from_env(bus=given)
    if not settings.broker:
        return settings, None
    if settings.broker != "pulsar":
        raise InvalidURL(f"{settings.bus!r} names no bus: use store, or pulsar://host:6650")
    from batuta.bus.pulsar import PulsarBus

    return settings, PulsarBus(settings.bus, admin_url=settings.bus_admin_url)


def store_for(
    url: str | None = None, *, namespace: str | None = None, codec: Codecs = None, clock: Clock | None = None
) -> Store:
    """The store that a URL names, not opened. Raises InvalidURL, InvalidInput, MissingExtra."""
    return with_codecs(_plain_store(url, namespace, clock), codec)


def with_codecs(store: Store, codec: Codecs = None) -> Store:
    """The same store, with payloads that go through these codecs: as `connect` reads it."""
    codecs = _codecs(codec)
    if not codecs:
        return store
    from batuta.stores.coded import coded

    return coded(store, codecs)


def _codecs(given: Codecs) -> Sequence[PayloadCodec]:
    from batuta.codecs import PayloadCodec

    if given is None:
        return _codecs_from_env()
    return [given] if isinstance(given, PayloadCodec) else list(given)


def _codecs_from_env() -> list[PayloadCodec]:
    from batuta.codecs import Compression, Encryption, Keys

    found: list[PayloadCodec] = []
    if _says_yes("BATUTA_COMPRESS"):
        found.append(Compression())
    keys = Keys.from_env()
    if keys is not None:
        found.append(Encryption(keys))
    return found


def _says_yes(variable: str) -> bool:
    text = os.environ.get(variable, "").strip().lower()
    if text not in _YES | _NO:
        raise InvalidInput(f"{variable}={text!r} must be 1 or 0")
    return text in _YES


def _plain_store(url: str | None, namespace: str | None, clock: Clock | None) -> Store:
    if url is None:
        url = os.environ.get("BATUTA_DATABASE_URL") or "sqlite:///batuta.db"
    if not url or not isinstance(url, str):
        raise InvalidURL(f"{url!r} is not a URL: give a string, such as 'sqlite:///batuta.db', or leave it out")
    namespace = check_name(namespace or os.environ.get("BATUTA_NAMESPACE") or "default", "namespace")
    match urlsplit(url).scheme:
        case "sqlite":
            from batuta.stores.sqlite import SqliteStore

            return SqliteStore(_sqlite_path(url), namespace=namespace, clock=clock)
        case "postgresql" | "postgres":
            from batuta.stores.postgres import PostgresStore

            if clock is not None:
                raise InvalidInput("clock= is for SQLite and memory: PostgreSQL has a clock of its own")
            return PostgresStore(url, namespace=namespace, defaults=_database_options())
        case "memory":
            from batuta.stores.memory import MemoryDatabase, MemoryStore

            if url != "memory://":
                raise InvalidURL(f"{url!r} has something after memory://, which has neither names nor options")
            return MemoryStore(MemoryDatabase(clock), namespace)
        case scheme:
            raise InvalidURL(
                f"{scheme + '://' if scheme else 'a URL without a scheme'} names no store: "
                f"use sqlite:///path/to/file.db, "
                f"postgresql://user@host/database or memory://"
            )


def _database_options() -> dict[str, str]:
    """Options from the environment that a PostgreSQL URL does not have."""
    found = {name: os.environ.get(f"BATUTA_DATABASE_{name.upper()}", "") for name in _FROM_ENVIRONMENT}
    return {name: value for name, value in found.items() if value}


def _sqlite_path(url: str) -> str:
    """`sqlite:///shop.db` is a file of this directory, `sqlite:////var/shop.db` one from the root."""
    parts = urlsplit(url)
    path = unquote(parts.path).removeprefix("/")
    if parts.query or parts.fragment:
        raise InvalidURL(
            f"{url!r} has something after its path, but no options for SQLite: in a path write %3F and %23"
        )
    if parts.netloc or not path or path.endswith("/"):
        raise InvalidURL(f"{url!r} names no file: use sqlite:///file.db (this directory) or sqlite:////path/file.db")
    return path
