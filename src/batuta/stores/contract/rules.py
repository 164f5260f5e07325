"""Rules that every store follows, as functions of values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from msgspec import MsgspecError
from msgspec.json import Encoder
from msgspec.json import decode as decode_json
from msgspec.structs import replace

from batuta.clock import SECOND
from batuta.errors import AlreadyStarted, BadData, QuotaExceeded, RunClosed, StoreUnavailable, UnknownRun, WrongWorkflow
from batuta.ids import RunId
from batuta.journal.entries import Body, Entry, EntryKind, encode_entry
from batuta.journal.forks import Fork
from batuta.journal.quotas import WAITING
from batuta.journal.records import (
    ANSWERS,
    GIVES,
    IN_PAGES,
    PAGE_BYTES,
    Change,
    IfExists,
    Message,
    MessageKind,
    Move,
    NewRun,
    ParentPolicy,
    Refusal,
    Run,
    RunKind,
    Send,
    StartOutcome,
    Successor,
    Verdict,
    is_heartbeat,
)
from batuta.journal.states import RunState

T = TypeVar("T")

_encoder = Encoder()

POISON_DEATHS = 5
"""Deaths without progress that park a run."""


def pause_after(deaths: int) -> int:
    """How long a run rests that its worker gave up, in microseconds. The SQL repeats it."""
    return ((1 << (deaths - 1)) - 1) * SECOND


SUSPECT_DEATHS = 2
"""Deaths without progress that make a run a suspect. The SQL repeats the number: indexes need it as such."""

BEAT_LIMIT = 2_000
"""Runs that one transaction of a heartbeat times out, revives or reaps at most, each."""

TIMED_OUT = "the run exceeded its time limit"
EXPIRED = "the run expired before a worker began it"
OPENED_BY_PARENT = (
    "this client was opened before the process was forked, and its connections are the parent's: connect in this "
    "process (batuta.sync does that by itself)"
)
POISONED = "its workers died with it several times in a row, without progress"
PARENT_CLOSED = "its parent has closed"
UNHEARD = "has just got an answer"


class Standing(NamedTuple):
    """The state of a run, for the fence."""

    epoch: int
    head: int
    closed: bool
    owner: str | None
    crc: int | None
    """The checksum of the entry at `head`; None when there is none."""


def judge(change: Change, worker_id: str, run: Standing) -> Verdict | bool:
    """The fence: True to write the change, False when it exists already, or REFUSED.

    It checks the owner besides the epoch: when a failover has lost a claim, another worker may have claimed the run
    since, with the same epoch.
    """
    if run.epoch != change.epoch:
        return Verdict.REFUSED
    if run.head == change.head and run.owner == worker_id and not run.closed:
        return True
    return False if run.head == change.new_head and was_me(change, worker_id, run.owner, run.crc) else Verdict.REFUSED


def was_me(change: Change, worker_id: str, owner: str | None, crc: int | None) -> bool:
    """Whether it is this change that has brought a run to its epoch and new head, and not another with the same ones.

    `crc` is that of the entry at the new head. A change with a move leaves no owner.
    """
    if owner != (worker_id if change.move is None else None):
        return False
    return not change.entries or change.entries[-1].crc == crc


def may_replace(new: NewRun, closed: bool, created_at: int, now: int) -> bool:
    """Whether a start may take the id over from the run that has it."""
    if new.if_exists is IfExists.RENEW:
        return closed and created_at + new.fresh <= now
    return new.if_exists is IfExists.RESTART and closed


def taken_by(new: NewRun, run: Run) -> tuple[Run, bool] | AlreadyStarted | WrongWorkflow:
    """The outcome of a start whose id belongs to `run`, which keeps it."""
    if new.if_exists not in GIVES:
        return AlreadyStarted(new.id, run.state)
    if run.name != new.name or run.kind is not new.kind:
        return WrongWorkflow(new.id, run.kind, run.name, new.kind, new.name)
    return run, False


def expiry_of(run: NewRun, now: int) -> int | None:
    """When a new run is closed if no worker has claimed it."""
    return now + run.expires if run.expires else None


def overtime(deadline: int | None, expires_at: int | None, now: int) -> str:
    """Why an open run is to be closed now; empty when it is in time."""
    if deadline is not None and deadline <= now:
        return TIMED_OUT
    return EXPIRED if expires_at is not None and expires_at <= now else ""


def claimed_deadline(deadline: int | None, expires_at: int | None, now: int) -> int | None:
    """The deadline of a run once it is claimed: an expired run is past its deadline."""
    if expires_at is None or expires_at > now:
        return deadline
    return expires_at if deadline is None else min(deadline, expires_at)


def put_off(new: NewRun, created_at: int, now: int) -> tuple[int, int | None]:
    """When a debounced run, first started at `created_at`, is due after one more start, and its deadline."""
    wake_at = now + new.delay
    if new.debounce_limit:
        wake_at = min(wake_at, created_at + new.debounce_limit)
    return wake_at, deadline_of(new, wake_at - new.delay, created_at)


def deadline_of(run: NewRun, now: int, chain_created_at: int, before: int | None = None) -> int | None:
    """When a new run times out: the earlier of its own deadline, from when it may begin, and its chain's.

    `before`: the deadline of the run that it follows. The chain's is not earlier: pauses, retries and resets have moved
    that.
    """
    if not run.timeout and not run.execution_timeout:
        return None
    own = now + run.delay + run.timeout if run.timeout else None
    chain = max(chain_created_at + run.execution_timeout, before or 0) if run.execution_timeout else None
    return min((at for at in (own, chain) if at is not None), default=None)


def unowned(new: NewRun, now: int, deadline: int | None) -> Run:
    """The row of a new run, for the claim."""
    return Run(
        run_id=new.run_id,
        id=new.id,
        chain_id=chain_of(new),
        kind=new.kind,
        name=new.name,
        queue=new.queue,
        priority=new.priority,
        state=RunState.PENDING,
        epoch=0,
        head=-1,
        owner=None,
        wake_at=now + new.delay,
        created_at=now,
        closed_at=None,
        deadline=deadline,
        deaths=0,
        reason="",
        failed_code=[],
        version=new.version,
        tags=new.tags,
        memo=new.memo,
        code=code_of(new),
        parent_run_id=new.parent_run_id,
        parent_seq=new.parent_seq,
        flow_key=new.flow_key,
        expires_at=expiry_of(new, now),
    )


def started(outcome: StartOutcome) -> tuple[Run, bool]:
    """Of a start that was alone: its run and whether it is new. Raises what kept it from being written."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class NothingWaits(StoreUnavailable):
    """The run that a debounced start was to replace waits no more."""


def refuse_alone(new: NewRun) -> None:
    """No run waits under the key of a debounced start. Raises NothingWaits when it was to replace one."""
    if new.instead not in (None, new.run_id):
        raise NothingWaits(f"run {new.instead} waits no more: try again")


def start_message(run: NewRun, run_id: RunId | None = None) -> Message:
    """The message that waits for the first owner of an unowned run: this one, or another that does its work."""
    return Message(message_id=f"start:{run_id or run.run_id}", kind=MessageKind.START, name=run.name, body=run.start)


def cancel_message(run_id: RunId, reason: str) -> Message:
    """One id for all cancels: a second one, or a repeated call whose answer was lost, must not cancel the clean-up."""
    return Message(message_id=f"cancel:{run_id}", kind=MessageKind.CANCEL, name=reason)


def terminated_entry(head: int, last: tuple[int, int] | None, now: int, reason: str) -> Entry:
    """The last entry of a run that is ended from outside. `last` is time and crc of the entry at `head`."""
    at, crc = last or (0, 0)
    return encode_entry(head + 1, EntryKind.TERMINATED, max(now, at), Body(reason=reason), crc)


def cancelled_entry(now: int, reason: str) -> Entry:
    """The only entry of a run that was cancelled before it began."""
    return encode_entry(0, EntryKind.CANCELLED, now, Body(reason=reason), 0)


def may_end_unbegun(run: Run, unread: Iterable[MessageKind]) -> bool:
    """Whether it has not begun, so that no code can react to the cancel.

    For a run that continues another one the owner decides: it may have to clean up.
    """
    waits = run.head < 0 and run.owner is None and run.closed_at is None
    first = run.kind is RunKind.JOB or run.chain_id == run.run_id
    return waits and first and ACKNOWLEDGED.isdisjoint(unread)


def successor_start(run: Successor) -> Message:
    """The same for a run that follows another."""
    return Message(message_id=f"start:{run.run_id}", kind=MessageKind.START, name=run.name, body=run.start)


def compensation_of(value: str | None) -> NewRun | None:
    """The run to insert when a run times out whose output of that kind has this value. Raises BadData."""
    try:
        return None if value is None else decode_json(value, type=NewRun)
    except (MsgspecError, RecursionError) as error:
        raise BadData(f"it holds no run: {error}") from None


def timed_out_entry(head: int, last: tuple[int, int] | None, now: int, reason: str = TIMED_OUT) -> Entry:
    """The last entry of a run that is over its time. `last` is time and crc of the entry at `head`."""
    at, crc = last or (0, 0)
    return encode_entry(head + 1, EntryKind.TIMED_OUT, max(now, at), Body(reason=reason), crc)


def may_take(code: Mapping[str, str], needed: str, failed_code: Sequence[str]) -> bool:
    """Whether a worker with this code may claim a run that needs `needed`, or take it out of needs_code."""
    fingerprint = code.get(needed)
    return fingerprint is not None and fingerprint not in failed_code


def is_suspect(deaths: int, head: int, claimed_head: int) -> bool:
    """Whether workers died with the run since it last made progress, so often that it may be to blame."""
    return deaths >= SUSPECT_DEATHS and head == claimed_head


def one_suspect(due: Iterable[T], is_suspect: Callable[[T], bool]) -> list[T]:
    """The due runs, with only the first suspect among them."""
    chosen: list[T] = []
    found = False
    for each in due:
        suspect = is_suspect(each)
        if not (suspect and found):
            chosen.append(each)
        found = found or suspect
    return chosen


def chain_of(run: NewRun) -> RunId:
    """The chain that a new run belongs to: its own, unless it follows another."""
    return run.chain_id or run.run_id


_REPLACING = (IfExists.RENEW, IfExists.RESTART)
_WORKFLOW = RunKind.WORKFLOW
_RUN_ID_LENGTH = 36


def is_plain_start(run: NewRun) -> bool:
    """Whether a new run has nothing special about it: it follows no other, replaces none, and has no parent or key."""
    alone = run.chain_id is None and run.parent_run_id is None and not run.flow_key
    return alone and run.if_exists not in _REPLACING


def says_nothing_more(run: NewRun) -> bool:
    """Whether a plain start has only simple names, and an id that needs no look for another run with that run_id:
    its own run_id, or a text that cannot be one."""
    said = run.timeout or run.execution_timeout or run.priority or run.version or run.kind is not _WORKFLOW
    return not said and run.tags == "{}" and run.memo == "null" and (run.own_id or len(run.id) != _RUN_ID_LENGTH)


def code_of(run: NewRun) -> str:
    """The code name that a worker needs to run it."""
    return run.code or run.name


# -- closing with unread messages

ACKNOWLEDGED = frozenset({MessageKind.SIGNAL, MessageKind.UPDATE})
"""Messages whose sender was promised that a run of the chain reads them."""

PROMISED = ACKNOWLEDGED | {MessageKind.CANCEL}
"""These, and the messages that the current code must see."""

MUST_READ = {
    RunState.COMPLETED: PROMISED,
    RunState.FAILED: PROMISED,
    RunState.CANCELLED: PROMISED,
    RunState.CONTINUED: frozenset({MessageKind.CANCEL}),
}
"""Ends that a run comes to by itself, with the messages that it must have read before: signals and updates go to the
run that follows it, a cancel is for the current code. The SQL repeats them."""


def must_read(move: Move | None) -> frozenset[MessageKind]:
    """Kinds of messages of which a run has none unread when it makes this move."""
    return frozenset() if move is None else MUST_READ.get(move.state, frozenset())


BEGINS = frozenset({MessageKind.CANCEL, MessageKind.TERMINATE})
"""Messages that make a run due that has not begun, whatever its delay: the others wait with it."""


def wakes(kind: MessageKind, state: str) -> bool:
    """Whether a message makes an unowned run of this state due. Parked and paused runs stay so."""
    return state == RunState.WAITING or (state == RunState.PENDING and kind in BEGINS)


def resumed_at(run: Run, unread: Collection[MessageKind], now: int) -> int | None:
    """When a paused run that goes on is due; None waits for a message, or for the runs that it comes after."""
    if run.head >= 0:
        return now if unread else run.resume_at
    if BEGINS.intersection(unread):
        return now
    return run.resume_at if run.awaits or run.resume_at is not None else now


def put_off_by_pause(at: int | None, paused_at: int | None, now: int) -> int | None:
    """A deadline or expiry, later by as long as the run was paused."""
    return None if at is None else at + now - (now if paused_at is None else paused_at)


def counts_pauses(run: Run) -> bool:
    """Whether it is noted how long it was paused: a job that has not begun has nothing that counts it."""
    return run.head >= 0 or run.kind is not RunKind.JOB


def is_urgent(kind: MessageKind, *, begun: bool) -> bool:
    """Whether a run must know of it before it goes on, however many messages came before it."""
    return kind not in IN_PAGES and (kind is not MessageKind.CANCEL or not begun)


def first_page(messages: Iterable[Message], counted: Container[MessageKind] = IN_PAGES) -> tuple[list[Message], bool]:
    """The first of these, as many as are read at once, and whether there may be more. The others are not asked for."""
    page: list[Message] = []
    size = 0
    for message in messages:
        page.append(message)
        if message.kind in counted:
            size += len(message.body)
            if size >= PAGE_BYTES:
                return page, True
    return page, False


def within_page(messages: Iterable[Message]) -> list[Message]:
    """The first of these, up to PAGE_BYTES of whatever kind, or one longer message. The others are not asked for."""
    return first_page(messages, frozenset(MessageKind))[0]


def is_unread(messages: Iterable[Message], change: Change) -> bool:
    """Whether an unread message, which the change does not consume, prevents its end."""
    kinds = must_read(change.move)
    return any(message.kind in kinds and message.message_id not in change.consumed for message in messages)


# -- kin


def follower(before: Run, policy: ParentPolicy, flow_key: str, successor: Successor) -> NewRun:
    """The run that follows another in its chain."""
    return NewRun(
        run_id=successor.run_id,
        id=before.id,
        chain_id=before.chain_id,
        name=successor.name,
        code=successor.code,
        kind=before.kind,
        queue=successor.queue,
        priority=before.priority,
        delay=successor.delay,
        timeout=successor.timeout,
        execution_timeout=successor.execution_timeout,
        version=successor.version,
        tags=before.tags,
        memo=before.memo,
        parent_run_id=before.parent_run_id,
        parent_seq=before.parent_seq,
        parent_policy=policy,
        flow_key=flow_key,
        start=successor.start,
    )


def forked(fork: Fork, new: NewRun, now: int, deadline: int | None) -> Run:
    """The row of a run that is made from another; `new` is `fork_start` of it."""
    run = unowned(new, now, deadline)
    run.head = fork.keep + len(fork.entries)
    run.state = RunState.PENDING if run.head < 0 else RunState.WAITING
    run.forked_from, run.forked_at = fork.source, forked_at(fork)
    return run


def forked_at(fork: Fork) -> int:
    """The last entry that the two runs have in common."""
    return fork.keep if fork.at is None else fork.at


def fork_start(fork: Fork, source: Run, policy: ParentPolicy, parent: RunId | None = None) -> NewRun:
    """The new run, as a start. The source is unchanged."""
    new = follower(source, policy, source.flow_key, fork.new)
    new.memo = source.memo if fork.memo is None else fork.memo
    if fork.id:
        new.id, new.chain_id = fork.id, None
    if parent is not None:
        new.parent_run_id = parent
    elif fork.id or fork.close is None:
        new.parent_run_id, new.parent_seq, new.parent_policy = None, 0, ParentPolicy.CANCEL
    return new


def fork_said(fork: Fork) -> str:
    """JSON: the audit log's `after` of the source."""
    said = {"run_id": str(fork.new.run_id), "at": forked_at(fork)} | ({"id": fork.id} if fork.id else {})
    return _encoder.encode(said).decode()


def why_moved(fork: Fork, source: Run, current: bool) -> str:
    """The reason why the source cannot be forked now; empty when it can."""
    if source.head < fork.head or (source.head > fork.head and not fork.id):
        return "has moved on"
    if fork.close is not None:
        return "has ended" if source.closed_at is not None else ""
    if fork.id:
        return ""
    if source.closed_at is None:
        return f"is {source.state}"
    return "" if current else "is followed by another run"


def is_unheard(fork: Fork, unread: Iterable[Message]) -> bool:
    """Whether an answer has come to the source, which is to be closed, that the fork does not know."""
    source, heard = str(fork.source), set(fork.heard)
    return fork.close is not None and any(
        one.kind in ANSWERS and one.name == source and one.message_id not in heard for one in unread
    )


def kept_for_the_next(fork: Fork) -> frozenset[MessageKind]:
    """Unread messages of the source's chain that its replacement reads.

    A cancel to an ended run does not reach the run that begins where that ended.
    """
    return ACKNOWLEDGED if fork.close is None else PROMISED


def child_message(child: RunId, parent: RunId, outcome: str) -> Message:
    """The message to a parent when a child closes. The name says which run of the parent's chain it is for."""
    return Message(message_id=f"child:{child}", kind=MessageKind.CHILD, name=str(parent), body=outcome)


def parent_message(parent: RunId, policy: ParentPolicy) -> Message | None:
    """The message to a child when its parent closes; None when it goes on alone."""
    if policy is ParentPolicy.ABANDON:
        return None
    kind = MessageKind.CANCEL if policy is ParentPolicy.CANCEL else MessageKind.TERMINATE
    return Message(message_id=f"parent:{parent}", kind=kind, name=PARENT_CLOSED)


def member(new: NewRun, after: NewRun) -> NewRun:
    """One of many, as the run that comes after them all knows it."""
    return replace(new, parent_run_id=after.run_id, parent_policy=ParentPolicy.ABANDON)


# -- refusals


def id_taken(child: NewRun, state: RunState, kind: str, name: str) -> Refusal:
    """The id that a child was to have belongs to another run, of that kind and name."""
    return Refusal(child.parent_seq, child.id, AlreadyStarted.__name__, state, f"{kind} {name}")


def counts_as_waiting(message: Message) -> bool:
    """Whether senders outside may fill an inbox with such messages."""
    return message.kind in (MessageKind.SIGNAL, MessageKind.UPDATE) or is_heartbeat(message.message_id)


def inbox_full(namespace: str, id: object, most: int) -> QuotaExceeded:
    """The error for a full inbox."""
    said = f"{most:,} unread messages wait in the inbox of run {str(id)!r}, which is the limit"
    return QuotaExceeded(WAITING, namespace, most, most, 1.0, said)


def no_receiver(send: Send) -> Refusal:
    """No run has the id that a message was sent to."""
    return Refusal(send.seq, send.id, UnknownRun.__name__)


def receiver_closed(send: Send, state: RunState) -> Refusal:
    """The run that a message was sent to has ended."""
    return Refusal(send.seq, send.id, RunClosed.__name__, state)
