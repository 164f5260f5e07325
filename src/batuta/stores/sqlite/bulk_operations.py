"""Operations on many runs, in SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.ids import RunId
from batuta.journal.audit import Act, Changed
from batuta.journal.entries import Entry
from batuta.journal.records import Message, MessageKind, Run
from batuta.journal.states import RunState
from batuta.stores.contract import rules, stored_values
from batuta.stores.sqlite.audit import changed
from batuta.stores.sqlite.database.base import Base, Verb
from batuta.stores.sqlite.database.rows import message_row, run_of
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.inbox import InboxWriter, Target

MANY = 20
"""More runs than that are changed in a thread: the event loop has better to do."""


class BulkVerbs(Base):
    """The part of the store that holds runs."""

    async def pause_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        return await self._hold(run_ids, lambda unit: _pause_all(unit, run_ids, act))

    async def resume_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        return await self._hold(run_ids, lambda unit: _resume_all(unit, run_ids, act))

    async def cancel_runs(self, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        return await self._hold(run_ids, lambda unit: _cancel_all(unit, run_ids, reason, act))

    async def end_unbegun(self, run_ids: Sequence[RunId], reason: str) -> list[RunId]:
        return await self._hold(run_ids, lambda unit: _end_unbegun(unit, run_ids, reason))

    async def terminate_runs(self, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        return await self._hold(run_ids, lambda unit: _terminate_all(unit, run_ids, reason, act))

    async def _hold(self, run_ids: Sequence[RunId], verb: Verb[list[Run]]) -> list[RunId]:
        runs = await self._write(verb, aside=len(run_ids) > MANY)
        return [run.run_id for run in runs]


def _pause_all(unit: UnitOfWork, run_ids: Sequence[RunId], act: Act) -> list[Run]:
    runs = [run for run in _open(unit, run_ids) if _may_pause(unit, run)]
    said: list[Changed] = []
    for run in runs:
        _pause(unit, run, act.reason)
        said.append(changed(run, RunState.PAUSED if run.owner is None else run.state))
    unit.record(act, said)
    unit.hint.messages += _owned(runs)
    return runs


def _resume_all(unit: UnitOfWork, run_ids: Sequence[RunId], act: Act) -> list[Run]:
    runs = [run for run in _open(unit, run_ids) if run.state is RunState.PAUSED or _has_pauses(unit, run)]
    for run in runs:
        _resume(unit, run)
    unit.record(act, [changed(run, _resumed_state(run)) for run in runs])
    unit.hint.messages += _owned(runs)
    unit.hint.due = len(unit.hint.messages) < len(runs)
    return runs


def _cancel_all(unit: UnitOfWork, run_ids: Sequence[RunId], reason: str, act: Act) -> list[Run]:
    post = InboxWriter(unit)
    asked: list[Run] = []
    for run in _open(unit, run_ids):
        target = Target(run.run_id.bytes, run.chain_id.bytes, run.state, run.owner, run.closed_at)
        if post.deliver(target, rules.cancel_message(run.run_id, reason)):
            asked.append(run)
    post.wake()
    unit.record(act, [changed(run, run.state) for run in asked])
    return asked


def _terminate_all(unit: UnitOfWork, run_ids: Sequence[RunId], reason: str, act: Act) -> list[Run]:
    runs = _open(unit, run_ids)
    entries = [rules.terminated_entry(run.head, _last_word(unit, run), unit.now, reason) for run in runs]
    unit.record(act, [changed(run, RunState.TERMINATED) for run in runs])
    _close(unit, runs, entries, RunState.TERMINATED, reason)
    return runs


def _end_unbegun(unit: UnitOfWork, run_ids: Sequence[RunId], reason: str) -> list[Run]:
    runs = [run for run in _open(unit, run_ids) if rules.may_end_unbegun(run, _unread(unit, run))]
    _close(unit, runs, [rules.cancelled_entry(unit.now, reason) for _ in runs], RunState.CANCELLED, reason)
    return runs


def _close(unit: UnitOfWork, runs: Sequence[Run], entries: Sequence[Entry], state: RunState, reason: str) -> None:
    """Each with its last entry."""
    post = InboxWriter(unit)
    for run, entry in zip(runs, entries, strict=True):
        unit.close_run(run.run_id, run.epoch, run.head, entry, state, reason, owned=run.owner is not None)
        post.tell_kin(run.run_id.bytes, run.id, run.parent_seq, state, reason)
    post.wake()
    unit.hint.due = unit.hint.due or bool(unit.hint.messages)  # wakes workers that wait for their slots


def _open(unit: UnitOfWork, run_ids: Sequence[RunId]) -> list[Run]:
    asked = ((unit.namespace, run_id.bytes) for run_id in dict.fromkeys(run_ids))
    rows = (unit.row("run_by_run_id", key) for key in asked)
    found = (run_of(row) for row in rows if row is not None)
    return [run for run in found if run.closed_at is None]


def _owned(runs: Sequence[Run]) -> list[RunId]:
    return [run.run_id for run in runs if run.owner is not None]


def _has_pauses(unit: UnitOfWork, run: Run) -> bool:
    return unit.finds("unread_pauses", (run.chain_id.bytes, unit.namespace))


def _last_word(unit: UnitOfWork, run: Run) -> tuple[int, int] | None:
    row = unit.row("last_word", (run.run_id.bytes, unit.namespace, run.head))
    return None if row is None else (row[0], row[1])


def _unread(unit: UnitOfWork, run: Run) -> set[MessageKind]:
    rows = unit.rows("unread_all_kinds", (run.chain_id.bytes, unit.namespace))
    return {stored_values.MESSAGE_KINDS[kind] for (kind,) in rows}


def _may_pause(unit: UnitOfWork, run: Run) -> bool:
    return run.state is not RunState.PAUSED if run.owner is None else not _has_pauses(unit, run)


def _pause(unit: UnitOfWork, run: Run, reason: str) -> None:
    if run.owner is not None:
        number = unit.value("count_pauses", (run.chain_id.bytes, unit.namespace), 0) + 1
        message = Message(message_id=f"pause:{number}", kind=MessageKind.PAUSE, name=reason)
        unit.change("insert_message", message_row(unit.namespace, run.chain_id, message, unit.now))
        return
    unit.change("read_pauses", (unit.now, run.chain_id.bytes, unit.namespace))
    values = {"now": unit.now, "reason": reason, "namespace": unit.namespace, "run_id": run.run_id.bytes}
    unit.change("pause_run", values)


def _resume(unit: UnitOfWork, run: Run) -> None:
    unit.change("read_pauses", (unit.now, run.chain_id.bytes, unit.namespace))
    if run.state is not RunState.PAUSED:
        return
    key = {"namespace": unit.namespace, "run_id": run.run_id.bytes}
    if rules.counts_pauses(run):
        paused = key | {"now": unit.now, "paused_at": run.paused_at}
        unit.change("put_off_answers", paused)
        unit.change("note_pause", paused)
    values = {
        "wake_at": rules.resumed_at(run, _unread(unit, run), unit.now),
        "deadline": rules.put_off_by_pause(run.deadline, run.paused_at, unit.now),
        "expires_at": rules.put_off_by_pause(run.expires_at, run.paused_at, unit.now),
    }
    unit.change("resume_run", key | values)


def _resumed_state(run: Run) -> RunState:
    if run.state is not RunState.PAUSED:
        return run.state
    return RunState.PENDING if run.head < 0 else RunState.WAITING
