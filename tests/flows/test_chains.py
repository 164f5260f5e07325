"""A flow that goes round long enough continues as new: it stays one run."""

from typing import Any

import pytest

from batuta.flows.workflow import Flows
from batuta.webhooks.addresses import AddressPolicy
from tests.flows.http import DONE, HERE, SPRINT, Receiver, orkestr

STEPS: list[dict[str, Any]] = [
    {"key": "count", "type": "set", "config": {"values": {"n": "{{ add(default(context.n, 0), 1) }}"}}},
    {"key": "call", "type": "action", "retry": {"attempts": 2, "first": 0.01}},
    {"key": "pause", "type": "delay", "config": {"seconds": 0.01}},
    {
        "key": "again",
        "type": "condition",
        "config": {"rule": {"field": "context.n", "operator": "lt", "value": 4}, "onTrue": "count"},
    },
    DONE,
]


# covers E-08
async def test_a_chain_is_one_run_with_all_its_attempts_also_after_a_retry_in_its_middle(url: str) -> None:
    flows = Flows(policy=AddressPolicy(HERE))
    flows.workflow.continue_after = 3
    async with (
        Receiver([500, 200, 500, 500, 500]) as receiver,
        orkestr(url, working=False) as api,
        api.client.worker(**flows.parts()),
    ):
        steps = [one | ({"config": {"url": receiver.url}} if one["key"] == "call" else {}) for one in STEPS]
        await api.published({"name": "rounds", "trigger_type": "begun", "steps": steps})
        failed = await api.done({}, type="begun")
        assert (failed["status"], failed["context"]["n"]) == ("FAILED", 2)
        await api.post(f"/api/runs/{failed['id']}/retry")
        done = await api.ended(failed["id"], "COMPLETED")
    assert (done["created_at"], done["context"]["n"]) == (failed["created_at"], 4)
    attempts = [one["attempt"] for one in done["steps"] if one["step_key"] == "call"]
    assert attempts == [2, 2, 1, 1]
    assert [one["step_key"] for one in done["steps"]] == [*["count", "call", "pause", "again"] * 4, "done"]
    assert done["logs"][: len(failed["logs"])] == failed["logs"]
    levels = [one["level"] for one in done["logs"] if one["level"] != "info"]
    assert levels == ["warn", "warn", "error", "error", "warn"]
    assert [one["message"] for one in done["logs"]].count("Run completed successfully") == 1
    await flows.close()


async def test_the_tries_of_a_run_are_read_without_looking_through_all_runs(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def looks(**_: Any) -> None:
        raise AssertionError("it takes seconds where there are a million runs")

    async with Receiver([500, 200]) as receiver, orkestr(sqlite_url) as api:
        call = {"key": "call", "type": "action", "retry": {"attempts": 1}, "config": {"url": receiver.url}}
        await api.published(SPRINT | {"steps": [call, DONE]})
        failed = await api.done({})
        await api.post(f"/api/runs/{failed['id']}/retry")
        await api.ended(failed["id"], "COMPLETED")
        monkeypatch.setattr(api.client.flows.runs._client, "list", looks)
        view = await api.client.flows.runs.get(failed["id"])
    assert [one.level for one in view.logs if one.level != "info"] == ["error", "error"]
