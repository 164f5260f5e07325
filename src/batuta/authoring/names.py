"""Names that everything can carry."""

from __future__ import annotations

from batuta.errors import InvalidInput

_LONGEST_NAME = 200


def check_name(name: object, what: str) -> str:
    """A name that every store, URL and log can carry. Raises InvalidInput."""
    if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidInput(f"{what} {name!r} must be 1 to {_LONGEST_NAME} printable characters")
    return name


def check_reason(reason: object) -> str:
    """Why something is to end, in words that every store can carry. Raises InvalidInput."""
    if not isinstance(reason, str) or "\0" in reason or (not reason.isascii() and _is_broken(reason)):
        raise InvalidInput(f"reason={reason!r} must be a text; leave it out when there is none")
    return reason


def _is_broken(text: str) -> bool:
    """Whether it holds half of a character, which UTF-8 does not have."""
    return any("\ud800" <= character <= "\udfff" for character in text)
