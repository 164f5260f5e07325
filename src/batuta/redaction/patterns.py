"""Something that is known by its looks, and marks in its place."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from batuta.errors import InvalidInput

Check = Callable[[re.Match[str]], bool]

NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""The name of a pattern, shown in brackets."""


class Pattern(Struct, frozen=True):
    """A match is shown as `[name]`: the whole match, or its group `shown`."""

    name: str
    regex: re.Pattern[str]
    check: Check | None = None
    """Whether a match is genuine."""
    is_number: bool = False
    """Not when it is a part of something longer: of the id of a run, a hash or a fraction."""

    @classmethod
    def of(cls, name: str, regex: str | re.Pattern[str], check: Check | None = None) -> Pattern:
        """One of your own. Raises InvalidInput. The expression must be linear: it sees texts of megabytes."""
        if not NAME.fullmatch(str(name)):
            raise InvalidInput(f"pattern {name!r} needs a short name in small letters, which is shown in its place")
        try:
            compiled = re.compile(regex)
            useless = compiled.search(f"[{name}]") or compiled.match("")
        except (re.error, TypeError) as error:
            raise InvalidInput(f"pattern {name!r} is no regular expression for text: {error}") from error
        if useless:
            raise InvalidInput(f"pattern {name!r} must match neither nothing nor [{name}], which is shown")
        return cls(name, compiled, check)


def replace(pattern: Pattern, text: str) -> str:
    """The text with marks in place of all that matches."""
    pieces: list[str] = []
    done = at = 0
    mark, part = f"[{pattern.name}]", "shown" if "shown" in pattern.regex.groupindex else 0
    while (match := pattern.regex.search(text, at)) is not None:
        is_meant = pattern.check is None or pattern.check(match)
        if not is_meant or (pattern.is_number and _is_part(match, done)):
            at = match.start() + 1  # another one may begin inside
            continue
        pieces += (text[done : match.start(part)], mark)
        done = match.end(part)
        at = max(match.end(), match.start() + 1)
    return "".join([*pieces, text[done:]]) if pieces else text


_UUID = re.compile(r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}")
_HASH = re.compile(r"(?=[0-9]*+[A-Fa-f])[0-9A-Fa-f]{24,}+")
_WHOLE = re.compile(r"(?:\A|[^0-9.])[0-9]{1,7}\.\Z")
"""The digits before a fraction. Python writes at most 17 digits of a number."""
_BESIDE = 128
"""Characters on each side that tell whether a number is a part of something longer."""


def _is_part(match: re.Match[str], since: int) -> bool:
    """Whether it is inside a UUID, a hash or a fraction, in the text `since` the last mark."""
    start = max(match.start() - _BESIDE, since)
    around = match.string[start : match.end() + _BESIDE]
    first, last = match.start() - start, match.end() - start
    if match[0].isdecimal() and _WHOLE.search(around[max(first - 9, 0) : first]):
        return True
    longer = (found.span() for each in (_UUID, _HASH) for found in each.finditer(around))
    return any(begin <= first and last <= end for begin, end in longer)
