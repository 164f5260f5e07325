"""What starts flows beside events of their type: schedules, topics; and how many there are at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from batuta.errors import UnknownSchedule
from batuta.webhooks.addresses import AddressPolicy
from tests.flows.http import CHECK, DONE, HERE, SPRINT, Orkestr, Receiver, calling, orkestr

ASK: dict[str, Any] = {"key": "ask", "type": "approval", "config": {"title": "?"}}
STEPS: list[dict[str, Any]] = [ASK, DONE]


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
        ("m-1", "bus invoices"),
        ("m-2", "bus invoices"),
    ]
    assert {"message": [1, 2]} in [one["payload"] for one in events]


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
