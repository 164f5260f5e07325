"""What each type of step does, in a real run in virtual time."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from batuta import NonRetryable, activity
from batuta.errors import UpdateRejected
from batuta.flows.interpreter import LONG_LIST
from batuta.flows.models import DECIDE, EVENT_SIGNAL, Decision, Workflow, run_id_of, wait_prefix
from batuta.flows.workflow import Flows, flow
from batuta.testing import Environment, in_virtual_time
from tests.flows.kit import DONE, OVERDUE, WHEN, Doc, ended, failure_of, keys, outputs, ran, rule, seen, start, step


@in_virtual_time
async def test_a_condition_that_holds_goes_on_with_the_next_step() -> None:
    # covers E-06
    found = await ran(OVERDUE, {"amount": 2500})
    assert keys(found) == ["check_overdue", "notify", "done"]
    assert found.run.status == "COMPLETED"
    assert outputs(found)["check_overdue"] == {"result": True, "rule": rule("amount", "greater_than", 100)}
    assert outputs(found)["notify"] == {"dryRun": True, "actionType": "webhook"}


@in_virtual_time
async def test_a_condition_that_does_not_hold_goes_to_its_other_branch() -> None:
    found = await ran(OVERDUE, {"amount": 50})
    assert keys(found) == ["check_overdue", "done"]


@in_virtual_time
async def test_a_condition_without_branches_goes_on_either_way() -> None:
    steps = [step("a", "condition", rule=rule("x", "exists")), step("b", "set", values={"n": 1}), DONE]
    assert keys(await ran(steps)) == ["a", "b", "done"]


@in_virtual_time
async def test_a_switch_takes_the_first_case_that_holds() -> None:
    cases = [{"when": rule("n", "lt", 10), "to": "few"}, {"when": rule("n", "lt", 100), "to": "some"}]
    steps = [
        step("which", "switch", cases=cases, default="done"),
        step("few", "set", next="done", values={"size": "few"}),
        step("some", "set", values={"size": "some"}),
        DONE,
    ]
    assert (await ran(steps, {"n": 5})).run.context["size"] == "few"
    assert (await ran(steps, {"n": 50})).run.context["size"] == "some"
    assert keys(await ran(steps, {"n": 500})) == ["which", "done"]


@in_virtual_time
async def test_a_step_whose_if_does_not_hold_is_skipped() -> None:
    found = await ran([step("a", "action", when=rule("go", "equals", True)), DONE])
    assert [(one.step_key, one.status) for one in found.steps] == [("a", "SKIPPED"), ("done", "COMPLETED")]


@in_virtual_time
async def test_values_are_put_into_the_context_and_read_by_later_steps() -> None:
    # covers E-12
    steps = [
        step("name", "set", values={"who": "{{ upper(event.payload.name) }}", "n": 1}),
        step("act", "action", output={"kind": "{{ steps.act.output.actionType }}"}, actionType="mail"),
        step("use", "set", values={"both": "{{ context.who }} by {{ context.kind }}", "n": "{{ add(context.n, 1) }}"}),
        step("done", "end", result={"said": "{{ context.both }}"}),
    ]
    found = await ran(steps, {"name": "Ana"})
    assert {name: found.run.context[name] for name in ("who", "kind", "both", "n")} == {
        "who": "ANA",
        "kind": "mail",
        "both": "ANA by mail",
        "n": 2,
    }
    assert outputs(found)["done"] == {"said": "ANA by mail"}


@in_virtual_time
async def test_a_missing_value_fails_the_step_and_names_itself() -> None:
    found = await ran([step("a", "set", values={"x": "{{ event.payload.nothing }}"}), DONE])
    words = "Step \"a\" failed after 1 attempt(s): there is no 'event.payload.nothing'"
    assert failure_of(found.run).startswith(words)


@in_virtual_time
async def test_fail_ends_the_run_with_its_message() -> None:
    found = await ran([step("stop", "fail", message="no {{ event.payload.what }}"), DONE], {"what": "credit"})
    assert failure_of(found.run) == 'Step "stop" failed after 1 attempt(s): no credit'


@in_virtual_time
async def test_a_delay_is_a_durable_timer() -> None:
    steps = [step("a", "delay", seconds="{{ event.payload.wait }}"), step("b", "delay", duration="2h"), DONE]
    found = await ran(steps, {"wait": 60})
    took = [
        (one.finished_at - one.started_at).total_seconds() for one in found.steps if one.finished_at and one.started_at
    ]
    assert [round(seconds) for seconds in took] == [60, 7200, 0]


@in_virtual_time
async def test_a_delay_until_a_time_that_is_over_does_not_wait() -> None:
    found = await ran([step("a", "delay", until="2001-01-01T00:00:00Z"), DONE])
    assert outputs(found)["a"] == {"seconds": 0.0}


@activity
async def double_it(value: int) -> int:
    if value < 0:
        raise NonRetryable("not that one")
    return 2 * value


@in_virtual_time
async def test_a_python_step_calls_an_activity() -> None:
    steps = [step("twice", "python", activity="double_it", args=["{{ event.payload.n }}"]), DONE]
    assert outputs(await ran(steps, {"n": 21}, Flows(activities=[double_it])))["twice"] == 42
    bad = await ran(steps, {"n": -1}, Flows(activities=[double_it]))
    assert failure_of(bad.run) == 'Step "twice" failed after 1 attempt(s): not that one'


@in_virtual_time
async def test_branches_run_at_the_same_time() -> None:
    branches = [[step("a", "delay", seconds=10), step("a2", "set", values={"a": 1})], [step("b", "delay", seconds=10)]]
    found = await ran([step("both", "parallel", branches=branches), DONE])
    assert found.run.context["a"] == 1
    both = found.steps[0]
    assert both.finished_at is not None
    assert both.started_at is not None
    assert round((both.finished_at - both.started_at).total_seconds()) == 10


@in_virtual_time
async def test_a_branch_that_fails_cancels_the_others() -> None:
    branches = [[step("slow", "delay", seconds=1000)], [step("bad", "fail", message="no")]]
    found = await ran([step("both", "parallel", branches=branches), DONE])
    assert failure_of(found.run) == 'Step "bad" failed after 1 attempt(s): no'
    assert {one.step_key: str(one.status) for one in found.steps} == {
        "both": "FAILED",
        "slow": "SKIPPED",
        "bad": "FAILED",
    }


def each(items: Any, **more: Any) -> Doc:
    double = step("twice", "set", values={"n": "{{ multiply(context.item, 2) }}"})
    return [step("all", "for_each", items=items, steps=[double], collect="{{ context.n }}", **more), DONE]


@pytest.mark.parametrize("count", [0, 1, 7, LONG_LIST + 45])
@in_virtual_time
async def test_a_list_of_any_length_is_done_item_by_item(count: int) -> None:
    found = await ran(each("{{ event.payload.items }}", concurrency=3), {"items": list(range(count))})
    assert outputs(found)["all"] == {"count": count, "results": [2 * n for n in range(count)]}


@in_virtual_time
async def test_what_an_item_sets_stays_with_the_item() -> None:
    found = await ran(each([1, 2]))
    assert "n" not in found.run.context
    assert "item" not in found.run.context
    assert set(outputs(found)) == {"all", "done"}


@in_virtual_time
async def test_an_end_in_a_block_ends_the_block() -> None:
    skip = step("odd", "condition", rule=rule("context.item", "lt", 2), onTrue="enough")
    inside = [skip, step("big", "action"), step("enough", "end")]
    found = await ran([step("all", "for_each", items=[1, 5], steps=inside, concurrency=1), DONE])
    assert keys(found) == ["all", "odd", "enough", "odd", "big", "enough", "done"]


@in_virtual_time
async def test_try_goes_on_with_catch_and_finally() -> None:
    attempt = step(
        "t",
        "try",
        steps=[step("bad", "fail", message="no luck")],
        catch=[step("note", "set", values={"why": "{{ context.error.message }}"})],
        **{"finally": [step("clean", "set", values={"clean": True})]},
    )
    found = await ran([attempt, DONE])
    assert found.run.status == "COMPLETED"
    assert found.run.context["why"] == "no luck"
    assert found.run.context["clean"] is True
    assert outputs(found)["t"]["failed"] is True


@in_virtual_time
async def test_a_catch_is_told_which_step_failed() -> None:
    inner = step("each", "for_each", items=[1], steps=[step("deep", "fail", message="no")])
    note = step("note", "set", values={"at": "{{ context.error.step }}", "why": "{{ context.error.message }}"})
    found = await ran([step("t", "try", steps=[inner], catch=[note]), DONE])
    assert (found.run.context["at"], found.run.context["why"]) == ("deep", "no")


async def test_a_block_over_its_time_fails() -> None:
    inside = [[step("slow", "delay", seconds=1000)]]
    found = await ran([step("p", "parallel", timeout=5, branches=inside), DONE])
    assert failure_of(found.run) == 'Step "p" failed after 1 attempt(s): not done within 5 s'


@in_virtual_time
async def test_a_cycle_with_a_wait_counts_on() -> None:
    steps = [
        step("zero", "set", values={"n": 0}),
        step("one_more", "set", values={"n": "{{ add(context.n, 1) }}"}),
        step("pause", "delay", seconds=3600),
        step("again", "condition", rule=rule("context.n", "lt", 5), onTrue="one_more"),
        DONE,
    ]
    assert (await ran(steps)).run.context["n"] == 5


# -- waiting for the world

WAIT = [
    step(
        "paid",
        "wait_event",
        timeout="30d",
        event="payment_received",
        correlation={"field": "invoice.id", "value": "{{ event.payload.id }}"},
        onTimeout="late",
    ),
    step("thanks", "action", next="done"),
    step("late", "action"),
    DONE,
]


@in_virtual_time
async def test_an_awaited_event_is_found_by_its_correlation() -> None:
    async with Environment(**Flows().parts()) as env:
        handle = await env.start(flow, start(WAIT, {"id": 7}), id="run")
        await asyncio.sleep(86_400)
        waiting = (await env.client.list(id_prefix=wait_prefix("payment_received", "invoice.id", 7))).runs
        assert len(waiting) == 1
        event = {"id": "e2", "type": "payment_received", "payload": {"invoice": {"id": 7}}}
        await (await env.client.get(waiting[0].id)).signal(EVENT_SIGNAL, event, message_id="e2")
        found = await ended(handle)
    assert keys(found) == ["paid", "thanks", "done"]
    assert outputs(found)["paid"]["payload"] == {"invoice": {"id": 7}}


@in_virtual_time
async def test_an_event_that_does_not_come_takes_the_other_way() -> None:
    found = await ran(WAIT, {"id": 7})
    assert keys(found) == ["paid", "late", "done"]
    assert outputs(found)["paid"] == {"timedOut": True}


ASK = [
    step("ok", "approval", timeout=3600, title="Refund {{ event.payload.id }}?", onRejected="no", onTimeout="no"),
    step("refund", "action", next="done"),
    step("no", "set", values={"refused": True}),
    DONE,
]


@pytest.mark.parametrize("approved", [True, False])
@in_virtual_time
async def test_a_person_decides_by_an_update(approved: bool) -> None:
    async with Environment(**Flows().parts()) as env:
        handle = await env.start(flow, start(ASK, {"id": 7}), id="run")
        await asyncio.sleep(60)
        decision = Decision(step="ok", approved=approved, by="ana", comment="fine")
        assert (await seen(handle)).steps[0].input == {"title": "Refund 7?", "data": None}
        await handle.update(DECIDE, decision)
        found = await ended(handle)
        assert keys(found) == ["ok", "refund" if approved else "no", "done"]
        assert outputs(found)["ok"] == {"approved": approved, "by": "ana", "comment": "fine", "data": None}


@in_virtual_time
async def test_an_approval_that_does_not_wait_cannot_be_decided() -> None:
    async with Environment(**Flows().parts()) as env:
        handle = await env.start(flow, start(ASK, {"id": 7}), id="run")
        await asyncio.sleep(60)
        with pytest.raises(UpdateRejected, match="no approval 'other' waits"):
            await handle.update(DECIDE, Decision(step="other", approved=True))


@in_virtual_time
async def test_an_approval_without_a_decision_in_time_fails() -> None:
    assert keys(await ran(ASK, {"id": 7})) == ["ok", "no", "done"]


@in_virtual_time
async def test_a_rejection_without_another_way_fails_the_run() -> None:
    async with Environment(**Flows().parts()) as env:
        handle = await env.start(flow, start([step("ok", "approval"), DONE]), id="run")
        await asyncio.sleep(60)
        await handle.update(DECIDE, Decision(step="ok", approved=False, by="bo", comment="too much"))
        assert failure_of((await ended(handle)).run) == 'Step "ok" failed after 1 attempt(s): rejected by bo: too much'


# -- other flows and runs


def published(name: str, steps: Doc) -> Workflow:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Workflow(
        id=f"w-{name}",
        tenant_id="default",
        name=name,
        trigger_type="",
        steps=steps,
        published_at=now,
        created_at=now,
        updated_at=now,
    )


@in_virtual_time
async def test_a_flow_runs_another_one_and_gets_its_context() -> None:
    inner = published("inner", [step("a", "set", values={"twice": "{{ multiply(event.payload.n, 2) }}"}), DONE])

    async def find(name: str, version: int | None) -> Workflow | None:
        return inner if name == "inner" and version is None else None

    steps = [step("sub", "sub_flow", workflow="inner", payload={"n": "{{ event.payload.x }}"}), DONE]
    flows = Flows(workflows_of=find)
    assert outputs(await ran(steps, {"x": 4}, flows))["sub"] == {"twice": 8}
    missing = [step("sub", "sub_flow", workflow="nobody"), DONE]
    assert "there is no published flow 'nobody'" in failure_of((await ran(missing, {}, flows)).run)


@in_virtual_time
async def test_a_flow_that_runs_itself_ends_at_a_depth() -> None:
    async def find(_name: str, _version: int | None) -> Workflow | None:
        return published("self", [step("again", "sub_flow", workflow="self"), DONE])

    found = await ran([step("again", "sub_flow", workflow="self"), DONE], {}, Flows(workflows_of=find))
    assert "more than 10 levels" in failure_of(found.run)


@in_virtual_time
async def test_compensations_are_done_in_reverse_when_the_flow_fails() -> None:
    sent: list[tuple[str, Any]] = []

    async def publish(topic: str, payload: Any, /, *, key: str, id: str, type: str) -> None:
        sent.append((topic, payload))

    def undo(key: str) -> dict[str, Any]:
        return step(key, "compensate", actionType="publish", topic="undo", body=key)

    bad = [undo("first"), step("act", "action"), undo("second"), step("stop", "fail"), DONE]
    found = await ran(bad, {}, Flows(publish=publish))
    assert failure_of(found.run).startswith('Step "stop" failed')
    assert sent == [("undo", "second"), ("undo", "first")]
    good = await ran([undo("first"), step("act", "action"), DONE], {}, Flows(publish=publish))
    assert good.run.status == "COMPLETED"
    assert len(sent) == 2


@in_virtual_time
async def test_a_failed_try_undoes_its_own_part_alone() -> None:
    sent: list[str] = []

    async def publish(_topic: str, payload: Any, /, *, key: str, id: str, type: str) -> None:
        sent.append(payload)

    def undo(key: str) -> dict[str, Any]:
        return step(key, "compensate", actionType="publish", topic="undo", body=key)

    attempt = step("t", "try", steps=[undo("inner"), step("stop", "fail")], catch=[step("go_on", "set", values={})])
    found = await ran([undo("outer"), attempt, DONE], {}, Flows(publish=publish))
    assert found.run.status == "COMPLETED"
    assert sent == ["inner"]


@in_virtual_time
async def test_an_unknown_gate_is_named() -> None:
    found = await ran([step("a", "action", gates=["crm"]), DONE])
    assert "this worker has no gate crm" in failure_of(found.run)


@in_virtual_time
async def test_steps_that_were_never_checked_fail_the_run_with_a_reason() -> None:
    found = await ran([step("a", "wat"), DONE])
    assert found.run.status == "FAILED"


def test_a_run_is_found_again_by_its_workflow_and_event() -> None:
    # covers E-04
    assert run_id_of("w", "e") == run_id_of("w", "e")
    assert len({run_id_of("w", "e"), run_id_of("w", "f"), run_id_of("x", "e")}) == 3
    assert WHEN.tzinfo is UTC
