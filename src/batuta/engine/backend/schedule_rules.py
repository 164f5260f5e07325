"""The rules of schedules: pure functions of plan, state and time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

from msgspec import UNSET, DecodeError, Raw, Struct, field, json
from msgspec.structs import replace

from batuta.authoring.client.calendar import When, slot_text, slots
from batuta.authoring.client.schedules import Overlap, Schedule
from batuta.clock import SECOND
from batuta.errors import InvalidSchedule
from batuta.ids import RunId, named_run_id, new_seed
from batuta.journal.codec_envelope import ADVICE, is_coded
from batuta.journal.entries import Body
from batuta.journal.records import NewRun, RunKind
from batuta.journal.schedules import Firing, ScheduleRow

T = TypeVar("T")

GRACE = 10 * SECOND
"""A slot that is no later than this is not missed: a worker may be busy, or have just died."""
MOST_BEGUN = 100
"""Runs that one look at one schedule begins."""
MOST_PASSED = 1_000
"""Slots that one look at one schedule goes through."""
_SHORTEST_WAIT, _LONGEST_WAIT = SECOND, 10 * SECOND
_FEW_BEGIN = (Overlap.SKIP, Overlap.BUFFER)
"""Of however many slots the first begins, and perhaps one waits."""


class Work(Struct, omit_defaults=True):
    """The run that each slot begins, without its identity."""

    name: str
    start: Raw
    """JSON of a journal `Body`, but for seed and key base."""
    kind: RunKind = RunKind.WORKFLOW
    code: str = ""
    version: str = ""
    queue: str = "default"
    priority: int = 0
    timeout: int = 0
    execution_timeout: int = 0
    tags: str = "{}"
    memo: str = "null"
    flow_key: str = ""
    expires: int = 0


class Plan(Struct, omit_defaults=True, kw_only=True):
    """A schedule's `spec`. Times are microseconds."""

    when: When
    work: Work
    overlap: Overlap = Overlap.SKIP
    catch_up: int
    jitter: int = 0
    start_at: int | None = None
    end_at: int | None = None

    def next(self, after: int) -> int | None:
        """The first slot later than `after`."""
        slot = self.when.next(after if self.start_at is None else max(after, self.start_at - 1))
        return slot if slot is not None and (self.end_at is None or slot <= self.end_at) else None

    def between(self, after: int, until: int, most: int) -> list[int]:
        """The first of the slots in (after, until]."""
        after = after if self.start_at is None else max(after, self.start_at - 1)
        until = until if self.end_at is None else min(until, self.end_at)
        return list(islice(slots(self.when, after, until), most))


class State(Struct, omit_defaults=True):
    """A schedule's `state`."""

    cursor: int = 0
    """Slots up to this one are dealt with."""
    waiting: int | None = None
    """A slot that begins when the run of the one before has ended."""
    asked: str = ""
    """The id of the run that was asked to end for it."""


class Decision(Struct):
    """The result of a look."""

    state: State
    next_at: int | None
    begun: list[int] = field(default_factory=list)
    """Slots to begin, in order."""
    skipped: list[int] = field(default_factory=list)
    """Slots that the overlap policy leaves out: the first of them, when there are many."""
    uncounted: bool = False
    """It leaves out more than those."""
    missed: int | None = None
    """The first slot that could not begin in time."""
    cancel: bool = False
    """Ask the running one to end."""


_encode = json.Encoder().encode
_decode_plan = json.Decoder(Plan).decode
_decode_state = json.Decoder(State).decode
_decode_body = json.Decoder(Body).decode


def plan_of(schedule: Schedule, new: NewRun) -> Plan:
    """The plan of a declared schedule; `new` is a run as it would start one."""
    body = _decode_body(new.start)
    if body.start is not UNSET:
        body.start.seed, body.start.key_base = 0, ""
    work = Work(
        name=new.name,
        start=Raw(_encode(body)),
        kind=new.kind,
        code=new.code,
        version=new.version,
        queue=new.queue,
        priority=new.priority,
        timeout=new.timeout,
        execution_timeout=new.execution_timeout,
        tags=new.tags,
        memo=new.memo,
        flow_key=new.flow_key,
        expires=new.expires,
    )
    return Plan(
        when=schedule.when,
        work=work,
        overlap=schedule.overlap,
        catch_up=round(schedule.catch_up * SECOND),
        jitter=round(schedule.jitter * SECOND),
        start_at=schedule.start_at,
        end_at=schedule.end_at,
    )


def read_plan(row: ScheduleRow) -> Plan:
    """Raises InvalidSchedule when this code does not know its form."""
    if row.sealed and is_coded(row.spec):
        raise InvalidSchedule(f"schedule {row.id!r} cannot be read: {row.sealed}")
    return _read(row, _decode_plan, row.spec)


def read_state(row: ScheduleRow) -> State:
    """Raises InvalidSchedule, too."""
    return _read(row, _decode_state, row.state)


def _read(row: ScheduleRow, decode: Callable[[str], T], text: str) -> T:
    try:
        return decode(text)
    except (DecodeError, RecursionError) as error:
        if is_coded(text):
            why = f"schedule {row.id!r} cannot be read: it went through a codec, and its codec or its key is not here"
            raise InvalidSchedule(f"{why}: {ADVICE}") from None
        raise InvalidSchedule(
            f"schedule {row.id!r} is damaged, or was written by another version of Batuta: {error}"
        ) from None


def text_of(value: Plan | State) -> str:
    """The form in the row."""
    return _encode(value).decode()


# -- looking


def decide(plan: Plan, state: State, now: int, busy: bool, last_id: str = "") -> Decision:
    """Decides about the slots up to `now`, given whether the last begun run (`last_id`) is open."""
    earliest = max(state.cursor, now - max(plan.catch_up, GRACE) - 1)
    most = MOST_BEGUN if plan.overlap is Overlap.ALLOW else MOST_PASSED
    due = plan.between(earliest, now, most)
    owed = due if state.waiting is None else [state.waiting, *due]
    cursor = due[-1] if due else earliest
    made = Decision(State(cursor), plan.next(cursor))
    if plan.overlap in _FEW_BEGIN and made.next_at is not None and made.next_at <= now:
        # All that are due now are dealt with at once: by the next look the run of the first may have ended.
        made = Decision(State(now), plan.next(now), uncounted=True)
    oldest = plan.next(state.cursor) if earliest > state.cursor else None
    made.missed = oldest if oldest is not None and oldest <= earliest else None
    if owed:
        _share_out(plan, state, made, owed, busy, last_id, more=made.next_at is not None and made.next_at <= now)
    if made.state.waiting is not None:
        again = now + min(max((now - made.state.waiting) // 10, _SHORTEST_WAIT), _LONGEST_WAIT)
        made.next_at = again if made.next_at is None else min(made.next_at, again)
    return made


def _share_out(
    plan: Plan, state: State, made: Decision, owed: list[int], busy: bool, last_id: str, *, more: bool
) -> None:
    """Which of the slots that are due begin, wait or are left out."""
    match plan.overlap:
        case Overlap.ALLOW:
            made.begun = owed
        case Overlap.SKIP:
            made.begun, made.skipped = ([], owed) if busy else (owed[:1], owed[1:])
        case Overlap.BUFFER:
            made.begun, rest = ([], owed) if busy else (owed[:1], owed[1:])
            made.state.waiting, made.skipped = rest[0] if rest else None, rest[1:]
        case Overlap.CANCEL if busy or more:
            made.state.waiting, made.skipped = owed[-1], owed[:-1]
            made.cancel = busy and state.asked != last_id
            made.state.asked = last_id if busy else state.asked
        case Overlap.CANCEL:
            made.begun, made.skipped = owed[-1:], owed[:-1]


def firing_of(namespace: str, row: ScheduleRow, plan: Plan, made: Decision) -> Firing:
    """The write for the store."""
    last = made.begun[-1] if made.begun else None
    return Firing(
        id=row.id,
        revision=row.revision,
        next_at=made.next_at,
        state=text_of(made.state),
        last_at=last,
        last_id="" if last is None else slot_id(row.id, last),
        starts=[
            run_for(namespace, plan, slot_id(row.id, slot), slot, _delay(row.id, plan, slot)) for slot in made.begun
        ],
    )


def slot_id(id: str, slot: int) -> str:
    """The id of the run of a slot."""
    return f"{id}:{slot_text(slot)}"


def run_for(namespace: str, plan: Plan, id: str, at: int, delay: int = 0) -> NewRun:
    """The run of a slot, the same on every worker."""
    return new_run(plan.work, id, named_run_id(at, namespace, id), at, delay)


def new_run(work: Work, id: str, run_id: RunId, slot: int, delay: int = 0) -> NewRun:
    body = _decode_body(work.start)
    if body.start is not UNSET:
        body.start.seed, body.start.key_base, body.start.slot = new_seed(), str(run_id), slot
    return NewRun(
        run_id=run_id,
        id=id,
        name=work.name,
        kind=work.kind,
        code=work.code,
        version=work.version,
        queue=work.queue,
        priority=work.priority,
        delay=delay,
        timeout=work.timeout,
        execution_timeout=work.execution_timeout,
        tags=work.tags,
        memo=work.memo,
        flow_key=work.flow_key,
        expires=work.expires + delay if work.expires else 0,
        start=_encode(body).decode(),
    )


def _delay(id: str, plan: Plan, slot: int) -> int:
    if not plan.jitter:
        return 0
    digest = hashlib.blake2b(f"{id}:{slot}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") * plan.jitter >> 64


# -- writing


def first_row(id: str, plan: Plan, now: int) -> ScheduleRow:
    """The row of a new schedule: its slots are those later than `now`."""
    return ScheduleRow(id=id, spec=text_of(plan), state=text_of(State(now)), next_at=plan.next(now))


def replaced_row(row: ScheduleRow, plan: Plan, now: int) -> ScheduleRow | None:
    """The row with another plan; None when it has that one. With another calendar its slots are those after `now`."""
    spec = text_of(plan)
    if spec == row.spec:
        return None
    state = _kept_state(row, plan, now)
    next_at = now if state.waiting is not None else plan.next(state.cursor)
    return replace(row, spec=spec, state=text_of(state), next_at=next_at)


def _kept_state(row: ScheduleRow, plan: Plan, now: int) -> State:
    try:
        before, state = read_plan(row), read_state(row)
    except InvalidSchedule:
        return State(now)
    if (before.when, before.start_at) == (plan.when, plan.start_at):
        return state
    return State(now, state.waiting, state.asked)


def paused_row(row: ScheduleRow, reason: str) -> ScheduleRow:
    """The same row when it is paused for that reason already."""
    return row if row.paused and row.reason == reason else replace(row, paused=True, reason=reason)


def resumed_row(row: ScheduleRow, now: int) -> ScheduleRow:
    """Its slots are those later than `now`."""
    return replace(row, paused=False, reason="", state=text_of(State(now)), next_at=read_plan(row).next(now))


def schedule_terms(row: ScheduleRow) -> dict[str, object]:
    """The audit log's text for a schedule: everything except payloads and defaults."""
    try:
        plan = read_plan(row)
    except InvalidSchedule:  # of another version
        return {"paused": row.paused}
    work = plan.work
    terms = {"when": str(plan.when), "work": work.name, "overlap": plan.overlap, "paused": row.paused}
    more: dict[str, object] = {
        "kind": work.kind if work.kind is not RunKind.WORKFLOW else "",
        "version": work.version,
        "queue": work.queue if work.queue != "default" else "",
        "priority": work.priority,
        "key": work.flow_key,
        "tags": json.decode(work.tags),
        "start_at": slot_text(plan.start_at) if plan.start_at is not None else "",
        "end_at": slot_text(plan.end_at) if plan.end_at is not None else "",
        "jitter": plan.jitter / SECOND,
        "timeout": work.timeout / SECOND,
        "execution_timeout": work.execution_timeout / SECOND,
        "expires": work.expires / SECOND,
    }
    return terms | {"catch_up": plan.catch_up / SECOND} | {name: term for name, term in more.items() if term}


def changed_payloads(before: ScheduleRow, after: ScheduleRow) -> list[str]:
    """Changed fields that the audit log names without their values."""
    try:
        was, is_now = _payloads(read_plan(before).work), _payloads(read_plan(after).work)
    except InvalidSchedule:  # of another version
        return []
    return [name for name in was if was[name] != is_now[name]]


def _payloads(work: Work) -> dict[str, object]:
    body = _decode_body(work.start)
    options = None if body.start is UNSET else (body.start.retry, body.start.options, body.start.headers)
    return {"input": body.value, "options": options, "memo": work.memo}
