"""Run, StepRun, RunLog and AuditLog are read from the journal: the words are those of the document."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

import batuta
from batuta import connect
from batuta.authoring.backend import Description
from batuta.flows.interpreter import LONG_LIST
from batuta.flows.models import EVENT_TAG, WORKFLOW_TAG, normalised_source, normalised_type, wait_prefix
from batuta.flows.views import Link, flow_run, run_view
from batuta.flows.workflow import Flows, flow
from batuta.journal.records import RunKind
from batuta.journal.states import RunState
from batuta.testing import Environment, in_virtual_time
from batuta.webhooks.addresses import AddressPolicy
from tests.flows.every import double_it
from tests.flows.kit import DONE, OVERDUE, ended, keys, ran, rule, seen, start, step


@in_virtual_time
async def test_the_log_of_the_example_is_that_of_the_document() -> None:
    # covers E-14
    found = await ran(OVERDUE, {"amount": 2500})
    assert [one.message for one in found.logs] == [
        'Run created for workflow "Sprint 1 Test" v1',
        'Step "check_overdue" (condition) created as PENDING',
        'Step "check_overdue" (condition) → RUNNING',
        'Step "check_overdue" (condition) → COMPLETED',
        'Step "notify" (action) created as PENDING',
        'Step "notify" (action) → RUNNING',
        'Action "notify" intent persisted before execution',
        'Step "notify" (action) → COMPLETED',
        'Step "done" (end) created as PENDING',
        'Step "done" (end) → RUNNING',
        'Step "done" (end) → COMPLETED',
        "Run completed successfully",
    ]
    notify = found.steps[1]
    before, after = found.logs[6].context["providerRef"], found.logs[7].context["providerRef"]
    assert before == f"intent-{notify.id}-attempt-1"
    assert after == notify.provider_ref
    assert str(UUID(after.removeprefix("dry-run-"))) in after
    assert notify.input == {"amount": 2500}
    assert found.logs[6].context["stepKey"] == "notify"


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_the_example_is_the_same_on_every_store(store: str) -> None:
    found = await ran(OVERDUE, {"amount": 2500}, store=store)
    assert (found.run.status, len(found.steps), len(found.logs)) == ("COMPLETED", 3, 12)


@in_virtual_time
async def test_a_routed_condition_says_where_it_went() -> None:
    found = await ran(OVERDUE, {"amount": 50})
    assert 'Condition routed: "check_overdue" → "done" (branch: false)' in [one.message for one in found.logs]


@in_virtual_time
async def test_every_change_is_in_the_audit() -> None:
    found = await ran(OVERDUE, {"amount": 2500})
    of_run = [(one.action, one.details) for one in found.audit if one.entity == "run"]
    assert of_run == [
        ("created", {"status": "PENDING"}),
        ("status_changed", {"from": "PENDING", "to": "RUNNING"}),
        ("status_changed", {"from": "RUNNING", "to": "COMPLETED"}),
    ]
    of_step = [one.action for one in found.audit if one.entity_id == found.steps[1].id]
    assert of_step == ["created", "status_changed", "status_changed"]


async def test_a_step_that_is_tried_again_is_retrying() -> None:
    flows = Flows(policy=AddressPolicy(allow=["127.0.0.1"]))
    steps = [step("act", "action", retry={"first": 3600}, url="http://127.0.0.1:9/"), DONE]
    async with Environment(**flows.parts()) as env:
        handle = await env.start(flow, start(steps), id="run")
        async with asyncio.timeout(60):
            while (found := await seen(handle)).steps == [] or found.steps[0].status != "RETRYING":
                await asyncio.sleep(0.01)
        assert found.run.status == "RUNNING"
        assert found.logs[-1].level == "warn"
        assert found.steps[0].error is not None
        await handle.cancel("enough")
        found = await ended(handle)
    assert found.run.status == "CANCELLED"
    assert found.steps[0].status == "SKIPPED"
    assert found.logs[-1].message == "Run cancelled"


@in_virtual_time
async def test_a_run_that_waits_is_running_and_says_why() -> None:
    async with Environment(**Flows().parts()) as env:
        handle = await env.start(flow, start([step("pause", "delay", duration="1d"), DONE]), id="run")
        await asyncio.sleep(3600)
        found = await seen(handle)
    assert found.run.status == "RUNNING"
    assert found.run.reason
    assert [(one.step_key, str(one.status)) for one in found.steps] == [("pause", "RUNNING")]


@in_virtual_time
async def test_a_chain_is_one_run() -> None:
    steps = [
        step("more", "set", values={"n": "{{ add(default(context.n, 0), 1) }}"}),
        step("pause", "delay", seconds=1),
        step("again", "condition", rule={"field": "context.n", "operator": "lt", "value": 4}, onTrue="more"),
        DONE,
    ]
    parts = Flows().parts()
    parts["workflows"][0].continue_after = 3
    async with Environment(**parts) as env:
        given = start(steps)
        handle = await env.start(flow, given, id="run", tags=given.tags)
        assert (await handle.result())["n"] == 4
        runs = (await env.client.list(id_prefix="run")).runs
        assert len(runs) > 1
        found = flow_run(
            [await _link(env, one.run_id) for one in sorted(runs, key=lambda run: run.state != "continued")]
        )
    assert found.run.status == "COMPLETED"
    assert keys(found) == [*["more", "pause", "again"] * 4, "done"]
    assert found.run.context["n"] == 4
    assert [one.message for one in found.logs].count("Run completed successfully") == 1


async def _link(env: Environment, run_id: UUID) -> Link:
    handle = await env.client.get_run(run_id)
    return Link(await handle.describe(), await handle.journal(), await handle.attempts())


def test_ids_of_steps_are_the_same_each_time_they_are_read() -> None:
    async def twice() -> tuple[Any, Any]:
        async with Environment(**Flows().parts()) as env:
            handle = await env.start(flow, start(OVERDUE, {"amount": 2500}), id="run")
            return await ended(handle), await seen(handle)

    first, second = asyncio.run(twice())
    assert [one.id for one in first.steps] == [one.id for one in second.steps]
    assert [one.id for one in first.logs] == [one.id for one in second.logs]
    assert len({one.id for one in [*first.logs, *first.audit, *first.steps]}) == len(
        [*first.logs, *first.audit, *first.steps]
    )


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def described(state: RunState, **more: Any) -> Description:
    given: dict[str, Any] = {
        "id": "r",
        "run_id": UUID(int=1),
        "workflow": "flow",
        "kind": RunKind.WORKFLOW,
        "state": state,
        "reason": "",
        "queue": "default",
        "priority": 0,
        "entries": 0 if state is RunState.PENDING else 3,
        "worker": None,
        "created_at": NOW,
        "closed_at": None,
        "wake_at": NOW,
        "deadline": None,
        "deaths": 0,
        "version": "",
        "tags": {WORKFLOW_TAG: "w", EVENT_TAG: "e"},
        "memo": None,
        "attempts": [],
    }
    return Description(**(given | more))


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (RunState.PENDING, "PENDING"),
        (RunState.RUNNING, "RUNNING"),
        (RunState.WAITING, "RUNNING"),
        (RunState.PAUSED, "RUNNING"),
        (RunState.NEEDS_CODE, "RUNNING"),
        (RunState.POISONED, "RUNNING"),
        (RunState.CONTINUED, "RUNNING"),
        (RunState.COMPLETED, "COMPLETED"),
        (RunState.FAILED, "FAILED"),
        (RunState.TIMED_OUT, "FAILED"),
        (RunState.CANCELLED, "CANCELLED"),
        (RunState.TERMINATED, "CANCELLED"),
    ],
)
def test_each_state_has_a_status(state: RunState, status: str) -> None:
    found = run_view(described(state))
    assert (found.status, found.workflow_id, found.event_id) == (status, "w", "e")
    assert (found.reason is not None) == (status == "RUNNING")


def test_dispatch_fails_only_while_no_worker_can_take_it() -> None:
    # covers E-10
    assert run_view(described(RunState.PENDING)).dispatch_status == "DISPATCHED"
    later = datetime(2026, 1, 2, tzinfo=UTC)
    assert run_view(described(RunState.PENDING, wake_at=later)).dispatch_status == "PENDING"
    lost = run_view(described(RunState.PENDING, reason="no live worker serves queue 'default'"))
    assert lost.dispatch_status == "FAILED"
    assert lost.error == "Dispatch to queue failed: no live worker serves queue 'default'"
    assert lost.status == "PENDING"


def test_letters_of_other_languages_stay_in_the_type_of_an_event() -> None:
    assert normalised_type("CobrançaVencida") == normalised_type("cobranc\u0327a vencida") == "cobrança_vencida"
    assert normalised_type("ação") != normalised_type("aço")
    assert normalised_type("ÉtatÉmis") == "état_émis"
    assert normalised_type("XMLHttpRequest") == normalised_type("xmlHTTPRequest") == "xml_http_request"
    assert normalised_type("URLChanged") == normalised_type("URL_CHANGED") == normalised_type("url changed")
    assert (normalised_type("customerIDs"), normalised_type("URLsChanged")) == ("customer_ids", "urls_changed")


def test_values_that_are_equal_are_waited_for_alike() -> None:
    assert wait_prefix("e", "id", {"a": [1.0]}) == wait_prefix("e", "id", {"a": [1]})
    others = [1, "1", True, None, 1.5, [1], {"a": 1}, 10**20, 10**20 + 1]
    assert len({wait_prefix("e", "id", value) for value in others}) == len(others)


def test_types_and_sources_are_normalised() -> None:
    assert {
        normalised_type(one) for one in ("InvoiceOverdue", " invoice-overdue", "Invoice overdue", "invoice_overdue")
    } == {"invoice_overdue"}
    assert normalised_source("  API ") == "api"


async def test_the_steps_of_a_long_list_are_those_of_the_runs_that_do_it(url: str) -> None:
    double = {"key": "twice", "type": "set", "config": {"values": {"n": "{{ multiply(context.item, 2) }}"}}}
    config = {"items": "{{ event.payload.items }}", "steps": [double], "collect": "{{ context.n }}"}
    document = {"name": "long", "steps": [{"key": "all", "type": "for_each", "config": config}, DONE]}
    async with connect(url) as client, client.worker(flows=True):
        draft = await client.flows.create(document)
        await client.flows.publish(draft.id)
        started = await client.flows.runs.start(draft.id, payload={"items": list(range(LONG_LIST + 20))})
        await (await client.get(started.run.id)).result(60)
        found = await client.flows.runs.get(started.run.id)
    inner = found.steps[1:-1]
    assert [found.steps[0].step_key, found.steps[-1].step_key] == ["all", "done"]
    assert [one.output for one in inner] == [{"n": 2 * n} for n in range(LONG_LIST + 20)]
    assert {one.run_id for one in found.steps} == {found.run.id}
    assert len({one.id for one in found.steps}) == len(found.steps)
    told = [line.message for line in found.logs]
    assert told.count('Step "twice" (set) → COMPLETED') == LONG_LIST + 20
    assert [told.count(one) for one in ("Run completed successfully", 'Run created for workflow "long" v1')] == [1, 1]
    assert {one.entity_id for one in found.audit if one.entity == "run"} == {found.run.id}
    assert {line.run_id for line in found.logs} == {found.run.id}


FIRST = [
    step("x", "condition", rule=rule("amount", "gt", 1)),
    step("x", "action", actionType="webhook"),
    step("x", "action", actionType="webhook", when=rule("missing", "exists")),
    step("x", "action", actionType="start_run", workflow="no"),
    step("x", "python", activity="double_it", args=[1]),
    step("x", "ai_task", fallback=1),
    step("x", "delay", seconds=0),
    step("x", "wait_event", event="e", timeout=0.01, onTimeout="done"),
    step("x", "approval", timeout=0.01, onTimeout="done"),
    step("x", "for_each", items=[1], steps=[step("y", "set", values={})]),
    step("x", "set", values={"a": 1}),
]


# covers E-04
@pytest.mark.parametrize("first", FIRST, ids=[f"{one['type']} {one.get('if', '')}" for one in FIRST])
@pytest.mark.parametrize("overlap", ["queue", "buffer"])
async def test_the_first_step_of_a_run_that_has_not_begun_is_pending_with_the_id_that_it_keeps(
    sqlite_url: str, first: dict[str, Any], overlap: str
) -> None:
    trigger = {"concurrency": {"key": "a", "overlap": overlap}}
    document = {"name": "f", "trigger_type": "e", "trigger": trigger, "steps": [first, DONE]}
    async with batuta.connect(sqlite_url) as client:
        made = await client.flows.publish((await client.flows.create(document)).id)
        for sent in (True, False):
            if sent:
                event = (await client.flows.events.send("e", {"amount": 5})).event
                [run_id] = (await client.flows.runs.of_events([event.id]))[event.id]
            else:
                run_id = (await client.flows.runs.start(made.id, payload={"amount": 5})).run.id
            before = await client.flows.runs.get(run_id)
            [waiting] = before.steps
            assert (waiting.status, waiting.input, waiting.started_at) == ("PENDING", {"amount": 5}, None)
            assert [line.message.partition(" for ")[0] for line in before.logs] == [
                "Run created",
                f'Step "x" ({first["type"]}) created as PENDING',
            ]
            assert [(one.entity, one.action) for one in before.audit] == [("run", "created"), ("step_run", "created")]
            async with client.worker(flows=Flows(activities=[double_it])):
                await (await client.get(run_id)).result(60)
            after = await client.flows.runs.get(run_id)
            assert (after.steps[0].id, after.steps[0].step_key) == (waiting.id, "x")
