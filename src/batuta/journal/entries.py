"""What stands on the tape: one entry a turn, with the input it consumed and the commands it issued."""

from __future__ import annotations

from enum import StrEnum
from zlib import crc32

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, json

from batuta.journal.coded import refuse_coded
from batuta.journal.failures import Failure


class EntryKind(StrEnum):
    """The one input that a turn consumed."""

    STARTED = "started"
    ACTIVITY_DONE = "activity_done"
    ACTIVITY_FAILED = "activity_failed"
    TIMER_FIRED = "timer_fired"
    SIGNAL = "signal"
    UPDATE = "update"
    CHILD_DONE = "child_done"
    CHILD_FAILED = "child_failed"
    CANCEL_REQUESTED = "cancel_requested"
    ACCEPTED = "accepted"
    """The store took the message or child that a command sent. Only where the code waits for that word."""
    REFUSED = "refused"
    """It did not: nobody has that id, it is closed, or a child's id is taken. `error` says which."""
    FORKED = "forked"
    """What stands before was done by another run, and from here on it is this one's. It runs no turn."""
    # Written by whoever closes a run from outside; they run no turn and are always the last entry.
    TERMINATED = "terminated"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    """Of a job that nobody had begun."""


FROM_OUTSIDE = frozenset({EntryKind.TERMINATED, EntryKind.TIMED_OUT, EntryKind.CANCELLED})
"""Entries without a turn, by which a run was closed from outside."""


class CommandKind(StrEnum):
    """What a turn issued. Replay issues the same commands in the same order, or the run is parked."""

    ACTIVITY = "activity"
    TIMER = "timer"
    CANCEL = "cancel"
    CHILD = "child"
    SEND = "send"
    SIDE_EFFECT = "side_effect"
    PATCH = "patch"
    PUBLISH = "publish"
    ANSWER = "answer"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCELLED = "cancelled"
    SAFE_POINT = "safe_point"
    """The run decided to continue as new, at a place where its code lets it."""
    CONTINUE = "continue"


class Command(Struct, omit_defaults=True, gc=False):
    """One command: `seq` numbers a run's commands in order of issue, from 1."""

    seq: int
    kind: CommandKind
    name: str = ""
    value: Raw | UnsetType = UNSET
    """JSON: an activity's arguments, a timer's delay, a result, a side effect's value."""
    error: Failure | UnsetType = UNSET
    target: int = 0
    """The command that this one is about: what a cancel cancels."""
    to: str = ""
    """The id of the run that a child gets, or that a message goes to."""


class Carried(Struct, omit_defaults=True, gc=False):
    """A signal that goes on to the next run of a chain."""

    name: str
    value: Raw | UnsetType = UNSET


class Forked(Struct, omit_defaults=True, gc=False):
    """How a run was made from another: what it is, what that was, and what is different from here on."""

    id: str
    mark: str
    """This run's id and run id. The latter names the children and messages of the commands after `seq`."""
    source_id: str
    source_run_id: str
    first_id: str
    first_run_id: str
    """Of the run that wrote the first entry: that is what its code was told."""
    seq: int
    """The last command before."""
    key_base: str = ""
    """Of the keys of the commands after `seq`, and of those in `inputs`. Empty: they stay as they are."""
    inputs: dict[int, Raw] = {}
    """The arguments that pending calls are executed with, in place of those that were recorded: by command."""
    anew: list[int] = []
    """Pending calls that other runs execute, and that are begun anew, by runs with other run ids."""


class StartInfo(Struct, omit_defaults=True, gc=False):
    """What the first entry fixes for the run's whole life. Forks copy `seed` and `key_base`."""

    name: str
    seed: int
    key_base: str
    python: str = ""
    """The minor version that the run started on, such as "3.11": asyncio differs between them."""
    fingerprint: str = ""
    version: str = ""
    timeout: int = 0
    """Run timeout in microseconds from the start; 0 is none."""
    execution_timeout: int = 0
    """The same for the whole chain."""
    attempt: int = 1
    """Counts the tries of a workflow that is retried."""
    retry: Raw | UnsetType = UNSET
    """JSON of the workflow's Retry, when it has one."""
    options: Raw | UnsetType = UNSET
    """JSON of an activity's options, for the run of an activity that was routed to another queue."""
    carried: list[Carried] = []
    """Messages that the run before had taken from the inbox and its code had not yet received."""
    max_payload: int = 0
    """The limit on payloads that this run lives with: a setting that changes later must not change its replay."""
    trace: str = ""
    """The W3C `traceparent` of whoever started it."""
    mark: str = ""
    """Names its children and messages, where that is not its `key_base`: an earlier run had that, too."""
    headers: dict[str, str] = {}
    """What else whoever started it gave it, and what it gives to whatever it starts."""
    delay: int = 0
    """Microseconds from its creation until it could begin."""


class Body(Struct, omit_defaults=True, gc=False):
    """The JSON of an entry, as it lies in the store."""

    seq: int = 0
    """The command that this input answers (activity, timer, child); 0 for messages."""
    name: str = ""
    value: Raw | UnsetType = UNSET
    """JSON: start arguments, a result, a message's payload."""
    error: Failure | UnsetType = UNSET
    attempts: int = 0
    started_at: int = 0
    """When the last attempt began. It ended at the entry's time."""
    message_id: str = ""
    reason: str = ""
    quiet: bool = False
    """Put before the code, which runs when the next input comes: so it meets several messages at once."""
    start: StartInfo | UnsetType = UNSET
    commands: list[Command] = []
    forked: Forked | UnsetType = UNSET
    headers: Raw | UnsetType = UNSET
    """JSON object: what came with a message besides its payload."""


class Entry(Struct, gc=False):
    """One row of the journal. `ord` counts from 0 without gaps."""

    ord: int
    kind: EntryKind
    at: int
    """Tape time, microseconds; never less than the entry before."""
    crc: int
    """Chained over all entries before: a journal that was changed afterwards does not verify."""
    body: str


_encode = json.Encoder().encode  # found once: it is called for every entry
_decoder = json.Decoder(Body)


def encode_entry(number: int, kind: EntryKind, at: int, body: Body, previous_crc: int) -> Entry:
    """The row for a turn, with `number` as its ord. `previous_crc` is that of the entry before, 0 for the first."""
    data = _encode(body)
    return Entry(number, kind, at, crc32(data, previous_crc ^ at ^ number), data.decode())


def decode_body(entry: Entry) -> Body:
    """The body of a stored row. Raises msgspec's errors when it is not one, and PayloadSealed when it is coded."""
    try:
        return _decoder.decode(entry.body)
    except DecodeError:
        refuse_coded(entry.body, f"entry {entry.ord}")
        raise


def chained(entry: Entry, previous_crc: int) -> int:
    """The checksum of this entry after one with `previous_crc`."""
    return crc32(entry.body.encode(), (previous_crc ^ entry.at ^ entry.ord) & 0xFFFF_FFFF)


def crc_holds(entry: Entry, previous_crc: int) -> bool:
    """Whether this entry is the one that was written after the one with `previous_crc`."""
    return entry.crc == chained(entry, previous_crc)
