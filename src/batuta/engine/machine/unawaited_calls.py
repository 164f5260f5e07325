"""Calls of activities, children and the like that workflow code makes and forgets to await: they would never happen."""

from __future__ import annotations

import sys
from types import CoroutineType
from typing import Any, TypeAlias

from batuta.errors import NotAwaited

Made: TypeAlias = "CoroutineType[Any, Any, Any]"
"""The coroutine that a call of ours gives to the code."""

_probe = [object()]
_ALONE = sys.getrefcount(_probe[0])
"""References to what stands in a list, and nowhere else."""
_FEW = 64


class Unbegun:
    """Calls of one run that its code has made, still has, and has not awaited."""

    __slots__ = ("_calls", "_prune_at")

    def __init__(self) -> None:
        self._calls: list[Made] = []
        self._prune_at = _FEW

    def sort(self, made: list[Made]) -> Made | None:
        """At the end of a turn: a call made in it that no code refers to, so that it can't be awaited. Calls that are
        still referred to are kept. Both are deterministic: the code drops its references itself."""
        forgotten: list[Made] = []
        for place in range(len(made)):
            if _is_unbegun(made[place]):
                alone = sys.getrefcount(made[place]) <= _ALONE
                (forgotten if alone else self._calls).append(made[place])
        made.clear()
        for one in forgotten[1:]:
            one.close()
        if len(self._calls) >= self._prune_at:
            self._calls = [one for one in self._calls if _is_unbegun(one)]
            self._prune_at = max(_FEW, 2 * len(self._calls))
        return forgotten[0] if forgotten else None

    def first(self) -> Made | None:
        """When the code has ended: a call that it never awaited."""
        return next((one for one in self._calls if _is_unbegun(one)), None)

    def close(self) -> None:
        """The run leaves memory: Python must not warn of calls that were not awaited."""
        for one in self._calls:
            if _is_unbegun(one):
                one.close()
        self._calls.clear()


def _is_unbegun(call: Made) -> bool:
    return not call.cr_suspended and not call.cr_running and call.cr_frame is not None


def complaint(workflow: str, call: Made) -> NotAwaited:
    """The error that parks the run. The call is closed."""
    frame = call.cr_frame
    found = frame.f_locals if frame is not None else {}
    what = f"activity {found['name']!r}" if call.__name__ == "call_activity" else f"{call.__name__}()"
    call.close()
    return NotAwaited(workflow, what)
