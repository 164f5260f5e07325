"""Options of runs, jobs and schedules, in bodies: those of the client, named once."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from batuta.journal.records import IfExists


class RunOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whatever begins the run."""

    name: str
    input: list[Any] = []
    queue: str | None = None
    priority: int | None = None
    timeout: float | None = None
    expires: float | None = None
    key: str | None = None
    tags: dict[str, str] | None = None
    memo: Any = None


class NewRunOptions(RunOptions, kw_only=True, forbid_unknown_fields=True):
    """A run that begins once."""

    id: str | None = None
    if_exists: IfExists | None = None
    delay: float | None = None
    headers: dict[str, str] | None = None


def options_of(body: Struct, *without: str) -> dict[str, Any]:
    """The fields that were given, for the client."""
    names = (name for name in body.__struct_fields__ if name not in without)
    return {name: value for name in names if (value := getattr(body, name)) is not None}
