"""Async generators of workflow code are held by their run's loop, not by the worker's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from typing import Any, cast

from batuta.engine.machine.loop import RunLoop

_get_running_loop = asyncio._get_running_loop
HostLoop = asyncio.AbstractEventLoop | None


def hook_generators() -> Any:
    """Have them held; returns the hooks of before."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(_hold_generator, None)
    return hooks


def _hold_generator(generator: AsyncGenerator[Any, Any]) -> None:
    cast(RunLoop, _get_running_loop()).hold_generator(generator)


def are_hooked() -> bool:
    """Whether async generators that begin in this thread are taken for those of a run."""
    return sys.get_asyncgen_hooks().firstiter is _hold_generator


class TurnHooks:
    """Many turns of a worker, one after the other: what they all need is set once. No async generator may begin between
    them."""

    __slots__ = ("_before", "loop")

    def __init__(self) -> None:
        self._before: list[tuple[Any, HostLoop]] = []
        self.loop: HostLoop = None
        """The worker's, between the ends. No turn need ask for it: asyncio asks the system for the process then."""

    def __enter__(self) -> None:
        self._before.append((hook_generators(), self.loop))
        self.loop = _get_running_loop()

    def __exit__(self, *_: object) -> None:
        hooks, self.loop = self._before.pop()
        sys.set_asyncgen_hooks(*hooks)
