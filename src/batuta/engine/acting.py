"""Who acts: what the audit log says of everything that is done with one client."""

from __future__ import annotations

import getpass
import os
import socket
from functools import cached_property
from typing import Any

from msgspec import json

from batuta.authoring.names import check_name, readable
from batuta.journal.acts import Act, Verb


class Actor:
    """The person or program behind a client."""

    def __init__(self, name: str | None = None) -> None:
        self._given = None if name is None else check_name(name, "actor")

    @cached_property
    def name(self) -> str:
        """As it was given, or BATUTA_ACTOR, or the user and host of this process."""
        return self._given or check_name(os.environ.get("BATUTA_ACTOR") or _user_at_host(), "actor")

    def act(self, verb: Verb, reason: str = "", *, detail: Any = None, before: Any = None, after: Any = None) -> Act:
        """What is given to a verb of the store. `detail`, `before` and `after` are values for JSON, no payloads."""
        said = (json.encode(value).decode() for value in (detail, before, after))
        detail_json, before_json, after_json = said
        return Act(actor=self.name, verb=verb, reason=reason, detail=detail_json, before=before_json, after=after_json)


def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without that user
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return readable(f"{user}@{socket.gethostname()}")[:200]
