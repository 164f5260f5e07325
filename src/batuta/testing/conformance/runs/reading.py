"""Reading: single runs, journals, lists, counts and workers."""

from __future__ import annotations

from collections import Counter

import pytest

from batuta.clock import SECOND
from batuta.errors import InvalidInput, UnknownRun
from batuta.journal.records import Attempt, Move, RunFilter, RunKind
from batuta.journal.states import OPEN, RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import (
    MakeStore,
    beat,
    live_worker,
    new_run,
    outlive_lease,
    start_owned,
    worker_info,
)


async def ids(store: Store, **where: object) -> list[str]:
    """Ids of all that match, newest first; checks that count agrees."""
    wanted = RunFilter(**where)  # type: ignore[arg-type]  # the callers pass fields of the filter
    page = await store.list_runs(wanted, limit=1_000)
    assert page.cursor is None
    assert await store.count_runs(wanted) == len(page.runs)
    assert await store.count_states(wanted) == Counter(run.state for run in page.runs)
    return [run.id for run in page.runs]


class ReadingConformance:
    """Reads return what was written, in pages that do not shift."""

    async def test_what_is_not_there_is_unknown(self, store: Store) -> None:
        run_id = new_run().run_id
        for missing in (
            store.get("nobody"),
            store.get_run(run_id),
            store.load(run_id),
            store.outcome(run_id),
        ):
            with pytest.raises(UnknownRun):
                await missing
        for nothing in (store.journal, store.epochs, store.attempts, store.outputs):
            assert await nothing(run_id) == []
        assert await store.closed_among([run_id]) == [run_id]
        assert await store.answers([(run_id, "x")]) == [None]
        assert await store.unread([run_id]) == {}

    async def test_a_journal_is_read_in_pieces(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 9)
        whole = await store.journal(pen.run_id)
        assert [entry.ord for entry in whole] == list(range(10))
        assert await store.journal(pen.run_id, after=3) == whole[4:]
        assert await store.journal(pen.run_id, after=3, limit=2) == whole[4:6]
        assert await store.journal(pen.run_id, after=9) == []

    async def test_the_outcome_is_the_run_and_its_last_entry(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 2, move=Move(RunState.COMPLETED))
        run, last = await store.outcome(pen.run_id)
        assert (run.state, last) == (RunState.COMPLETED, pen.last)
        unbegun, _ = await store.start(new_run())
        assert await store.outcome(unbegun.run_id) == (unbegun, None)

    async def test_the_closed_are_found_among_many(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = [await start_owned(store, worker) for _ in range(3)]
        await pens[1].write(store, worker, 1, move=Move(RunState.FAILED))
        assert await store.closed_among([pen.run_id for pen in pens]) == [pens[1].run_id]
        assert await store.closed_among([]) == []

    async def test_the_newest_come_first(self, store: Store) -> None:
        for name in ("one", "two", "three"):
            await store.start(new_run(name))
        assert await ids(store) == ["three", "two", "one"]

    async def test_pages_cover_all_once(self, store: Store) -> None:
        for index in range(7):
            await store.start(new_run(f"r{index}"))
        seen, cursor = [], None
        while True:
            page = await store.list_runs(RunFilter(), cursor, limit=3)
            seen += [run.id for run in page.runs]
            cursor = page.cursor
            if cursor is None:
                break
            assert len(page.runs) == 3
        assert seen == [f"r{index}" for index in reversed(range(7))]

    async def test_a_full_last_page_has_no_cursor(self, store: Store) -> None:
        for _ in range(4):
            await store.start(new_run())
        first = await store.list_runs(RunFilter(), limit=2)
        assert (await store.list_runs(RunFilter(), first.cursor, limit=2)).cursor is None

    async def test_pages_do_not_shift_when_runs_are_added(self, store: Store) -> None:
        for index in range(4):
            await store.start(new_run(f"r{index}"))
        first = await store.list_runs(RunFilter(), limit=2)
        await store.start(new_run("newer"))
        second = await store.list_runs(RunFilter(), first.cursor, limit=2)
        assert [run.id for run in first.runs + second.runs] == ["r3", "r2", "r1", "r0"]

    async def test_pages_of_a_filter_cover_all_once(self, store: Store) -> None:
        for index in range(10):
            await store.start(new_run(f"r{index}", queue="even" if index % 2 == 0 else "odd"))
        first = await store.list_runs(RunFilter(queue="odd"), limit=3)
        second = await store.list_runs(RunFilter(queue="odd"), first.cursor, limit=3)
        assert [run.id for run in first.runs + second.runs] == ["r9", "r7", "r5", "r3", "r1"]

    async def test_a_foreign_cursor_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidInput, match="cursor"):
            await store.list_runs(RunFilter(), "page 2")

    async def test_an_empty_store_has_an_empty_page(self, store: Store) -> None:
        assert await ids(store) == []

    async def test_the_open_are_counted_wherever_they_stand(self, store: Store) -> None:
        worker = await live_worker(store)
        now = await store.now()
        pens = {id: await start_owned(store, worker, id) for id in ("owned", "asleep", "awaits", "parked", "ended")}
        await pens["asleep"].release(store, worker, wake_at=now + 60 * SECOND)
        await pens["awaits"].release(store, worker)
        await pens["parked"].write(store, worker, 0, move=Move(RunState.NEEDS_CODE, fingerprint="v1"))
        await pens["ended"].write(store, worker, move=Move(RunState.COMPLETED))
        await store.start_many([new_run("due"), new_run("later", delay=60 * SECOND)])
        waiting, pending = ["awaits", "asleep"], ["later", "due"]
        for states, expected in [
            ((RunState.RUNNING,), ["owned"]),
            ((RunState.WAITING,), waiting),
            ((RunState.PENDING,), pending),
            ((RunState.NEEDS_CODE,), ["parked"]),
            ((RunState.PENDING, RunState.RUNNING, RunState.WAITING), [*pending, *waiting, "owned"]),
            (tuple(OPEN), [*pending, "parked", *waiting, "owned"]),
            ((RunState.RUNNING, RunState.COMPLETED), ["ended", "owned"]),
            ((RunState.COMPLETED,), ["ended"]),
        ]:
            assert await ids(store, states=states) == expected
        assert await ids(store, states=tuple(OPEN), id_prefix="a", queue="default") == waiting
        assert await ids(store, states=tuple(OPEN), queue="elsewhere") == []

    async def test_filters_restrict(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start(new_run("a-1", queue="pix"))
        await store.start(new_run("a-2", name="other"))
        await store.start(new_run("b-1", kind=RunKind.JOB))
        failed = await start_owned(store, worker, "b-2")
        await failed.write(store, worker, move=Move(RunState.FAILED))
        await start_owned(store, worker, "b%3")
        assert await ids(store, queue="pix") == ["a-1"]
        assert await ids(store, name="other") == ["a-2"]
        assert await ids(store, kind=RunKind.JOB) == ["b-1"]
        assert await ids(store, states=(RunState.FAILED,)) == ["b-2"]
        assert await ids(store, states=(RunState.FAILED, RunState.RUNNING)) == ["b%3", "b-2"]
        assert await ids(store, states=(RunState.CANCELLED,)) == []
        assert await ids(store, states=(RunState.PENDING,), name="flow") == ["b-1", "a-1"]

    async def test_an_id_prefix_is_taken_literally(self, store: Store) -> None:
        for name in ("ab", "aB", "%x", "_y"):
            await store.start(new_run(name))
        assert await ids(store, id_prefix="a") == ["aB", "ab"]
        assert await ids(store, id_prefix="ab") == ["ab"]
        assert await ids(store, id_prefix="%") == ["%x"]
        assert await ids(store, id_prefix="_") == ["_y"]
        assert await ids(store, id_prefix="") == ["_y", "%x", "aB", "ab"]
        assert await ids(store, id_prefix="zz") == []

    async def test_tags_must_all_match(self, store: Store) -> None:
        await store.start(new_run("both", tags='{"bank":"b1","weird \\"key":"ç"}'))
        await store.start(new_run("one", tags='{"bank":"b1"}'))
        await store.start(new_run("none"))
        assert await ids(store, tags=(("bank", "b1"),)) == ["one", "both"]
        assert await ids(store, tags=(("bank", "b1"), ('weird "key', "ç"))) == ["both"]
        assert await ids(store, tags=(("bank", "b2"),)) == []

    async def test_an_odd_tag_does_not_keep_others_from_being_found(self, store: Store) -> None:
        await store.start(new_run("odd", tags='{"bank":"\\u0000","note":"\\\\u0000 \\u2028"}'))
        await store.start(new_run("plain", tags='{"bank":"b1"}'))
        assert await ids(store, tags=(("bank", "b1"),)) == ["plain"]
        assert await ids(store, tags=(("bank", "\x00"),)) == ["odd"]
        assert await ids(store, tags=(("note", "\\u0000 \u2028"),)) == ["odd"]

    async def test_creation_times_restrict(self, store: Store) -> None:
        old, _ = await store.start(new_run("old"))
        store.shift_clock(60)
        new, _ = await store.start(new_run("new"))
        assert await ids(store, created_after=old.created_at) == ["new"]
        assert await ids(store, created_before=new.created_at) == ["old"]
        assert await ids(store, created_after=old.created_at, created_before=new.created_at) == []

    async def test_lists_stay_within_the_namespace(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        await store.start(new_run("mine"))
        await other.start(new_run("theirs"))
        assert await ids(store) == ["mine"]
        assert await ids(other) == ["theirs"]

    async def test_runs_that_try_again_are_listed_and_counted(self, store: Store) -> None:
        worker = await live_worker(store)
        now = await store.now()
        soon, past = now + 600 * SECOND, now - 600 * SECOND
        pens = {}
        for id, number, due, error in [
            ("waits", 3, soon, "{}"),
            ("tries", 1, past, "{}"),
            ("beats", 1, None, None),
            ("gave up", 9, None, "{}"),
            ("ended", 4, soon, "{}"),
            ("went on", 4, 1_001, "{}"),
            ("parked", 4, soon, "{}"),
        ]:
            pens[id] = await start_owned(store, worker, id=id, name=id.replace(" ", "_"))
            attempt = Attempt(seq=1, number=number, started_at=1, ended_at=2, next_at=due, error=error)
            await pens[id].write(store, worker, 0, attempts=[attempt])
        await pens["ended"].write(store, worker, move=Move(RunState.COMPLETED))
        await pens["parked"].write(store, worker, 0, move=Move(RunState.NEEDS_CODE, reason="other code"))
        await pens["went on"].write(store, worker)
        assert await ids(store, retrying=1) == ["tries", "waits"]
        assert (await store.gauges()).retrying == {1: 1, 3: 1}
        assert await ids(store, retrying=3) == ["waits"]
        assert await ids(store, retrying=4) == []
        assert await ids(store, retrying=1, name="tries") == ["tries"]
        assert await ids(store, retrying=1, states=(RunState.WAITING,)) == []
        await pens["waits"].write(store, worker, 0, move=Move(RunState.WAITING, wake_at=soon))
        assert await ids(store, retrying=1, states=(RunState.WAITING,)) == ["waits"]
        first = await store.list_runs(RunFilter(retrying=1), limit=1)
        second = await store.list_runs(RunFilter(retrying=1), first.cursor, limit=1)
        assert [run.id for run in first.runs + second.runs] == ["tries", "waits"]
        assert second.cursor is None

    async def test_runs_that_try_again_stay_within_the_namespace(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        worker = await live_worker(other)
        pen = await start_owned(other, worker)
        due = await other.now() + 600 * SECOND
        failed = Attempt(seq=1, number=1, started_at=1, ended_at=2, next_at=due, error="{}")
        await pen.write(other, worker, 0, attempts=[failed])
        assert await other.count_runs(RunFilter(retrying=1)) == 1
        assert await store.count_runs(RunFilter(retrying=1)) == 0
        assert ((await other.gauges()).retrying, (await store.gauges()).retrying) == ({1: 1}, {})

    async def test_workers_are_seen_by_others(self, store: Store, make_store: MakeStore) -> None:
        registered = [await live_worker(store, host="a", pid=7, queues=["x", "y"], code={"flow": "v1", "ça": "é"})]
        registered.append(await live_worker(store, lease=60 * SECOND))
        other = await make_store()
        seen = await other.workers()
        assert [(w.worker_id, w.host, w.pid, w.queues, w.code) for w in seen] == [
            (w.worker_id, w.host, w.pid, w.queues, w.code)
            for w in sorted(registered, key=lambda worker: worker.worker_id)
        ]
        assert all(worker.live for worker in seen)
        await start_owned(store, registered[1])
        owned = {worker.worker_id: worker.runs for worker in await other.workers()}
        assert owned == {registered[0].worker_id: 0, registered[1].worker_id: 1}
        await store.retire(registered[0].worker_id)
        assert [worker.worker_id for worker in await other.workers()] == [registered[1].worker_id]

    async def test_workers_whose_lease_is_over_are_seen_too(self, store: Store) -> None:
        brief = worker_info()
        until = await store.register(brief) + brief.lease
        lasting = await live_worker(store, lease=60 * SECOND)
        await outlive_lease(store)
        seen = {worker.worker_id: worker for worker in await store.workers()}
        assert (seen[brief.worker_id].lease_until, seen[brief.worker_id].live) == (until, False)
        assert seen[lasting.worker_id].live

    async def test_a_beat_moves_the_lease_that_others_see(self, store: Store) -> None:
        worker = await live_worker(store)
        [before] = await store.workers()
        store.shift_clock(1)
        await beat(store, worker)
        [after] = await store.workers()
        assert after.lease_until >= before.lease_until + SECOND
        assert after.beat_at >= before.beat_at + SECOND
        assert after.registered_at == before.registered_at == before.beat_at
        assert (after.code, after.queues) == (worker.code, worker.queues)

    async def test_registering_again_replaces_what_others_see(self, store: Store) -> None:
        worker = await live_worker(store, host="a")
        worker.code, worker.host = {"flow": "v2"}, "b"
        assert [(seen.code, seen.host) for seen in await store.workers()] == [({"flow": "v1"}, "a")]
        await store.register(worker)
        assert [(seen.code, seen.host) for seen in await store.workers()] == [({"flow": "v2"}, "b")]

    async def test_workers_stay_within_the_namespace(self, store: Store, make_store: MakeStore) -> None:
        await live_worker(await make_store(namespace="other"))
        assert await store.workers() == []

    async def test_a_shifted_clock_moves_now_only_here(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        store.shift_clock(3_600)
        assert await store.now() > await other.now() + 3_000 * 1_000_000
