"""Errors as values: what remains of an exception in the journal."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType


class Failure(Struct, omit_defaults=True):
    """An error that crossed the journal: type name, message, details and cause are kept."""

    type: str
    """The class, as `module:qualname`; builtins have no module part."""
    message: str
    details: Raw | UnsetType = UNSET
    """JSON of the exception's arguments, when they could be encoded."""
    retryable: bool = True
    traceback: str = ""
    cause: Failure | None = None

    @property
    def kind(self) -> str:
        """The bare class name, which `Retry(never=[...])` names."""
        return self.type.rpartition(":")[2].rpartition(".")[2]
