"""Fields that are hidden by name, whatever their value: `password`, `userPassword`, `card-number`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from batuta.errors import InvalidInput

FIELDS = (
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "senha",
    "secret",
    "segredo",
    "token",
    "jwt",
    "authorization",
    "cookie",
    "credential",
    "credentials",
    "api_key",
    "apikey",
    "access_key",
    "private_key",
    "session_id",
    "cpf",
    "cnpj",
    "tax_id",
    "email",
    "e_mail",
    "phone",
    "telefone",
    "celular",
    "chave",
    "pix_key",
    "card_number",
    "numero_cartao",
    "cvv",
    "cvc",
    "pin",
    "otp",
    "batuta_keys",
    "audit_key",
)
"""The usual ones."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\dA-Z_]+|[0-9]+")
_MARK = re.compile(r"\[[a-z0-9_]++\]")
_TAILS = ("password", "passwd", "passphrase", "senha")
"""Words that also match inside a longer word: `PGPASSWORD`."""
_LONGEST = 64
"""The longest name that is remembered."""


def words(name: str) -> tuple[str, ...]:
    """`userPassword`, `user_password`, `USER-PASSWORD`: user, password."""
    return tuple(word.lower() for word in _WORDS.findall(_MARK.sub(" ", name)))


class Fields:
    """Names of hidden fields. A field matches if its words follow each other in a name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._named: dict[tuple[str, ...], str] = {}
        for name in names:
            found = words(str(name))
            if not found:
                raise InvalidInput(f"field {name!r} has no word in it: give the name of a field, such as 'card_number'")
            self._named.setdefault(found, "_".join(found))
        self._most = max(map(len, self._named), default=0)
        self._known = lru_cache(maxsize=4_096)(self._find)

    @property
    def names(self) -> Iterable[str]:
        return self._named.values()

    def find(self, name: str) -> str | None:
        """The field that a name matches, or None. Its name is shown: `password` for `userPassword`."""
        return self._known(name) if len(name) <= _LONGEST else self._find(name)

    def exactly(self, name: str) -> str | None:
        """The field that has just this name: `password`, but not `send_password`, which may be an activity."""
        return self._named.get(words(name))

    def _find(self, name: str) -> str | None:
        found = words(name)
        for tail in _TAILS:
            if (tail,) in self._named and any(word.endswith(tail) for word in found):
                return self._named[(tail,)]
        for start in range(len(found)):
            for size in range(1, self._most + 1):
                field = self._named.get(found[start : start + size])
                if field is not None:
                    return field
        return None
