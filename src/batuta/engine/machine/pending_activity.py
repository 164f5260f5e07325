"""An activity between its call and its answer, as the code that called it waits for it."""

from __future__ import annotations

from typing import cast

from msgspec import Struct

from batuta.authoring.call_options import ActivityOptions
from batuta.engine.machine.loop import Waiter
from batuta.serde import Codec, Decoder


class PendingActivity(Struct, eq=False):
    """An activity that was called and has not answered."""

    name: str
    codec: Codec | None
    decoder: Decoder
    """Decodes its result."""
    data: bytes
    options: ActivityOptions
    issued_at: int
    entry: int
    """The entry of the turn that called it."""
    future: Waiter = cast(Waiter, None)
    """None of a call that no code waits for."""
    key: str = ""
    """Its stable key, where that is not made from its command: of a compensation."""
