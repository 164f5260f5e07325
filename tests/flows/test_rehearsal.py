"""A rehearsal shows every step of a flow, and calls nobody."""

from typing import Any

import pytest

from batuta.errors import InvalidInput
from batuta.flows.rehearsal import Double, Rehearsal, rehearse
from tests.flows.kit import DONE, OVERDUE, Doc, check_steps, rule, step


async def rehearsed(steps: Doc, payload: dict[str, Any] | None = None, **doubles: Double) -> Rehearsal:
    checked, faults = check_steps(steps)
    assert checked is not None, faults
    return await rehearse(checked, payload or {}, doubles)


async def test_every_step_is_shown_with_its_input_and_output() -> None:
    found = await rehearsed(OVERDUE, {"amount": 2500})
    assert found.path == ["check_overdue", "notify", "done"]
    assert found.steps[1].output == {"dryRun": True, "actionType": "webhook"}
    assert (await rehearsed(OVERDUE, {"amount": 1})).path == ["check_overdue", "done"]


async def test_what_would_be_sent_is_shown_without_secrets() -> None:
    headers = {"Authorization": "Bearer secret://env/TOKEN"}
    act = step("a", "action", url="https://example.com/{{ event.payload.id }}", headers=headers, body={"x": 1})
    found = await rehearsed([act, DONE], {"id": 7})
    assert found.steps[0].request == {
        "method": "POST",
        "url": "https://example.com/7",
        "headers": {"Authorization": "Bearer secret://env/TOKEN"},
        "body": {"x": 1},
    }


async def test_a_double_says_what_a_step_gives() -> None:
    steps = [
        step("ask", "action", url="https://example.com"),
        step("big", "condition", rule=rule("steps.ask.output.body.n", "gt", 5), onFalse="done"),
        step("more", "action"),
        DONE,
    ]
    assert (await rehearsed(steps, ask=Double(output={"body": {"n": 9}}))).path == ["ask", "big", "more", "done"]
    assert (await rehearsed(steps, ask=Double(output={"body": {"n": 1}}))).path == ["ask", "big", "done"]
    failed = await rehearsed(steps, ask=Double(error="away"))
    assert (failed.status, failed.error, failed.steps[0].error) == ("FAILED", "away", "away")


async def test_waits_end_at_once_or_in_time() -> None:
    steps = [
        step("paid", "wait_event", timeout=60, event="paid", onTimeout="late"),
        step("ok", "approval", onRejected="late"),
        step("pause", "delay", duration="30d", next="done"),
        step("late", "action"),
        DONE,
    ]
    assert (await rehearsed(steps)).path == ["paid", "ok", "pause", "done"]
    assert (await rehearsed(steps, paid=Double(timeout=True))).path == ["paid", "late", "done"]
    assert (await rehearsed(steps, ok=Double(output={"approved": False}))).path == ["paid", "ok", "late", "done"]


async def test_what_would_be_undone_is_listed() -> None:
    steps = [
        step("u1", "compensate", url="https://x.example"),
        step("u2", "compensate", actionType="mail"),
        step("no", "fail"),
        DONE,
    ]
    assert (await rehearsed(steps)).undone == ["u2", "u1"]


async def test_a_circle_comes_to_an_end() -> None:
    again = step("again", "condition", rule=rule("n", "not_exists"), onTrue="wait")
    found = await rehearsed([step("wait", "delay", seconds=1), again, DONE])
    assert "it goes in circles" in (found.error or "")


async def test_what_is_shown_is_bounded() -> None:
    large = {"items": list(range(100)), "text": "x" * 200_000}
    found = await rehearsed(
        [step("all", "for_each", items="{{ event.payload.items }}", steps=[step("a", "action")]), DONE], large
    )
    assert "the rehearsal shows more than" in (found.error or "")


async def test_what_a_list_collects_is_bounded() -> None:
    items = {"items": list(range(100)), "text": "x" * 200_000}
    each = step(
        "all",
        "for_each",
        items="{{ event.payload.items }}",
        steps=[step("a", "set", values={"n": 1})],
        collect="{{ event.payload.text }}",
    )
    found = await rehearsed([each, DONE], items)
    assert "collect gives more than" in (found.error or "")


async def test_a_double_for_a_step_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match="nobody"):
        await rehearsed(OVERDUE, nobody=Double(output=1))
