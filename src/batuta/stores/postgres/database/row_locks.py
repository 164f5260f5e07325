"""Rows that another transaction has locked, such as a forgotten psql or a caller's open transaction.

A statement that waits for one occupies a session, and sessions are few. So it waits only for a short while, gives the
session back, and is tried again: no other caller waits with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from batuta.ids import jitter
from batuta.stores.postgres.database.address import Address
from batuta.stores.postgres.database.errors import RowLocked

T = TypeVar("T")
P = ParamSpec("P")

COMMIT_SECONDS = 0.2
"""How long a commit waits for a row: all runs of the worker wait with it. Others hold rows for milliseconds."""
VERB_SECONDS = 0.5
"""The same for a statement of any other verb."""
_PIECES = 8
"""How many parts: each that fails waits for a lock, and this takes fewer rounds than halves."""
_FIRST_REST, _LONGEST_REST = 0.02, 0.25


class _Store(Protocol):
    address: Address


S = TypeVar("S", bound=_Store)


async def in_turns(call: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Call until none of its rows is locked. Raises RowLocked when that takes longer than this many seconds."""
    end, rest = time.monotonic() + seconds, _FIRST_REST
    while True:
        try:
            return await call()
        except RowLocked:
            if time.monotonic() + rest > end:
                raise
        await asyncio.sleep(rest * (0.5 + jitter()))
        rest = min(rest * 2, _LONGEST_REST)


def split(batch: list[T]) -> list[list[T]]:
    """The parts of a batch that waited for a locked row, to be tried one by one."""
    size = -(-len(batch) // _PIECES)
    return [batch[first : first + size] for first in range(0, len(batch), size)]


def patiently(
    verb: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """A verb that is one transaction, tried in turns for as long as the URL's `lock_timeout` says."""

    @wraps(verb)
    async def tried(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_turns(partial(verb, self, *args, **kwargs), self.address.lock_timeout)

    return tried
