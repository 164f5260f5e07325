"""What happens when the receiver, the worker or the store is away: each of them is, for real."""

import asyncio

from chaos.proxy import Proxy
from tests.flows.http import DEADLINE, Receiver, at_work, calling, orkestr
from tests.flows.processes import worker_process


# covers E-11
async def test_a_worker_killed_while_the_receiver_has_the_webhook_sends_it_again_with_the_same_key(url: str) -> None:
    async with orkestr(url, working=False) as api, Receiver() as receiver:
        await api.published(calling(receiver.url))
        receiver.held.clear()  # it has the request, and does not answer
        run_id = await api.run_of(await api.event({"amount": 2500}))
        async with worker_process(url, "tests.flows.worker_app:APP"), asyncio.timeout(DEADLINE):
            while not receiver.requests:
                await asyncio.sleep(0.05)
        receiver.held.set()
        async with at_work(api.client):
            run = await api.ended(run_id)
    assert run["status"] == "COMPLETED"
    assert len(receiver.keys) >= 2, "its outcome was unknown: it is sent again"
    assert set(receiver.keys) == {next(one["id"] for one in run["steps"] if one["step_key"] == "notify")}


# covers E-10
async def test_a_store_that_is_away_refuses_the_event_and_nothing_is_half_written(postgres_url: str) -> None:
    proxy = Proxy(postgres_url)
    await proxy.__aenter__()
    async with orkestr(proxy.url) as api:
        await api.published()
        await api.done({"amount": 2500}, external_id="1")
        await proxy.__aexit__(None, None, None)  # every connection is cut, and no new one is let in
        refused = await api.post("/api/events", {"type": "invoice_overdue", "external_id": "2"}, 503)
        assert refused["code"] in ("store_unavailable", "outcome_unknown")
        assert refused["retry_after"] > 0
    async with orkestr(postgres_url) as api:
        assert [one["external_id"] for one in (await api.get("/api/events"))["events"]] == ["1"]
        run = await api.done({"amount": 2500}, external_id="2")
        assert run["status"] == "COMPLETED"
