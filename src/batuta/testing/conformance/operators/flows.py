"""Flows, and events with the runs that they begin."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from batuta.clock import SECOND
from batuta.errors import UnknownEvent, UnknownSchedule
from batuta.ids import RunId, new_run_id
from batuta.journal.audit import Act, ActFilter, Verb
from batuta.journal.flows.records import (
    EventFilter,
    EventRow,
    FlowFilter,
    FlowRow,
    FlowRunFilter,
    FlowSchedule,
    FlowStart,
    NewEvent,
)
from batuta.journal.records import IfExists, RunFilter
from batuta.journal.schedules import ScheduleRow
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, new_run

EVERY = EventFilter()
PUBLISH = Act(actor="eve", verb=Verb.PUBLISH_FLOW, reason="it is ready")


def flow(name: str = "reminder", **given: Any) -> FlowRow:
    return FlowRow(workflow_id=new_run_id(), name=name, **({"document": "{}", "trigger_type": "overdue"} | given))


def event(external_id: str | None = None, **given: Any) -> EventRow:
    settings: dict[str, Any] = {"type": "overdue", "source": "api", "payload": '{"\u00e9":1}'} | given
    return EventRow(event_id=new_run_id(), external_id=external_id, **settings)


def start(workflow_id: UUID, **options: Any) -> FlowStart:
    return FlowStart(workflow_id, new_run(**options))


def counted(workflow_id: UUID, key: str, room: int, **options: Any) -> FlowStart:
    return FlowStart(workflow_id, new_run(flow_key=key, **options), room)


async def count(store: Store) -> int:
    return await store.count_runs(RunFilter())


class FlowsConformance:
    """A store keeps versions of flows, and knows which are active."""

    async def test_a_flow_is_read_as_it_was_written(self, store: Store) -> None:
        made = flow(document='{"steps":["\u00e9"]}', description="said", version=3)
        assert await store.put_flow(made)
        found = await store.flow(made.workflow_id)
        assert found is not None
        assert (found.name, found.version, found.document, found.description) == (
            "reminder",
            3,
            '{"steps":["\u00e9"]}',
            "said",
        )
        assert found.published_at is None
        assert found.created_at == found.updated_at > 0
        assert await store.flow(new_run_id()) is None

    async def test_a_name_has_each_version_once(self, store: Store) -> None:
        assert await store.put_flow(flow())
        assert not await store.put_flow(flow())
        second = flow(version=2)
        assert await store.put_flow(second)
        kept = await store.flow(second.workflow_id)
        assert kept is not None
        kept.version = 1
        assert not await store.put_flow(kept, kept.revision)
        assert [one.version for one in await store.flows(FlowFilter(name="reminder"))] == [2, 1]

    async def test_a_write_over_a_flow_that_changed_since_it_was_read_is_refused(self, store: Store) -> None:
        made = flow()
        await store.put_flow(made)
        read = await store.flow(made.workflow_id)
        assert read is not None
        assert await store.put_flow(read, read.revision)
        assert not await store.put_flow(read, read.revision)
        assert not await store.put_flow(flow("other"), 1)

    async def test_one_version_of_a_name_is_active(self, store: Store) -> None:
        first, second, other = flow(), flow(version=2), flow("other", is_active=True)
        for each in (first, second, other):
            await store.put_flow(each)
        for each in (first, second):
            read = await store.flow(each.workflow_id)
            assert read is not None
            read.is_active = True
            assert await store.put_flow(read, read.revision)
        active = await store.active_flows("overdue")
        assert sorted(one.workflow_id for one in active) == sorted([second.workflow_id, other.workflow_id])
        assert await store.active_flows("another") == []

    async def test_a_flow_is_written_with_its_schedule_or_not_at_all(self, store: Store) -> None:
        made = flow()
        planned = FlowSchedule("s", ScheduleRow(id="s", spec='{"when":1}', next_at=5))
        assert await store.put_flow(made, schedule=planned)
        first = (await store.schedule("s")).schedule
        assert (first.spec, first.next_at, first.paused) == ('{"when":1}', 5, False)
        assert await store.put_schedule(structs.replace(first, paused=True, reason="holiday"), first.revision)
        later = FlowSchedule("s", ScheduleRow(id="s", spec='{"when":2}', next_at=9))
        assert not await store.put_flow(made, 1, schedule=later)
        assert not await store.put_flow(flow(), schedule=FlowSchedule("s"))
        assert (await store.schedule("s")).schedule.next_at == 5
        read = await store.flow(made.workflow_id)
        assert read is not None
        assert await store.put_flow(read, read.revision, schedule=later)
        second = (await store.schedule("s")).schedule
        assert (second.spec, second.next_at, second.paused, second.reason) == ('{"when":2}', 9, True, "holiday")
        assert second.revision > first.revision + 1
        assert await store.put_flow(read, read.revision + 1)
        assert (await store.schedule("s")).schedule == second
        assert await store.put_flow(read, read.revision + 2, schedule=FlowSchedule("s"))
        with pytest.raises(UnknownSchedule):
            await store.schedule("s")
        assert await store.put_flow(read, read.revision + 3, schedule=FlowSchedule("s"))

    async def test_flows_that_changed_are_found_by_the_time_of_their_last_write(self, store: Store) -> None:
        made = [flow(name) for name in "abc"]
        for one in made:
            await store.put_flow(one)
            store.shift_clock(1)
        rows = await store.changed_flows(0)
        assert [row.name for row in rows] == ["a", "b", "c"]
        assert [row.name for row in await store.changed_flows(rows[1].updated_at)] == ["b", "c"]
        assert [row.name for row in await store.changed_flows(0, 1)] == ["a"]
        assert await store.put_flow(rows[0], rows[0].revision)
        assert [row.name for row in await store.changed_flows(0)] == ["b", "c", "a"]
        assert await store.changed_flows((await store.now()) + 60 * SECOND) == []

    async def test_flows_are_listed_by_name_and_filtered(self, store: Store) -> None:
        for name, version, more in (("b", 1, {}), ("a", 1, {"published_at": 5}), ("b", 2, {"is_active": True})):
            await store.put_flow(flow(name, version=version, **more))
        whole = [(one.name, one.version) for one in await store.flows(FlowFilter())]
        assert whole == [("a", 1), ("b", 2), ("b", 1)]
        assert [one.version for one in await store.flows(FlowFilter(), ("b", 2))] == [1]
        assert [one.name for one in await store.flows(FlowFilter(), limit=1)] == ["a"]
        assert [one.name for one in await store.flows(FlowFilter(published=True))] == ["a"]
        assert [one.version for one in await store.flows(FlowFilter(active=True))] == [2]
        assert await store.flows(FlowFilter(trigger_type="none")) == []

    async def test_what_was_done_to_a_flow_is_in_the_audit_log(self, store: Store) -> None:
        made = flow()
        assert await store.put_flow(made, act=PUBLISH)
        assert not await store.put_flow(flow(), act=PUBLISH)
        [act] = await store.acts(ActFilter(target="reminder@1"))
        assert (act.actor, act.verb, act.reason) == ("eve", "publish flow", "it is ready")


class EventsConformance:
    """A store keeps events, each once, with the runs that they begin."""

    async def test_an_event_and_its_runs_are_written_together(self, store: Store) -> None:
        made, begun = flow(is_active=True), start(new_run_id())
        await store.put_flow(made)
        begun.workflow_id = made.workflow_id
        came = event("1")
        [one] = await store.accept_events([NewEvent(event=came, flows=[made.workflow_id], starts=[begun])])
        assert (one.is_new, one.is_stale, one.event.payload) == (True, False, '{"\u00e9":1}')
        assert await store.event(came.event_id) == one.event
        run = await store.get_run(begun.run.run_id)
        assert run.state == "pending"
        [linked] = await store.flow_runs(FlowRunFilter(event_ids=(came.event_id,)))
        assert (linked.workflow_id, linked.chain_id) == (made.workflow_id, run.run_id)
        assert await store.flow_runs(FlowRunFilter(workflow_id=made.workflow_id)) == [linked]

    async def test_a_repeated_event_is_the_first_one_and_begins_nothing(self, store: Store) -> None:
        workflow_id = new_run_id()
        first, again, same_batch = event("1", payload="1"), event("1", payload="2"), event("1", payload="3")
        found = await store.accept_events(
            [NewEvent(event=one, starts=[start(workflow_id)]) for one in (first, same_batch)]
        )
        found += await store.accept_events([NewEvent(event=again, starts=[start(workflow_id)])])
        assert [(one.is_new, one.event.payload) for one in found] == [(True, "1"), (False, "1"), (False, "1")]
        assert {one.event.event_id for one in found} == {first.event_id}
        assert await count(store) == 1

    async def test_the_external_id_belongs_to_its_source(self, store: Store) -> None:
        found = await store.accept_events([NewEvent(event=event("1", source=name)) for name in ("api", "webhook")])
        found += await store.accept_events([NewEvent(event=event()), NewEvent(event=event())])
        assert [one.is_new for one in found] == [True] * 4

    async def test_an_event_that_is_written_again_is_new_again_and_begins_nothing_more(self, store: Store) -> None:
        came = NewEvent(event=event("1"), starts=[start(new_run_id())])
        [first], [again] = await store.accept_events([came]), await store.accept_events([came])
        assert (again.is_new, again.event) == (True, first.event)
        assert await count(store) == 1

    async def test_an_event_is_stale_when_other_flows_are_active(self, store: Store) -> None:
        made = flow(is_active=True)
        await store.put_flow(made)
        came = event("1")
        for flows in ([], [new_run_id()]):
            [one] = await store.accept_events([NewEvent(event=came, flows=flows, starts=[start(new_run_id())])])
            assert one.is_stale
        assert await store.events(EVERY) == []
        assert await count(store) == 0
        other = NewEvent(event=event(type="other"), flows=[])
        right = NewEvent(event=came, flows=[made.workflow_id])
        assert [one.is_new for one in await store.accept_events([other, right])] == [True, True]

    async def test_a_thousand_events_come_in_at_once(self, store: Store) -> None:
        workflow_id = new_run_id()
        came = [NewEvent(event=event(str(n % 990)), starts=[start(workflow_id)]) for n in range(1_000)]
        found = await store.accept_events(came)
        assert sum(one.is_new for one in found) == 990
        assert await count(store) == 990
        page = await store.flow_runs(FlowRunFilter(workflow_id=workflow_id), limit=7)
        rest = await store.flow_runs(FlowRunFilter(workflow_id=workflow_id), page[-1].chain_id, 7)
        ids = [one.chain_id for one in (*page, *rest)]
        assert ids == sorted(ids, reverse=True)
        assert len(set(ids)) == 14

    async def test_the_same_event_from_many_is_accepted_once(self, store: Store, make_store: MakeStore) -> None:
        stores = [store, await make_store(), await make_store()]
        workflow_id = new_run_id()
        found = await asyncio.gather(
            *(
                one.accept_events([NewEvent(event=event(str(n)), starts=[start(workflow_id)]) for n in order])
                for one, order in zip(stores, (range(20), range(19, -1, -1), range(20)), strict=True)
            )
        )
        assert sum(each.is_new for part in found for each in part) == 20
        assert await count(store) == 20

    async def test_a_debounced_run_does_what_the_last_event_asks(self, store: Store) -> None:
        workflow_id = new_run_id()
        runs = [start(workflow_id, debounce="k", delay=60 * SECOND, start=f'{{"value":[{n}]}}') for n in range(3)]
        came = [event(str(n)) for n in range(3)]
        for one, run in zip(came, runs, strict=True):
            await store.accept_events([NewEvent(event=one, starts=[run])])
        assert await count(store) == 1
        first = await store.get_run(runs[0].run.run_id)
        [message] = (await store.load(first.run_id)).messages
        assert "2" in message.body
        linked = await store.flow_runs(FlowRunFilter(event_ids=tuple(one.event_id for one in came)))
        assert {one.chain_id for one in linked} == {first.run_id}

    async def test_a_run_whose_id_an_open_one_has_is_skipped(self, store: Store) -> None:
        workflow_id = new_run_id()
        runs = [start(workflow_id, id="one at a time", if_exists=IfExists.RENEW) for _ in range(2)]
        for number, run in enumerate(runs):
            await store.accept_events([NewEvent(event=event(str(number)), starts=[run])])
        assert await count(store) == 1
        assert [one.chain_id for one in await store.flow_runs(FlowRunFilter(workflow_id=workflow_id))] == [
            runs[0].run.run_id
        ]

    async def test_a_run_by_hand_begins_once_for_an_event(self, store: Store) -> None:
        came, workflow_id = event(), new_run_id()
        await store.accept_events([NewEvent(event=came)])
        first, is_new = await store.start_flow_run(came.event_id, start(workflow_id))
        again, is_new_again = await store.start_flow_run(came.event_id, start(workflow_id))
        assert (is_new, is_new_again, again) == (True, False, first)
        other, other_is_new = await store.start_flow_run(came.event_id, start(new_run_id()))
        assert other_is_new
        assert other.chain_id != first.chain_id
        assert await count(store) == 2
        with pytest.raises(UnknownEvent):
            await store.start_flow_run(new_run_id(), start(workflow_id))
        assert await count(store) == 2

    async def test_events_are_listed_newest_first_and_filtered(self, store: Store) -> None:
        came = [event("1"), event("2", source="webhook"), event(type="paid")]
        await store.accept_events([NewEvent(event=one) for one in came])
        ids = [one.event_id for one in came]
        assert [one.event_id for one in await store.events(EVERY)] == ids[::-1]
        assert [one.event_id for one in await store.events(EVERY, ids[2], 1)] == [ids[1]]
        assert [one.event_id for one in await store.events(EventFilter(type="overdue"))] == ids[1::-1]
        assert [one.event_id for one in await store.events(EventFilter(source="webhook", external_id="2"))] == [ids[1]]
        assert await store.event(new_run_id()) is None

    async def test_old_events_are_deleted_when_their_runs_are_gone(self, store: Store) -> None:
        kept, begun = event("1"), start(new_run_id())
        await store.accept_events([NewEvent(event=kept, starts=[begun])])
        await store.accept_events([NewEvent(event=event(str(n))) for n in range(2, 5)])
        assert await store.prune_events(60 * SECOND, 10) == 0
        store.shift_clock(61)
        await store.accept_events([NewEvent(event=event("late"))])
        assert await store.prune_events(60 * SECOND, 2) == 2
        assert await store.prune_events(60 * SECOND, 2) == 1
        assert {one.external_id for one in await store.events(EVERY)} == {"1", "late"}
        [again] = await store.accept_events([NewEvent(event=event("2"))])
        assert again.is_new
        act = Act(actor="eve", verb=Verb.DELETE)
        await store.terminate_runs([begun.run.run_id], "over", act)
        assert await store.delete_runs([begun.run.run_id], act) == [begun.run.run_id]
        assert await store.prune_events(60 * SECOND, 9) == 1
        assert await store.flow_runs(FlowRunFilter(event_ids=(kept.event_id,))) == []

    async def test_open_runs_are_found_by_the_beginning_of_their_ids(self, store: Store) -> None:
        runs = {id: new_run(id) for id in ("wait:b:1", "wait:b:2", "wait:c:1", "wait", "x")}
        await store.start_many(list(runs.values()))
        act = Act(actor="eve", verb=Verb.TERMINATE)
        await store.terminate_runs([runs["wait:b:2"].run_id], "over", act)
        assert await store.open_runs("wait:b:", 9) == [runs["wait:b:1"].run_id]
        assert await store.open_runs("wait:", 1) == [runs["wait:b:1"].run_id]
        assert await store.open_runs("nothing", 9) == []

    async def test_no_more_runs_of_a_key_begin_than_there_is_room_for(self, store: Store) -> None:
        workflow_id, sent = new_run_id(), [event() for _ in range(5)]
        runs = [counted(workflow_id, "ana", 2) for _ in sent]
        in_one = [NewEvent(event=one, starts=[run]) for one, run in zip(sent[:3], runs, strict=False)]
        assert [one.is_new for one in await store.accept_events(in_one)] == [True, True, True]
        assert await count(store) == 2
        assert await store.counted_runs("ana") == [one.run.run_id for one in runs[:2]]
        assert await store.counted_runs("rui") == []
        assert await store.flow_runs(FlowRunFilter(event_ids=(sent[2].event_id,))) == []
        act = Act(actor="eve", verb=Verb.TERMINATE)
        await store.terminate_runs([runs[0].run.run_id], "over", act)
        assert await store.counted_runs("ana") == [runs[1].run.run_id]
        await store.accept_events([NewEvent(event=sent[3], starts=[runs[3], counted(new_run_id(), "rui", 1)])])
        await store.accept_events([NewEvent(event=sent[4], starts=[runs[4], start(new_run_id(), flow_key="ana")])])
        assert await count(store) == 5
        assert await store.counted_runs("ana") == [runs[1].run.run_id, runs[3].run.run_id]

    async def test_counted_runs_are_in_the_order_in_which_they_found_room(self, store: Store) -> None:
        late, early = counted(new_run_id(), "ana", 2), counted(new_run_id(), "ana", 2)
        for one in (early, late):  # the second has the smaller id: its process made it earlier, and wrote it later
            await store.accept_events([NewEvent(event=event(), starts=[one])])
        assert await store.counted_runs("ana") == [early.run.run_id, late.run.run_id]

    async def test_an_event_that_is_written_again_counts_no_run_twice(self, store: Store) -> None:
        run = counted(new_run_id(), "ana", 2)
        came = NewEvent(event=event("1"), starts=[run])
        for _ in range(3):
            await store.accept_events([came])
        await store.accept_events([NewEvent(event=event("1"), starts=[counted(new_run_id(), "ana", 2)])])
        assert await store.counted_runs("ana") == [run.run.run_id]
        await store.accept_events([NewEvent(event=event(), starts=[counted(new_run_id(), "ana", 2)])])
        assert await count(store) == 2

    async def test_events_of_one_key_at_the_same_moment_begin_one_run(
        self, store: Store, make_store: MakeStore
    ) -> None:
        stores = [store, await make_store(), await make_store()]
        keys = [f"k{n}" for n in range(6)]
        await asyncio.gather(
            *(
                one.accept_events(
                    [NewEvent(event=event(), starts=[counted(new_run_id(), key, 1)]) for key in keys[::order]]
                )
                for _ in range(3)
                for one, order in zip(stores, (1, -1, 1), strict=True)
            )
        )
        assert await count(store) == len(keys)

    async def test_a_debounced_run_is_counted_once_and_joined_when_there_is_no_room(self, store: Store) -> None:
        workflow_id = new_run_id()
        for number in range(3):
            run = counted(workflow_id, "ana", 1, debounce="k", delay=60 * SECOND, start=f'{{"value":[{number}]}}')
            assert (await store.accept_events([NewEvent(event=event(), starts=[run])]))[0].is_new
        assert await count(store) == 1
        [run_id] = await store.counted_runs("ana")
        [message] = (await store.load(run_id)).messages
        assert "2" in message.body
        other = counted(workflow_id, "ana", 1, debounce="k2", delay=60 * SECOND)
        plain = start(new_run_id())
        assert (await store.accept_events([NewEvent(event=event(), starts=[other, plain])]))[0].is_new
        assert await store.counted_runs("ana") == [run_id]
        assert await count(store) == 2


class PlacedEventsConformance:
    """A debounced start that says which run is to do its work is written for that run alone."""

    async def test_a_debounced_start_for_another_run_than_the_one_that_waits_is_not_written(self, store: Store) -> None:
        workflow_id = new_run_id()

        def debounced(instead: RunId | None = None) -> FlowStart:
            made = start(workflow_id, debounce="k", delay=60 * SECOND)
            made.run.instead = instead or made.run.run_id
            return made

        alone, came = debounced(new_run_id()), event("1")
        [refused] = await store.accept_events([NewEvent(event=came, starts=[alone])])
        own = alone.run.run_id
        assert (refused.is_new, refused.is_stale, refused.waits) == (False, True, {own: own})
        first = debounced()
        assert (await store.accept_events([NewEvent(event=event(), starts=[first])]))[0].is_new
        second = debounced()
        [refused] = await store.accept_events([NewEvent(event=came, starts=[second])])
        assert (refused.is_stale, refused.waits) == (True, {second.run.run_id: first.run.run_id})
        assert await store.event(came.event_id) is None
        right = debounced(first.run.run_id)
        assert (await store.accept_events([NewEvent(event=came, starts=[right])]))[0].is_new
        assert await count(store) == 1
