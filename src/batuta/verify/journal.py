"""Checks of a journal alone: I3, I4, I5, I9 and I10, in one pass."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import UNSET, json

from batuta.journal.codec_envelope import refuse_coded
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, crc_holds, decode_body
from batuta.journal.kinds import CALL_ANSWERS, CLOSING_COMMANDS, CLOSING_ENTRIES, ENTRY_KINDS


class JournalCheck:
    """Takes a run's entries in order, and reports problems."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        self.entries = 0
        self.name: str | None = None
        """The workflow that the first entry names."""
        self.end: CommandKind | EntryKind | None = None
        """The command or entry that closed the run."""
        self.waiting: dict[int, CommandKind] = {}
        """Activities and children that were called and have not answered, by seq."""
        self.routed: set[int] = set()
        """Activities that another queue executes."""
        self.taken: dict[str, int] = {}
        """Messages that were read, with the entries that did."""
        self.cancelled = False
        """Whether it was asked to end."""
        self.fired = 0
        self._deadlines: dict[int, int] = {}
        self._crc = self._at = self._seq = 0

    def feed(self, entry: Entry) -> None:
        """The next entry. Raises PayloadSealed when it is coded: then it cannot be checked."""
        refuse_coded(entry.body, f"entry {entry.ord}")
        self._check_place(entry)
        if not crc_holds(entry, self._crc):
            self._tell("I3", f"entry {entry.ord} differs from what was written: its checksum is wrong")
        self._crc = entry.crc
        try:
            body = decode_body(entry)
        except msgspec.MsgspecError as error:
            self._tell("I3", f"entry {entry.ord} cannot be read: {error}")
            return
        self._check_input(entry, body)
        for command in body.commands:
            self._check_command(entry, command)
        if entry.kind in CLOSING_ENTRIES:
            self.end = entry.kind

    def _check_place(self, entry: Entry) -> None:
        if entry.ord != self.entries:
            self._tell("I4", f"entry {entry.ord} is in the place of entry {self.entries}")
        self.entries = entry.ord + 1
        if entry.at < self._at:
            self._tell("I4", f"entry {entry.ord} is {self._at - entry.at} µs earlier than the one before")
        self._at = max(self._at, entry.at)
        if self.end is not None:
            self._tell("I5", f"entry {entry.ord} ({entry.kind}) follows the end ({self.end})")
        if (entry.kind is EntryKind.STARTED) is not (entry.ord == 0) and entry.kind not in CLOSING_ENTRIES:
            self._tell("I1", f"entry {entry.ord} is {entry.kind}: entry 0 alone is a start")

    def _check_input(self, entry: Entry, body: Body) -> None:
        if body.message_id:
            before = self.taken.setdefault(body.message_id, entry.ord)
            if before != entry.ord:
                self._tell(
                    "I10", f"entry {entry.ord} reads message {body.message_id} a second time, after entry {before}"
                )
        if entry.kind is EntryKind.STARTED and body.start is not UNSET:
            self.name = body.start.name
        elif entry.kind in CALL_ANSWERS:
            if self.waiting.pop(body.seq, None) is not ENTRY_KINDS[entry.kind].answers:
                self._tell(
                    "I3", f"entry {entry.ord} ({entry.kind}) answers command {body.seq}, which waits for no answer"
                )
        elif entry.kind is EntryKind.CANCEL_REQUESTED:
            self.cancelled = True
        elif entry.kind is EntryKind.REFUSED:
            self.waiting.pop(body.seq, None)
        elif entry.kind is EntryKind.TIMER_FIRED:
            self._check_timer(entry, body.seq)

    def _check_timer(self, entry: Entry, seq: int) -> None:
        self.fired += 1
        deadline = self._deadlines.pop(seq, None)
        if deadline is None:
            self._tell("I9", f"entry {entry.ord}: timer {seq} fired, which is not set (any more)")
        elif entry.at < deadline:
            self._tell("I9", f"entry {entry.ord}: timer {seq} fired {deadline - entry.at} µs early")

    def _check_command(self, entry: Entry, command: Command) -> None:
        if command.seq != self._seq + 1:
            self._tell("I4", f"entry {entry.ord} issues command {command.seq} after {self._seq}")
        self._seq = command.seq
        if self.end is not None:
            self._tell("I5", f"entry {entry.ord} issues {command.kind} after the end ({self.end})")
        match command.kind:
            case CommandKind.ACTIVITY | CommandKind.CHILD:
                self.waiting[command.seq] = command.kind
                if command.to:
                    self.routed.add(command.seq)
            case CommandKind.TIMER:
                delay = 0 if command.value is UNSET else int(json.decode(command.value))
                self._deadlines[command.seq] = entry.at + delay
            case CommandKind.CANCEL if self.waiting.get(command.target) is CommandKind.CHILD:
                pass  # after cancelling a child, the code may or may not wait for its end
            case CommandKind.CANCEL:
                self.waiting.pop(command.target, None)
                self._deadlines.pop(command.target, None)
            case kind if kind in CLOSING_COMMANDS:
                self.end = kind
