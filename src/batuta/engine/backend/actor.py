"""The actor: who the audit log names for all actions of one client."""

from __future__ import annotations

import getpass
import os
import socket
from functools import cached_property
from typing import Any

from msgspec import json

from batuta.authoring.client.acting import acting
from batuta.codecs.keys import Keys
from batuta.engine.backend.audit_keys import AuditKeys
from batuta.journal.audit import Act, Verb
from batuta.names import check_name, check_reason, readable


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
