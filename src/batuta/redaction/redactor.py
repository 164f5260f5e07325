"""Marks in place of personal data and secrets: in JSON values, which keep their form, and in texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from batuta.errors import InvalidInput
from batuta.redaction.fields import FIELDS, Fields
from batuta.redaction.folding import folded
from batuta.redaction.known import PATTERNS, USUAL, in_order
from batuta.redaction.pairs import hide_pairs
from batuta.redaction.patterns import Pattern, replace

DEEPEST = 100
"""Levels of a value that are searched; deeper values are not shown at all."""
_LOOKS = 5
"""Repeat for a text that changes: a mark can reveal a neighbour that was not recognised before."""
_TOO_DEEP = "[too deep]"
_LABELLED = ("value", "input", "output")
"""Keys whose value has the name that is given beside it."""
_LONGEST = 256
"""The most bits of a number that may identify a person."""


class Redactor:
    """Hides values that look like personal data or a secret, or have the name of one: `[cpf]`, `[password]`.

    `patterns` (names of `PATTERNS`, or your own) and `fields` (found as `cardNumber`, `card_number` and `CARD-NUMBER`
    alike) are added to the usual ones, `USUAL` and `FIELDS`; with `usual=False` they replace them.
    """

    def __init__(
        self, patterns: Iterable[str | Pattern] = (), fields: Iterable[str] = (), *, usual: bool = True
    ) -> None:
        chosen = [one for each in (*(USUAL if usual else ()), *patterns) for one in _named(each)]
        self._patterns = in_order(chosen)
        self._fields = Fields((*(FIELDS if usual else ()), *fields))
        self._marks = frozenset({"", *map(_mark, (*self._fields.names, *(one.name for one in chosen)))})

    def text(self, text: str) -> str:
        """The same text with marks: a log line, the message of an error, a URL, a traceback, JSON, SQL."""
        shown = self._text(text)
        plain = folded(shown)
        if plain == shown:
            return shown
        found = self._text(plain)
        return shown if found == plain else found

    def _text(self, text: str) -> str:
        for _ in range(_LOOKS):
            before = text
            text = hide_pairs(text, self._fields.find)
            for pattern in self._patterns:
                text = replace(pattern, text)
            if text == before:
                break
        return text

    def value(self, value: Any) -> Any:
        """The same JSON value with marks, in its form.

        Keys stay, unless they are such data themselves. A value that is not JSON stays, or becomes a text with marks if
        its text has something to hide.
        """
        return self._value(value, "", DEEPEST)

    def named(self, name: str, value: Any) -> Any:
        """A value of this name: hidden if it is the name of a field."""
        return self._value(value, _mark(self._fields.find(name)), DEEPEST)

    def labelled(self, label: str, value: Any) -> Any:
        """A value with this exact name: hidden if it is just the name of a field, as in `{"name": "cpf", "value":
        1}`."""
        return self._value(value, _mark(self._fields.exactly(label)), DEEPEST)

    def _value(self, value: Any, mark: str, levels: int) -> Any:
        """Replaces every leaf by a mark."""
        kind = type(value)
        if isinstance(value, Mapping) or kind in (list, tuple):
            if levels == 0:
                return _TOO_DEEP
            if isinstance(value, Mapping):
                return self._mapping(value, mark, levels - 1)
            if len(value) == 2 and type(value[0]) is type(value[1]) is str:  # a header: its name and value
                beside = _mark(self._fields.find(value[0]))
                return [self._value(value[0], mark, levels - 1), self._value(value[1], beside or mark, levels - 1)]
            return [self._value(one, mark, levels - 1) for one in value]
        if mark:
            tells_nothing = value is None or kind is bool or (kind is str and value in self._marks)
            return value if tells_nothing else mark
        return self._leaf(value)

    def _leaf(self, value: Any) -> Any:
        """Anything but a text is itself, unless it would be written with something to hide."""
        kind = type(value)
        if kind is str:
            return self.text(value)
        if value is None or kind is bool or (kind is int and value.bit_length() > _LONGEST):
            return value
        if kind is float and not value.is_integer():
            return value
        try:
            written = str(value)
        except Exception:  # noqa: BLE001 - somebody's object must not harm who shows it
            return f"[{kind.__name__}]"
        shown = self.text(written)
        return value if shown == written else shown

    def _mapping(self, value: Mapping[Any, Any], mark: str, levels: int) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        seen: dict[Any, int] = {}
        label = value.get("name") or value.get("key")
        known = _mark(self._fields.exactly(label)) if type(label) is str else ""
        for key, one in value.items():
            shown = alike = self._leaf(key)
            while shown in made:  # several keys may look alike now
                seen[alike] = seen.get(alike, 1) + 1
                shown = f"{alike} {seen[alike]}"
            field = self._fields.find(str(shown)) or self._fields.find(str(key))
            beside = known if key in _LABELLED else ""
            made[shown] = self._value(one, _mark(field) or beside or mark, levels)
        return made


def _mark(field: str | None) -> str:
    """The mark of a field; None when the name is not a field."""
    return f"[{field}]" if field else ""


def _named(given: str | Pattern) -> tuple[Pattern, ...]:
    if isinstance(given, Pattern):
        return (given,)
    if given not in PATTERNS:
        raise InvalidInput(f"there is no pattern {given!r}: there are {', '.join(PATTERNS)}; Pattern.of makes your own")
    return PATTERNS[given]
