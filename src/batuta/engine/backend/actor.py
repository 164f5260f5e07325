"""The actor: who the audit log names for all actions of one client, and the keys that its rows are hashed with."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from msgspec import json

from batuta.authoring.client.acting import acting
from batuta.codecs.keys import Key, Keys
from batuta.journal.audit import Act, Recorded, Verb
from batuta.names import check_name, check_reason, readable

VARIABLE = "BATUTA_AUDIT_KEY"


class AuditKeys:
    """Keys for the hashes of the audit log: who does not have them cannot write a row that `verify` believes.

    The first key is for new actions; all check existing rows. None: the log has no key.
    """

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


class Actor:
    """The person or program behind a client."""

    def __init__(self, name: str | None = None, keys: AuditKeys | None = None, reason: str = "") -> None:
        """`keys`: of the audit log; without them those of the environment. `reason`: the default reason of actions."""
        self._reason = check_reason(reason)
        self._given = None if name is None else check_name(name, "actor")
        self.keys = AuditKeys.from_env(Keys.from_env()) if keys is None else keys

    @cached_property
    def name(self) -> str:
        """The given name, or BATUTA_ACTOR, or the user and host of this process."""
        return self._given or check_name(os.environ.get("BATUTA_ACTOR") or _user_at_host(), "actor")

    def act(self, verb: Verb, reason: str = "", *, detail: Any = None, before: Any = None, after: Any = None) -> Act:
        """The action for a store method. `detail`, `before` and `after` are values for JSON, no payloads."""
        said = (json.encode(value).decode() for value in (detail, before, after))
        detail_json, before_json, after_json = said
        stated = acting.get()
        name, otherwise = (self.name, self._reason) if stated is None else (stated.actor, stated.reason or self._reason)
        why = reason or otherwise
        act = Act(actor=name, verb=verb, reason=why, detail=detail_json, before=before_json, after=after_json)
        return self.keys.give_key(act)


def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without that user
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return readable(f"{user}@{socket.gethostname()}")[:200]
