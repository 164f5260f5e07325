"""Operations on many runs, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.records import PAUSES, Attempt, Message, MessageKind
from batuta.journal.states import PARKED, RunState
from batuta.stores.contract import rules
from batuta.stores.memory.audit import changed, record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.tables import Row
from batuta.stores.memory.unit_of_work import UnitOfWork


class BulkVerbs(Base):
    """The part of the store that holds runs."""

    @verb
    def pause_runs(self, unit: UnitOfWork, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        rows = [row for row in _open(unit, run_ids) if _may_pause(unit, row)]
        after = [RunState.PAUSED if row.run.owner is None else row.run.state for row in rows]
        record(unit, act, [changed(row.run, state) for row, state in zip(rows, after, strict=True)])
        for row in rows:
            _pause(unit, row, act.reason)
        return [row.run.run_id for row in rows]

    @verb
    def resume_runs(self, unit: UnitOfWork, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        rows = [row for row in _open(unit, run_ids) if _is_held(unit, row)]
        record(unit, act, [changed(row.run, _resumed_state(row)) for row in rows])
        for row in rows:
            _resume(unit, row)
        return [row.run.run_id for row in rows]

    @verb
    def cancel_runs(self, unit: UnitOfWork, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        rows = [row for row in _open(unit, run_ids) if _cancel(unit, row, reason)]
        record(unit, act, [changed(row.run, row.run.state) for row in rows])
        return [row.run.run_id for row in rows]

    @verb
    def end_unbegun(self, unit: UnitOfWork, run_ids: Sequence[RunId], reason: str) -> list[RunId]:
        rows = [row for row in _open(unit, run_ids) if _is_unbegun(unit, row)]
        for row in rows:
            entry = rules.cancelled_entry(unit.now, reason)
            unit.close_from_outside(row, entry, RunState.CANCELLED, reason)
        return [row.run.run_id for row in rows]

    @verb
    def terminate_runs(self, unit: UnitOfWork, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        rows = _open(unit, run_ids)
        record(unit, act, [changed(row.run, RunState.TERMINATED) for row in rows])
        for row in rows:
            _terminate(unit, row, reason)
        return [row.run.run_id for row in rows]


def _cancel(unit: UnitOfWork, row: Row, reason: str) -> bool:
    message = rules.cancel_message(row.run.run_id, reason)
    return message.message_id not in unit.tables.inbox(row.run.chain_id).known and unit.deliver(row, message)


def _is_unbegun(unit: UnitOfWork, row: Row) -> bool:
    unread = unit.tables.inbox(row.run.chain_id).unread.values()
    return rules.may_end_unbegun(row.run, [message.kind for message in unread])


def _terminate(unit: UnitOfWork, row: Row, reason: str) -> None:
    last = (row.journal[-1].at, row.journal[-1].crc) if row.journal else None
    entry = rules.terminated_entry(row.run.head, last, unit.now, reason)
    unit.close_from_outside(row, entry, RunState.TERMINATED, reason)


def _open(unit: UnitOfWork, run_ids: Sequence[RunId]) -> list[Row]:
    return [unit.tables.open[run_id] for run_id in dict.fromkeys(run_ids) if run_id in unit.tables.open]


def _may_pause(unit: UnitOfWork, row: Row) -> bool:
    if row.run.owner is not None:
        return not unit.pauses(row)
    return row.run.state is not RunState.PAUSED


def _is_held(unit: UnitOfWork, row: Row) -> bool:
    return row.run.state is RunState.PAUSED or bool(unit.pauses(row))


def _pause(unit: UnitOfWork, row: Row, reason: str) -> None:
    run = row.run
    if run.owner is not None:
        known = unit.tables.inbox(run.chain_id).known
        number = 1 + sum(message_id.startswith("pause:") for message_id in known)
        unit.deliver(row, Message(message_id=f"pause:{number}", kind=MessageKind.PAUSE, name=reason))
        return
    unit.tables.inbox(run.chain_id).read(unit.pauses(row))
    unit.tables.forget_debounce(row)
    if run.state in PARKED:
        run.wake_at, run.deaths, run.failed_code = unit.now, 0, []
    run.state, run.reason = RunState.PAUSED, reason
    run.paused_at, run.resume_at, run.wake_at = unit.now, run.wake_at, None


def _resumed_state(row: Row) -> RunState:
    if row.run.state is not RunState.PAUSED:
        return row.run.state
    return RunState.PENDING if row.run.head < 0 else RunState.WAITING


def _resume(unit: UnitOfWork, row: Row) -> None:
    run, inbox = row.run, unit.tables.inbox(row.run.chain_id)
    inbox.read(unit.pauses(row))
    if run.state is not RunState.PAUSED:
        unit.hint.messages.append(run.run_id)
        return
    run.state, run.reason = _resumed_state(row), ""
    run.wake_at = rules.resumed_at(run, {message.kind for message in inbox.unread.values()}, unit.now)
    if rules.counts_pauses(run):
        _put_off_calls(row, unit.now)
    run.deadline = rules.put_off_by_pause(run.deadline, run.paused_at, unit.now)
    run.expires_at = rules.put_off_by_pause(run.expires_at, run.paused_at, unit.now)
    run.paused_at = run.resume_at = None
    unit.hint.due = True


def _put_off_calls(row: Row, now: int) -> None:
    """Note the pause, and let answers from outside have as much more time."""
    paused_at = row.run.paused_at or now
    number = 1 + sum(seq == PAUSES and number > 0 for seq, number in row.attempts)
    for key, one in row.attempts.items():
        if one.outside and one.ended_at is None and one.next_at is not None:
            row.attempts[key] = replace(one, next_at=one.next_at + now - paused_at)
    row.attempts[PAUSES, number] = Attempt(seq=PAUSES, number=number, started_at=paused_at, ended_at=now)
