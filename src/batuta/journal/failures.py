"""Errors as values: what remains of an exception in the journal."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

_ALL = frozenset({"Exception", "BaseException", "builtins.Exception", "builtins.BaseException"})
"""Names that match every error: they are not listed among its bases."""


class Failure(Struct, omit_defaults=True):
    """An error that crossed the journal: type name, message, details and cause are kept."""

    type: str
    """The class, as `module:qualname`; builtins have no module part."""
    message: str
    details: Raw | UnsetType = UNSET
    """JSON of the exception's arguments and attributes, when they could be encoded."""
    retryable: bool = True
    traceback: str = ""
    cause: Failure | None = None
    members: list[Failure] = []
    """The members of a group of errors. Empty for a single error, and for groups in old journals."""
    bases: list[str] = []
    """The classes that its own derives from, nearest first, up to Exception. Empty in old journals."""
    raised_as: str = ""
    """The class that code gets, decided by the worker that recorded it.

    Empty, as in old journals: the original class if it is loaded.
    """
    notes: list[str] = []
    """Notes added with `add_note`, such as the compensations that ran."""
    retry_after: float | None = None
    """Seconds until the next attempt, where the code that failed asked for that."""

    @property
    def kind(self) -> str:
        """The bare class name."""
        return self.type.rpartition(":")[2].rpartition(".")[2]

    @property
    def words(self) -> str:
        """Class, message and notes."""
        return "; ".join([f"{self.kind}: {self.message}", *self.notes])

    def matches(self, name: str) -> bool:
        """Whether the error, or a member of the group, is of the class of that name or derives from it."""
        return (
            name in _ALL
            or any(is_named(one, name) for one in (self.type, *self.bases))
            or any(member.matches(name) for member in self.members)
        )


def is_named(type_name: str, name: str) -> bool:
    """Whether `name` names the class.

    `module:qualname` is exact. A dotted name may leave out the beginning, as in `Declined` or `errors.Declined`, or the
    middle, as `stripe.CardError` for a class in `stripe._error`.
    """
    if ":" in name:
        return type_name == name.removeprefix("builtins:")
    given, whole = name.removeprefix("builtins.").split("."), type_name.replace(":", ".").split(".")
    spare = len(whole) - len(given)
    return spare >= 0 and any(whole[:place] + whole[place + spare :] == given for place in range(len(given)))
