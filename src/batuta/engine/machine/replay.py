"""Rebuilding a run from its journal, with every turn compared to what it did when it was live."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET, Struct

from batuta.clock import SECOND
from batuta.durations import human_duration
from batuta.engine.machine.async_generators import TurnHooks
from batuta.engine.machine.children import PendingChild
from batuta.engine.machine.core import PendingActivity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.routing import Route, RoutedCall
from batuta.errors import InvalidInput, Nondeterministic
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, Forked, decode_body
from batuta.journal.kinds import ACTIVITY_ANSWERS, CLOSING_ENTRIES
from batuta.journal.records import MessageKind, StoredRun

log = logging.getLogger("batuta.engine")

_SLICE = 500
_FORKED = EntryKind.FORKED


class Replay(Struct, eq=False):
    """Feeds a journal to a machine. `warnings` counts inputs that other code would send otherwise."""

    _machine: Machine
    _entries: Sequence[Entry]
    _turns: TurnHooks | None = None
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
            if begin == 0 and machine.lineage is None and (last := last_fork(entries)) is not None:
                machine.descend(last)
            self._next = end = begin + _SLICE
            for entry in entries if begin == 0 and end > len(entries) else entries[begin:end]:
                if machine.outcome is not None and entry.kind not in CLOSING_ENTRIES:
                    raise Nondeterministic(f"entry {entry.ord}", f"{entry.kind} follows", "the code has already ended")
                self._turn(entry)
            return end < len(entries)
        finally:
            machine.end_replay()

    def _turn(self, entry: Entry) -> None:
        if entry.kind in CLOSING_ENTRIES:
            return
        machine = self._machine
        body = _decode(entry)
        if entry.kind is _FORKED:
            self._take_over(entry, body)
            return
        expected, loop = body.commands, None if self._turns is None else self._turns.loop
        try:
            commands = machine.replay_turn(entry.at, entry.kind, body, loop)
        except InvalidInput as error:
            raise Nondeterministic(f"entry {entry.ord}", entry.body[:200], str(error)) from error
        if commands != expected:
            self._compare_all(entry, expected, commands)
        if entry.kind in ACTIVITY_ANSWERS and log.isEnabledFor(logging.DEBUG):
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
        if body.forked is UNSET:
            raise Nondeterministic(f"entry {entry.ord}", "a fork", "an entry without one")
        self._machine.take_over(entry.at, body.forked)

    def _compare(self, entry: Entry, recorded: Command, issued: Command) -> None:
        if (
            recorded.kind is not issued.kind
            or recorded.name != issued.name
            or recorded.target != issued.target
            or recorded.to != issued.to
            or recorded.message_id != issued.message_id
        ):
            raise Nondeterministic(_where(entry, recorded.seq), _show(recorded), _show(issued))
        if recorded.kind is CommandKind.SIDE_EFFECT or (
            self._same_error(recorded, issued) and self._same_value(recorded, issued)
        ):
            return
        machine = self._machine
        difference = Nondeterministic(_where(entry, recorded.seq), _show(recorded), _show(issued))
        if machine.start.fingerprint == machine.workflow.fingerprint:
            raise difference
        self.warnings.append(str(difference))

    def _same_error(self, recorded: Command, issued: Command) -> bool:
        if recorded.error is UNSET or issued.error is UNSET:
            return recorded.error is issued.error
        # A run that is one call fails with whatever the call did. Old journals have it as it was raised where it ran.
        return isinstance(self._machine.workflow, RoutedCall) or recorded.error.type == issued.error.type

    def _same_value(self, recorded: Command, issued: Command) -> bool:
        """Equal text, or equal when decoded: sets have no order in JSON arrays."""
        if recorded.value == issued.value:
            return True
        machine = self._machine
        pending: PendingActivity | PendingChild | Route | None = machine.activities.get(issued.seq)
        if pending is None and machine.related is not None:
            pending = machine.related.children.get(issued.seq) or machine.related.routed.get(issued.seq)
        if pending is None or pending.codec is None or recorded.value is UNSET or issued.value is UNSET:
            return False
        try:
            return bool(pending.codec.decode_args(recorded.value) == pending.codec.decode_args(issued.value))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - it does not fit, or an `__eq__` of the user's own raises
            return False


def last_fork(entries: Sequence[Entry]) -> Forked | None:
    """Where the run became itself, if it was made from another."""
    for entry in reversed(entries):
        if entry.kind is _FORKED:
            forked = _decode(entry).forked
            return None if forked is UNSET else forked
    return None


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
        value = human_duration(int(value) / SECOND)
    target = f"of command {command.target}" if command.target else ""
    to = f"to {command.to}" if command.to else ""
    named = f"message {command.message_id}" if command.message_id else ""
    return " ".join(filter(None, (command.kind, command.name, target, to, named, value)))


def missing_of(stored: StoredRun) -> str:
    """The part that a stored run lacks, so that it cannot go on."""
    head = stored.run.head
    if len(stored.entries) != head + 1:
        return f"its journal has {len(stored.entries)} entries, and its row says {head + 1}: restore a backup"
    if head < 0 and not any(one.kind is MessageKind.START for one in stored.messages):
        return "it has not begun, and its start message is missing: restore a backup"
    return ""
