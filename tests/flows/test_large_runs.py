"""Events and runs with large payloads: what one answer shows of them is bounded."""

from typing import Any

import msgspec
import pytest

from batuta.flows.calls.reading import MOST_PARTS, MOST_TRIES
from batuta.flows.interpreter import LONG_LIST, PART
from batuta.server.flows.runs import MOST_SHOWN
from tests.flows.http import DONE, SPRINT, Receiver, orkestr

EACH: dict[str, Any] = {
    "key": "each",
    "type": "for_each",
    "config": {
        "items": "{{ event.payload.items }}",
        "steps": [{"key": "n", "type": "set", "config": {"values": {"n": "{{ context.item }}"}}}],
    },
}


async def test_steps_over_a_list_do_not_each_show_a_large_payload(sqlite_url: str) -> None:
    payload = {"items": list(range(30)), "text": "x" * (MOST_SHOWN // 10)}
    async with orkestr(sqlite_url) as api:
        await api.published(SPRINT | {"steps": [EACH, DONE]})
        run = await api.done(payload)
        listed = await api.get("/api/runs/failed")
    steps = [step for step in run["steps"] if step["step_key"] == "n"]
    assert (len(steps), steps[0]["input"]) == (30, payload)
    assert steps[-1]["input"] == {"left_out": len(msgspec.json.encode(payload))}
    assert steps[-1]["output"] == {"n": 29}, "small ones are shown all the same"
    assert len(msgspec.json.encode(run)) < MOST_SHOWN + 200_000
    assert listed["runs"] == []


@pytest.mark.parametrize("fails", ["in the list", "after it"])
async def test_a_run_that_is_retried_shows_the_steps_of_a_long_list(sqlite_url: str, fails: str) -> None:
    items = list(range(LONG_LIST + 5))
    async with Receiver([500]) as receiver, orkestr(sqlite_url) as api:
        call = {"key": "call", "type": "action", "retry": {"attempts": 1}, "config": {"url": receiver.url}}
        at_last = {"if": {"field": "context.item", "operator": "eq", "value": items[-1]}}
        inner = [*EACH["config"]["steps"], *([call | at_last] if fails == "in the list" else [])]
        each = EACH | {"config": EACH["config"] | {"steps": inner}}
        await api.published(SPRINT | {"steps": [each, *([call] if fails == "after it" else []), DONE]})
        failed = await api.done({"items": items})
        await api.post(f"/api/runs/{failed['id']}/retry")
        done = await api.ended(failed["id"], "COMPLETED")
    for run in (failed, done):
        assert [step["index"] for step in run["steps"] if step["step_key"] == "n"] == items
    assert len(set(receiver.keys)) == 1


async def test_a_run_with_many_parts_shows_the_steps_of_the_last_ones(sqlite_url: str) -> None:
    items = list(range(PART * (MOST_TRIES + 1) + 5))
    async with orkestr(sqlite_url) as api:
        await api.published(SPRINT | {"steps": [EACH, DONE]})
        done = await api.done({"items": items})
    shown = [step["index"] for step in done["steps"] if step["step_key"] == "n"]
    assert shown == items[-(PART * (MOST_PARTS - 1) + 5) :]


async def test_a_page_of_large_events_is_shorter_than_asked(sqlite_url: str) -> None:
    async with orkestr(sqlite_url, working=False) as api:
        ids = [(await api.event({"n": n, "text": "x" * 1_900_000}))["id"] for n in range(6)]
        first = await api.get("/api/events")
        second = await api.get("/api/events", cursor=first["cursor"])
    pages = [[event["id"] for event in page["events"]] for page in (first, second)]
    assert (pages, second["cursor"]) == ([ids[:1:-1], ids[1::-1]], None)
