"""Operators delete runs: closed ones, with all that belongs to them."""

from __future__ import annotations

from typing import Any

import pytest

from batuta.errors import RunClosed, UnknownRun
from batuta.ids import RunId, new_run_id
from batuta.journal.audit import Act, Verb, first_break
from batuta.journal.dead_letters import LetterFilter
from batuta.journal.records import (
    Attempt,
    Effects,
    IfExists,
    Message,
    MessageKind,
    Move,
    Output,
    OutputKind,
    ParentPolicy,
    RunFilter,
    WorkerInfo,
)
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, Pen, claim_one, live_worker, new_run, signal, start_owned
from batuta.testing.conformance.operators.dead_letters import give_up
from batuta.testing.conformance.runs.chains import CONTINUED, going_on

DELETE = Act(actor="ann", verb=Verb.DELETE, reason="not needed")
DONE = Move(RunState.COMPLETED)


async def closed_run(
    store: Store, worker: WorkerInfo, id: str | None = None, state: RunState = RunState.COMPLETED, **options: Any
) -> Pen:
    """A run that has come to its end."""
    pen = await start_owned(store, worker, id, **options)
    assert await pen.write(store, worker, move=Move(state)) is None
    return pen


async def closed_chain(store: Store, worker: WorkerInfo, id: str) -> list[Pen]:
    """A chain of two runs that has come to its end."""
    first = await start_owned(store, worker, id)
    assert await first.write(store, worker, move=CONTINUED, effects=going_on()) is None
    stored = await claim_one(store, worker)
    last = Pen(stored.run.run_id, stored.run.epoch)
    assert await last.write(store, worker, consumed=[m.message_id for m in stored.messages], move=DONE) is None
    return [first, last]


async def there(store: Store) -> set[RunId]:
    """All runs of the store."""
    return {run.run_id for run in (await store.list_runs(RunFilter(), limit=1_000)).runs}


async def nothing_of(store: Store, pen: Pen) -> bool:
    """Whether no trace of a run, or of a chain that it began, is left."""
    with pytest.raises(UnknownRun):
        await store.get_run(pen.run_id)
    rest = (await store.journal(pen.run_id), await store.attempts(pen.run_id), await store.outputs(pen.run_id))
    return not any(rest) and await store.answers([(pen.run_id, "asked")]) == [None]


async def full_run(store: Store, worker: WorkerInfo, id: str) -> Pen:
    """A closed run that has left something in every table."""
    pen = await start_owned(store, worker, id)
    outputs = [
        Output(kind=OutputKind.PUBLISHED, name="progress", ord=0, at=1, value="1"),
        Output(kind=OutputKind.ANSWER, name="asked", ord=0, at=1, value="2"),
    ]
    await store.send(pen.run_id, Message(message_id="asked", kind=MessageKind.UPDATE, name="ask"))
    attempt = Attempt(seq=1, number=1, started_at=1)
    parts: dict[str, Any] = {"consumed": ["asked"], "attempts": [attempt], "effects": Effects(outputs=outputs)}
    assert await pen.write(store, worker, 3, move=DONE, **parts) is None
    return pen


class DeletingConformance:
    """A deleted run is gone whole. A run that is open, or has an open child or parent, stays whole."""

    async def test_nothing_of_a_deleted_run_is_left(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        gone, stays = await full_run(store, worker, "gone"), await full_run(store, worker, "stays")
        assert await store.delete_runs([gone.run_id], DELETE) == [gone.run_id]
        other = await make_store()
        assert await nothing_of(other, gone)
        with pytest.raises(UnknownRun):
            await other.get("gone")
        assert await there(other) == {stays.run_id}
        assert len(await other.journal(stays.run_id)) == 4
        assert await other.attempts(stays.run_id)
        assert await other.outputs(stays.run_id)
        assert await other.answers([(stays.run_id, "asked")]) != [None]

    async def test_an_open_run_stays(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        assert await store.delete_runs([pen.run_id], DELETE) == []
        assert await pen.write(store, worker, move=DONE) is None

    async def test_what_is_not_there_is_not_in_the_answer(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await closed_run(store, worker)
        assert await store.delete_runs([new_run_id(), pen.run_id, pen.run_id], DELETE) == [pen.run_id]
        assert await store.delete_runs([pen.run_id], DELETE) == []
        assert await store.delete_runs([], DELETE) == []

    @pytest.mark.parametrize("asked", [0, 1])
    async def test_a_chain_goes_as_a_whole(self, store: Store, asked: int) -> None:
        worker = await live_worker(store)
        chain = await closed_chain(store, worker, "long")
        deleted = await store.delete_runs([chain[asked].run_id], DELETE)
        assert set(deleted) == {pen.run_id for pen in chain}
        assert await there(store) == set()

    async def test_a_chain_that_goes_on_stays_as_a_whole(self, store: Store) -> None:
        worker = await live_worker(store)
        first = await start_owned(store, worker, "long")
        await first.write(store, worker, move=CONTINUED, effects=going_on())
        assert await store.delete_runs([first.run_id], DELETE) == []
        assert len(await there(store)) == 2

    async def test_a_chain_that_had_the_id_before_goes_alone(self, store: Store) -> None:
        worker = await live_worker(store)
        before = await closed_chain(store, worker, "long")
        current = await start_owned(store, worker, "long", if_exists=IfExists.RESTART)
        deleted = await store.delete_runs([before[0].run_id], DELETE)
        assert set(deleted) == {pen.run_id for pen in before}
        assert (await store.get("long")).run_id == current.run_id

    async def test_the_id_is_free_again(self, store: Store) -> None:
        worker = await live_worker(store)
        before = await closed_run(store, worker, "id")
        await store.delete_runs([before.run_id], DELETE)
        run, is_new = await store.start(new_run("id"))
        assert is_new
        assert (await store.get("id")).run_id == run.run_id

    async def test_closed_children_go_at_any_depth(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        grandchild = await closed_run(store, worker, parent_run_id=child.run_id)
        await child.write(store, worker, move=DONE)
        await parent.write(store, worker, move=DONE)
        deleted = await store.delete_runs([parent.run_id], DELETE)
        assert set(deleted) == {parent.run_id, child.run_id, grandchild.run_id}
        assert await there(store) == set()

    async def test_children_go_with_the_rest_of_their_chains(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        first = await start_owned(store, worker, parent_run_id=parent.run_id)
        await first.write(store, worker, move=CONTINUED, effects=going_on())
        last = await claim_one(store, worker)
        pen = Pen(last.run.run_id, last.run.epoch)
        await pen.write(store, worker, move=DONE)
        await parent.write(store, worker, move=DONE)
        assert set(await store.delete_runs([parent.run_id], DELETE)) == {parent.run_id, first.run_id, pen.run_id}

    async def test_an_open_child_at_any_depth_keeps_all(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        policy = ParentPolicy.ABANDON
        grandchild = await start_owned(store, worker, parent_run_id=child.run_id, parent_policy=policy)
        for pen in (child, parent):
            await pen.write(store, worker, move=DONE)
        other = await closed_run(store, worker)
        assert await store.delete_runs([parent.run_id, other.run_id], DELETE) == [other.run_id]
        assert await there(store) == {parent.run_id, child.run_id, grandchild.run_id}

    async def test_a_child_can_be_deleted_without_its_parent(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await closed_run(store, worker, parent_run_id=parent.run_id)
        await parent.write(store, worker, move=DONE)
        assert await store.delete_runs([child.run_id], DELETE) == [child.run_id]
        assert await there(store) == {parent.run_id}

    async def test_a_child_stays_as_long_as_its_parent_is_open(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        first = await start_owned(store, worker, parent_run_id=parent.run_id)
        await first.write(store, worker, move=CONTINUED, effects=going_on())
        last = await claim_one(store, worker)
        await Pen(last.run.run_id, last.run.epoch).write(store, worker, move=DONE)
        other = await closed_run(store, worker)
        asked = [first.run_id, last.run.run_id, parent.run_id, other.run_id]
        assert await store.delete_runs(asked, DELETE) == [other.run_id]
        await parent.write(store, worker, move=DONE)
        assert set(await store.delete_runs([first.run_id], DELETE)) == {first.run_id, last.run.run_id}

    async def test_runs_of_another_namespace_stay(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        pen = await closed_run(other, await live_worker(other))
        assert await store.delete_runs([pen.run_id], DELETE) == []
        assert await there(other) == {pen.run_id}

    async def test_messages_of_a_deleted_chain_are_forgotten(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await full_run(store, worker, "id")
        await store.delete_runs([pen.run_id], DELETE)
        with pytest.raises(UnknownRun):
            await store.send(pen.run_id, signal("asked"))
        assert await store.unread([pen.run_id]) == {}
        assert await store.closed_among([pen.run_id]) == [pen.run_id]

    async def test_a_message_to_a_run_whose_id_had_another_one_that_is_deleted_is_refused(self, store: Store) -> None:
        worker = await live_worker(store)
        first = await closed_run(store, worker, "id")
        second = await closed_run(store, worker, "id", if_exists=IfExists.RESTART)
        assert await store.delete_runs([second.run_id], DELETE) == [second.run_id]
        with pytest.raises(RunClosed):
            await store.send(first.run_id, signal("late"))

    async def test_a_dead_letter_goes_with_its_run(self, store: Store) -> None:
        worker = await live_worker(store)
        gone, stays = await give_up(store, worker), await give_up(store, worker)
        assert await store.delete_runs([gone], DELETE) == [gone]
        assert [letter.run_id for letter in (await store.letters(LetterFilter())).letters] == [stays]
        assert [group.count for group in (await store.letter_groups(LetterFilter())).groups] == [1]
        assert await store.delete_runs([stays], DELETE) == [stays]
        assert (await store.letter_groups(LetterFilter())).groups == []

    async def test_each_run_that_goes_is_in_the_audit_log(self, store: Store) -> None:
        worker = await live_worker(store)
        chain = await closed_chain(store, worker, "long")
        opened = await start_owned(store, worker)
        assert await store.delete_runs([opened.run_id], DELETE) == []
        assert await store.audit() == []
        await store.delete_runs([chain[1].run_id], DELETE)
        rows = await store.audit()
        assert {(row.target, row.run_id, row.before) for row in rows} == {
            ("long", str(chain[0].run_id), '{"state":"continued"}'),
            ("long", str(chain[1].run_id), '{"state":"completed"}'),
        }
        assert {(row.actor, row.verb, row.reason, row.after) for row in rows} == {
            ("ann", "delete", "not needed", "null")
        }
        assert first_break(store.namespace, (0, ""), rows) is None
