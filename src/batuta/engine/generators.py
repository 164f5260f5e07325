"""Async generators of workflow code are held by their run's loop, not by the worker's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, cast

from batuta.engine.loop import RunLoop

_get_running_loop = asyncio._get_running_loop


class _Hooked:
    loop: object = None
    """The worker's loop that is between the ends of `turns`: async generators that begin now are held by their run's
    loop. One word for all threads, for a look at a thread's own costs much: where it says another loop, each turn hooks
    by itself."""


hooked = _Hooked()


def hook_generators() -> Any:
    """Have them held; returns the hooks of before."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(_hold_generator, None)
    return hooks


def _hold_generator(generator: AsyncGenerator[Any, Any]) -> None:
    cast(RunLoop, _get_running_loop()).hold_generator(generator)


@contextmanager
def turns() -> Iterator[None]:
    """Many turns, one after the other: what they all need is set once. No async generator may begin between them."""
    hooks, loop = hook_generators(), _get_running_loop()
    hooked.loop = loop
    try:
        yield
    finally:
        if hooked.loop is loop:
            hooked.loop = None
        sys.set_asyncgen_hooks(*hooks)
