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
    members: list[Failure] = []
    """What a group of errors consists of. Empty for one that stands alone, and for groups in old journals."""

    @property
    def kind(self) -> str:
        """The bare class name, which `Retry(never=[...])` names."""
        return self.type.rpartition(":")[2].rpartition(".")[2]

    @property
    def kinds(self) -> set[str]:
        """The bare class names of the error and, if it is a group, of its members."""
        return {self.kind}.union(*(member.kinds for member in self.members))
