"""Claiming runs that are due."""

from __future__ import annotations

from typing import Any

from batuta.clock import SECOND
from batuta.journal.records import Attempt, Message, MessageKind, Move, RunKind
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import (
    MakeStore,
    Pen,
    beat,
    claim_one,
    claimed,
    live_worker,
    new_run,
    outlive_lease,
    signal,
    start_owned,
    worker_info,
)


class ClaimConformance:
    """A claim owns due runs, each at most once, with a new epoch."""

    async def test_a_claimed_run_is_running_and_owned(self, store: Store) -> None:
        new = new_run()
        await store.start(new)
        worker = await live_worker(store)
        stored = await claim_one(store, worker)
        assert (stored.run.state, stored.run.owner, stored.run.epoch) == (RunState.RUNNING, worker.worker_id, 1)
        assert stored.run.wake_at is None
        assert stored.run == await store.get_run(new.run_id)
        assert [m.kind for m in stored.messages] == [MessageKind.START]
        assert await claimed(store, worker, 10) == []

    async def test_a_queue_that_is_named_twice_gives_its_runs_once(self, store: Store) -> None:
        new = new_run()
        await store.start(new)
        worker = await live_worker(store, queues=["default", "other", "default"])
        stored = await claim_one(store, worker)
        assert stored.run == await store.get_run(new.run_id)
        assert await Pen.of(stored).write(store, worker) is None

    async def test_a_claim_brings_the_whole_tape(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 3)
        message = Message(message_id="m1", kind=MessageKind.SIGNAL, name="go", body='"now"')
        await store.send(pen.run_id, message)
        await pen.release(store, worker)
        stored = await claim_one(store, worker)
        assert stored.entries == await store.journal(pen.run_id)
        assert [entry.ord for entry in stored.entries] == [0, 1, 2, 3]
        assert [(m.message_id, m.name, m.body) for m in stored.messages] == [("m1", "go", '"now"')]

    async def test_tapes_of_several_runs_are_not_mixed_up(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = [await start_owned(store, worker) for _ in range(3)]
        for extra, pen in enumerate(pens):
            await pen.write(store, worker, extra + 1, text=f"of {extra}")
            await store.send(pen.run_id, Message(message_id="m", kind=MessageKind.SIGNAL, name=f"to {extra}"))
            await pen.release(store, worker)
        stored_runs = {stored.run.run_id: stored for stored in await claimed(store, worker, 10)}
        for extra, pen in enumerate(pens):
            stored = stored_runs[pen.run_id]
            assert stored.entries == await store.journal(pen.run_id)
            assert stored.run.head == extra + 1
            assert [m.name for m in stored.messages] == [f"to {extra}"]

    async def test_a_claim_brings_what_loading_each_run_would(self, store: Store) -> None:
        worker = await live_worker(store)
        attempt = Attempt(seq=1, number=1, started_at=10, ended_at=11, next_at=12, error="{}")
        news = [new_run() for _ in range(4)]
        slept, spoken_to, tried, longer = pens = [Pen(new.run_id, epoch=1) for new in news]
        for new, pen in zip(news, pens, strict=True):
            assert await pen.write(store, worker, start=new, text=" a  b ç ") is None
        await store.send(spoken_to.run_id, signal("m", '"to it"'))
        await tried.write(store, worker, 0, attempts=[attempt])
        await longer.write(store, worker, 2, text="three words here")
        for pen in pens:
            await pen.release(store, worker, wake_at=await store.now())
        unbegun = await store.start(new_run(timeout=5 * SECOND, tags='{"a":"b"}', memo='"m"', priority=1))
        stored_runs = await claimed(store, worker, 10)
        assert stored_runs == [await store.load(stored.run.run_id) for stored in stored_runs]
        by_run = {
            stored.run.run_id: (len(stored.entries), len(stored.messages), len(stored.attempts))
            for stored in stored_runs
        }
        assert by_run == {
            slept.run_id: (1, 0, 0),
            spoken_to.run_id: (1, 1, 0),
            tried.run_id: (1, 0, 1),
            longer.run_id: (3, 0, 0),
            unbegun[0].run_id: (0, 1, 0),
        }

    async def test_a_claim_brings_each_thing_that_few_runs_have(self, store: Store) -> None:
        worker = await live_worker(store, queues=["default", "other"])
        parent = await start_owned(store, worker)
        odd = 'a "b" \\ ç 🎼'
        options: list[dict[str, Any]] = [
            {},
            {"version": odd},
            {"tags": '{"a":"b"}'},
            {"memo": '["m"]'},
            {"flow_key": odd},
            {"timeout": 5 * SECOND},
            {"expires": 5 * SECOND},
            {"debounce": odd},
            {"priority": 3},
            {"queue": "other"},
            {"kind": RunKind.JOB, "code": "flow"},
            {"parent_run_id": parent.run_id, "parent_seq": 7},
        ]
        news = [new_run(**option) for option in options]
        await store.start_many(news)
        stored_runs = await claimed(store, worker, 20)
        assert {stored.run.run_id for stored in stored_runs} == {new.run_id for new in news}
        assert [stored.run for stored in stored_runs] == [
            await store.get_run(stored.run.run_id) for stored in stored_runs
        ]
        for stored in stored_runs:  # the same of those that have begun
            read = [message.message_id for message in stored.messages]
            await Pen.of(stored).write(store, worker, move=Move(RunState.WAITING, await store.now()), consumed=read)
        again = await claimed(store, worker, 20)
        assert len(again) == len(news)
        assert again == [await store.load(stored.run.run_id) for stored in again]

    async def test_epochs_rise_at_every_claim(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start(new_run())
        for expected in (1, 2, 3):
            stored = await claim_one(store, worker)
            assert stored.run.epoch == expected
            await Pen.of(stored).release(store, worker, wake_at=await store.now())

    async def test_a_limit_is_kept(self, store: Store) -> None:
        worker = await live_worker(store)
        for _ in range(5):
            await store.start(new_run())
        assert [len(await claimed(store, worker, 2)) for _ in range(4)] == [2, 2, 1, 0]

    async def test_hundreds_are_claimed_at_once_and_each_is_as_its_tape_says(self, store: Store) -> None:
        worker, other = await live_worker(store), await live_worker(store)
        news = [new_run(expires=60 * SECOND if number % 100 == 0 else 0) for number in range(300)]
        await store.start_many(news)
        stored_runs = await claimed(store, worker, 400)
        assert {stored.run.run_id for stored in stored_runs} == {new.run_id for new in news}
        assert {(stored.run.owner, stored.run.epoch, stored.run.expires_at) for stored in stored_runs} == {
            (worker.worker_id, 1, None)
        }
        for stored in stored_runs[::60]:
            assert await store.load(stored.run.run_id) == stored
        assert await claimed(store, other, 400) == []

    async def test_hundreds_that_slept_are_claimed_part_by_part_and_each_once(self, store: Store) -> None:
        worker = await live_worker(store, queues=["default", "other"])
        news = [
            new_run(
                priority=number % 2, queue="other" if number % 50 == 3 else "default", timeout=number % 3 * 60 * SECOND
            )
            for number in range(500)
        ]
        pens = [Pen(new.run_id, epoch=1) for new in news]
        texts = ["ç 🎼" * (20_000 if number % 100 == 0 else 1) for number in range(500)]
        begun = [pen.change(start=new, text=text) for new, pen, text in zip(news, pens, texts, strict=True)]
        for change in begun:
            change.move = Move(RunState.WAITING, await store.now() + 30 * SECOND)
        assert await store.commit(worker.worker_id, begun) == {}
        await store.send(pens[10].run_id, signal("m", '"to it"'))
        await store.start_many([new_run(expires=100 * SECOND), new_run(debounce="d"), new_run(tags='{"a":"b"}')])
        assert len(await claimed(store, worker, 100)) == 4  # none before its time
        store.shift_clock(31)
        await beat(store, worker)
        parts = [await claimed(store, worker, 220) for _ in range(4)]
        assert [len(part) for part in parts] == [220, 220, 59, 0]
        stored_runs = [stored for part in parts for stored in part]
        assert len({stored.run.run_id for stored in stored_runs}) == 499
        assert [stored.run.priority for stored in stored_runs] == sorted(
            (stored.run.priority for stored in stored_runs), reverse=True
        )
        for stored in stored_runs[::10]:
            assert await store.load(stored.run.run_id) == stored

    async def test_high_priority_comes_first_then_the_longest_due(self, store: Store) -> None:
        worker = await live_worker(store)
        for name, priority, delay in [("d", -1, 0), ("c", 0, 2), ("b", 0, 1), ("a", 5, 3)]:
            await store.start(new_run(name, priority=priority, delay=delay * SECOND))
        store.shift_clock(4)
        assert [stored.run.id for stored in await claimed(store, worker, 3)] == ["a", "b", "c"]
        assert [stored.run.id for stored in await claimed(store, worker, 3)] == ["d"]

    async def test_priority_counts_across_queues(self, store: Store) -> None:
        worker = await live_worker(store, queues=["one", "two"])
        for name, queue, priority in [("low", "one", 1), ("high", "two", 2), ("mid", "one", 1)]:
            await store.start(new_run(name, queue=queue, priority=priority))
        assert [stored.run.id for stored in await claimed(store, worker, 1)] == ["high"]

    async def test_a_timer_is_never_early(self, store: Store) -> None:
        worker = await live_worker(store, lease=100 * SECOND)
        pen = await start_owned(store, worker)
        await pen.release(store, worker, wake_at=await store.now() + 30 * SECOND)
        store.shift_clock(29)
        assert await claimed(store, worker, 10) == []
        store.shift_clock(1)
        assert (await claim_one(store, worker)).run.run_id == pen.run_id

    async def test_only_the_workers_queues_and_names_are_claimed(self, store: Store) -> None:
        await store.start(new_run(queue="other"))
        await store.start(new_run(name="unknown"))
        worker = await live_worker(store)
        assert await claimed(store, worker, 10) == []
        both = await live_worker(store, queues=["default", "other"], code={"flow": "1", "unknown": "1"})
        assert len(await claimed(store, both, 10)) == 2

    async def test_due_runs_of_unknown_names_do_not_hide_the_others(self, store: Store) -> None:
        for _ in range(50):
            await store.start(new_run(name="unknown", priority=1))
        mine, _ = await store.start(new_run())
        worker = await live_worker(store)
        assert (await claim_one(store, worker)).run.run_id == mine.run_id

    async def test_a_worker_that_is_not_live_claims_nothing(self, store: Store) -> None:
        await store.start(new_run())
        assert await claimed(store, worker_info(), 10) == []
        worker = await live_worker(store)
        await outlive_lease(store)
        assert await claimed(store, worker, 10) == []

    async def test_a_run_whose_deadline_is_over_is_claimed_too(self, store: Store) -> None:
        new = new_run(timeout=2 * SECOND)
        await store.start(new)
        store.shift_clock(5)
        worker = await live_worker(store)
        assert (await claim_one(store, worker)).run.run_id == new.run_id

    async def test_what_waits_for_a_message_alone_is_not_due(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.release(store, worker, wake_at=None)
        run = await store.get_run(pen.run_id)
        assert (run.state, run.owner, run.wake_at) == (RunState.WAITING, None, None)
        store.shift_clock(5)
        assert await claimed(store, worker, 10) == []

    async def test_a_run_handed_back_untouched_stays_pending(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start(new_run())
        pen = Pen.of(await claim_one(store, worker))
        later = await store.now() + 3 * SECOND
        assert await pen.write(store, worker, 0, move=Move(RunState.PENDING, wake_at=later)) is None
        run = await store.get_run(pen.run_id)
        assert (run.state, run.owner, run.wake_at, run.head) == (RunState.PENDING, None, later, -1)

    async def test_two_processes_share_the_work(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        for _ in range(6):
            await store.start(new_run())
        mine = await claimed(store, await live_worker(store), 3)
        theirs = await claimed(other, await live_worker(other), 10)
        assert len(mine) == len(theirs) == 3
        assert {stored.run.run_id for stored in mine}.isdisjoint({stored.run.run_id for stored in theirs})

    async def test_loading_does_not_claim(self, store: Store) -> None:
        new = new_run()
        await store.start(new)
        stored = await store.load(new.run_id)
        assert (stored.run.state, stored.run.owner, stored.run.epoch) == (RunState.PENDING, None, 0)

    async def test_a_run_is_claimed_by_who_has_its_code(self, store: Store) -> None:
        run, _ = await store.start(new_run(code="flow@2"))
        for code in ({"flow": "v1"}, {"flow@1": "v1"}, {"activity:flow": "v1"}):
            other = await live_worker(store, code=code)
            assert await claimed(store, other, 10) == []
            assert await store.due_at(other) is None
            assert (await beat(store, other)).due_at is None
        worker = await live_worker(store, code={"flow": "v1", "flow@2": "v2"})
        assert await store.due_at(worker) == run.wake_at
        assert (await claim_one(store, worker)).run.run_id == run.run_id
