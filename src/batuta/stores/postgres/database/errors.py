"""The meaning of a failure: whether something was written, and what a caller may do next."""

from __future__ import annotations

import asyncpg

from batuta.errors import (
    AuditKeyMissing,
    BadData,
    InvalidURL,
    OutcomeUnknown,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

TRANSIENT = frozenset({"40001", "40P01"})
"""Serialisation failure and deadlock: rolled back for sure, and worth trying again at once."""


class RowLocked(StoreUnavailable):
    """Another transaction held a row, or a whole table, for as long as this statement waited. Nothing was written."""


_LOCKED = "55P03"
AUDIT_KEY_MISSING = "BT003"
_UNAVAILABLE = {
    "25006": "it is read-only: is it a standby? Point the URL at the primary",
    "26000": "a pooler gave this session away: add ?statement_cache_size=0 to the URL",
    "42501": "permission denied: grant the user rights on what `batuta migrate` created",
    _LOCKED: "a row stayed locked for too long: something holds a transaction open",
    "57P03": "it is starting up or shutting down: try again",
}
_BAD_OPTION = (
    asyncpg.exceptions.ClientConfigurationError,
    asyncpg.UndefinedObjectError,
    asyncpg.InvalidParameterValueError,
)
"""Errors of driver and server, before there is a session, for unknown or invalid options."""
_SCHEMA_STATES = frozenset({"3F000", "42P01", "42703", "42883"})
_UNAVAILABLE_CLASSES = frozenset({"28", "3D", "53"})
_DATA_CLASSES = frozenset({"22", "23", "54"})


def translate(error: BaseException, place: str, *, writing: bool) -> StoreError:
    """Our error for a failed statement. Unless a rollback is proved, a write's outcome is unknown.

    A killed backend shows as many types, some of them internal to the driver: all of them become OutcomeUnknown.
    """
    answer = answered(error, place)
    if answer is not None:
        return answer
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, asyncpg.QueryCanceledError):  # statement_timeout, or a person
        what = f"the statement was cancelled: {error}"
    if writing:
        return OutcomeUnknown(f"the connection to PostgreSQL at {place} broke during a write ({what}): write it again")
    return StoreUnavailable(f"the connection to PostgreSQL at {place} broke ({what}): try again")


def answered(error: BaseException, place: str) -> StoreError | None:
    """Our error when the server itself refused and rolled back, so that the session is as good as before."""
    # A lost connection is a PostgresError too, made up by the driver.
    if not isinstance(error, asyncpg.PostgresError) or isinstance(error, asyncpg.PostgresConnectionError):
        return None
    state = error.sqlstate or ""
    says = f"PostgreSQL at {place} says: {error}"
    if state == "53100":
        return StoreFull(f"{says}; free some disk space")
    if state in _UNAVAILABLE:
        kind = RowLocked if state == _LOCKED else StoreUnavailable
        return kind(f"{says}; {_UNAVAILABLE[state]}")
    if state in _SCHEMA_STATES:
        return SchemaMismatch(f"{says}; run `batuta migrate`")
    if state == AUDIT_KEY_MISSING:
        return AuditKeyMissing(str(error).partition(" namespace ")[2].partition(" has ")[0])
    if state in TRANSIENT:
        return StoreUnavailable(f"{says}; tried several times, try again")
    if state[:2] in _UNAVAILABLE_CLASSES:
        return StoreUnavailable(says)
    return BadData(says) if state[:2] in _DATA_CLASSES else None


def unreachable(error: BaseException, place: str) -> StoreError | InvalidURL:
    """Our error for a connection that could not be made: nothing was sent."""
    if isinstance(error, _BAD_OPTION):
        return InvalidURL(f"the URL of PostgreSQL at {place} has an invalid option: {error}")
    answer = answered(error, place)
    if isinstance(answer, StoreUnavailable | SchemaMismatch):
        return answer
    what = str(error) or type(error).__name__
    if "unsupported startup parameter" in what:
        return StoreUnavailable(
            f"{place} is a pooler ({what}): add ?statement_cache_size=0 to the URL, and direct_url=... "
            f"for what needs a session of its own"
        )
    return StoreUnavailable(
        f"cannot reach PostgreSQL at {place} ({what}): check that it runs there and accepts connections from here"
    )
