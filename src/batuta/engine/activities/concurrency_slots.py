"""Slots for attempts: how many may run at once in this worker, and which calls wait for one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from batuta.engine.activities.call import Call
from batuta.settings import Settings


class Slots:
    """A number of free slots, and the row of calls that wait for one."""

    __slots__ = ("free", "row")

    def __init__(self, free: int) -> None:
        self.free = free
        self.row: deque[Call] = deque()


class ConcurrencySlots:
    """Slots for each execution mode (loop, threads, processes, transactions), and for each activity with a limit.

    An attempt holds its slot until it has really ended.
    """

    def __init__(self, settings: Settings, admitted: Callable[[Call], None]) -> None:
        # By `ExecutionMode`.
        places = (settings.max_activities, settings.threads, settings.processes, settings.transactions)
        self._kinds = [Slots(free) for free in places]
        self._named: dict[str, Slots] = {}
        self._admitted = admitted

    def enter(self, call: Call) -> bool:
        """Whether the call has its slots now. Otherwise it waits, and `admitted` is called once it has them."""
        activity = call.activity
        if activity.limit is not None and not self._take(self._own_slots(call, activity.limit), call):
            return False
        return self._take(self._kinds[activity.execution_mode], call)

    def leave(self, call: Call) -> None:
        activity = call.activity
        following = self._leave(self._kinds[activity.execution_mode])
        if activity.limit is not None:
            self._leave_own(call)
        if following is not None:
            self._admitted(following)

    def _own_slots(self, call: Call, limit: int) -> Slots:
        slots = self._named.get(call.activity.name)
        if slots is None:
            slots = self._named[call.activity.name] = Slots(limit)
        return slots

    def _take(self, slots: Slots, call: Call) -> bool:
        if slots.free > 0:
            slots.free -= 1
            return True
        slots.row.append(call)
        return False

    def _leave(self, slots: Slots) -> Call | None:
        """Free a slot, or give it to the next call that waits: that call."""
        while slots.row:
            following = slots.row.popleft()
            if not following.over:
                return following
            if following.activity.limit is not None and slots is self._kinds[following.activity.execution_mode]:
                self._leave_own(following)  # it holds a slot of its activity
        slots.free += 1
        return None

    def _leave_own(self, call: Call) -> None:
        following = self._leave(self._named[call.activity.name])
        if following is not None and self._take(self._kinds[following.activity.execution_mode], following):
            self._admitted(following)
