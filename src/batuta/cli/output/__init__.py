"""Tables and timelines on a terminal: `output.tables.table(...)`. They take rich, so each module is imported when a
command first uses it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batuta.cli.output import status, tables, timelines


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


__all__ = ["status", "tables", "timelines"]
