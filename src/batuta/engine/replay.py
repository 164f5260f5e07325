"""Rebuilding a run from its journal, with every turn compared to what it did when it was live."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET, Struct

from batuta.clock import SECOND
from batuta.engine.generators import Turns
from batuta.engine.kin import PendingChild
from batuta.engine.machine import Machine
from batuta.engine.past import Past
from batuta.engine.pending import PendingActivity
from batuta.engine.routes import Route
from batuta.errors import InvalidInput, Nondeterministic
from batuta.journal.entries import FROM_OUTSIDE, Body, Command, CommandKind, Entry, EntryKind, Forked, decode_body

log = logging.getLogger("batuta.engine")

_SLICE = 500
_ACTIVITY_ENTRIES = (EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED)
_FORKED = EntryKind.FORKED


class Replay(Struct, eq=False):
    """Feeds a journal to a machine. `warnings` counts inputs that other code would send otherwise."""

    _machine: Machine
    _entries: Sequence[Entry]
    _turns: Turns | None = None
    """Of the worker that replays it: it may be within them."""
    _next: int = 0
    warnings: list[str] = []

    def run(self) -> None:
        """All of it at once. Raises WorkflowBroken, with both sides shown, when the code does not replay it."""
        while self.go_on():
            pass

    def slices(self) -> Iterator[None]:
        """The same, with a pause whenever it has taken long enough."""
        while self.go_on():
            yield

    def go_on(self) -> bool:
        """A few hundred entries, so that a long journal does not hold up the worker's loop. Whether there are more."""
        machine, entries, begin = self._machine, self._entries, self._next
        try:
            if len(entries) == 1 and machine.outcome is None:  # as of a run that slept from its start on
                self._turn(entries[0])
                return False
            if begin == 0 and machine.past is None and (last := last_fork(entries)) is not None:
                machine.past = Past(machine.identity, last)
            self._next = end = begin + _SLICE
            for entry in entries if begin == 0 and end > len(entries) else entries[begin:end]:
                if machine.outcome is not None and entry.kind not in FROM_OUTSIDE:
                    raise Nondeterministic(f"entry {entry.ord}", f"{entry.kind} follows", "the code has already ended")
                self._turn(entry)
            return end < len(entries)
        finally:
            machine.recorded = None

    def _turn(self, entry: Entry) -> None:
        if entry.kind in FROM_OUTSIDE:
            return
        machine = self._machine
        body = _decode(entry)
        if entry.kind is _FORKED:
            self._take_over(entry, body)
            return
        expected = machine.recorded = body.commands
        commands: list[Command] = []
        try:
            machine.turn(entry.at, entry.kind, body, commands, None if self._turns is None else self._turns.loop)
        except InvalidInput as error:
            raise Nondeterministic(f"entry {entry.ord}", entry.body[:200], str(error)) from error
        if commands != expected:
            self._compare_all(entry, expected, commands)
        if entry.kind in _ACTIVITY_ENTRIES and log.isEnabledFor(logging.DEBUG):
            log.debug("replayed activity %s seq %d of run %s", body.name, body.seq, machine.identity.id)

    def _compare_all(self, entry: Entry, expected: list[Command], commands: list[Command]) -> None:
        for place, recorded in enumerate(expected):
            if place >= len(commands):
                raise Nondeterministic(_where(entry, recorded.seq), _show(recorded), "no such command")
            if recorded != commands[place]:
                self._compare(entry, recorded, commands[place])
        if len(commands) > len(expected):
            extra = commands[len(expected)]
            raise Nondeterministic(_where(entry, extra.seq), "nothing", _show(extra))

    def _take_over(self, entry: Entry, body: Body) -> None:
        if self._machine.past is None or body.forked is UNSET:
            raise Nondeterministic(f"entry {entry.ord}", "a fork", "an entry without one")
        self._machine.past.take_over(self._machine, entry.at, body.forked)

    def _compare(self, entry: Entry, recorded: Command, issued: Command) -> None:
        if (
            recorded.kind is not issued.kind
            or recorded.name != issued.name
            or recorded.target != issued.target
            or recorded.to != issued.to
        ):
            raise Nondeterministic(_where(entry, recorded.seq), _show(recorded), _show(issued))
        if recorded.kind is CommandKind.SIDE_EFFECT or (
            _same_error(recorded, issued) and self._same_value(recorded, issued)
        ):
            return
        machine = self._machine
        difference = Nondeterministic(_where(entry, recorded.seq), _show(recorded), _show(issued))
        if machine.start.fingerprint == machine.workflow.fingerprint:
            raise difference
        self.warnings.append(str(difference))

    def _same_value(self, recorded: Command, issued: Command) -> bool:
        """Equal text, or equal when decoded: sets have no order in JSON arrays."""
        if recorded.value == issued.value:
            return True
        machine = self._machine
        pending: PendingActivity | PendingChild | Route | None = machine.activities.get(issued.seq)
        if pending is None and machine.kin is not None:
            pending = machine.kin.children.get(issued.seq) or machine.kin.routed.get(issued.seq)
        if pending is None or pending.codec is None or recorded.value is UNSET or issued.value is UNSET:
            return False
        try:
            return pending.codec.decode_args(recorded.value) == pending.codec.decode_args(issued.value)
        except InvalidInput:
            return False


def last_fork(entries: Sequence[Entry]) -> Forked | None:
    """Where the run became itself, if it was made from another."""
    for entry in reversed(entries):
        if entry.kind is _FORKED:
            forked = _decode(entry).forked
            return None if forked is UNSET else forked
    return None


def _same_error(recorded: Command, issued: Command) -> bool:
    if recorded.error is UNSET or issued.error is UNSET:
        return recorded.error is issued.error
    return recorded.error.type == issued.error.type


def _decode(entry: Entry) -> Body:
    try:
        return decode_body(entry)
    except msgspec.MsgspecError as error:
        raise Nondeterministic(f"entry {entry.ord}", entry.body[:200], f"cannot be read: {error}") from error


def _where(entry: Entry, seq: int) -> str:
    return f"entry {entry.ord} ({entry.kind}), command {seq}"


def _show(command: Command) -> str:
    value = "" if command.value is UNSET else bytes(command.value).decode()[:200]
    if command.error is not UNSET:
        value = f"{command.error.kind}: {command.error.message}"[:200]
    if command.kind is CommandKind.TIMER and value.isdecimal():
        value = f"{int(value) / SECOND:g} s"
    target = f"of command {command.target}" if command.target else ""
    to = f"to {command.to}" if command.to else ""
    return " ".join(filter(None, (command.kind, command.name, target, to, value)))
