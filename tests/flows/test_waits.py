"""Runs that wait for an event, and what wakes them."""

import asyncio

import pytest

from tests.flows.http import DONE, SPRINT, orkestr


@pytest.mark.parametrize("field", ["", "invoice"])
async def test_a_repeat_of_an_event_wakes_no_run_that_began_to_wait_after_it(url: str, field: str) -> None:
    async with orkestr(url) as api:
        correlation = {"correlation": {"field": field, "value": 1}} if field else {}
        wait = {"key": "paid", "type": "wait_event", "config": {"event": "paid", **correlation}}
        await api.published(SPRINT | {"steps": [wait, DONE]})
        await api.event({"invoice": 1, "n": 1}, type="paid", external_id="p1")
        run_id = await api.run_of(await api.event({}))
        async with asyncio.timeout(30):
            while not await api.client.flows.runs.waits("paid", field, 1):
                await asyncio.sleep(0.02)
        assert (await api.event({"invoice": 1, "n": 1}, type="paid", external_id="p1"))["_idempotent"]
        await api.event({"invoice": 1, "n": 2}, type="paid")
        assert (await api.ended(run_id))["steps"][0]["output"]["payload"]["n"] == 2
