"""One flow with a step of every type, and the world around it."""

import asyncio
from collections.abc import Sequence
from typing import Any

from batuta import activity
from batuta.authoring.client.handle import Handle
from batuta.flows.models import DECIDE, EVENT_SIGNAL, Decision, Workflow, wait_prefix
from batuta.flows.workflow import Flows, flow_wait
from batuta.testing import Environment
from tests.flows.kit import DONE, WHEN, Doc, rule, step

PAYLOAD = {"id": 7, "amount": 2500, "items": ["a", "b", "c"]}
INNER: Doc = [step("twice", "set", values={"twice": "{{ multiply(event.payload.n, 2) }}"}), DONE]


def send(key: str, **more: Any) -> dict[str, Any]:
    given = {"topic": "out", "body": f'{key} {{{{ default(context.item, "") }}}}'} | more
    return step(key, "action", actionType="publish", **given)


STEPS: Doc = [
    step("overdue", "condition", rule=rule("amount", "greater_than", 100), onFalse="done"),
    step("undo", "compensate", actionType="publish", topic="undo", body="undone"),
    send("notify", output={"told": "{{ steps.notify.output.topic }}"}),
    step("skipped", "action", when=rule("amount", "lt", 0)),
    step("double", "python", activity="double_it", args=["{{ event.payload.amount }}"]),
    step("classify", "ai_task", fallback="use_default_template"),
    step("pause", "delay", seconds=60),
    step(
        "paid",
        "wait_event",
        timeout="30d",
        event="payment_received",
        correlation={"field": "invoice.id", "value": "{{ event.payload.id }}"},
    ),
    step("never", "wait_event", timeout=60, event="nobody", onTimeout="ok"),
    step("ok", "approval", title="Refund?"),
    step("both", "parallel", branches=[[send("left")], [step("short", "delay", seconds=5), send("right")]]),
    step(
        "all",
        "for_each",
        items="{{ event.payload.items }}",
        steps=[send("each")],
        collect="{{ steps.each.output.topic }}",
    ),
    step("attempt", "try", steps=[send("risky"), step("bad", "fail")], catch=[send("rescue")]),
    step("sub", "sub_flow", workflow="inner", payload={"n": "{{ steps.double.output }}"}),
    step("which", "switch", cases=[{"when": rule("steps.sub.output.twice", "gt", 1), "to": "keep"}], default="done"),
    step("keep", "set", values={"final": "{{ steps.sub.output.twice }}", "by": "{{ steps.ok.output.by }}"}),
    DONE,
]
CONTEXT = {
    "told": "out",
    "error": {"step": "bad", "message": "the flow says so", "type": "FlowFailed"},
    "final": 10_000,
    "by": "ana",
}
SENT = ["notify ", "left ", "right ", "each a", "each b", "each c", "risky ", "rescue "]


@activity
async def double_it(value: int) -> int:
    return 2 * value


async def inner(name: str, _version: int | None) -> Workflow | None:
    return Workflow(
        id="w-inner",
        tenant_id="default",
        name=name,
        trigger_type="",
        steps=INNER,
        published_at=WHEN,
        created_at=WHEN,
        updated_at=WHEN,
    )


class World:
    """The other side: it keeps what it got, by key."""

    def __init__(self) -> None:
        self.got: dict[str, list[Any]] = {}

    async def publish(self, _topic: str, payload: Any, /, *, key: str, id: str, type: str) -> None:
        self.got.setdefault(id, []).append(payload)

    def flows(self) -> Flows:
        return Flows(publish=self.publish, workflows_of=inner, activities=[double_it])

    def check(self) -> None:
        """Nothing is missing, and what came twice came with the same key."""
        assert sorted(bodies[0] for bodies in self.got.values()) == sorted(SENT)
        assert all(len({*bodies}) == 1 for bodies in self.got.values())


def parts(flows: Flows) -> dict[str, Sequence[Any]]:
    found = flows.parts()
    return {"activities": found["activities"], "workflows": [flow_wait]}


async def take_part(env: Environment, handle: Handle[Any]) -> None:
    """Send what the flow waits for."""
    waits = wait_prefix("payment_received", "invoice.id", 7)
    while not (found := (await env.client.list(id_prefix=waits)).runs):
        await asyncio.sleep(10)
    event = {"id": "e2", "type": "payment_received", "payload": {"invoice": {"id": 7}}}
    await (await env.client.get(found[0].id)).signal(EVENT_SIGNAL, event, message_id="e2")
    while not (await env.client.list(waiting_for="flow.approval")).runs:
        await asyncio.sleep(10)
    await handle.update(DECIDE, Decision(step="ok", approved=True, by="ana"))
