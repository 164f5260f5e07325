"""Python's cyclic garbage collector, told that a worker holds many objects and makes no cycles."""

from __future__ import annotations

import gc

_DEFAULTS = (700, 2000)
"""What Python sets for the youngest generation, before and since 3.13. Another number is somebody's choice."""

_CONTAINERS = 50_000


def tune_collector() -> None:
    """Look for garbage less often, and never again among what is loaded now. Once in a process.

    Ten thousand runs in memory are a million objects; with the default of 700 the collector walks over them again and
    again and takes half of a worker's time, to find nothing: an ended run leaves no cycles behind.
    """
    first, second, third = gc.get_threshold()
    if first in _DEFAULTS:
        gc.freeze()
        gc.set_threshold(_CONTAINERS, second, third)
