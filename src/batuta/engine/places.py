"""Places for attempts: how many may run at once in this worker, and who waits for one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from batuta.engine.calls import Call
from batuta.settings import Settings


class Places:
    """By kind (on the loop, in threads). An attempt holds its place until it has really come to an end."""

    def __init__(self, settings: Settings, admitted: Callable[[Call], None]) -> None:
        self._free = {True: settings.max_activities, False: settings.threads}
        self._queued: dict[bool, deque[Call]] = {True: deque(), False: deque()}
        self._admitted = admitted

    def enter(self, call: Call) -> bool:
        """Whether the call has a place now. Otherwise it waits, and `admitted` is told when it has one."""
        kind = call.activity.is_async
        if self._free[kind] > 0:
            self._free[kind] -= 1
            return True
        self._queued[kind].append(call)
        return False

    def leave(self, call: Call) -> None:
        kind = call.activity.is_async
        queued = self._queued[kind]
        while queued:
            following = queued.popleft()
            if not following.over:
                self._admitted(following)
                return
        self._free[kind] += 1
