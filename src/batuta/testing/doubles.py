"""Doubles: activities that stand in for others in a test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from batuta.authoring.definitions import Activity

P = ParamSpec("P")
R = TypeVar("R")


def double(activity: Activity[P, R], stand_in: Callable[..., Any]) -> Activity[P, R]:
    """The same activity (name, types, options) that does what `stand_in` does: a function, a lambda or a mock.

    It runs on the event loop, async or not. Arguments and results pass through JSON as those of the real one.
    """
    codec = activity.codec

    @functools.wraps(activity.fn)
    async def perform(*args: Any, **kwargs: Any) -> Any:
        value = stand_in(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    twin: Activity[P, R] = Activity(perform, activity.name, activity.options)
    twin.codec = codec
    return twin
