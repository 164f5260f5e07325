"""Flows, and events with the runs that they begin."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from batuta.clock import SECOND
from batuta.errors import UnknownEvent
from batuta.ids import new_run_id
from batuta.journal.audit import Act, ActFilter, Verb
from batuta.journal.flows.records import (
    EventFilter,
    EventRow,
    FlowFilter,
    FlowRow,
    FlowRunFilter,
    FlowStart,
    NewEvent,
)
from batuta.journal.records import IfExists, RunFilter
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
