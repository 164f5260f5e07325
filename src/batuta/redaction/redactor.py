"""Marks in place of personal data and secrets: in JSON values, which keep their form, and in texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from batuta.errors import InvalidInput
from batuta.redaction.fields import FIELDS, Fields
from batuta.redaction.known import PATTERNS, USUAL, in_order
from batuta.redaction.pairs import hide_pairs
from batuta.redaction.patterns import Pattern, replace

DEEPEST = 100
"""Levels of a value that are looked into; what lies deeper is not shown at all."""
_LOOKS = 5
"""At a text that changes: beside a mark stands what could not be told from its neighbour before."""
_TOO_DEEP = "[too deep]"
_LABELLED = ("value", "input", "output")
"""What goes by the name that stands beside it."""
_PLAIN = (type(None), bool, float)
_LONGEST = 256
"""Bits of a number that may be somebody's."""


class Redactor:
    """Hides what looks like personal data or a secret, and what has the name of one: `[cpf]`, `[password]`.

    `patterns` (names of `PATTERNS`, or your own) and `fields` (found as `cardNumber`, `card_number` and `CARD-NUMBER`
    alike) are added to the usual ones, `USUAL` and `FIELDS`; with `usual=False` they stand alone.
    """

    def __init__(
        self, patterns: Iterable[str | Pattern] = (), fields: Iterable[str] = (), *, usual: bool = True
    ) -> None:
        chosen = [one for each in (*(USUAL if usual else ()), *patterns) for one in _named(each)]
        self._patterns = in_order(chosen)
        self._fields = Fields((*(FIELDS if usual else ()), *fields))

    def text(self, text: str) -> str:
        """The same text with marks: a log line, the message of an error, a URL, a traceback, JSON, SQL."""
        for _ in range(_LOOKS):
            before = text
            text = hide_pairs(text, self._fields.find)
            for pattern in self._patterns:
                text = replace(pattern, text)
            if text == before:
                break
        return text

    def value(self, value: Any) -> Any:
        """The same value of JSON with marks, in its form. Keys stay, unless they are such data themselves. What is not
        of JSON stays as it is."""
        return self._value(value, DEEPEST)

    def named(self, name: str, value: Any) -> Any:
        """What has this name: hidden if it is that of a field."""
        return self._of_field(name, value, DEEPEST)

    def labelled(self, label: str, value: Any) -> Any:
        """What goes by this name: hidden if it is just that of a field, as that of `{"name": "cpf", "value": 1}`."""
        field = self._fields.exactly(label)
        return self.value(value) if field is None else _hidden(value, f"[{field}]", DEEPEST)

    def _of_field(self, name: str, value: Any, levels: int) -> Any:
        field = self._fields.find(name)
        return self._value(value, levels) if field is None else _hidden(value, f"[{field}]", levels)

    def _value(self, value: Any, levels: int) -> Any:
        kind = type(value)
        if kind is str:
            return self.text(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return self._number(value)
        if levels == 0:
            return _TOO_DEEP
        if isinstance(value, Mapping):
            return self._mapping(value, levels - 1)
        return [self._value(one, levels - 1) for one in value] if kind in (list, tuple) else value

    def _number(self, value: int) -> int | str:
        if value.bit_length() > _LONGEST:
            return value
        written = str(value)
        shown = self.text(written)
        return value if shown == written else shown

    def _mapping(self, value: Mapping[Any, Any], levels: int) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        seen: dict[Any, int] = {}
        for key, one in value.items():
            shown = self.text(key) if type(key) is str else key
            if shown != key:  # several keys may look alike now
                seen[shown] = count = seen.get(shown, 0) + 1
                shown = shown if count == 1 else f"{shown} {count}"
            made[shown] = self._of_field(str(key), one, levels)
        label = value.get("name") or value.get("key")
        if type(label) is str and (field := self._fields.exactly(label)):
            made |= {key: _hidden(value[key], f"[{field}]", levels) for key in _LABELLED if key in value}
        return made


def _named(given: str | Pattern) -> tuple[Pattern, ...]:
    if isinstance(given, Pattern):
        return (given,)
    if given not in PATTERNS:
        raise InvalidInput(f"there is no pattern {given!r}: there are {', '.join(PATTERNS)}; Pattern.of makes your own")
    return PATTERNS[given]


def _hidden(value: Any, mark: str, levels: int) -> Any:
    """A mark in place of each leaf. What is not there, and yes and no, tell nothing."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and not value):
        return value
    if levels == 0:
        return _TOO_DEEP
    if isinstance(value, Mapping):
        return {key: _hidden(one, mark, levels - 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(one, mark, levels - 1) for one in value]
    return mark
