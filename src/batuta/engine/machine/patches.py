"""Which way a run takes where its code was changed: decided once in its life, and kept in its journal."""

from __future__ import annotations

from batuta.engine.machine.core import MachineCore
from batuta.journal.entries import Command, CommandKind


class Patches:
    """The patches of one run. Made when its code first asks for one."""

    __slots__ = ("_decided", "_machine")

    def __init__(self, machine: MachineCore) -> None:
        self._machine = machine
        self._decided: dict[str, bool] = {}

    def patched(self, id: str) -> bool:
        """True where the change is live or was when this turn was live; the first answer holds for the run's life."""
        decided = self._decided.get(id)
        if decided is None:
            decided = self._decided[id] = self._machine.recorded is None or self._is_recorded(id)
            if decided:
                self._issue(id)
        return decided

    def deprecated(self, id: str) -> None:
        """The old way is gone: runs that hold the marker still replay, new ones do not write it."""
        if id not in self._decided and self._machine.recorded is not None and self._is_recorded(id):
            self._decided[id] = True
            self._issue(id)

    def _is_recorded(self, id: str) -> bool:
        found = self._machine.recorded_command()
        return found is not None and found.kind is CommandKind.PATCH and found.name == id

    def _issue(self, id: str) -> None:
        self._machine.commands.append(Command(self._machine.next_seq(), CommandKind.PATCH, id))
