"""Parameters of lists: windows of time, limits, flags."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from batuta.clock import as_micros
from pixdict.dict.claims import LISTED_STATUSES, ClaimType
from pixdict.dict.headers import ISPB
from pixdict.dict.problems import DirectoryRefused, Violation

MAX_LIMIT = 200
_FOREVER = 1 << 62

Parameters = Mapping[str, list[str]]


class Page(Struct, frozen=True):
    """A window of time, both ends in it, and how many of it are told."""

    after: int
    before: int
    limit: int


def page(parameters: Parameters, after: str, before: str, *, limit: int) -> Page:
    """The window that the parameters of these names tell. Raises DirectoryRefused."""
    wanted = number(parameters, "Limit", limit)
    if not 1 <= wanted <= MAX_LIMIT:
        raise _wrong("Limit", str(wanted), f"give 1 to {MAX_LIMIT}")
    return Page(_micros(parameters, after, 0), _micros(parameters, before, _FOREVER), wanted)


def participant(parameters: Parameters) -> str:
    """Whose list it is. Raises DirectoryRefused."""
    given = one(parameters, "Participant") or ""
    if not ISPB.fullmatch(given):
        raise _wrong("Participant", given, "give an ISPB")
    return given


def flag(parameters: Parameters, name: str) -> bool | None:
    """true, false or not given. Raises DirectoryRefused."""
    given = one(parameters, name)
    if given not in (None, "true", "false"):
        raise _wrong(name, given or "", "give true or false")
    return None if given is None else given == "true"


def statuses(parameters: Parameters) -> list[str]:
    """All that are given, repeated or with commas. Raises DirectoryRefused."""
    given = [status for value in parameters.get("Status", ()) for status in value.split(",")]
    for status in given:
        if status not in LISTED_STATUSES:
            raise _wrong("Status", status, "unknown status of a claim")
    return given


def claim_type(parameters: Parameters) -> str | None:
    """Raises DirectoryRefused."""
    given = one(parameters, "Type")
    if given is not None and given not in ClaimType.__members__:
        raise _wrong("Type", given, "unknown type of claim")
    return given


def one(parameters: Parameters, name: str) -> str | None:
    """The value of a parameter that may be there once. Raises DirectoryRefused."""
    values = parameters.get(name, [])
    if len(values) > 1:
        raise _wrong(name, ",".join(values), "give it once")
    return values[0] if values else None


def number(parameters: Parameters, name: str, otherwise: int) -> int:
    """Raises DirectoryRefused."""
    given = one(parameters, name)
    if given is None:
        return otherwise
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise _wrong(name, given, "give a number")
    return int(given)


def _micros(parameters: Parameters, name: str, otherwise: int) -> int:
    given = one(parameters, name)
    if given is None:
        return otherwise
    try:
        moment = datetime.fromisoformat(given.replace(" ", "+"))  # a plus that was not escaped
    except ValueError:
        raise _wrong(name, given, "give a time as 2026-01-02T03:04:05.678Z") from None
    if moment.tzinfo is None:
        raise _wrong(name, given, "the time has no zone")
    return max(0, as_micros(moment))


def _wrong(name: str, value: str, reason: str) -> DirectoryRefused:
    wrong = Violation(reason=reason, value=value[:200], property=name)
    return DirectoryRefused("BadRequest", f"parameter {name}: {reason}", violations=[wrong])
