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
    """Why somebody ends a run, in words that every store can keep. Raises InvalidInput."""
    if not isinstance(reason, str) or readable(reason) != reason:
        raise InvalidInput(f"reason={reason!r} must be text, without NUL and without halves of surrogate pairs")
    return reason


def readable(text: str) -> str:
    """A text that every store can keep: what PostgreSQL refuses is written with backslashes."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
