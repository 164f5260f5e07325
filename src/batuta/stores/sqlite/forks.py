"""Runs made from others, in SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.errors import AlreadyStarted, BatutaError, LetterResolved, RunMoved, UnknownRun
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.audit import Act, Changed, state_json
from batuta.journal.dead_letters import LetterState
from batuta.journal.entries import decode_body
from batuta.journal.forks import Fork
from batuta.journal.records import NewRun, Run
from batuta.journal.states import RunState
from batuta.journal.store import ForkOutcome
from batuta.stores.contract import rules, stored_values
from batuta.stores.sqlite import starts
from batuta.stores.sqlite.cross_run_effects import deadline_of
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.rows import (
    attempt_row,
    blob,
    entry_row,
    message_row,
    new_run_row,
    output_row,
    run_of,
    to_json,
)
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.dead_letters import resolve, state_of
from batuta.stores.sqlite.queues import note_keyed

_CURRENT, _POLICY = 27, 24
"""Places in a row of `SELECT * FROM runs`."""


class ForkVerbs(Base):
    """The part of the store that makes runs from others."""

    async def fork(self, forks: Sequence[Fork], act: Act) -> list[ForkOutcome]:
        def work(unit: UnitOfWork) -> list[ForkOutcome]:
            done = [_fork(unit, fork, act) for fork in forks]
            failpoint("fork.inside")
            return done

        return await self._write(work, aside=len(forks) > 1)


def _fork(unit: UnitOfWork, fork: Fork, act: Act) -> ForkOutcome:
    known = unit.row("run_by_run_id", (unit.namespace, fork.new.run_id.bytes))
    if known is not None:
        return run_of(known)  # written again because the first answer was lost
    for each, _ in fork.family():
        if (refusal := _refusal(unit, each)) is not None:
            return refusal
    for each, parent in fork.family():
        _write(unit, each, parent, act)
    unit.hint.due = True
    return unit.run(fork.new.run_id)


def _refusal(unit: UnitOfWork, fork: Fork) -> BatutaError | None:
    """The conflict."""
    row = unit.row("run_by_run_id", (unit.namespace, fork.source.bytes))
    if row is None:
        return UnknownRun(fork.source, unit.namespace)
    source = run_of(row)
    if why := rules.why_moved(fork, source, bool(row[_CURRENT])):
        return RunMoved(source.id, why)
    if fork.close is not None:
        found = unit.rows("answers", (source.chain_id.bytes, unit.namespace, str(fork.source)))
        if not {message_id for (message_id,) in found} <= set(fork.heard):
            return RunMoved(source.id, rules.UNHEARD)
    if fork.id and (taken := unit.row("run_by_id", (unit.namespace, fork.id))) is not None:
        return AlreadyStarted(fork.id, run_of(taken).state, "give another id")
    letter = state_of(unit, fork.source) if fork.letter else LetterState.OPEN
    return None if letter == LetterState.OPEN else LetterResolved(source.id, letter or "no dead letter")


def _write(unit: UnitOfWork, fork: Fork, parent: RunId | None, act: Act) -> None:
    row = unit.row("run_by_run_id", (unit.namespace, fork.source.bytes))
    assert row is not None  # noqa: S101 - looked at before
    source = run_of(row)
    if fork.letter:
        resolve(unit, [fork.source], LetterState.REPROCESSED, "", [fork.new.run_id])
    if fork.close is not None:
        reason = decode_body(fork.close).reason
        starts.close(unit, source.run_id, source.head, fork.close, RunState.TERMINATED, reason, quiet=True)
    new = rules.fork_start(fork, source, stored_values.POLICIES[row[_POLICY]], parent)
    _insert(unit, fork, new)
    _fill_inbox(unit, source, fork, new)
    before, after = state_json(source.state), rules.fork_said(fork)
    done = Changed(target=source.id, run_id=str(fork.source), before=before, after=after)
    unit.record(act, [done])


def _insert(unit: UnitOfWork, fork: Fork, new: NewRun) -> None:
    head, run_id = fork.keep + len(fork.entries), new.run_id.bytes
    if not fork.id:
        unit.change("supersede", (unit.namespace, new.id))
    deadline = deadline_of(unit, new)
    unit.change("insert_run", new_run_row(unit.namespace, new, unit.now, deadline, epoch=0, head=head, owner=None))
    state = RunState.PENDING if head < 0 else RunState.WAITING
    lineage = (fork.source.bytes, rules.forked_at(fork))
    unit.change("mark_fork", (state.value, *lineage, unit.namespace, run_id))
    note_keyed(unit, [new])
    if fork.keep >= 0:
        values = {"new": run_id, "source": fork.source.bytes, "namespace": unit.namespace, "keep": fork.keep}
        unit.change("copy_entries", values)
    unit.change_each("insert_entry", [entry_row(unit.namespace, run_id, 0, entry) for entry in fork.entries])
    unit.change_each("upsert_attempt", [attempt_row(unit.namespace, blob(new.run_id), one) for one in fork.attempts])
    unit.change_each("upsert_output", [output_row(unit.namespace, run_id, one) for one in fork.outputs])


def _fill_inbox(unit: UnitOfWork, source: Run, fork: Fork, new: NewRun) -> None:
    before, chain = source.chain_id.bytes, rules.chain_of(new)
    if not fork.id:
        kept = to_json(sorted(rules.kept_for_the_next(fork)))
        unit.change("read_for_the_source", (unit.now, before, unit.namespace, kept))
    for message_id in fork.again:
        if fork.id:
            values = {"new": chain.bytes, "source": before, "message_id": message_id, "now": unit.now}
            unit.change("copy_message", values | {"namespace": unit.namespace})
        else:
            unit.change("read_again", (before, unit.namespace, message_id))
    started = [] if fork.keep + len(fork.entries) >= 0 else [rules.successor_start(fork.new)]
    rows = [message_row(unit.namespace, chain, message, unit.now) for message in (*started, *fork.messages)]
    unit.change_each("insert_message", rows)
