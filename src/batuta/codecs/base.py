"""What a payload codec is. Values, no I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple


class Bound(NamedTuple):
    """What a payload belongs to. It cannot be read as anything else's, where the codec sees to that."""

    scope: bytes
    """The namespace, and the run or schedule."""
    place: bytes
    """The scope, and which payload of it: its kind, number and name, and the codecs that came before."""


class PayloadCodec(ABC):
    """Encodes payloads before they are written, and decodes what was read. The same object is used by many threads.

    To write one of your own: a `name`, `encode` and `decode`. A payload says in the clear which codecs it went
    through, by name and label, so that old ones stay readable when others are used for new ones.
    """

    name: str
    """Letters and digits. Stands in every payload: it must never change, nor mean anything else."""

    label: str = ""
    """Stands behind the name of what is written now, such as the id of a key: letters, digits, `.`, `_` and `-`."""

    always: bool = False
    """Whether every payload goes through it, so that one which did not is refused, unless `plain`."""

    plain: bool = False

    @property
    def mark(self) -> str:
        """What it can read: a run that could not be read is tried again by workers with another mark."""
        return self.name

    @abstractmethod
    def encode(self, data: bytes, bound: Bound) -> bytes | None:
        """The payload as it is to be written. None: it is left as it is, and does not bear the codec's name."""

    @abstractmethod
    def decode(self, data: bytes, label: str, bound: Bound) -> bytes:
        """What `encode` was given, when it gave `data` under this label. Raises PayloadSealed."""
