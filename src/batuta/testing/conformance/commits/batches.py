"""Many starts, and a run that comes after them all."""

from __future__ import annotations

from typing import Any

from batuta.clock import SECOND
from batuta.errors import AlreadyStarted
from batuta.journal.records import (
    IfExists,
    Message,
    MessageKind,
    Move,
    NewRun,
    Run,
    StartOutcome,
    StoredRun,
    WorkerInfo,
)
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import (
    Pen,
    beat,
    claim_one,
    claimed,
    inbox,
    live_worker,
    new_run,
    outlive_lease,
)
from batuta.testing.conformance.runs.close import last_word

OUTCOME = '{"seq":0,"value":1}'
DONE = Move(RunState.COMPLETED, outcome=OUTCOME)


def runs_of(outcomes: list[StartOutcome]) -> list[Run]:
    return [outcome[0] for outcome in outcomes if isinstance(outcome, tuple)]


async def started(store: Store, count: int, **options: Any) -> tuple[list[Run], Run]:
    """A batch of `count` runs, and what comes after it."""
    *runs, last = runs_of(await store.start_many([new_run() for _ in range(count)], new_run("after", **options)))
    return runs, last


async def finish(store: Store, worker: WorkerInfo, *stored_runs: StoredRun, move: Move = DONE) -> None:
    changes = [
        Pen.of(stored).change(move=move, consumed=[m.message_id for m in stored.messages]) for stored in stored_runs
    ]
    assert await store.commit(worker.worker_id, changes) == {}


class BatchesConformance:
    """The run that comes after a batch is due when the last of them has closed."""

    async def test_what_comes_after_is_not_due_before(self, store: Store) -> None:
        worker = await live_worker(store)
        runs, last = await started(store, 3)
        assert (last.state, last.wake_at, last.awaits, last.owner) == (RunState.PENDING, None, 3, None)
        assert {run.parent_run_id for run in runs} == {last.run_id}
        assert await store.get("after") == last
        stored_runs = await claimed(store, worker)
        assert {stored.run.run_id for stored in stored_runs} == {run.run_id for run in runs}
        await finish(store, worker, *stored_runs[:2])
        assert (await store.get("after")).awaits == 1
        assert await claimed(store, worker) == []
        await finish(store, worker, stored_runs[2])
        stored = await claim_one(store, worker)
        assert (stored.run.run_id, stored.run.awaits) == (last.run_id, 0)
        assert [message.kind for message in stored.messages] == [MessageKind.START]

    async def test_a_batch_that_is_closed_in_one_commit(self, store: Store) -> None:
        worker = await live_worker(store)
        _, last = await started(store, 40)
        ear = Ear(store)
        await finish(store, worker, *await claimed(store, worker))
        await ear.hears(lambda hint: hint.due)
        assert (await claim_one(store, worker)).run.run_id == last.run_id

    async def test_a_commit_that_is_repeated_counts_once(self, store: Store) -> None:
        worker = await live_worker(store)
        await started(store, 3)
        stored_runs = await claimed(store, worker)
        change = Pen.of(stored_runs[0]).change(move=DONE)
        for _ in range(3):
            assert await store.commit(worker.worker_id, [change]) == {}
        assert (await store.get("after")).awaits == 2
        other = Pen.of(stored_runs[1]).change(move=DONE)
        assert await store.commit(worker.worker_id, [change, other]) == {}
        assert (await store.get("after")).awaits == 1

    async def test_however_a_run_closes_it_counts(self, store: Store) -> None:
        worker = await live_worker(store)
        *_, last = runs_of(
            await store.start_many(
                [
                    new_run("commit"),
                    new_run("close_run"),
                    new_run("timeout", timeout=SECOND),
                    new_run("expiry", expires=SECOND, delay=60 * SECOND),
                ],
                new_run("after"),
            )
        )
        stored_runs = {stored.run.id: stored for stored in await claimed(store, worker)}
        await finish(store, worker, stored_runs["commit"], move=Move(RunState.FAILED, outcome=OUTCOME))
        run = await store.get("close_run")
        assert await store.close_run(run.run_id, -1, last_word(Pen(run.run_id, 0)), RunState.TERMINATED, "stop")
        assert (await store.get("after")).awaits == 2
        store.shift_clock(3)
        assert (await store.get("after")).wake_at is None
        await beat(store, worker)
        after = await store.get("after")
        assert (after.run_id, after.awaits) == (last.run_id, 0)
        assert after.wake_at is not None
        assert len(await inbox(store, Pen(last.run_id, 0))) == 1

    async def test_what_was_there_before_is_not_waited_for(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start(new_run("there"))
        outcomes = await store.start_many(
            [new_run("there"), new_run("new"), new_run("new"), new_run("there", if_exists=IfExists.REJECT)],
            new_run("after"),
        )
        assert isinstance(outcomes[3], AlreadyStarted)
        assert [outcome[1] for outcome in outcomes if isinstance(outcome, tuple)] == [False, True, False, True]
        assert (await store.get("after")).awaits == 1
        assert (await store.get("there")).parent_run_id is None
        stored_runs = {stored.run.id: stored for stored in await claimed(store, worker)}
        await finish(store, worker, stored_runs["new"])
        assert (await claim_one(store, worker)).run.id == "after"

    async def test_after_nothing_it_is_due_at_once(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start(new_run("there", delay=60 * SECOND))
        assert len(await store.start_many([new_run("there")], new_run("after"))) == 2
        assert (await claim_one(store, worker)).run.id == "after"
        assert runs_of(await store.start_many([], new_run("alone")))[0].awaits == 0
        assert (await claim_one(store, worker)).run.id == "alone"

    async def test_a_batch_that_is_written_again_is_as_it_was(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start(new_run("there"))
        news = [new_run("a"), new_run("there"), new_run("b"), new_run("there", if_exists=IfExists.RESTART)]
        after = new_run("after")
        once = await store.start_many(news, after)
        again = await store.start_many(news, after)
        assert again[:3] == once[:3]
        assert again[4] == once[4]
        assert isinstance(again[3], AlreadyStarted)
        stored_runs = {stored.run.id: stored for stored in await claimed(store, worker)}
        await finish(store, worker, stored_runs["a"], stored_runs["there"])
        assert (await store.get("after")).awaits == 1
        assert [run.id for run in runs_of(await store.start_many(news, after))] == ["a", "there", "b", "after"]
        assert (await store.get("there")).run_id == stored_runs["there"].run.run_id
        assert (await store.get("after")).awaits == 1
        await finish(store, worker, stored_runs["b"])
        assert (await claim_one(store, worker)).run.id == "after"

    async def test_when_its_id_is_taken_the_others_run_alone(self, store: Store) -> None:
        for policy, is_error in ((IfExists.REJECT, True), (IfExists.RETURN, False)):
            first, _ = await store.start(new_run("after"))
            *runs, last = await store.start_many([new_run(), new_run()], new_run("after", if_exists=policy))
            assert isinstance(last, AlreadyStarted) is is_error
            assert [run.parent_run_id for run in runs_of(runs)] == [None, None]
            assert (await store.get("after")).wake_at == first.wake_at

    async def test_a_cancel_reaches_it_while_it_waits(self, store: Store) -> None:
        worker = await live_worker(store)
        _, last = await started(store, 2)
        stored_runs = await claimed(store, worker)
        await store.send(last.run_id, Message(message_id="c", kind=MessageKind.CANCEL))
        stored = await claim_one(store, worker)
        assert stored.run.run_id == last.run_id
        await finish(store, worker, stored_runs[0])
        assert await inbox(store, Pen.of(stored)) == [f"start:{last.run_id}", "c"]
        await finish(store, worker, stored, move=Move(RunState.CANCELLED, children=True))
        assert [message.kind for message in (await store.load(stored_runs[1].run.run_id)).messages] == [
            MessageKind.START
        ]
        await finish(store, worker, stored_runs[1])
        assert (await store.get("after")).state is RunState.CANCELLED

    async def test_a_signal_to_it_does_not_make_it_due(self, store: Store) -> None:
        worker = await live_worker(store)
        _, last = await started(store, 1)
        await store.send(last.run_id, Message(message_id="s", kind=MessageKind.SIGNAL, name="go"))
        [stored] = await claimed(store, worker)
        await finish(store, worker, stored)
        assert len((await claim_one(store, worker)).messages) == 2

    async def test_a_dead_worker_changes_nothing_about_it(self, store: Store) -> None:
        dead = await live_worker(store)
        await started(store, 2)
        assert len(await claimed(store, dead)) == 2
        await outlive_lease(store)
        worker = await live_worker(store)
        await beat(store, worker, reap=True)
        assert (await store.get("after")).awaits == 2
        await finish(store, worker, *await claimed(store, worker))
        assert (await claim_one(store, worker)).run.id == "after"

    async def test_many_with_flow_keys_in_one_call(self, store: Store) -> None:
        worker = await live_worker(store)
        news: list[NewRun] = [new_run(flow_key=f"k{number % 7}") for number in range(2_000)]
        outcomes = await store.start_many(news, new_run("after"))
        assert [run.run_id for run in runs_of(outcomes)[:-1]] == [new.run_id for new in news]
        assert (await store.get("after")).awaits == 2_000
        taken = 0
        while stored_runs := await claimed(store, worker, 500):
            taken += len(stored_runs)
            await finish(store, worker, *stored_runs)
        assert taken == 2_001
