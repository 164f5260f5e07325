"""Batches of many changes: stores write them by other statements than small ones, and promise the same."""

from __future__ import annotations

from batuta.journal.records import Change, Message, MessageKind, Move, Verdict, WorkerInfo
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import MakeStore, Pen, live_worker, new_run
from batuta.testing.conformance.runs.close import last_word

RUNS = 77
CROWD = 130
DONE = Move(RunState.COMPLETED)


async def many_runs(store: Store, worker: WorkerInfo, count: int = RUNS) -> list[Pen]:
    """As many new runs as a large batch has, begun in one commit."""
    starts = [new_run(f"many-{number}") for number in range(count)]
    pens = [Pen(start.run_id, epoch=1) for start in starts]
    await write(store, worker, pens, [pen.change(start=start) for pen, start in zip(pens, starts, strict=True)])
    return pens


async def write(store: Store, worker: WorkerInfo, pens: list[Pen], changes: list[Change]) -> None:
    assert await store.commit(worker.worker_id, changes) == {}
    for pen, change in zip(pens, changes, strict=True):
        pen.wrote(change)


class LargeBatchConformance:
    """Each change of a large batch is durable as a whole, or refused for itself."""

    async def test_each_change_of_a_large_batch_is_written(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = await many_runs(store, worker)
        texts = [f"täxt, 'quoted' \"twice\" \\ \n{number}" for number in range(RUNS)]
        changes = [pen.change(1 + n % 3, text=text) for n, (pen, text) in enumerate(zip(pens, texts, strict=True))]
        await write(store, worker, pens, changes)
        ends = [
            pen.change(move=Move(RunState.FAILED if number % 5 else RunState.COMPLETED, reason=f"why {number % 2}, so"))
            for number, pen in enumerate(pens)
        ]
        await write(store, worker, pens, ends)
        for number, pen in enumerate(pens):
            run, entries = await store.get(f"many-{number}"), await store.journal(pen.run_id)
            assert entries[1:] == changes[number].entries + ends[number].entries
            assert (run.run_id, run.head, run.owner) == (pen.run_id, pen.head, None)
            assert (run.state, run.reason) == (
                RunState.FAILED if number % 5 else RunState.COMPLETED,
                f"why {number % 2}, so",
            )

    async def test_starts_steps_and_ends_share_a_large_batch(self, store: Store) -> None:
        worker = await live_worker(store)
        old = await many_runs(store, worker)
        starts = [new_run() for _ in range(RUNS)]
        fresh = [Pen(start.run_id, epoch=1) for start in starts]
        changes = [pen.change(start=start) for pen, start in zip(fresh, starts, strict=True)]
        changes += [pen.change(move=Move(RunState.COMPLETED) if n % 2 else None) for n, pen in enumerate(old)]
        await write(store, worker, fresh + old, changes)
        for number, pen in enumerate(old):
            run = await store.get_run(pen.run_id)
            assert (run.head, run.state) == (1, RunState.COMPLETED if number % 2 else RunState.RUNNING)
        assert [(await store.get_run(pen.run_id)).head for pen in fresh] == [0] * RUNS

    async def test_in_a_large_batch_a_fence_holds_for_its_own_run_alone(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = await many_runs(store, worker)
        pens[11].epoch, pens[40].head, strangers = 7, 5, {11: Verdict.REFUSED, 40: Verdict.REFUSED}
        changes = [pen.change(move=Move(RunState.COMPLETED) if n % 3 == 0 else None) for n, pen in enumerate(pens)]
        assert await store.commit(worker.worker_id, changes) == strangers
        heads = [(await store.get_run(pen.run_id)).head for pen in pens]
        assert heads == [0 if number in strangers else 1 for number in range(RUNS)]
        for number in strangers:
            assert len(await store.journal(pens[number].run_id)) == 1

    async def test_a_large_batch_that_is_written_again_is_there_once(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = await many_runs(store, worker)
        changes = [pen.change(2) for pen in pens]
        assert await store.commit(worker.worker_id, changes) == {}
        assert await store.commit(worker.worker_id, changes) == {}
        assert [len(await store.journal(pen.run_id)) for pen in pens] == [3] * RUNS

    async def test_a_crowd_ends_together(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = await many_runs(store, worker, CROWD)
        await write(store, worker, pens[:40], [pen.change(2) for pen in pens[:40]])
        ends = [pen.change(move=DONE, text=f"\0 ç 🎼 'q' \"qq\" \\ \n{number}") for number, pen in enumerate(pens)]
        ear = Ear(store)
        await write(store, worker, pens, ends)
        await ear.hears(lambda hint: hint.closed is None or {pen.run_id for pen in pens}.issubset(hint.closed))
        for number, (pen, end) in enumerate(zip(pens, ends, strict=True)):
            run, entries = await store.get(f"many-{number}"), await store.journal(pen.run_id)
            assert entries[-1:] == end.entries
            assert len(entries) == pen.head + 1
            assert (run.run_id, run.head, run.owner, run.wake_at) == (pen.run_id, pen.head, None, None)
            assert (run.state, run.reason, run.closed_at is None) == (RunState.COMPLETED, "", False)
            assert await store.epochs(pen.run_id) == [1] * len(entries)

    async def test_of_a_crowd_that_ends_only_those_that_may_not_stay(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = await many_runs(store, worker, CROWD)
        pens[7].epoch, pens[50].head = 7, 5
        await store.send(pens[90].run_id, Message(message_id="m", kind=MessageKind.SIGNAL, name="go"))
        assert await store.close_run(pens[110].run_id, 0, last_word(pens[110]), RunState.TERMINATED, "")
        changes = [pen.change(move=DONE) for pen in pens]
        refused = dict.fromkeys((7, 50, 110), Verdict.REFUSED) | {90: Verdict.UNREAD}
        assert await store.commit(worker.worker_id, changes) == refused
        for number, pen in enumerate(pens):
            run, entries = await store.get_run(pen.run_id), await store.journal(pen.run_id)
            if number == 110:
                assert (run.state, len(entries)) == (RunState.TERMINATED, 2)
            elif number in refused:
                assert (run.state, len(entries)) == (RunState.RUNNING, 1)
            else:
                assert (run.state, entries[1:]) == (RunState.COMPLETED, changes[number].entries)

    async def test_a_crowd_of_another_namespace_is_out_of_reach(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        pens = await many_runs(store, worker, CROWD)
        other = await make_store("other")
        stranger = await live_worker(other)
        verdicts = await other.commit(stranger.worker_id, [pen.change(move=DONE) for pen in pens])
        assert verdicts == dict.fromkeys(range(CROWD), Verdict.REFUSED)
        assert {(await store.get_run(pen.run_id)).state for pen in pens} == {RunState.RUNNING}

    async def test_ends_of_a_crowd_that_are_written_again_are_there_once(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = await many_runs(store, worker, CROWD)
        changes = [pen.change(move=DONE) for pen in pens]
        assert await store.commit(worker.worker_id, changes[:60]) == {}
        assert await store.commit(worker.worker_id, changes) == {}
        assert await store.commit(worker.worker_id, changes) == {}
        assert [len(await store.journal(pen.run_id)) for pen in pens] == [2] * CROWD
