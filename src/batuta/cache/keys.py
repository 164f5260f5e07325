"""Names of cache keys: `namespace:entity:identifier:attribute`, made from a pattern and checked once."""

from __future__ import annotations

import re
from typing import Final

from batuta.errors import InvalidInput
from batuta.names import check_text

LONGEST_KEY: Final = 512
"""Characters of a key."""
_WORD = re.compile(r"[a-z][a-z0-9_]*\Z")
_FIELD = re.compile(r"\{([a-z][a-z0-9_]*)\}\Z")
# A `:` would begin the next part, braces choose the slot of a Redis Cluster, `%` is how these three are written.
_ESCAPED = re.compile(r"[%:{}\s\x00-\x1f\x7f]")


class KeyPattern:
    """A pattern such as `dict:entry:key:{key_type}:{key_value}`.

    Words are lower case with underscores; the first is the namespace. Identifiers in braces are filled in by `key`. A
    `:`, a brace or a space inside an identifier is written as `%3A`, so that two different calls never make one key.
    """

    __slots__ = ("_names", "_template", "entity", "fields", "pattern")

    def __init__(self, pattern: str) -> None:
        parts = check_text(pattern, "cache key pattern").split(":")
        if len(parts) < 2 or _WORD.match(parts[0]) is None:
            raise InvalidInput(
                f"cache key pattern {pattern!r} must be `namespace:entity:...`, such as 'dict:entry:id:{{entry_id}}'"
            )
        fields: list[str] = []
        template: list[str] = []
        for part in parts:
            field = _FIELD.match(part)
            if field is None and _WORD.match(part) is None:
                raise InvalidInput(
                    f"part {part!r} of cache key pattern {pattern!r} must be a lower-case word with underscores, or an "
                    f"identifier in braces"
                )
            template.append("%s" if field else part)
            fields += [field[1]] if field else []
        if len(set(fields)) != len(fields):
            raise InvalidInput(f"cache key pattern {pattern!r} names an identifier twice")
        self.pattern, self.fields = pattern, tuple(fields)
        self.entity = ":".join(part for part in parts if not part.startswith("{"))
        """For metrics: the pattern without identifiers."""
        self._names, self._template = frozenset(fields), ":".join(template)

    def __repr__(self) -> str:
        return f"KeyPattern({self.pattern!r})"

    def key(self, identifiers: dict[str, object]) -> str:
        """The key for these identifiers. Raises InvalidInput for missing, unknown, empty or long ones."""
        if identifiers.keys() != self._names:
            raise InvalidInput(
                f"cache key {self.pattern!r} takes {', '.join(self.fields) or 'no identifiers'}, not "
                f"{', '.join(identifiers) or 'none'}"
            )
        key = self._template % tuple(self._identifier(name, identifiers[name]) for name in self.fields)
        if len(key) > LONGEST_KEY:
            raise InvalidInput(f"the key of {self.pattern!r} would have {len(key)} characters, over {LONGEST_KEY}")
        return key

    def _identifier(self, name: str, value: object) -> str:
        text = "" if value is None else str(value)
        if not text:
            raise InvalidInput(f"identifier {name} of cache key {self.pattern!r} is empty")
        if not text.isascii():
            check_text(text, f"identifier {name} of cache key {self.pattern!r}")
        return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def lock_key(key: str) -> str:
    """The key of the lock under which a value is loaded. Its braces put it into the slot of the value's key."""
    return f"{{{key}}}:lock"
