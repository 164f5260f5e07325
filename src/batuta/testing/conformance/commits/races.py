"""Two processes at once: a check without a lock on the row is no fence."""

from __future__ import annotations

import asyncio

import pytest

from batuta.clock import SECOND
from batuta.errors import RunClosed
from batuta.journal.entries import EntryKind
from batuta.journal.records import Effects, Message, MessageKind, Move, Refusal, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import (
    MakeStore,
    Pen,
    beat,
    claimed,
    live_worker,
    new_run,
    outlive_lease,
    start_owned,
)
from batuta.testing.conformance.runs.close import last_word
from batuta.testing.conformance.runs.sends import sends

ROUNDS = 15


class RacesConformance:
    """The first one wins whole; the other is refused whole."""

    async def test_a_zombies_entry_never_lands_after_a_terminate(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        worker = await live_worker(store)
        for _ in range(ROUNDS):
            pen = await start_owned(store, worker)
            entry = last_word(pen)
            verdict, closed = await asyncio.gather(
                pen.write(store, worker),
                other.close_run(pen.run_id, entry.ord - 1, entry, RunState.TERMINATED, "enough"),
            )
            entries = await store.journal(pen.run_id)
            assert closed is (verdict is Verdict.REFUSED)
            assert [e.ord for e in entries] == [0, 1]
            assert entries[1].kind is (EntryKind.TERMINATED if closed else EntryKind.ACTIVITY_DONE)

    async def test_a_zombies_entry_never_lands_after_a_reap(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        for _ in range(ROUNDS):
            zombie = await live_worker(store)
            pen = await start_owned(store, zombie)
            await outlive_lease(store, other)
            reaper = await live_worker(other)
            verdict, _ = await asyncio.gather(pen.write(store, zombie), beat(other, reaper, reap=True))
            await beat(other, reaper, reap=True)  # the first may have passed by what was just being written
            run = await store.get_run(pen.run_id)
            assert (run.owner, run.epoch) == (None, 2)
            assert run.head == (0 if verdict is Verdict.REFUSED else 1)
            assert len(await store.journal(pen.run_id)) == run.head + 1
            assert await pen.write(store, zombie) is Verdict.REFUSED
            await claimed(other, reaper, 1)

    async def test_parallel_claims_never_give_a_run_to_two(self, store: Store, make_store: MakeStore) -> None:
        stores = [store, await make_store(), await make_store()]
        for _ in range(30):
            await store.start(new_run())
        workers = [await live_worker(each) for each in stores for _ in range(2)]
        claims = [claimed(each, worker, 4) for each in stores for worker in workers for _ in range(2)]
        stored_runs = [stored for some in await asyncio.gather(*claims) for stored in some]
        taken = [stored.run.run_id for stored in stored_runs]
        assert len(taken) == len(set(taken)) == 30
        assert all(stored.run.epoch == 1 for stored in stored_runs)

    async def test_one_of_many_starts_with_one_id_wins(self, store: Store, make_store: MakeStore) -> None:
        stores = [store, await make_store()]
        for number in range(ROUNDS):
            news = [new_run(f"same-{number}") for _ in range(6)]
            results = await asyncio.gather(*(stores[i % 2].start(new) for i, new in enumerate(news)))
            assert sum(is_new for _run, is_new in results) == 1
            assert len({run.run_id for run, _is_new in results}) == 1

    async def test_owned_and_unowned_starts_with_one_id_race(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        worker = await live_worker(store)
        for number in range(ROUNDS):
            mine, theirs = new_run(f"same-{number}"), new_run(f"same-{number}")
            verdict, (run, is_new) = await asyncio.gather(
                Pen(mine.run_id, epoch=1).write(store, worker, start=mine), other.start(theirs)
            )
            assert is_new is (verdict is Verdict.EXISTS)
            assert (await store.get(run.id)).run_id == (theirs if is_new else mine).run_id == run.run_id

    async def test_a_message_sent_while_its_run_is_evicted_is_not_missed(
        self, store: Store, make_store: MakeStore
    ) -> None:
        other = await make_store()
        worker = await live_worker(store)
        for _ in range(ROUNDS):
            pen = await start_owned(store, worker)
            later = await store.now() + 600 * SECOND
            await asyncio.gather(
                pen.release(store, worker, wake_at=later),
                other.send(pen.run_id, Message(message_id="m", kind=MessageKind.SIGNAL)),
            )
            stored_runs = await claimed(store, worker, 10)
            assert [stored.run.run_id for stored in stored_runs] == [pen.run_id]
            assert [m.message_id for m in stored_runs[0].messages] == ["m"]

    @pytest.mark.parametrize("kind", [MessageKind.SIGNAL, MessageKind.CANCEL])
    async def test_a_message_is_taken_or_refused_when_its_run_closes(
        self, store: Store, make_store: MakeStore, kind: MessageKind
    ) -> None:
        other = await make_store()
        worker = await live_worker(store)
        for _ in range(ROUNDS):
            pen = await start_owned(store, worker)
            verdict, sent = await asyncio.gather(
                pen.write(store, worker, move=Move(RunState.COMPLETED)),
                other.send(pen.run_id, Message(message_id="m", kind=kind)),
                return_exceptions=True,
            )
            # Whichever came first: a run that would end with a message unread does not end.
            if sent is True:
                assert verdict is Verdict.UNREAD
                assert await pen.write(store, worker, consumed=["m"], move=Move(RunState.COMPLETED)) is None
            else:
                assert verdict is None
                assert isinstance(sent, RunClosed)
            assert (await store.load(pen.run_id)).messages == []

    async def test_one_of_many_equal_messages_is_taken(self, store: Store, make_store: MakeStore) -> None:
        stores = [store, await make_store()]
        run, _ = await store.start(new_run())
        for number in range(ROUNDS):
            message = Message(message_id=f"m{number}", kind=MessageKind.SIGNAL)
            sent = await asyncio.gather(*(stores[i % 2].send(run.run_id, message) for i in range(4)))
            assert sorted(sent) == [False, False, False, True]

    async def test_commits_of_two_processes_do_not_hold_each_other_up(
        self, store: Store, make_store: MakeStore
    ) -> None:
        stores = [store, await make_store()]
        workers = [await live_worker(each) for each in stores]
        pens = [
            [await start_owned(each, worker) for _ in range(20)] for each, worker in zip(stores, workers, strict=True)
        ]
        for _ in range(10):
            batches = [[pen.change(1) for pen in mine] for mine in pens]
            verdicts = await asyncio.gather(
                *(each.commit(w.worker_id, batch) for each, w, batch in zip(stores, workers, batches, strict=True))
            )
            assert verdicts == [{}, {}]
            for mine, batch in zip(pens, batches, strict=True):
                for pen, change in zip(mine, batch, strict=True):
                    pen.wrote(change)
        heads = {(await store.get_run(pen.run_id)).head for mine in pens for pen in mine}
        assert heads == {10}

    async def test_runs_of_two_processes_send_to_each_other_and_wait(self, store: Store, make_store: MakeStore) -> None:
        stores = [store, await make_store()]
        workers = [await live_worker(each) for each in stores]
        names = [[f"{side}-{n}" for n in range(5)] for side in ("left", "right")]
        pens = [[await start_owned(stores[side], workers[side], id) for id in names[side]] for side in (0, 1)]
        for number in range(ROUNDS):
            batches = [
                [
                    pen.change(1, effects=sends((other, f"m{number}")), move=Move(RunState.WAITING))
                    for pen, other in zip(pens[side], names[1 - side], strict=True)
                ]
                for side in (0, 1)
            ]
            commits = [stores[side].commit(workers[side].worker_id, batches[side]) for side in (0, 1)]
            assert await asyncio.gather(*commits) == [{}, {}]
            for side in (0, 1):
                stored_runs = {stored.run.id: stored for stored in await claimed(stores[side], workers[side], 5)}
                assert len(stored_runs) == 5, "a message was sent, and its receiver is not due"
                pens[side] = [Pen.of(stored) for stored in stored_runs.values()]
                names[side] = list(stored_runs)
                for pen, stored in zip(pens[side], stored_runs.values(), strict=True):
                    assert (
                        await pen.write(stores[side], workers[side], consumed=[stored.messages[0].message_id]) is None
                    )

    async def test_the_end_of_a_child_is_not_missed_by_a_parent_that_is_evicted(
        self, store: Store, make_store: MakeStore
    ) -> None:
        other = await make_store()
        worker, theirs = await live_worker(store), await live_worker(other)
        for _ in range(ROUNDS):
            parent = await start_owned(store, worker)
            child = await start_owned(other, theirs, parent_run_id=parent.run_id)
            later = await store.now() + 600 * SECOND
            await asyncio.gather(
                parent.release(store, worker, wake_at=later),
                child.write(other, theirs, move=Move(RunState.COMPLETED, outcome='{"seq":1}')),
            )
            [stored] = await claimed(store, worker, 10)
            assert [m.message_id for m in stored.messages] == [f"child:{child.run_id}"]

    async def test_a_parent_and_a_child_that_end_at_once_both_end(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        worker, theirs = await live_worker(store), await live_worker(other)
        for _ in range(ROUNDS):
            parent = await start_owned(store, worker)
            child = await start_owned(other, theirs, parent_run_id=parent.run_id)
            ended = await asyncio.gather(
                parent.write(store, worker, move=Move(RunState.COMPLETED, children=True)),
                child.write(other, theirs, move=Move(RunState.COMPLETED, outcome="{}")),
            )
            assert ended[0] is None
            if ended[1] is Verdict.UNREAD:  # its parent was first, and has cancelled it
                read = [message.message_id for message in (await store.load(child.run_id)).messages]
                assert await child.write(other, theirs, consumed=read, move=Move(RunState.CANCELLED)) is None
            else:
                assert ended[1] is None

    async def test_a_send_is_taken_or_refused_when_its_receiver_ends(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        worker, theirs = await live_worker(store), await live_worker(other)
        sender = await start_owned(other, theirs)
        for number in range(ROUNDS):
            pen = await start_owned(store, worker, f"target-{number}")
            ended, refused = await asyncio.gather(
                pen.write(store, worker, move=Move(RunState.COMPLETED)),
                sender.write(other, theirs, effects=sends((f"target-{number}", "m"))),
            )
            if refused is None:
                assert ended is Verdict.UNREAD
                assert [m.message_id for m in (await store.load(pen.run_id)).messages] == ["m"]
            else:
                assert refused == [Refusal(1, f"target-{number}", "RunClosed", "completed")]
                assert ended is None

    async def test_one_of_a_child_and_a_start_with_one_id_wins(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        for number in range(ROUNDS):
            child, plain = new_run(f"same-{number}", parent_run_id=parent.run_id), new_run(f"same-{number}")
            refused, (run, is_new) = await asyncio.gather(
                parent.write(store, worker, effects=Effects(children=[child])), other.start(plain)
            )
            assert is_new is (refused is not None)
            assert (await store.get(run.id)).run_id == (plain if is_new else child).run_id == run.run_id
