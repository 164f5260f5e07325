"""What starts flows beside events of their type: schedules, topics; and how many there are at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import batuta
from batuta.codecs import Encryption, Keys
from batuta.connect import store_for
from batuta.errors import InvalidInput, StoreUnavailable, UnknownSchedule
from batuta.flows.calls import serving
from batuta.journal.flows.records import Accepted, NewEvent
from batuta.webhooks.addresses import AddressPolicy
from tests.flows.http import CHECK, DONE, HERE, SPRINT, Orkestr, Receiver, calling, orkestr

ASK: dict[str, Any] = {"key": "ask", "type": "approval", "config": {"title": "?"}}
STEPS: list[dict[str, Any]] = [ASK, DONE]


def asks(run: Any) -> bool:
    """Whether it waits for a person."""
    return any(step["status"] == "RUNNING" for step in run["steps"])


@asynccontextmanager
async def triggered(url: str, trigger: Any, steps: Any = None) -> AsyncIterator[Orkestr]:
    """A published flow, and a worker with all that it needs."""
    async with orkestr(url, working=False) as api:
        await api.published(SPRINT | {"trigger": trigger, "steps": steps or [CHECK, DONE]})
        async with api.client.worker(**await api.client.flows.parts()):
            yield api


async def runs(api: Orkestr, count: int) -> list[Any]:
    async with asyncio.timeout(60):
        while len(found := (await api.get("/api/runs"))["runs"]) < count:
            await asyncio.sleep(0.05)
    return list(found)


async def test_a_schedule_starts_a_flow_and_goes_when_it_is_deactivated(url: str) -> None:
    planned = {"schedule": {"cron": "0 2 * * *", "timezone": "America/Sao_Paulo", "payload": {"amount": 500}}}
    async with triggered(url, planned) as api:
        schedules = api.client.schedules
        [schedule] = await schedules.list()
        await schedules.trigger(schedule.id)
        [run] = await runs(api, 1)
        event = await api.get(f"/api/events/{run['event_id']}")
        assert (event["source"], event["payload"]) == ("schedule", {"amount": 500})
        await api.post(f"/api/workflows/{run['workflow_id']}/deactivate")
        with pytest.raises(UnknownSchedule):
            await schedules.get(schedule.id)


async def test_each_message_of_a_topic_starts_a_flow_once(url: str) -> None:
    async with triggered(url, {"topic": "invoices"}) as api:
        for _ in range(2):
            await api.client.publish("invoices", {"amount": 7}, id="m-1")
        await api.client.publish("invoices", [1, 2], id="m-2")
        found = await runs(api, 2)
        events = [await api.get(f"/api/events/{run['event_id']}") for run in found]
    assert sorted((one["external_id"], one["source"]) for one in events) == [
        ("m-1:Sprint 1 Test", "bus invoices"),
        ("m-2:Sprint 1 Test", "bus invoices"),
    ]
    assert {"message": [1, 2]} in [one["payload"] for one in events]


async def test_a_worker_learns_what_flows_need_that_are_published_after_it_began(url: str) -> None:
    async with orkestr(url, working=False) as api, api.client.worker(flows=True):
        limited = {"concurrency": {"key": "{{ event.payload.customer }}", "limit": 3}}
        planned = {"schedule": {"cron": "0 2 * * *", "payload": {"amount": 5}}}
        for name, trigger in (("limited", limited), ("topical", {"topic": "invoices"}), ("planned", planned)):
            more = {"trigger_type": "invoice_overdue"} if name == "limited" else {"trigger_type": ""}
            await api.published(SPRINT | more | {"name": name, "trigger": trigger})
        await api.client.publish("invoices", {"amount": 7}, id="at once")  # before the worker has looked
        done = await api.done({"customer": "ana", "amount": 7})
        assert done["status"] == "COMPLETED"
        await api.client.schedules.trigger("flow planned")
        found = await runs(api, 3)
        assert [(await api.ended(run["id"]))["status"] for run in found] == ["COMPLETED"] * 3
        second = await api.post(f"/api/workflows/{done['workflow_id']}/versions")
        await api.patch(
            f"/api/workflows/{second['id']}", {"trigger": {"concurrency": limited["concurrency"] | {"limit": 4}}}
        )
        await api.post(f"/api/workflows/{second['id']}/publish")
        assert (await api.done({"customer": "ana", "amount": 7}))["status"] == "COMPLETED"


async def test_a_flow_that_gets_another_topic_hears_the_old_one_no_more(sqlite_url: str) -> None:
    async with orkestr(sqlite_url, working=False) as api, api.client.worker(flows=True):
        first = await api.published(SPRINT | {"trigger": {"topic": "old"}})
        await api.client.publish("old", {"amount": 1})
        await runs(api, 1)
        second = await api.post(f"/api/workflows/{first['id']}/versions")
        await api.patch(f"/api/workflows/{second['id']}", {"trigger": {"topic": "new"}})
        await api.post(f"/api/workflows/{second['id']}/publish")
        await api.client.publish("old", {"amount": 2})
        await api.client.publish("new", {"amount": 3})
        events = [await api.get(f"/api/events/{run['event_id']}") for run in await runs(api, 2)]
    assert sorted(event["payload"]["amount"] for event in events) == [1, 3]


async def test_messages_of_a_topic_pass_the_filter_and_the_limit_of_their_key(url: str) -> None:
    filtered = {"field": "amount", "operator": "gte", "value": 5}
    concurrency = {"key": "{{ event.payload.customer }}", "overlap": "skip"}
    trigger = {"topic": "invoices", "filter": filtered, "concurrency": concurrency}
    async with triggered(url, trigger, STEPS) as api:
        for number, amount in enumerate((1, 7, 8)):
            await api.client.publish("invoices", {"customer": "ana", "amount": amount}, id=f"m-{number}", key="ana")
        await api.client.publish("invoices", {"customer": "rui", "amount": 9}, id="last", key="ana")
        found = await runs(api, 2)
        events = [await api.get(f"/api/events/{run['event_id']}") for run in found]
        assert sorted(event["payload"]["amount"] for event in events) == [7, 9]
        flows, flow = api.client.flows, found[0]["workflow_id"]
        for amount in (8, 9):  # they are delivered once more
            await flows.runs.begin(flow, {"customer": "ana", "amount": amount}, "bus invoices", f"m-{amount - 6}")
        assert len((await api.get("/api/runs"))["runs"]) == 2


async def test_two_flows_of_one_topic_each_begin_as_their_own_trigger_says(sqlite_url: str) -> None:
    limited = {"concurrency": {"key": "{{ event.payload.customer }}"}, "topic": "invoices"}
    calm = {"debounce": {"key": "{{ event.payload.customer }}", "wait": "1h"}, "topic": "invoices"}
    async with orkestr(sqlite_url, working=False) as api:
        flows = api.client.flows
        for name, trigger in (("first", limited), ("second", limited), ("calm", calm)):
            await api.published(SPRINT | {"name": name, "trigger": trigger, "steps": STEPS})
        made = {one.name: one.id for one in (await flows.list()).workflows}
        begun = {}
        for name in ("first", "second", "calm"):
            begun[name] = await flows.runs.begin(made[name], {"customer": "ana"}, "bus invoices", "m-1")
            again = await flows.runs.begin(made[name], {"customer": "ana"}, "bus invoices", "m-1")
            assert again == begun[name], "it is delivered once more"
        described = {name: await (await api.client.get(str(id))).describe() for name, id in begun.items()}
        await flows.runs.begin(made["calm"], {"customer": "ana"}, "bus invoices", "m-2")
        assert len(await runs(api, 3)) == 3, "the debounced run has both messages"
    assert [described[name].queue for name in begun] == ["flows-1", "flows-1", "default"]


async def test_a_start_whose_debounce_key_is_busy_is_tried_again(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with orkestr(sqlite_url, working=False) as api:
        flow = await api.published(SPRINT | {"trigger": {"debounce": {"key": "k", "wait": "1h"}}})
        flows = api.client.flows

        async def stale(new: NewEvent, requests: object = ()) -> Accepted:
            return Accepted(new.event, False, True)

        monkeypatch.setattr(flows.runs._backend, "accept", stale)
        with pytest.raises(StoreUnavailable, match="try again"):
            await flows.runs.begin(flow["id"], {}, "bus invoices", "m-1")


async def test_a_flow_that_leaves_a_topic_has_no_messages_kept_for_it(url: str) -> None:
    async with orkestr(url, working=False) as api:

        async def kept() -> list[str]:
            return [one.topic for one in (await api.client.bus.status()).subscriptions]

        first = await api.published(SPRINT | {"trigger": {"topic": "old"}})
        assert await kept() == ["old"]
        await api.post(f"/api/workflows/{first['id']}/deactivate")
        assert await kept() == []
        await api.post(f"/api/workflows/{first['id']}/activate")
        assert await kept() == ["old"]
        second = await api.post(f"/api/workflows/{first['id']}/versions")
        await api.patch(f"/api/workflows/{second['id']}", {"trigger": {"topic": "new"}})
        assert await kept() == ["old"], "it is a draft yet"
        await api.post(f"/api/workflows/{second['id']}/publish")
        assert await kept() == ["new"]


async def test_what_one_flow_needs_and_cannot_have_keeps_a_worker_from_no_other(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LOOK", 0.02)
    async with orkestr(sqlite_url, working=False) as api:
        client = api.client
        async with client.worker(flows=True):
            keep, worker, kept, queues = client.keep_for, client.worker, list[str](), list[Any]()

            async def keep_for(subscription: Any) -> None:
                kept.append(subscription.topic)
                if subscription.topic == "bad" and kept.count("bad") > 1:  # the first one lets the flow be published
                    raise InvalidInput("another subscription has its name")
                await keep(subscription)

            def make(**parts: Any) -> Any:
                queues.append(parts["queues"])
                if len(queues) == 1:
                    raise RuntimeError("the first does not begin")
                return worker(**parts)

            monkeypatch.setattr(client, "keep_for", keep_for)
            monkeypatch.setattr(client, "worker", make)
            await api.published(SPRINT | {"trigger": {"concurrency": {"key": "k", "limit": 7}}})
            assert (await api.done({"amount": 7}))["status"] == "COMPLETED"
            assert set(map(tuple, queues)) == {("flows-7",)}, "the first worker serves the default queue"
            for topic in ("bad", "good"):
                await api.published(SPRINT | {"name": topic, "trigger_type": "", "trigger": {"topic": topic}})
            await client.publish("good", {"amount": 7})
            assert len(await runs(api, 2)) == 2


@pytest.mark.parametrize("overlap", ["skip", "cancel"])
async def test_an_open_run_of_the_key_is_left_alone_or_cancelled(sqlite_url: str, overlap: str) -> None:
    trigger = {"concurrency": {"key": "{{ event.payload.customer }}", "overlap": overlap}}
    async with triggered(sqlite_url, trigger, STEPS) as api:
        first = await api.run_of(await api.event({"customer": "ana"}))
        await api.until(first, lambda run: any(step["status"] == "RUNNING" for step in run["steps"]))
        other = await api.run_of(await api.event({"customer": "rui"}))
        await api.until(other, lambda run: any(step["status"] == "RUNNING" for step in run["steps"]))
        begun = (await api.get(f"/api/events/{(await api.event({'customer': 'ana'}))['id']}"))["runs"]
        if overlap == "skip":
            assert begun == []
            return
        [second] = begun
        assert (await api.ended(first))["status"] == "CANCELLED"
        await api.until(second, lambda run: any(step["status"] == "RUNNING" for step in run["steps"]))


async def test_one_more_run_of_the_key_waits_until_the_first_has_ended_and_others_are_left_out(url: str) -> None:
    trigger = {"concurrency": {"key": "{{ event.payload.customer }}", "overlap": "buffer"}}
    async with triggered(url, trigger, STEPS) as api:
        first = await api.run_of(await api.event({"customer": "ana"}))
        await api.until(first, asks)
        second = await api.run_of(await api.event({"customer": "ana"}))
        third = await api.event({"customer": "ana"})
        assert (await api.get(f"/api/events/{third['id']}"))["runs"] == []
        assert [step["status"] for step in (await api.get(f"/api/runs/{second}"))["steps"]] == ["PENDING"]
        await api.post(f"/api/runs/{first}/decide", {"step": "ask", "approved": True})
        assert (await api.ended(first))["status"] == "COMPLETED"
        await api.until(second, asks)
        fourth = await api.run_of(await api.event({"customer": "ana"}))
        await api.post(f"/api/runs/{second}/cancel")
        await api.until(fourth, asks)


@pytest.mark.parametrize("overlap", ["skip", "cancel", "buffer"])
async def test_events_of_a_key_at_one_moment_in_two_processes_begin_one_run(url: str, overlap: str) -> None:
    trigger = {"concurrency": {"key": "{{ event.payload.customer }}", "overlap": overlap}}
    async with triggered(url, trigger, STEPS) as api, batuta.connect(url) as other:
        sent = await asyncio.gather(
            *(client.flows.events.send("invoice_overdue", {"customer": "ana"}) for client in (api.client, other) * 4)
        )
        begun = await other.flows.runs.of_events([one.event.id for one in sent])
        ids = [id for one in begun.values() for id in one]
        assert len(ids) == {"skip": 1, "buffer": 2, "cancel": 8}[overlap]
        async with asyncio.timeout(60):
            while sum(map(asks, found := [await api.get(f"/api/runs/{id}") for id in ids])) != 1 or (
                overlap == "cancel" and sum(one["status"] == "CANCELLED" for one in found) != 7
            ):
                await asyncio.sleep(0.05)


async def test_a_debounced_event_writes_its_payload_in_its_own_transaction_also_with_a_codec(url: str) -> None:
    trigger = {"debounce": {"key": "{{ event.payload.customer }}", "wait": "1h"}}
    codec = Encryption(Keys({"k": b"k" * 32}))
    async with batuta.connect(url, codec=codec) as client, batuta.connect(url, codec=codec) as other:
        draft = await client.flows.create(SPRINT | {"trigger": trigger, "steps": [CHECK, DONE]})
        await client.flows.publish(draft.id)
        sent = [
            await one.flows.events.send("invoice_overdue", {"customer": "ana", "amount": n})
            for n, one in enumerate((client, other, client))
        ]
        assert all(one.is_new for one in sent)
        begun = await client.flows.runs.of_events([one.event.id for one in sent])
        [run_id] = {id for one in begun.values() for id in one}
        chain = (await (await client.get(run_id)).describe()).run_id
    store = store_for(url, codec=codec)
    await store.open()
    [message] = (await store.load(chain)).messages
    await store.close()
    assert '"amount":2' in message.body


async def test_runs_of_a_key_work_one_after_the_other(sqlite_url: str) -> None:
    trigger = {"concurrency": {"key": "{{ event.payload.customer }}"}}
    async with Receiver() as receiver, orkestr(sqlite_url, working=False) as api:
        receiver.held.clear()
        await api.published(calling(receiver.url) | {"trigger": trigger})
        policy = AddressPolicy(HERE)
        async with api.client.worker(**await api.client.flows.parts(policy=policy)), asyncio.timeout(60):
            runs = [
                await api.run_of(await api.event({"customer": name, "amount": 500})) for name in ("ana", "ana", "rui")
            ]
            while len(receiver.requests) < 2:
                await asyncio.sleep(0.05)
            assert (await api.get(f"/api/runs/{runs[1]}"))["status"] == "PENDING"
            receiver.held.set()
            assert [(await api.ended(run))["status"] for run in runs] == ["COMPLETED"] * 3
    bodies = [json.loads(body)["customer"] for _, body in receiver.requests]
    assert sorted(bodies[:2]) == ["ana", "rui"]


async def test_debounced_events_begin_one_run_with_the_last_of_them(sqlite_url: str) -> None:
    trigger = {"debounce": {"key": "{{ event.payload.customer }}", "wait": 0.5}}
    async with triggered(sqlite_url, trigger) as api:
        events = [await api.event({"customer": "ana", "amount": n}) for n in (200, 50)]
        run = await api.ended(await api.run_of(events[1]))
        assert run["steps"][0]["input"] == {"customer": "ana", "amount": 50}
        assert (await api.get(f"/api/events/{events[0]['id']}"))["runs"] == [run["id"]]
        assert len((await api.get("/api/runs"))["runs"]) == 1


async def test_keys_of_flows_whose_names_and_keys_read_alike_are_their_own(sqlite_url: str) -> None:
    """A run of one flow neither replaces nor waits for one of another."""
    calm = {"debounce": {"key": "{{ event.payload.key }}", "wait": 0.5}}
    async with orkestr(sqlite_url, working=False) as api:
        for name in ("mail", "mail:bulk"):
            filtered = {"filter": {"field": "event.payload.flow", "operator": "equals", "value": name}}
            await api.published(SPRINT | {"name": name, "trigger": calm | filtered, "steps": [CHECK, DONE]})
        async with api.client.worker(**await api.client.flows.parts()):
            await api.event({"flow": "mail", "key": "bulk:42"})
            await api.event({"flow": "mail:bulk", "key": "42"})
            assert len(await runs(api, 2)) == 2


@pytest.mark.parametrize("trigger", [{"concurrency": {"overlap": "skip"}}, {"debounce": {"wait": 1}}])
async def test_a_key_that_a_database_cannot_hold_keeps_no_event_away(url: str, trigger: dict[str, Any]) -> None:
    keyed = {name: {"key": "{{ event.payload.k }}"} | config for name, config in trigger.items()}
    async with orkestr(url, working=False) as api:
        await api.published(SPRINT | {"trigger": keyed, "steps": [CHECK, DONE]})
        first, second = [await api.run_of(await api.event({"k": key})) for key in ("a\0", "b\0")]
    assert first != second
