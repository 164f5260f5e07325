"""Gauges: how much is open, at one moment."""

from __future__ import annotations

from batuta.clock import SECOND
from batuta.journal.queues import QueueGauges
from batuta.journal.records import Move
from batuta.journal.schedules import ScheduleRow
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, live_worker, new_run, outlive_lease, start_owned
from batuta.testing.conformance.operators.dead_letters import give_up


class GaugesConformance:
    """Open runs are counted in every state; ended runs are not."""

    async def test_nothing_is_open_in_an_empty_store(self, store: Store) -> None:
        found = await store.gauges()
        assert abs(found.now - await store.now()) < 60 * SECOND
        assert (found.states, found.queues) == ({}, {})
        assert (found.workers, found.dead_letters, found.schedule_due) == (0, 0, None)

    async def test_the_open_are_counted_by_state_and_queue(self, store: Store) -> None:
        worker = await live_worker(store, queues=["default", "mail"])
        now = await store.now()
        pens = {id: await start_owned(store, worker, id) for id in ("owned", "asleep", "awaits", "parked", "ended")}
        await pens["asleep"].release(store, worker, wake_at=now + 600 * SECOND)
        await pens["awaits"].release(store, worker)
        await pens["parked"].write(store, worker, 0, move=Move(RunState.NEEDS_CODE, fingerprint="v1"))
        await pens["ended"].write(store, worker, move=Move(RunState.COMPLETED))
        await store.start_many([new_run(queue="mail"), new_run(queue="mail", flow_key="ann"), new_run(queue="more")])
        await store.start_many([new_run(queue="mail", flow_key="bob", delay=600 * SECOND)])
        await store.pause_queue("paused", True)
        found = await store.gauges()
        assert found.states == {
            RunState.RUNNING: 1,
            RunState.WAITING: 2,
            RunState.NEEDS_CODE: 1,
            RunState.PENDING: 4,
        }
        oldest = {name: queue.oldest for name, queue in found.queues.items()}
        assert oldest["mail"] is not None
        assert 0 <= found.now - oldest["mail"] < 60 * SECOND
        assert found.queues == {
            "default": QueueGauges(running=1, delayed=1, workers=1),
            "mail": QueueGauges(ready=2, delayed=1, workers=1, oldest=oldest["mail"]),
            "more": QueueGauges(ready=1, oldest=oldest["more"]),
            "paused": QueueGauges(paused=True),
        }

    async def test_workers_dead_letters_and_late_schedules_are_counted(self, store: Store) -> None:
        worker = await live_worker(store)
        await give_up(store, worker, "f")
        await give_up(store, worker, "g")
        now = await store.now()
        for id, next_at, paused in (
            ("late", now - SECOND, False),
            ("held", 1, True),
            ("next", now + 600 * SECOND, False),
        ):
            assert await store.put_schedule(ScheduleRow(id=id, spec="{}", next_at=next_at, paused=paused))
        found = await store.gauges()
        assert (found.workers, found.dead_letters, found.schedule_due) == (1, 2, now - SECOND)
        await outlive_lease(store)
        found = await store.gauges()
        assert (found.workers, found.queues) == (0, {})

    async def test_other_namespaces_are_not_counted(self, store: Store, make_store: MakeStore) -> None:
        await store.start(new_run())
        await give_up(store, await live_worker(store))
        found = await (await make_store("other")).gauges()
        assert (found.states, found.queues, found.workers, found.dead_letters) == ({}, {}, 0, 0)
