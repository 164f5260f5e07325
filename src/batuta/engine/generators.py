"""Async generators of workflow code are held by their run's loop, not by the worker's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
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


class turns:  # noqa: N801 - a context manager; written out, for it is passed in every round of the event loop
    """Many turns, one after the other: what they all need is set once. No async generator may begin between them."""

    __slots__ = ("_hooks", "_loop")

    def __enter__(self) -> None:
        self._hooks = hook_generators()
        self._loop = hooked.loop = _get_running_loop()

    def __exit__(self, *_: object) -> None:
        if hooked.loop is self._loop:
            hooked.loop = None
        sys.set_asyncgen_hooks(*self._hooks)
