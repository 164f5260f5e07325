"""Checks of a journal alone, in one pass: I3, I4, I5, I9 and I10; and of a run's row against it: I1, I6 and I12."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
from msgspec import UNSET, json

from batuta.journal.codec_envelope import refuse_coded
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, crc_holds, decode_body
from batuta.journal.kinds import CALL_ANSWERS, CLOSING_COMMANDS, CLOSING_ENTRIES, ENTRY_KINDS, ends_as
from batuta.journal.records import Run
from batuta.journal.states import CLOSED, PARKED, RunState

Tell = Callable[[str, str], None]
"""Reports a problem: the invariant, and what is wrong."""


class JournalCheck:
    """Takes a run's entries in order, and reports problems."""

    def __init__(self, tell: Tell) -> None:
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
        match entry.kind:
            case EntryKind.STARTED if body.start is not UNSET:
                self.name = body.start.name
            case kind if kind in CALL_ANSWERS:
                if self.waiting.pop(body.seq, None) is not ENTRY_KINDS[kind].answers:
                    what = f"answers command {body.seq}, which waits for no answer"
                    self._tell("I3", f"entry {entry.ord} ({kind}) {what}")
            case EntryKind.CANCEL_REQUESTED:
                self.cancelled = True
            case EntryKind.REFUSED:
                self.waiting.pop(body.seq, None)
            case EntryKind.TIMER_FIRED:
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


# -- a run's row against its journal


def check_end(run: Run, journal: JournalCheck, tell: Tell) -> None:
    """I1 and I4: the journal is as long as the row says, and ends as the row says."""
    if journal.entries != run.head + 1:
        tell("I4", f"the journal has {journal.entries} entries, the run's head is {run.head}")
    if journal.name is not None and journal.name != run.name:
        tell("I1", f"the journal is one of workflow {journal.name!r}, the run one of {run.name!r}")
    if not ends_as(journal.end, run.state):
        tell("I1", f"the run is {run.state}, and its journal ends with {journal.end or 'nothing that closes a run'}")
    if (run.closed_at is not None) is not (run.state in CLOSED):
        tell("I1", f"the run is {run.state}, and closed_at is {run.closed_at}")


def check_epochs(run: Run, epochs: Sequence[int], tell: Tell) -> None:
    """I6: ownership only moved forward. I5: no entry follows a closed run's head."""
    if run.state in CLOSED and len(epochs) > run.head + 1:
        tell("I5", f"{len(epochs) - run.head - 1} entries follow the run's head, after its end")
    epochs = epochs[: run.head + 1]
    for place, (before, after) in enumerate(pairwise(epochs), start=1):
        if after < before:
            tell("I6", f"entry {place} was written in epoch {after}, after one of epoch {before}")
    if epochs and epochs[-1] > run.epoch:
        tell("I6", f"the last entry was written in epoch {epochs[-1]}, the run is at {run.epoch}")


def check_liveness(run: Run, waits_for_activity: bool, unread: int, tell: Tell) -> None:
    """I12: a worker, a timer or a message will move the run on, or a person can see why not."""
    if run.state is RunState.RUNNING and run.owner is None:
        tell("I12", "the run is running, but has no owner")
    if run.state is not RunState.RUNNING and run.owner is not None:
        tell("I12", f"the run is {run.state}, and owned by {run.owner}")
    if run.state not in (RunState.PENDING, RunState.WAITING):
        if run.wake_at is not None:
            tell("I12", f"the run is {run.state}, and yet due")
    elif run.wake_at is None and run.state is RunState.PENDING:
        if not run.awaits:
            tell("I12", "the run is pending and never due")
    elif run.wake_at is None:
        if waits_for_activity:
            tell("I12", "the run waits for an activity without a worker, and is never due")
        elif unread:
            tell("I12", f"the run has {unread} unread messages, and is never due")
    if (run.state is RunState.PAUSED) is not (run.paused_at is not None):
        tell("I12", f"the run is {run.state}, and paused_at is {run.paused_at}")
    if run.state in PARKED and not run.reason:
        tell("I12", f"the run is parked as {run.state} without a reason")
