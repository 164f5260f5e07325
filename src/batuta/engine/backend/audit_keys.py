"""Keys for the hashes of the audit log: who does not have them cannot write a row that `verify` believes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from msgspec import json

from batuta.codecs.keys import Key, Keys
from batuta.journal.audit import Act, Recorded

VARIABLE = "BATUTA_AUDIT_KEY"


class AuditKeys:
    """The first key is for new actions; all check existing rows. None: the log has no key."""

    def __init__(self, *keys: Keys | None) -> None:
        found = [key for some in keys if some is not None for key in some.all.values()]
        self._all = {key.label: key for key in found}
        self._first = found[0] if found else None

    @classmethod
    def from_env(cls, payload_keys: Keys | None, env: Mapping[str, str] | None = None) -> AuditKeys:
        """Those of BATUTA_AUDIT_KEY (or BATUTA_AUDIT_KEY_FILE), then those of payloads."""
        return cls(Keys.from_env(env, VARIABLE), payload_keys)

    def give_key(self, act: Act) -> Act:
        """The action, with its own derived key when there is one."""
        if self._first is not None:
            act.salt = f"{self._first.label}.{secrets.token_hex(16)}"
            act.secret = self._first.derive_for_act(_scope(act))
        return act

    def secret_of(self, row: Recorded) -> bytes | None:
        """The key of a row: b"" when it has none, None when it is not here."""
        if not row.salt:
            return b""
        key: Key | None = self._all.get(row.salt.rpartition(".")[0])
        return None if key is None else key.derive_for_act(_scope(row))


def _scope(act: Act | Recorded) -> bytes:
    """A key that the database was shown is of no use for any other act."""
    return json.encode([act.salt, act.actor, str(act.verb), act.reason, act.detail])
