"""How long closed runs are kept."""

from __future__ import annotations

import asyncio

import pytest

from batuta.clock import SECOND
from batuta.errors import UnknownRun
from batuta.ids import RunId
from batuta.journal.audit import Act, Verb, first_break
from batuta.journal.dead_letters import LetterFilter
from batuta.journal.records import IfExists, ParentPolicy
from batuta.journal.retention import Pruned, Retention
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, claim_one, live_worker, start_owned
from batuta.testing.conformance.operators.dead_letters import give_up
from batuta.testing.conformance.operators.deleting import DONE, closed_chain, closed_run, full_run, nothing_of, there
from batuta.testing.conformance.operators.forks import fork_of
from batuta.testing.conformance.runs.chains import CONTINUED, going_on

MINUTE = 60 * SECOND
LONG = 10_000 * SECOND
RETRY = Act(actor="ann", verb=Verb.RETRY)


async def keep(store: Store, keep: int | None = MINUTE, name: str = "", state: str = "") -> None:
    await store.set_retention(Retention.stored(name, state, keep))


async def prune_all(store: Store, limit: int = 1_000, *, dry_run: bool = False) -> int:
    """From the oldest to the newest; how many runs were deleted."""
    deleted, last = 0, None
    for _ in range(1_000):
        step = await store.prune(limit, last, dry_run=dry_run)
        deleted, last = deleted + step.deleted, step.last
        if last is None:
            return deleted
    raise AssertionError("pruning comes to no end")


class RetentionConformance:
    """Retention rules, and the runs that they prune."""

    async def test_there_are_no_rules_at_first_and_all_is_kept(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await closed_run(store, worker)
        store.shift_clock(LONG)
        assert await store.retention() == []
        assert await store.prune(100) == Pruned(0, None)
        assert await there(store) == {pen.run_id}

    async def test_rules_are_listed_by_name_and_state(self, store: Store, make_store: MakeStore) -> None:
        rules = [
            Retention(60),
            Retention(None, state="failed"),
            Retention(120, "flow"),
            Retention("3min", "flow", "completed"),
        ]
        for rule in reversed(rules):
            assert await store.set_retention(rule)
        assert await (await make_store()).retention() == rules
        assert await (await make_store(namespace="other")).retention() == []

    async def test_a_rule_is_replaced_by_another_of_its_name_and_state(self, store: Store) -> None:
        assert await store.set_retention(Retention(60, "flow"))
        assert not await store.set_retention(Retention(60, "flow"))
        assert await store.set_retention(Retention(None, "flow"))
        assert await store.retention() == [Retention(None, "flow")]

    async def test_a_rule_is_taken_away(self, store: Store) -> None:
        await keep(store, name="flow")
        assert not await store.drop_retention("flow", "failed")
        assert await store.drop_retention("flow", "")
        assert not await store.drop_retention("flow", "")
        assert await store.retention() == []

    async def test_a_run_is_kept_as_long_as_the_rule_says(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        pen = await full_run(store, worker, "id")
        await keep(store)
        store.shift_clock(55)
        assert await prune_all(store) == 0
        store.shift_clock(10)
        assert await prune_all(store) == 1
        assert await nothing_of(await make_store(), pen)
        assert await prune_all(store) == 0

    async def test_the_close_counts_and_not_the_beginning(self, store: Store) -> None:
        worker = await live_worker(store, lease=LONG)
        pen = await start_owned(store, worker)
        await keep(store)
        store.shift_clock(600)
        await pen.write(store, worker, move=DONE)
        assert await prune_all(store) == 0
        store.shift_clock(61)
        assert await prune_all(store) == 1

    async def test_open_runs_are_kept(self, store: Store) -> None:
        worker = await live_worker(store, lease=LONG)
        pen = await start_owned(store, worker)
        await keep(store)
        store.shift_clock(600)
        assert await prune_all(store) == 0
        assert await pen.write(store, worker) is None

    async def test_the_most_specific_rule_holds(self, store: Store) -> None:
        worker = await live_worker(store, code={"flow": "v1", "other": "v1"})
        pens = {
            (name, state): await closed_run(store, worker, name=name, state=state)
            for name in ("flow", "other")
            for state in (RunState.COMPLETED, RunState.FAILED)
        }
        await keep(store)
        await keep(store, None, state="failed")
        await keep(store, None, name="flow")
        await keep(store, 2 * MINUTE, name="flow", state="completed")
        store.shift_clock(61)
        assert await prune_all(store) == 1
        assert await there(store) == {pen.run_id for key, pen in pens.items() if key != ("other", "completed")}
        store.shift_clock(61)
        assert await prune_all(store) == 1
        assert await there(store) == {pen.run_id for key, pen in pens.items() if key[1] == "failed"}

    async def test_the_end_of_a_chain_decides_over_all_of_it(self, store: Store) -> None:
        worker = await live_worker(store, lease=LONG)
        first = await start_owned(store, worker, "long")
        await first.write(store, worker, move=CONTINUED, effects=going_on())
        await keep(store)
        store.shift_clock(600)
        assert await prune_all(store) == 0
        await closed_run(store, worker)
        assert len(await there(store)) == 3

    async def test_a_chain_goes_as_a_whole(self, store: Store) -> None:
        worker = await live_worker(store)
        await closed_chain(store, worker, "long")
        await keep(store)
        store.shift_clock(61)
        step = await store.prune(1)
        assert step.deleted == 2
        assert await there(store) == set()

    async def test_a_chain_that_had_the_id_before_is_pruned(self, store: Store) -> None:
        worker = await live_worker(store, lease=LONG)
        await closed_chain(store, worker, "long")
        current = await start_owned(store, worker, "long", if_exists=IfExists.RESTART)
        await keep(store)
        store.shift_clock(61)
        assert await prune_all(store) == 2
        assert (await store.get("long")).run_id == current.run_id

    async def test_a_child_is_kept_while_its_parent_is_open(self, store: Store) -> None:
        worker = await live_worker(store, lease=LONG)
        parent = await start_owned(store, worker)
        child = await closed_run(store, worker, parent_run_id=parent.run_id)
        await keep(store)
        store.shift_clock(61)
        assert await prune_all(store) == 0
        await parent.write(store, worker, move=DONE)
        assert await prune_all(store) == 1
        assert await there(store) == {parent.run_id}
        assert child.run_id not in await there(store)

    @pytest.mark.parametrize("closed", [True, False])
    async def test_a_parent_is_kept_as_long_as_its_children(self, store: Store, closed: bool) -> None:
        worker = await live_worker(store, lease=LONG, code={"flow": "v1", "kept": "v1"})
        parent = await start_owned(store, worker)
        policy = ParentPolicy.ABANDON
        child = await start_owned(store, worker, name="kept", parent_run_id=parent.run_id, parent_policy=policy)
        for pen in (parent, child)[: 1 + closed]:
            await pen.write(store, worker, move=DONE)
        await keep(store)
        await keep(store, 2 * MINUTE, name="kept")
        store.shift_clock(61)
        assert await prune_all(store) == 0
        assert await there(store) == {parent.run_id, child.run_id}
        store.shift_clock(61)
        assert (await prune_all(store), await prune_all(store)) == ((1, 1) if closed else (0, 0))

    async def test_a_dead_letter_is_kept_until_somebody_has_looked_at_it(self, store: Store) -> None:
        worker = await live_worker(store)
        run_id = await give_up(store, worker)
        await keep(store)
        store.shift_clock(61)
        assert await prune_all(store) == 0
        await store.discard_letters([run_id], Act(actor="ann", verb=Verb.DISCARD))
        assert await prune_all(store) == 1
        assert (await store.letters(LetterFilter(states=()))).letters == []

    async def test_who_changes_a_rule_is_in_the_audit_log(self, store: Store) -> None:
        act = Act(actor="ann", verb=Verb.SET_RETENTION, reason="the law")
        rule = Retention(60, "flow", "failed")
        assert await store.set_retention(rule, act)
        assert not await store.set_retention(rule, act)
        assert await store.set_retention(Retention(None, "flow", "failed"), act)
        assert await store.drop_retention("flow", "failed", act)
        assert not await store.drop_retention("flow", "failed", act)
        assert await store.set_retention(Retention(60), act)
        await keep(store, 2 * MINUTE)
        rows = await store.audit()
        assert [(row.target, row.before, row.after) for row in rows] == [
            ("flow failed", "null", '{"keep":60000000}'),
            ("flow failed", '{"keep":60000000}', '{"keep":null}'),
            ("flow failed", '{"keep":null}', "null"),
            ("* *", "null", '{"keep":60000000}'),
        ]
        assert {(row.actor, row.verb, row.reason) for row in rows} == {("ann", "set retention", "the law")}
        assert first_break(store.namespace, (0, ""), rows) is None

    async def test_other_namespaces_are_left_alone(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        pen = await closed_run(other, await live_worker(other))
        await keep(store)
        store.shift_clock(61)
        assert await prune_all(store) == 0
        assert await there(other) == {pen.run_id}

    async def test_a_dry_run_counts_and_leaves_all(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = await closed_chain(store, worker, "long")
        pens += [await closed_run(store, worker) for _ in range(3)]
        await keep(store)
        store.shift_clock(61)
        for limit in (1_000, 2, 1):
            assert await prune_all(store, limit, dry_run=True) == 5
        assert await there(store) == {pen.run_id for pen in pens}
        assert await prune_all(store) == 5


class PruningStepsConformance:
    """A step looks at so many runs and no more, and the next goes on behind it."""

    async def test_steps_follow_each_other_to_the_end(self, store: Store) -> None:
        worker = await live_worker(store)
        gone = [await closed_run(store, worker) for _ in range(5)]
        kept = await closed_run(store, worker, state=RunState.FAILED)
        gone += [await closed_run(store, worker) for _ in range(4)]
        await keep(store, state="completed")
        store.shift_clock(61)
        seen: list[int] = []
        last: RunId | None = None
        while True:
            step = await store.prune(3, last)
            seen.append(step.deleted)
            last = step.last
            if last is None:
                break
        assert sum(seen) == len(gone)
        assert max(seen) <= 3
        assert await there(store) == {kept.run_id}

    async def test_a_step_ends_where_all_are_too_young(self, store: Store) -> None:
        worker = await live_worker(store)
        for _ in range(5):
            await closed_run(store, worker)
        await keep(store)
        step = await store.prune(2)
        assert (step.deleted, step.last) == (0, None)

    async def test_long_journals_are_deleted_a_few_at_a_time(self, store: Store) -> None:
        worker = await live_worker(store)
        for _ in range(4):
            pen = await start_owned(store, worker)
            await pen.write(store, worker, 6_000, move=DONE)
        await keep(store)
        store.shift_clock(61)
        assert await prune_all(store) == 4
        assert await there(store) == set()

    async def test_two_that_prune_at_once_delete_each_run_once(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        for _ in range(40):
            await closed_run(store, worker)
        await keep(store)
        others = [await make_store() for _ in range(3)]
        for each in (store, *others):
            each.shift_clock(61)
        counts = await asyncio.gather(*(prune_all(each, 7) for each in (store, *others)))
        assert sum(counts) + await prune_all(store) == 40
        assert await there(store) == set()

    async def test_who_works_meanwhile_loses_nothing(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store, lease=LONG)
        await keep(store)
        old = [await closed_chain(store, worker, f"old-{number}") for number in range(10)]
        store.shift_clock(61)
        other = await make_store()
        other.shift_clock(61)

        async def work() -> set[RunId]:
            made = set()
            for number in range(20):
                pen = await start_owned(store, worker, f"old-{number}", if_exists=IfExists.RESTART)
                await pen.write(store, worker, move=DONE)
                made.add(pen.run_id)
            return made

        made, _ = await asyncio.gather(work(), prune_all(other, 3))
        await prune_all(other)
        assert await there(store) == made
        with pytest.raises(UnknownRun):
            await store.get_run(old[0][0].run_id)

    async def test_a_run_that_closed_is_pruned_after_it_was_claimed_again(self, store: Store) -> None:
        worker = await live_worker(store, lease=LONG)
        pen = await start_owned(store, worker)
        await pen.release(store, worker, wake_at=0)
        stored = await claim_one(store, worker)
        pen.epoch = stored.run.epoch
        await keep(store)
        store.shift_clock(61)
        assert await prune_all(store) == 0
        await pen.write(store, worker, move=DONE)
        store.shift_clock(61)
        assert await prune_all(store) == 1

    async def test_a_run_goes_on_or_is_deleted_and_never_both(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store, lease=LONG)
        pens = [await closed_run(store, worker, state=RunState.FAILED) for _ in range(20)]
        await keep(store)
        other = await make_store()
        for each in (store, other):
            each.shift_clock(61)
        forks = [fork_of(pen) for pen in pens]
        answers, _ = await asyncio.gather(
            asyncio.gather(*(store.fork([fork], RETRY) for fork in forks)), prune_all(other, 3)
        )
        left = await there(store)
        for pen, fork, [outcome] in zip(pens, forks, answers, strict=True):
            went_on = not isinstance(outcome, Exception)
            assert went_on or isinstance(outcome, UnknownRun)
            assert (pen.run_id in left, fork.new.run_id in left) == (went_on, went_on)
