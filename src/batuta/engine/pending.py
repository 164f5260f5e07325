"""An activity between its call and its answer, as the code that called it waits for it."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Raw, Struct

from batuta.authoring.options import ActivityOptions
from batuta.engine.loop import Waiter
from batuta.serde import Codec, Decoder, decode


class PendingActivity(Struct, eq=False):
    """An activity that was called and has not answered."""

    name: str
    codec: Codec | None
    decoder: Decoder | None
    data: bytes
    options: ActivityOptions
    issued_at: int
    entry: int
    """That of the turn which called it."""
    future: Waiter = cast(Waiter, None)
    """None of a call that no code waits for."""

    def decode_result(self, value: Raw) -> Any:
        """Where there is no codec."""
        return decode(value, cast(Decoder, self.decoder), f"the result of activity {self.name!r}")
