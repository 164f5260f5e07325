"""Where the database is: a URL, and the options in it that are ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from batuta.errors import InvalidURL

_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class Address(Struct, frozen=True, kw_only=True):
    """A parsed URL. `dsn` is for the driver and holds the password; `place` is for people and does not."""

    dsn: str
    place: str
    schema: str = "batuta"
    statement_cache_size: int = 256
    """0 for a pooler that gives each transaction another session; nothing is kept in the session then."""
    pool_size: int = 4
    statement_timeout: float = 30.0
    lock_timeout: float = 10.0
    busy_wait: float = 0.001
    """How long a worker stays awake for the reply to a lone commit; 0: not at all."""
    direct: Address | None = None
    """The same database without the pooler, for what needs a session."""

    def __repr__(self) -> str:
        return f"<address {self.place}, schema {self.schema}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("place", self.place), ("schema", self.schema)]  # msgspec's would show every field

    @property
    def is_pooled(self) -> bool:
        """Whether the next transaction may be in another session."""
        return self.statement_cache_size == 0

    @property
    def for_sessions(self) -> Address | None:
        """Where a session can be had that keeps locks and listens; None when there is only a pooler."""
        return self.direct if self.is_pooled else self

    def qualify(self, sql: str) -> str:
        """The SQL of our files, in this schema."""
        return _SCHEMA_NAME.sub(f'"{self.schema}"', sql)


_SCHEMA_NAME = re.compile(r"\bbatuta(?=\.[a-z]|;)")


OPTIONS = (
    "schema",
    "direct_url",
    "pool_size",
    "statement_cache_size",
    "statement_timeout",
    "lock_timeout",
    "busy_wait",
)
"""Options of the URL that are ours and not the driver's."""


def parse_address(url: str, schema: str | None = None, defaults: Mapping[str, str] | None = None) -> Address:
    """Read a `postgresql://` URL. Our own options are taken out of it; the others are the driver's.

    `defaults` are for options that the URL does not have. Raises InvalidURL, which never shows the password.
    """
    parts = _split(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise InvalidURL(f"{parts.scheme or 'no scheme'!r} is not PostgreSQL: use postgresql://user@host:port/database")
    theirs = parse_qsl(parts.query, keep_blank_values=True)
    ours = {**(defaults or {}), **{name: value for name, value in theirs if name in OPTIONS}}
    rest = [(name, value) for name, value in theirs if name not in OPTIONS]
    chosen = schema or ours.get("schema", "batuta")
    if not _SCHEMA.fullmatch(chosen):
        raise InvalidURL(f"schema {chosen!r} is invalid: use letters, digits and underscores, at most 63")
    direct = _direct(ours, chosen)
    return Address(
        dsn=urlunsplit(parts._replace(scheme="postgresql", query=urlencode(rest))),
        place=_place(parts.netloc, parts.path, dict(rest)),
        schema=chosen,
        statement_cache_size=_number(ours, "statement_cache_size", 0 if direct else 256, 0),
        pool_size=_number(ours, "pool_size", 4, 1),
        statement_timeout=_seconds(ours, "statement_timeout", 30.0),
        lock_timeout=_seconds(ours, "lock_timeout", 10.0),
        busy_wait=_seconds(ours, "busy_wait", 0.001, 0.0, 0.1),
        direct=direct,
    )


def _direct(options: Mapping[str, str], schema: str) -> Address | None:
    """The address behind a pooler. Its timeouts are those of the pooler's URL."""
    if not options.get("direct_url"):
        return None
    shared = {name: options[name] for name in ("statement_timeout", "lock_timeout") if name in options}
    try:
        direct = parse_address(options["direct_url"], schema, shared)
    except InvalidURL as error:
        raise InvalidURL(f"direct_url: {error}") from None
    if direct.is_pooled:
        raise InvalidURL("direct_url must not be a pooler: remove statement_cache_size=0 from it")
    return direct


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise InvalidURL("the database URL cannot be read: use postgresql://user@host:port/database") from None
    return parts


def _place(netloc: str, path: str, options: dict[str, str]) -> str:
    host = netloc.rpartition("@")[2] or options.get("host") or "localhost"
    if ":" not in host.rpartition("]")[2]:
        host = f"{host}:{options.get('port', '5432')}"
    return f"{host}{path}"


def _seconds(
    options: Mapping[str, str], name: str, default: float, least: float = 0.001, most: float = 86_400
) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = -1.0
    if not least <= value <= most:
        raise InvalidURL(f"{name}={options.get(name)!r} must be a number of seconds, from {least:g} to {most:g}")
    return value


def _number(options: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise InvalidURL(f"{name}={text!r} in the database URL must be a number of at least {least}")
    return int(text)
