"""Journal entries: one per turn, with the input it consumed and the commands it issued."""

from __future__ import annotations

from enum import StrEnum
from zlib import crc32

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, json

from batuta.journal.codec_envelope import Payload, refuse_coded
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
    """The store refused it: unknown id, closed run, or a child's id is taken. `error` says which."""
    FORKED = "forked"
    """Another run did the entries before, this run does the rest. No turn runs."""
    # Written when a run is closed from outside; they run no turn and are always the last entry.
    TERMINATED = "terminated"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    """For a job that had not begun."""


class CommandKind(StrEnum):
    """A command of a turn. Replay issues the same commands in the same order, or the run is parked."""

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
    UNDO = "undo"
    """A compensation was registered in a saga: an activity with its arguments, to be called if the saga fails."""
    KEEP = "keep"
    """A saga ended well: the compensations that it registered are not needed."""
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
    """The command that this one refers to, such as the one that a cancel cancels."""
    to: str = ""
    """The id of the run that a child gets, or that a message goes to."""
    message_id: str = ""
    """The sender's own name for a message."""


class Carried(Struct, omit_defaults=True, gc=False):
    """A signal that goes on to the next run of a chain."""

    name: str
    value: Raw | UnsetType = UNSET


class Forked(Struct, omit_defaults=True, gc=False):
    """How a run was made from another: the source, and the differences from here on."""

    id: str
    mark: str
    """This run's id and run id. The latter names the children and messages of the commands after `seq`."""
    source_id: str
    source_run_id: str
    first_id: str
    first_run_id: str
    """The ids of the run that wrote the first entry, which its code has seen."""
    seq: int
    """The last command before."""
    key_base: str = ""
    """For keys of the commands after `seq`, and of those in `inputs`. Empty: they stay the same."""
    inputs: dict[int, Raw] = {}
    """New arguments of pending calls, by command."""
    anew: list[int] = []
    """Pending calls on other queues and children that begin anew, as runs with new run ids."""
    seed: int = 0
    """The seed of random numbers from here on, if `key_base` changes.

    0: derived from `key_base`, as in older versions.
    """


FLOW_HEADER = "batuta-flow"
"""The header of runs of flows that names their flow."""


class StartInfo(Struct, omit_defaults=True, gc=False):
    """Facts that the first entry fixes for the run's whole life. Forks copy `seed` and `key_base`."""

    name: str
    seed: int
    key_base: str
    python: str = ""
    """The minor version that the run started on, such as "3.11": asyncio differs between them."""
    fingerprint: str = ""
    version: str = ""
    timeout: int = 0
    """Run timeout in microseconds from the start; 0 means none."""
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
    """The W3C `traceparent` of its start."""
    mark: str = ""
    """Names its children and messages, where that is not its `key_base`: an earlier run had that, too."""
    headers: dict[str, str] = {}
    """Headers of its start, which it passes on to everything that it starts."""
    delay: int = 0
    """Microseconds from its creation until it could begin."""
    parent: str = ""
    """The id of the run that it is a child of."""
    slot: int = 0
    """The time that a schedule began it for, microseconds."""
    chain_at: int = 0
    """When the first run of the chain began; 0: this is the first, or an older version wrote it."""
    bounded: bool = False
    """There are limits on how many values its code may publish, and on tags and reasons that it gives to children: it
    meets them in replay, too. Runs of older versions had none."""

    @property
    def flow(self) -> str:
        """The name of the flow, of a run that an event has begun."""
        return "" if self.parent else self.headers.get(FLOW_HEADER, "")


class Body(Struct, omit_defaults=True, gc=False):
    """The stored JSON of an entry."""

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
    """JSON object: the headers of a message."""


class Entry(Struct, gc=False):
    """One row of the journal. `ord` counts from 0 without gaps."""

    ord: int
    kind: EntryKind
    at: int
    """Tape time, microseconds; never less than the entry before."""
    crc: int
    """Chained over all entries before: a journal that was changed afterwards does not verify."""
    body: Payload
    """JSON of a `Body`. A codec takes the checksum with it, of which the text could be guessed."""


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
    except RecursionError:
        raise DecodeError("it is nested too deeply") from None


def chained(entry: Entry, previous_crc: int) -> int:
    """The checksum of this entry after one with `previous_crc`."""
    return crc32(entry.body.encode(), (previous_crc ^ entry.at ^ entry.ord) & 0xFFFF_FFFF)


def crc_holds(entry: Entry, previous_crc: int) -> bool:
    """Whether this entry follows the one with `previous_crc` unchanged."""
    return entry.crc == chained(entry, previous_crc)
