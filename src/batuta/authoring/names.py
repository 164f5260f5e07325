"""Names that everything can carry."""

from __future__ import annotations

from batuta.errors import InvalidInput

_LONGEST_NAME = 200


def check_name(name: object, what: str) -> str:
    """A name that every store, URL and log can carry. Raises InvalidInput."""
    if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidInput(f"{what} {name!r} must be 1 to {_LONGEST_NAME} printable characters")
    return name
