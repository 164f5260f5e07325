"""Async generators of workflow code are held by their run's loop, not by the worker's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from threading import get_ident
from typing import Any, cast

from batuta.engine.loop import RunLoop

_get_running_loop = asyncio._get_running_loop


class _Hooked:
    by: tuple[int, Any] | None = None
    """The thread that is between the ends of `turns`, with its loop: async generators that begin there are held by the
    loop of their run. One word for all threads, for a look at a thread's own costs much: where it says another, each
    turn hooks by itself. Nor need the running loop be asked for: asyncio asks the system for the process each time."""


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

    __slots__ = ("_by", "_hooks")

    def __enter__(self) -> None:
        self._hooks = sys.get_asyncgen_hooks()  # as `hook_generators` does
        sys.set_asyncgen_hooks(_hold_generator, None)
        self._by = hooked.by = (get_ident(), _get_running_loop())

    def __exit__(self, *_: object) -> None:
        if hooked.by is self._by:
            hooked.by = None
        sys.set_asyncgen_hooks(*self._hooks)
