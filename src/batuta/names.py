"""Names and texts that everything can carry."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from reprlib import Repr
from typing import Any, TypeVar

from batuta.errors import InvalidInput, TooLarge

E = TypeVar("E", bound=StrEnum)

LONGEST_REASON = 4_096
"""Most bytes of a reason or note: the run's row and the audit log hold it."""
LONGEST_ID = 500
LARGEST_PAGE = 1_000
_LONGEST_NAME = 200
_MOST = 1e12
_shown = Repr()
_shown.maxstring = _shown.maxother = 100


def plain(value: Any) -> Any:
    """A text of a class that derives from `str` as a plain one: drivers and encoders refuse it, or call its methods.
    Anything else as it is, for the check that follows."""
    return str.__str__(value) if isinstance(value, str) and type(value) is not str else value


def check_name(name: object, what: str) -> str:
    """A name that every store, URL and log can carry. Raises InvalidInput."""
    name = plain(name)
    if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidInput(f"{what} {quoted(name)} must be 1 to {_LONGEST_NAME} printable characters")
    return name


def check_reason(reason: object, what: str = "reason") -> str:
    """Check a reason: words that every store can keep. Raises InvalidInput."""
    checked = check_text(reason, what)
    check_length(checked, what)
    return checked


def check_text(text: object, what: str) -> str:
    """Check text that every store can keep, of any length. Raises InvalidInput."""
    text = plain(text)
    if not isinstance(text, str) or readable(text) != text:
        raise InvalidInput(f"{what}={quoted(text)} must be text, without NUL and without halves of surrogate pairs")
    return text


def check_length(text: str, what: str, most: int = LONGEST_REASON) -> None:
    """Raises TooLarge."""
    size = len(text.encode("utf-8", "backslashreplace"))
    if size > most:
        raise TooLarge(what, size, most, "shorten it", "bytes")


def check_number(name: str, value: object, least: float, *, whole: bool = False) -> None:
    """Check a number of an option: of seconds, bytes or other things. Raises InvalidInput."""
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < _MOST:
        words = "a whole number" if whole else "a number"
        raise InvalidInput(f"{name}={quoted(value)} must be {words} of at least {least:g}, and below {_MOST:g}")


def check_choice(choices: type[E], name: str, value: object) -> E:
    """A member of an enum, also given by its value. Raises InvalidInput."""
    try:
        return choices(str(value))
    except ValueError:
        raise InvalidInput(f"{name}={quoted(value)} must be one of {', '.join(choices)}") from None


def check_page_size(limit: object, advice: str = "use the cursor for more") -> int:
    """How many of a list a caller wants at once. Raises InvalidInput."""
    if type(limit) is not int or not 1 <= limit <= LARGEST_PAGE:
        raise InvalidInput(f"limit={limit!r} must be a whole number from 1 to {LARGEST_PAGE}: {advice}")
    return limit


def check_filter(name: str, value: object) -> str | None:
    """Check an id or prefix to look for. Raises InvalidInput."""
    if value is None:
        return None
    value = plain(value)
    if not isinstance(value, str) or len(value) > LONGEST_ID:
        raise InvalidInput(f"{name}={quoted(value)} must be a string of at most {LONGEST_ID} characters")
    return value


def joined(*parts: str) -> str:
    """One text of several, another one for other parts: a colon in any but the last is written otherwise.

    So "mail" with "bulk:42" differs from "mail:bulk" with "42"."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0].replace("%", "%25").replace(":", "%3A")
    return f"{first}:{joined(*parts[1:])}"


def shortened(text: str, most: int) -> str:
    """A long text cut to so many characters, of which the last 16 are its hash: different texts stay different."""
    if len(text) <= most:
        return text
    return text[: most - 17] + "~" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def quoted(value: object) -> str:
    """The value for an error message: the beginning if it is long."""
    return _shown.repr(value)


def readable(text: str) -> str:
    """A text that every store can keep: what PostgreSQL refuses is written with backslashes."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
