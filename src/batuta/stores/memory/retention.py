"""Deleting and pruning in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest

from batuta.ids import RunId
from batuta.journal.audit import Act, Changed, state_json
from batuta.journal.dead_letters import LetterState
from batuta.journal.records import Run
from batuta.journal.retention import Pruned, Retention, keep_json, kept_for, shortest, target_of
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.tables import NamespaceTables, Row
from batuta.stores.memory.unit_of_work import UnitOfWork


class RetentionVerbs(Base):
    """The part of the store that is about how long runs are kept."""

    @verb
    def delete_runs(self, unit: UnitOfWork, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        runs = [row.run for row in _families(unit.tables, run_ids)]
        record(unit, act, [_deleted(run) for run in runs])
        unit.tables.forget([run.run_id for run in runs])
        return [run.run_id for run in runs]

    @verb
    def set_retention(self, unit: UnitOfWork, rule: Retention, act: Act | None = None) -> bool:
        known = unit.tables.retention
        before = known.get((rule.workflow, rule.state))
        if before == rule:
            return False
        record(unit, act, [_ruled(rule.workflow, rule.state, before, rule)])
        known[rule.workflow, rule.state] = rule
        return True

    @verb
    def drop_retention(self, unit: UnitOfWork, name: str, state: str, act: Act | None = None) -> bool:
        before = unit.tables.retention.pop((name, state), None)
        if before is not None:
            record(unit, act, [_ruled(name, state, before, None)])
        return before is not None

    @verb
    def retention(self, unit: UnitOfWork) -> list[Retention]:
        return _rules(unit.tables)

    @verb
    def prune(self, unit: UnitOfWork, limit: int, after: RunId | None = None, *, dry_run: bool = False) -> Pruned:
        room, rules = unit.tables, _rules(unit.tables)
        least = shortest(rules)
        if least is None:
            return Pruned(0, None)
        page = nsmallest(limit, (run_id for run_id in room.rows if after is None or run_id > after))
        chains = {room.rows[run_id].run.chain_id: None for run_id in page}
        if dry_run:  # a chain that stays is found by each of its runs: it counts where its first one is
            chains = {run_id: None for run_id in page if run_id in chains}
        over = [chain for chain_id in chains if _is_over(room, chain := room.chain(chain_id), rules, unit.now)]
        if not dry_run:
            room.forget([row.run.run_id for chain in over for row in chain])
        young = all(room.rows[run_id].run.created_at > unit.now - least for run_id in page if run_id in room.rows)
        done = len(page) < limit or (young and not over)
        return Pruned(sum(map(len, over)), None if done else page[-1])


def _deleted(run: Run) -> Changed:
    return Changed(target=run.id, run_id=str(run.run_id), before=state_json(run.state), after="null")


def _ruled(name: str, state: str, before: Retention | None, after: Retention | None) -> Changed:
    said = ["null" if rule is None else keep_json(rule.micros) for rule in (before, after)]
    return Changed(target=target_of(name, state), before=said[0], after=said[1])


def _rules(room: NamespaceTables) -> list[Retention]:
    return [room.retention[key] for key in sorted(room.retention)]


def _is_over(room: NamespaceTables, chain: Sequence[Row], rules: Sequence[Retention], now: int) -> bool:
    """Whether a chain's retention is over, and nothing needs it."""
    if any(row.is_open or row.run.run_id in room.children or _is_letter(room, row.run.run_id) for row in chain):
        return False
    last = max((row.run for row in chain), key=lambda run: (run.closed_at or 0, run.run_id))
    keep = kept_for(rules, last.name, last.state)
    if keep is None or (last.closed_at or 0) + keep > now:
        return False
    return last.parent_run_id not in room.open


def _is_letter(room: NamespaceTables, run_id: RunId) -> bool:
    letter = room.letters.get(run_id)
    return letter is not None and letter.state is LetterState.OPEN


def _families(room: NamespaceTables, run_ids: Iterable[RunId]) -> list[Row]:
    """The chains of these runs with those of their children, at any depth: if none of these runs, and no parent of
    one, is open."""
    gone: dict[RunId, Row] = {}
    for run_id in run_ids:
        if run_id in room.rows:
            family = _family(room, room.rows[run_id].run.chain_id)
            if not any(row.is_open or row.run.parent_run_id in room.open for row in family.values()):
                gone.update(family)
    return list(gone.values())


def _family(room: NamespaceTables, chain_id: RunId) -> dict[RunId, Row]:
    found: dict[RunId, Row] = {}
    chains = [chain_id]
    while chains:
        for row in room.chain(chains.pop()):
            found[row.run.run_id] = row
            children = room.children.get(row.run.run_id, ())
            chains += {room.rows[child].run.chain_id for child in children if child not in found}
    return found
