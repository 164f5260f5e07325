"""The interface of payload codecs. Values, no I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple


class Bound(NamedTuple):
    """The owner of a payload. A codec that authenticates it makes the payload unreadable anywhere else."""

    scope: bytes
    """The namespace, and the run or schedule."""
    place: bytes
    """The scope, and which payload of it: its kind, number and name, and the codecs that came before."""


class PayloadCodec(ABC):
    """Encodes payloads before they are written, and decodes them after they are read. Many threads use the same object.

    To write your own, define `name`, `encode` and `decode`. A payload names its codecs in the clear, by name and label,
    so that old payloads stay readable when new ones use other codecs.
    """

    name: str
    """Letters and digits. It is part of every payload: it must never change, nor mean anything else."""

    label: str = ""
    """Follows the name in new payloads, such as the id of a key: letters, digits, `.`, `_` and `-`."""

    always: bool = False
    """Whether every payload goes through it, so that one which did not is refused, unless `plain`."""

    plain: bool = False

    old: bool = False
    """Of one with `always`: whether payloads are read that an earlier version has written, which bound them to less."""

    unpacks: bool = False
    """Whether decoding may make a payload much larger.

    Such a codec must come before those with `always`, so that it only gets their output.
    """

    @property
    def mark(self) -> str:
        """Names the payloads it can read: workers with another mark retry a run that could not be read."""
        return self.name

    def keyed(self, text: str) -> str | None:
        """A keyed hash of a text, stable while the first key stays: for values that the database must compare.

        None without a key.
        """
        return None

    def keyed_before(self, text: str) -> list[str]:
        """The same with the other keys: one of them was the first before."""
        return []

    @abstractmethod
    def encode(self, data: bytes, bound: Bound) -> bytes | None:
        """The payload as it is to be written. None: it is left as it is, and does not bear the codec's name."""

    @abstractmethod
    def decode(self, data: bytes, label: str, bound: Bound) -> bytes:
        """What `encode` was given, when it gave `data` under this label. Raises PayloadSealed."""
