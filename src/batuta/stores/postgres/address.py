"""Where the database is: a URL, and the options in it that are ours."""

from __future__ import annotations

import re
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

    def qualify(self, sql: str) -> str:
        """The SQL of our files, in this schema."""
        return _SCHEMA_NAME.sub(f'"{self.schema}"', sql)


_SCHEMA_NAME = re.compile(r"\bbatuta(?=\.[a-z]|;)")


def parse_address(url: str, schema: str | None = None) -> Address:
    """Read a `postgresql://` URL. Our own options are taken out of it; the others are the driver's.

    Raises InvalidURL, which never shows the password.
    """
    parts = _split(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise InvalidURL(f"{parts.scheme or 'no scheme'!r} is not PostgreSQL: use postgresql://user@host:port/database")
    theirs = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in theirs if name in ("schema", "statement_cache_size", "pool_size")}
    rest = [(name, value) for name, value in theirs if name not in ours]
    chosen = schema or ours.get("schema", "batuta")
    if not _SCHEMA.fullmatch(chosen):
        raise InvalidURL(f"schema {chosen!r} cannot be used: letters, digits and underscores, at most 63")
    return Address(
        dsn=urlunsplit(parts._replace(scheme="postgresql", query=urlencode(rest))),
        place=_place(parts.netloc, parts.path, dict(rest)),
        schema=chosen,
        statement_cache_size=_number(ours, "statement_cache_size", 256, 0),
        pool_size=_number(ours, "pool_size", 4, 1),
    )


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


def _number(options: dict[str, str], name: str, default: int, least: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise InvalidURL(f"{name}={text!r} in the database URL must be a number of at least {least}")
    return int(text)
