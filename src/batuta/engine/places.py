"""Places for attempts: how many may run at once in this worker, and who waits for one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from batuta.authoring.definitions import Place
from batuta.engine.calls import Call
from batuta.settings import Settings


class Gate:
    """So many at once, the others wait in a row."""

    __slots__ = ("free", "row")

    def __init__(self, free: int) -> None:
        self.free = free
        self.row: deque[Call] = deque()


class Places:
    """By kind: on the loop, in threads, in processes; and for each activity that has a limit of its own.

    An attempt holds its place until it has really come to an end.
    """

    def __init__(self, settings: Settings, admitted: Callable[[Call], None]) -> None:
        # By `Place`.
        places = (settings.max_activities, settings.threads, settings.processes, settings.transactions)
        self._kinds = [Gate(free) for free in places]
        self.on_loop = self._kinds[Place.LOOP]
        self._named: dict[str, Gate] = {}
        self._admitted = admitted

    def enter(self, call: Call) -> bool:
        """Whether the call has a place now. Otherwise it waits, and `admitted` is told when it has one."""
        activity = call.activity
        if activity.limit is not None and not self._pass(self._own_gate(call, activity.limit), call):
            return False
        gate = self._kinds[activity.place]
        if gate.free > 0:
            gate.free -= 1
            return True
        gate.row.append(call)
        return False

    def leave(self, call: Call) -> None:
        activity = call.activity
        following = self._leave(self._kinds[activity.place])
        if activity.limit is not None:
            self._leave_own(call)
        if following is not None:
            self._admitted(following)

    def _own_gate(self, call: Call, limit: int) -> Gate:
        gate = self._named.get(call.activity.name)
        if gate is None:
            gate = self._named[call.activity.name] = Gate(limit)
        return gate

    def _pass(self, gate: Gate, call: Call) -> bool:
        if gate.free > 0:
            gate.free -= 1
            return True
        gate.row.append(call)
        return False

    def _leave(self, gate: Gate) -> Call | None:
        """Who has the place now."""
        while gate.row:
            following = gate.row.popleft()
            if not following.over:
                return following
            if following.activity.limit is not None and gate is self._kinds[following.activity.place]:
                self._leave_own(following)  # it had passed its own gate
        gate.free += 1
        return None

    def _leave_own(self, call: Call) -> None:
        following = self._leave(self._named[call.activity.name])
        if following is not None and self._pass(self._kinds[following.activity.place], following):
            self._admitted(following)
