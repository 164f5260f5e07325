"""Workers are killed in the middle of a flow with a step of every type, whose receiver is a process of its own."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import batuta
from batuta.errors import BatutaError
from tests.flows.every import INNER, PAYLOAD
from tests.flows.kit import DONE, Doc, rule, step
from tests.flows.processes import ENVIRONMENT, ROOT, worker_process

APP = "tests.flows.every_app:APP"
DEADLINE = 170.0
KILLED_AT = (1, 2, 4, 7) if os.environ.get("BATUTA_TEST_LONG") else (2, 6)
"""Webhooks that the receiver has when a worker dies. Each kill takes seconds, until another worker takes over."""
SENT = ["notify ", "left ", "right ", "each a", "each b", "each c", "risky ", "rescue "]
CONTEXT = {
    "told": 200,
    "error": {"step": "bad", "message": "the flow says so", "type": "FlowFailed"},
    "final": 10_000,
    "by": "ana",
}


def steps(url: str) -> Doc:
    def send(key: str, **more: Any) -> dict[str, Any]:
        return step(key, "action", url=url, body=f'{key} {{{{ default(context.item, "") }}}}', **more)

    correlation = {"field": "invoice.id", "value": "{{ event.payload.id }}"}
    return [
        step("overdue", "condition", rule=rule("amount", "greater_than", 100), onFalse="done"),
        step("undo", "compensate", url=url, body="undone"),
        send("notify", output={"told": "{{ steps.notify.output.status }}"}),
        step("skipped", "action", when=rule("amount", "lt", 0)),
        step("double", "python", activity="double_it", args=["{{ event.payload.amount }}"]),
        step("classify", "ai_task", fallback="use_default_template"),
        step("pause", "delay", seconds=0.2),
        step("paid", "wait_event", timeout="30d", event="payment_received", correlation=correlation),
        step("never", "wait_event", timeout=0.2, event="nobody", onTimeout="ok"),
        step("ok", "approval", title="Refund?"),
        step("both", "parallel", branches=[[send("left")], [step("short", "delay", seconds=0.2), send("right")]]),
        step("all", "for_each", items="{{ event.payload.items }}", steps=[send("each")], concurrency=2),
        step("attempt", "try", steps=[send("risky"), step("bad", "fail")], catch=[send("rescue")]),
        step("sub", "sub_flow", workflow="inner", payload={"n": "{{ steps.double.output }}"}),
        step(
            "which", "switch", cases=[{"when": rule("steps.sub.output.twice", "gt", 1), "to": "keep"}], default="done"
        ),
        step("keep", "set", values={"final": "{{ steps.sub.output.twice }}", "by": "{{ steps.ok.output.by }}"}),
        DONE,
    ]


@asynccontextmanager
async def receiver(file: Path) -> AsyncIterator[str]:
    command = [sys.executable, "-m", "tests.flows.outside", str(file)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=ENVIRONMENT, stdout=pipe)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}/hook"
    finally:
        process.kill()
        await process.wait()


def received(file: Path) -> list[tuple[str, str]]:
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


async def decide(client: batuta.Batuta, run_id: str) -> None:
    """Approve, as soon as a worker can take it."""
    while True:
        found, _ = await client.flows.runs.approvals()
        try:
            if found and await client.flows.runs.decide(run_id, "ok", True, by="ana"):
                return
        except BatutaError:
            pass
        await asyncio.sleep(0.1)


# covers E-11
@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_workers_die_in_the_middle_and_the_receiver_misses_nothing(url: str, tmp_path: Path) -> None:
    file = tmp_path / "received"
    async with batuta.connect(url) as client, receiver(file) as hook, asyncio.timeout(DEADLINE):
        inner, every = [
            await client.flows.create({"name": name, "steps": document})
            for name, document in (("inner", INNER), ("every", steps(hook)))
        ]
        for draft in (inner, every):
            await client.flows.publish(draft.id)
        run_id = (await client.flows.runs.start(every.id, payload=PAYLOAD)).run.id
        await client.flows.events.send("payment_received", {"invoice": {"id": 7}})
        deciding = asyncio.create_task(decide(client, run_id))
        handle = await client.get(run_id)
        for count in KILLED_AT:  # killed while the receiver has that webhook
            async with worker_process(url, APP):
                while len(received(file)) < count:
                    await asyncio.sleep(0.01)
        async with worker_process(url, APP):
            assert await handle.result() == CONTEXT
        await deciding
        view = await client.flows.runs.get(run_id)
    assert view.run.status == "COMPLETED"
    bodies: dict[str, set[str]] = {}
    for key, body in received(file):
        bodies.setdefault(key, set()).add(json.loads(body) if body.startswith('"') else body)
    assert all(len(one) == 1 for one in bodies.values()), "a key always has the same body"
    assert sorted(body for one in bodies.values() for body in one) == sorted(SENT), "each once, by its key"
    ids = {step.id for step in view.steps if step.step_type == "action" and step.status == "COMPLETED"}
    assert set(bodies) == ids
