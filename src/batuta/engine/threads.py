"""Sync activities: each attempt has a thread."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from typing import Any

from batuta.authoring.attempt import current_activity
from batuta.engine.calls import Call


def in_thread(
    call: Call,
    may_act: Callable[[], bool],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fn: Callable[..., Any] | None = None,
    context: contextvars.Context | None = None,
) -> Any:
    """Run an attempt, in the thread that calls this. It waits until effects may go out.

    `fn` and `context` are given where there is middleware around it.
    """
    while not may_act():
        if call.over:
            raise asyncio.CancelledError
        time.sleep(0.05)
    if call.over:  # it has waited, for a thread or in middleware, and nobody waits for it any more
        raise asyncio.CancelledError
    if context is None:
        context = contextvars.Context()
        context.run(current_activity.set, call)
    try:
        return context.run(fn or call.activity.fn, *args, **kwargs)
    except StopIteration as error:  # no future takes it: the attempt would never come to an end
        raise RuntimeError(f"activity {call.pending.name!r} raised StopIteration") from error
