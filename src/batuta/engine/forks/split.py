"""A journal, cut in two at an entry: the part that is kept, and the answers of the rest. Values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET, Struct, field

from batuta.authoring.client.forks import Edits
from batuta.errors import InvalidFork
from batuta.journal.dead_letters import DeadLetter
from batuta.journal.entries import (
    Body,
    Command,
    CommandKind,
    Entry,
    EntryKind,
    Forked,
    StartInfo,
    decode_body,
)
from batuta.journal.failures import Failure
from batuta.journal.kinds import CALL_ANSWERS, CALL_ERRORS, CALL_RESULTS, CLOSING_COMMANDS, CLOSING_ENTRIES
from batuta.journal.message_headers import with_headers
from batuta.journal.records import Message, MessageKind, Output, OutputKind, Run

_MESSAGES = {EntryKind.SIGNAL: MessageKind.SIGNAL, EntryKind.UPDATE: MessageKind.UPDATE}


class Pending(Struct):
    """A call that is not answered at the cut."""

    command: Command
    entry: int
    issued_at: int
    mark: str
    """Names the run that executes it, if it is another one."""
    answer: Body | None = None
    """The result that came after the cut, if any."""
    failed: bool = False
    """An error came after the cut."""
    cancelled: bool = False
    """A child that was asked to end before the cut. Its code may or may not wait for that."""

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def is_elsewhere(self) -> bool:
        """Another run executes it."""
        return self.command.kind is CommandKind.CHILD or bool(self.command.to)


class Split(Struct):
    """The state at an entry, and the answers that came later."""

    kept: list[Entry] = field(default_factory=list)
    start: StartInfo | None = None
    seq: int = 0
    """The last command."""
    ended: bool = False
    """The code has come to its end."""
    quiet: bool = False
    """The last message is put before the code, which has not run yet."""
    calls: dict[int, Pending] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)
    """Calls that were answered before, with the entries that did."""
    forks: list[Forked] = field(default_factory=list)
    published: dict[str, Output] = field(default_factory=dict)
    later: list[Message] = field(default_factory=list)
    """Signals and updates that were read after the cut."""


def split(entries: Sequence[Entry], keep: int) -> Split:
    """Keep entries 0 to `keep`."""
    found = Split(kept=list(entries[: keep + 1]))
    for entry in found.kept:
        _keep(found, entry, decode_body(entry))
    for entry in entries[keep + 1 :]:
        _look_at(found, entry, decode_body(entry))
    return found


def _keep(found: Split, entry: Entry, body: Body) -> None:
    if body.start is not UNSET:
        found.start = body.start
    if entry.kind is EntryKind.FORKED and body.forked is not UNSET:
        _take_over(found, entry, body.forked)
    elif (entry.kind in CALL_ANSWERS or entry.kind is EntryKind.REFUSED) and body.seq in found.calls:
        del found.calls[body.seq]
        found.answered[body.seq] = entry.ord
    found.quiet = body.quiet
    for command in body.commands:
        found.seq = command.seq
        match command.kind:
            case CommandKind.ACTIVITY | CommandKind.CHILD:
                found.calls[command.seq] = Pending(command, entry.ord, entry.at, _mark(found))
            case CommandKind.CANCEL:
                target = found.calls.get(command.target)
                if target is not None and target.command.kind is CommandKind.ACTIVITY:
                    del found.calls[command.target]
                elif target is not None:
                    target.cancelled = True
            case CommandKind.PUBLISH:
                value = "null" if command.value is UNSET else bytes(command.value).decode()
                found.published[command.name] = Output(
                    kind=OutputKind.PUBLISHED, name=command.name, ord=entry.ord, at=entry.at, value=value
                )
        found.ended = found.ended or command.kind in CLOSING_COMMANDS


def _mark(found: Split) -> str:
    if found.forks:
        return found.forks[-1].mark
    return "" if found.start is None else found.start.mark or found.start.key_base


def _take_over(found: Split, entry: Entry, fork: Forked) -> None:
    found.forks.append(fork)
    for seq in fork.anew:
        if seq in found.calls:
            found.calls[seq].mark, found.calls[seq].issued_at = fork.mark, entry.at


def _look_at(found: Split, entry: Entry, body: Body) -> None:
    if entry.kind in _MESSAGES:
        value = "null" if body.value is UNSET else bytes(body.value).decode()
        value = with_headers(value, body.headers)
        found.later.append(Message(message_id=body.message_id, kind=_MESSAGES[entry.kind], name=body.name, body=value))
    call = found.calls.get(body.seq)
    if call is None:
        return
    if entry.kind in CALL_RESULTS:
        call.answer = body
    elif entry.kind in CALL_ERRORS:
        call.failed = True


# -- where to go on


def failed_before(entries: Sequence[Entry], letter: DeadLetter | None) -> int:
    """The last entry to keep, so that a run that did not come to a good end is tried again from where it failed.

    That is before the error that it ended with, if that is one of a call; else before its last turn. One that was ended
    from outside goes on where it stood, and one that was cancelled, where it was before that. A dead letter of a call
    knows which one failed, where errors of several look the same.
    """
    if letter is not None and letter.seq:
        return audible(entries, letter.keep)
    last = entries[-1]
    if last.kind in CLOSING_ENTRIES:
        return audible(entries, last.ord - 1)
    ends = [command for command in decode_body(last).commands if command.kind in CLOSING_COMMANDS]
    if ends and ends[-1].kind is CommandKind.CANCELLED:
        cancels = [entry.ord for entry in entries if entry.kind is EntryKind.CANCEL_REQUESTED]
        return audible(entries, cancels[-1] - 1 if cancels else last.ord - 1)
    failure = ends[-1].error if ends else UNSET
    if failure is not UNSET:
        failures = {_name(decode_body(entry).error): entry.ord for entry in entries if entry.kind in CALL_ERRORS}
        origin = _origin(failures, failure)
        if origin is not None:
            return audible(entries, origin - 1)
    return audible(entries, last.ord - 1)


def _origin(failures: Mapping[tuple[str, str], int], failure: Failure) -> int | None:
    """The entry with the error, or with what caused it; of a group, the first one, so that all are tried again."""
    members = [found for one in failure.members if (found := _origin(failures, one)) is not None]
    if members:
        return min(members)
    cause = _origin(failures, failure.cause) if failure.cause is not None else None
    own = failures.get(_name(failure))
    return max(own, cause) if own is not None and cause is not None else cause if own is None else own


def edited_at(run: Run, entries: Sequence[Entry], edits: Edits) -> int:
    """The last entry at which all calls that are edited are pending, and as late as can be. Raises InvalidFork."""
    if edits.start is not None:
        return -1
    known = {command.seq for entry in entries for command in decode_body(entry).commands}
    if missing := set(edits.calls) - known:
        raise InvalidFork(f"run {run.id!r} has made no such call as {min(missing)}: it cannot be edited")
    if not edits.calls:
        raise InvalidFork(f"at which entry is run {run.id!r} to be forked? It has 0 to {len(entries) - 1}")
    points = [_called_at(entries, seq) for seq in edits.inputs]
    points += [_answered_at(entries, seq) - 1 for seq in edits.outputs]
    return audible(entries, min(points))


def _called_at(entries: Sequence[Entry], seq: int) -> int:
    """The entry whose turn issued the command, which there is."""
    return next(entry.ord for entry in entries if any(one.seq == seq for one in decode_body(entry).commands))


def _answered_at(entries: Sequence[Entry], seq: int) -> int:
    """The entry that answers the command; behind the last one when none does."""
    answers = (entry.ord for entry in entries if entry.kind in CALL_ANSWERS and decode_body(entry).seq == seq)
    return next(answers, len(entries))


def audible(entries: Sequence[Entry], keep: int) -> int:
    """Not behind a message that the code has not yet been run for: it is read again."""
    while keep >= 0 and decode_body(entries[keep]).quiet:
        keep -= 1
    return keep


def _name(failure: object) -> tuple[str, str]:
    """The identity of an error, as code has met it: code may have let one through."""
    return (failure.raised_as or failure.type, failure.message) if isinstance(failure, Failure) else ("", "")
