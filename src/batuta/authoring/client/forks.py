"""Edits that an operator makes in a run that is made from another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Raw, Struct

from batuta.errors import InvalidFork, InvalidInput
from batuta.serde import encode

C = TypeVar("C")


class Edits(Struct, kw_only=True):
    """The differences of the new run. JSON; calls by the number of their command."""

    inputs: dict[int, Raw] = {}
    """Arguments of calls that are pending at the point."""
    outputs: dict[int, Raw] = {}
    """Results of calls that are pending at the point: they are not executed (again)."""
    start: Raw | None = None
    """New arguments of the run itself, which begins anew."""

    @property
    def any(self) -> bool:
        return bool(self.inputs or self.outputs or self.start is not None)

    @property
    def calls(self) -> list[int]:
        return sorted({*self.inputs, *self.outputs})


NO_EDITS = Edits()


def edits_of(
    args: Sequence[Any] | None,
    inputs: Mapping[int, Sequence[Any]] | None,
    outputs: Mapping[int, Any] | None,
    limit: int,
) -> Edits:
    """From values as given to a handle. Raises InvalidInput."""
    return Edits(
        start=None if args is None else _arguments("args", args, limit),
        inputs={_call(seq): _arguments(f"input[{seq}]", one, limit) for seq, one in (inputs or {}).items()},
        outputs={_call(seq): Raw(encode(one, f"output[{seq}]", limit)) for seq, one in (outputs or {}).items()},
    )


def of_version(code: Sequence[C], version: str) -> C | None:
    """The code with the name of the run and its version, else the last one with its name."""
    right = [one for one in code if getattr(one, "version", "") == version] or code
    return right[-1] if right else None


def check_entry(number: object) -> int:
    """Raises InvalidFork."""
    if type(number) is not int:
        raise InvalidFork(f"{number!r} is not an entry of the journal: give its number, or -1 for the beginning")
    return number


def _call(seq: object) -> int:
    if type(seq) is not int or seq < 1:
        raise InvalidInput(f"{seq!r} is not a call: give the number of its command, as the journal shows it")
    return seq


def _arguments(what: str, args: object, limit: int) -> Raw:
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise InvalidInput(f"{what}={args!r} must be a list of arguments, such as [1, 'two']")
    return Raw(encode(list(args), what, limit))
