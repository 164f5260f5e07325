"""Planning a run that is made from another: what it keeps, and what it finds in its inbox.

A plan is one change of the store: all of it happens, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, Struct, field, json
from msgspec.structs import replace

from batuta.authoring.client.forks import NO_EDITS, Edits
from batuta.authoring.history.compensations import is_compensated
from batuta.engine.backend.follow_chain import closing_command, last_of_chain
from batuta.engine.forks.drop_failure import replayed_to, without_failure
from batuta.engine.forks.dry_run import CodeHere
from batuta.engine.forks.split import Pending, Split, failed_before, split
from batuta.engine.run.dead_letters import find_letter, is_open
from batuta.errors import InvalidFork, RunClosed, UnknownRun, WorkflowBroken
from batuta.ids import RunId, derived_run_id, new_run_id, new_seed
from batuta.journal.child_outcomes import not_completed
from batuta.journal.dead_letters import DeadLetter
from batuta.journal.entries import (
    Body,
    CommandKind,
    Entry,
    EntryKind,
    Forked,
    StartInfo,
    decode_body,
    encode_entry,
)
from batuta.journal.forks import Fork
from batuta.journal.kinds import CLOSING_ENTRIES
from batuta.journal.paging import unread_pages
from batuta.journal.records import ANSWERS, Attempt, Message, MessageKind, Run, RunKind, Successor
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store

_PAGE = 10_000


def no_code(_code: str) -> None:
    """There is none here."""


_TRIES = 20
"""How often an open run is looked at again that moved on while its reset was planned."""


async def journal_of(store: Store, run: Run) -> list[Entry]:
    """All entries of a run, as far as its row says."""
    entries: list[Entry] = []
    while len(entries) <= run.head and (page := await store.journal(run.run_id, len(entries) - 1, _PAGE)):
        entries += page
    return entries[: run.head + 1]


async def plan_retry(
    store: Store,
    run: Run,
    *,
    letter: DeadLetter | None,
    reason: str = "",
    code: CodeHere = no_code,
) -> Fork:
    """The fork that tries a closed run again from where it failed, in its chain: its dead letter, if it has one, says
    where. Where its code is here, what other branches of it did after the failure is kept, too."""
    if run.state not in CLOSED or run.state in (RunState.COMPLETED, RunState.CONTINUED):
        raise RunClosed(run.id, str(run.state), "it did not fail, so there is nothing to try again")
    entries = await journal_of(store, run)
    if run.kind is RunKind.WORKFLOW and is_compensated(entries):
        return await plan_restart(store, run, letter=is_open(letter), reason=reason or "begun anew: it was compensated")
    point, is_letter = failed_before(entries, letter), is_open(letter)
    why = reason or "tried again"
    workflow = code(run.code or run.name) if run.kind is RunKind.WORKFLOW else None
    if workflow is not None and run.state is RunState.FAILED and point == run.head - 1:
        # An error of the code itself may be older than the last turn, if the code cleaned up after it: today's code,
        # without the error, tells.
        point = await replayed_to(workflow, run, entries, point, store.namespace)
    if workflow is None or not 0 <= point < run.head - 1 or run.state is not RunState.FAILED:
        return await plan(store, run, entries, point, letter=is_letter, reason=why, code=code)
    try:
        changed, last = await without_failure(workflow, run, entries, point, store.namespace)
    except WorkflowBroken as error:
        raise InvalidFork(f"today's code of {run.name!r} does not replay the entries to keep: {error}") from error
    fork = await plan(store, run, changed, last, letter=is_letter, reason=why, common=point, code=code)
    fork.entries = [*changed[point + 1 : last + 1], *fork.entries]
    fork.keep = fork.at = point
    return fork


async def plan_restart(
    store: Store, run: Run, *, start: Raw | None = None, letter: bool = False, reason: str = ""
) -> Fork:
    """The fork that begins a closed run anew in its chain, with other keys, and with other arguments if they are given.
    Nothing of what it has read is read again."""
    entries = await journal_of(store, run)
    body = await _start_of(store, run, entries)
    edits = Edits(start=start if start is not None else body.value if body.value is not UNSET else Raw(b"[]"))
    fork = await plan(store, run, entries, -1, edits=edits, letter=letter, reason=reason)
    fork.again = []
    return fork


async def plan(
    store: Store,
    run: Run,
    entries: Sequence[Entry],
    keep: int,
    *,
    id: str = "",
    edits: Edits = NO_EDITS,
    letter: bool = False,
    reason: str = "",
    common: int | None = None,
    code: CodeHere = no_code,
) -> Fork:
    """The fork of a run after entry `keep`: under an id of its own, or in its chain, where it takes the run's place.
    `common`: the last entry that is as in the run, where that is not `keep`. Raises InvalidFork."""
    now, new_id = await store.now(), new_run_id()
    found = split(entries, keep)
    _check_point(run, entries, found, keep)
    if not id:
        _check_begun(run, now)
    _check_edits(run, found, keep, edits)
    fork = Fork(
        source=run.run_id,
        head=run.head,
        new=await _successor(store, run, entries, new_id, now, own=bool(id)),
        keep=keep,
    )
    fork.id, fork.letter = id, letter
    if id:
        fork.messages = list(found.later)
    else:
        fork.again = [message.message_id for message in found.later]
    if run.state not in CLOSED and not id:
        fork.close = _last_word(run, entries, now, reason or f"reset to entry {keep}")
    fork.heard = await _hear(store, run, found)
    if keep < 0:
        fork.new.start = await _new_start(
            store, run, entries, new_id, keeps=not id and edits.start is None, edits=edits
        )
        return fork
    settled = await _settle(store, run, found, edits, code, own=bool(id))
    fork.children = settled.children
    fork.messages += [_answer(new_id, call, body) for call, body in settled.answers]
    answered = {call.command.seq for call, _ in settled.answers}
    fork.attempts = await _attempts(
        store, run, found, answered, common=-1 if id else keep if common is None else common
    )
    fork.outputs = list(found.published.values())
    changed = str(new_id) if id or edits.any else ""
    forked = _forked(run, found, new_id, id or run.id, changed, edits, settled.anew)
    last = found.kept[-1]
    body = Body(reason=reason, forked=forked)
    fork.entries = [encode_entry(keep + 1, EntryKind.FORKED, max(now, last.at), body, last.crc)]
    return fork


def _check_point(run: Run, entries: Sequence[Entry], found: Split, keep: int) -> None:
    last = len(entries) - 1
    if not -1 <= keep <= last:
        raise InvalidFork(f"run {run.id!r} has entries 0 to {last}: there is no {keep}")
    if found.ended or (found.kept and entries[keep].kind in CLOSING_ENTRIES):
        raise InvalidFork(f"run {run.id!r} has ended with entry {keep}: give an earlier one")
    if found.quiet:
        raise InvalidFork(f"entry {keep} of run {run.id!r} is read together with the next one: give another one")
    if found.kept and found.start is None:
        raise InvalidFork(f"run {run.id!r} has never begun")


def _check_begun(run: Run, now: int) -> None:
    """One that waits for its time, or for others to end, does not begin before: another in its place would."""
    due = run.resume_at if run.state is RunState.PAUSED else run.wake_at
    if run.state not in CLOSED and run.head < 0 and (run.awaits or (due is not None and due > now)):
        raise InvalidFork(f"run {run.id!r} has not begun, and is not to begin yet: there is nothing to go back to")


def _check_edits(run: Run, found: Split, keep: int, edits: Edits) -> None:
    if edits.start is not None and keep >= 0:
        raise InvalidFork("new arguments of the run itself need a fork from the beginning: fork it at -1")
    for seq in (*edits.inputs, *edits.outputs):
        if seq in found.calls:
            continue
        why = f"it was answered by entry {found.answered[seq]}" if seq in found.answered else "there is no such call"
        raise InvalidFork(f"call {seq} of run {run.id!r} is not pending at entry {keep} ({why}): it cannot be edited")
    if both := edits.inputs.keys() & edits.outputs.keys():
        raise InvalidFork(f"call {min(both)} cannot have both another input and another output")


async def _successor(
    store: Store, run: Run, entries: Sequence[Entry], new_id: RunId, now: int, *, own: bool
) -> Successor:
    """The new run. Its times begin anew: those of the chain, too, which may be its own."""
    start = (await _start_of(store, run, entries)).start
    new = Successor(run_id=new_id, name=run.name, code=run.code, queue=run.queue, version=run.version)
    if start is not UNSET:
        new.timeout, new.execution_timeout = start.timeout, start.execution_timeout
    if new.execution_timeout and not own:
        first = await store.get_run(run.chain_id)
        new.execution_timeout += max(0, now - first.created_at)
    return new


async def _start_of(store: Store, run: Run, entries: Sequence[Entry]) -> Body:
    """The run's start: in its first entry or, if it never began, in its inbox."""
    if entries and entries[0].kind is EntryKind.STARTED:
        return decode_body(entries[0])
    for message in (await store.load(run.run_id)).messages:
        if message.message_id == f"start:{run.run_id}":
            return json.decode(message.body, type=Body)
    raise InvalidFork(f"run {run.id!r} has neither begun nor a start to begin with")


async def _new_start(
    store: Store, run: Run, entries: Sequence[Entry], new_id: RunId, *, keeps: bool, edits: Edits
) -> str:
    """The start message of a run that begins anew. `keeps`: with the keys that it had."""
    body = await _start_of(store, run, entries)
    start: StartInfo = body.start if body.start is not UNSET else StartInfo(run.name, 0, "")
    if keeps:
        start = replace(start, mark=str(new_id), delay=0)
    else:
        start = replace(start, seed=new_seed(), key_base=str(new_id), mark="", delay=0)
    value = edits.start if edits.start is not None else body.value
    return json.encode(Body(value=value, start=start)).decode()


def _last_word(run: Run, entries: Sequence[Entry], now: int, reason: str) -> Entry:
    last = entries[-1] if entries else None
    at, crc = (max(now, last.at), last.crc) if last is not None else (now, 0)
    return encode_entry(run.head + 1, EntryKind.TERMINATED, at, Body(reason=reason), crc)


def _forked(run: Run, found: Split, new_id: RunId, id: str, key_base: str, edits: Edits, anew: Sequence[int]) -> Forked:
    first_id, first_run_id = run.id, str(run.run_id)
    if found.forks:
        first_id, first_run_id = found.forks[0].first_id, found.forks[0].first_run_id
    return Forked(
        id=id,
        mark=str(new_id),
        source_id=run.id,
        source_run_id=str(run.run_id),
        first_id=first_id,
        first_run_id=first_run_id,
        seq=found.seq,
        key_base=key_base,
        inputs=edits.inputs,
        anew=list(anew),
        seed=new_seed() if key_base else 0,
    )


# -- calls that are pending at the point


async def _hear(store: Store, run: Run, found: Split) -> list[str]:
    """Take over answers that have come and that the run has not read: their sender may be gone by now. Returns the ids
    of the messages that were looked at."""
    heard: list[str] = []
    async for page in unread_pages(store, run.run_id):
        for message in page:
            if message.kind in ANSWERS and message.name == str(run.run_id):
                heard.append(message.message_id)
                body = json.decode(message.body, type=Body)
                call = found.calls.get(body.seq)
                if call is not None and not body.reason and body.error is UNSET:
                    call.answer = body
    return heard


class _Settled(Struct):
    """Pending calls that are not simply executed (again)."""

    answers: list[tuple[Pending, Body]] = field(default_factory=list)
    """They have their answers."""
    anew: list[int] = field(default_factory=list)
    """Other runs execute them, and are begun anew."""
    children: list[Fork] = field(default_factory=list)
    """Other runs execute them, and go on from where they failed."""


async def _settle(store: Store, run: Run, found: Split, edits: Edits, code: CodeHere, *, own: bool) -> _Settled:
    settled = _Settled()
    for seq, call in found.calls.items():
        if seq in edits.outputs:
            settled.answers.append((call, Body(value=edits.outputs[seq], attempts=1)))
        elif seq in edits.inputs:
            settled.anew += [seq] if call.is_elsewhere else []
        elif call.answer is not None:
            settled.answers.append((call, call.answer))
        elif call.is_elsewhere:
            await _settle_elsewhere(store, run, call, settled, code, own=own)
    return settled


async def _settle_elsewhere(
    store: Store, run: Run, call: Pending, settled: _Settled, code: CodeHere, *, own: bool
) -> None:
    """A call that another run executes: it has a result, or goes on. Raises InvalidFork while it is open."""
    seq, is_child = call.command.seq, call.command.kind is CommandKind.CHILD
    try:
        other = await last_of_chain(store, derived_run_id(call.issued_at, call.mark, seq))
    except UnknownRun:
        settled.anew.append(seq)  # the store has never taken it
        return
    if other.state not in CLOSED:
        raise InvalidFork(
            f"{'child' if is_child else 'activity'} {seq} ({call.name}) of run {run.id!r} is still {other.state}, as "
            f"run {other.id!r}: wait for its end, terminate it, give its output yourself (output={{{seq}: ...}}, of a "
            f"reset or fork), or give a point before it was called"
        )
    if other.state is RunState.COMPLETED:
        settled.answers.append((call, await _result_of(store, other)))
    elif call.cancelled:
        reason = other.reason or "it was asked to end"
        settled.answers.append((call, Body(error=not_completed(other.id, other.state, reason))))
    elif is_child and not own and (await store.get(other.id)).run_id == other.run_id:
        letter = await find_letter(store, other.run_id)
        settled.children.append(await plan_retry(store, other, letter=letter, code=code))
    else:
        settled.anew.append(seq)


async def _result_of(store: Store, run: Run) -> Body:
    _, last = await store.outcome(run.run_id)
    command = closing_command(run, last)
    return Body(value=UNSET if command is None else command.value)


def _answer(new_id: RunId, call: Pending, body: Body) -> Message:
    """An answer that the new run finds in its inbox."""
    seq = call.command.seq
    given = Body(seq=seq, value=body.value, error=body.error, attempts=max(1, body.attempts))
    given.started_at = body.started_at
    return Message(
        message_id=f"kept:{new_id}:{seq}",
        kind=MessageKind.CHILD if call.is_elsewhere else MessageKind.ACTIVITY,
        name=str(new_id),
        body=json.encode(given).decode(),
    )


async def _attempts(store: Store, run: Run, found: Split, answered: set[int], *, common: int) -> list[Attempt]:
    """Of calls that go on. One that has failed begins anew with what its last heartbeat said; so does one whose answer
    was to come from outside, unless it was called up to entry `common`: its token does not serve any more."""
    pending = {seq: call for seq, call in found.calls.items() if not call.is_elsewhere and seq not in answered}
    if not pending:
        return []
    rows = [row for row in await store.attempts(run.run_id) if row.seq in pending]
    kept: list[Attempt] = []
    for seq, call in pending.items():
        mine = [row for row in rows if row.seq == seq]
        waits = bool(mine) and mine[-1].outside and mine[-1].ended_at is None
        if not (call.failed or (waits and call.entry > common)):
            kept += mine
        elif (details := next((row.details for row in reversed(mine) if row.details), None)) is not None:
            kept.append(Attempt(seq=seq, number=0, started_at=mine[-1].started_at, details=details))
    return kept
