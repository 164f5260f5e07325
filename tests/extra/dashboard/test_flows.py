"""A flow from an empty editor to an approved run, in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.extra.dashboard.conftest import OpenPage
from tests.extra.dashboard.site import Site
from tests.extra.dashboard.test_every_page import PAYLOADS, settle

pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]

APP = "tests.flows.worker_app:APP"
REMINDER = {
    "name": "reminder",
    "trigger_type": "invoice_overdue",
    "steps": [
        {
            "key": "large",
            "type": "condition",
            "config": {"rule": {"field": "amount", "operator": "greater_than", "value": 100}, "onFalse": "done"},
        },
        {"key": "ask", "type": "approval", "config": {"title": "Remind them?", "onRejected": "done"}},
        {"key": "notify", "type": "action", "config": {"actionType": "webhook"}},
        {"key": "done", "type": "end"},
    ],
}


@pytest.fixture(scope="module")
def flow_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(Path(tmp_path_factory.mktemp("flows"))) as made:
        made.serve("dev", "--app", APP, "--no-reload")
        yield made


def test_a_flow_is_built_mended_rehearsed_published_followed_and_approved(
    flow_site: Site, open_page: OpenPage, expect: Any
) -> None:
    page = open_page(flow_site, "/flows")
    page.get_by_role("link", name="New flow").click()
    text = page.get_by_label("Document of the flow")
    publish = page.get_by_role("button", name="Publish")
    expect(page.get_by_role("status").filter(has_text="sound")).to_be_visible()  # it begins with an example
    expect(page.locator(".flow-node")).to_have_count(3)
    expect(publish).to_be_enabled()

    # an error stands at its line
    broken = json.loads(json.dumps(REMINDER))
    broken["steps"][2]["type"] = "aktion"
    lines = json.dumps(broken, indent=2).split("\n")
    wrong = next(number for number, line in enumerate(lines, 1) if "aktion" in line)
    text.fill("\n".join(lines))
    faults = page.get_by_role("list", name="Faults")
    expect(faults).to_contain_text(f"Line {wrong} steps[2].type unknown step type 'aktion'")
    expect(page.locator(".flow-gutter .bad")).to_have_text(str(wrong))
    expect(publish).to_be_disabled()
    faults.get_by_role("button", name=f"Line {wrong}").click()
    assert page.evaluate("getSelection().toString()").strip() == '"type": "aktion",'

    # mended, and a step put in by the menu
    text.fill(json.dumps(REMINDER, indent=2))
    expect(page.get_by_role("status").filter(has_text="sound")).to_be_visible()
    expect(page.locator(".flow-node")).to_have_count(4)
    page.get_by_label("Add step").select_option("set")
    expect(page.locator(".flow-node")).to_have_count(5)

    # a dry run: each step with its input and output
    page.get_by_label("Payload of a sample event").fill('{"amount": 50}')
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator(".flow-rehearsal details")).to_have_count(2)
    expect(page.locator(".flow-node[data-state=COMPLETED]")).to_have_count(2)  # the graph shows the path
    expect(page.locator(".flow-edge.taken")).to_have_count(1)
    page.get_by_label("Payload of a sample event").fill('{"amount": 2500}')
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator(".flow-rehearsal details")).to_have_count(5)
    page.locator(".flow-rehearsal summary").nth(2).click()
    expect(page.locator(".flow-rehearsal")).to_contain_text('"dryRun": true')

    publish.click()
    expect(page.get_by_role("heading", name="reminder v1")).to_be_visible()
    expect(page.get_by_role("button", name="Deactivate")).to_be_visible()

    # an event begins a run, which is followed and approved
    page.goto(flow_site.address + "/events")
    page.get_by_role("button", name="Send event").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type").fill("InvoiceOverdue")
    dialog.get_by_label("Payload").fill('{"amount": 2500}')
    dialog.get_by_role("button", name="Send").click()
    page.locator("td[data-label=Runs] a").click()
    expect(page.locator(".flow-node[data-key=ask]")).to_have_attribute("data-state", "RUNNING")
    expect(page.locator(".flow-node[data-key=notify]")).to_have_attribute("data-state", "")
    followed = page.url
    page.goto(flow_site.address + "/approvals")
    expect(page.get_by_role("cell", name="Remind them?")).to_be_visible()
    page.goto(followed)
    page.get_by_role("button", name="Approve").click()
    page.get_by_role("dialog").get_by_label("Comment").fill("they had their time")
    page.get_by_role("dialog").get_by_role("button", name="Approve").click()
    expect(page.locator(".flow-node[data-key=done]")).to_have_attribute("data-state", "COMPLETED")  # without a reload
    expect(page.locator(".flow-log")).to_contain_text("Run completed successfully")
    expect(page.locator(".flow-edge")).to_have_count(6)
    expect(page.locator(".flow-edge.taken")).to_have_count(4)  # not those past the steps, to the end


def test_unsaved_text_is_left_on_purpose_alone(flow_site: Site, open_page: OpenPage, expect: Any) -> None:
    page = open_page(flow_site, "/flows")
    page.get_by_role("link", name="New flow").click()
    text = page.get_by_label("Document of the flow")
    answers: list[bool] = [False, False, True]
    asked: list[str] = []

    def answer(dialog: Any) -> None:
        asked.append(dialog.message)
        (dialog.accept if answers.pop(0) else dialog.dismiss)()

    page.on("dialog", answer)
    page.get_by_role("link", name="Events").first.click()  # nothing is changed yet
    expect(page.get_by_role("heading", name="Events")).to_be_visible()
    assert asked == []
    page.go_back()
    text.fill('{"name": "x"}')
    page.get_by_role("link", name="Events").first.click()
    page.go_back()
    expect(page).to_have_url(flow_site.address + "/flows/new")
    expect(text).to_have_value('{"name": "x"}')
    page.get_by_role("link", name="Events").first.click()
    expect(page.get_by_role("heading", name="Events")).to_be_visible()
    assert len(asked) == 3
    assert "without saving" in asked[0]


def test_a_new_flow_whose_publication_fails_is_one_draft(flow_site: Site, open_page: OpenPage, expect: Any) -> None:
    page = open_page(flow_site, "/flows/new", quiet=(409,))
    page.get_by_label("Document of the flow").fill(json.dumps(REMINDER | {"name": "fragile"}, indent=2))
    problem = {"title": "Conflict", "status": 409, "code": "flow_conflict", "detail": "not now", "trace_id": ""}
    page.route("**/publish", lambda route: route.fulfill(status=409, json=problem), times=1)
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("heading", name="fragile v1")).to_be_visible()
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("button", name="Deactivate")).to_be_visible()
    expect(page.get_by_role("heading", name="fragile v1")).to_be_visible()


def test_the_editor_proposes_what_may_stand_at_the_cursor(flow_site: Site, open_page: OpenPage, expect: Any) -> None:
    page = open_page(flow_site, "/flows/new")
    text = page.get_by_label("Document of the flow")
    text.fill('{"name": "x", "steps": [{"key": "a", ')
    text.press("End")
    page.wait_for_load_state("networkidle")
    text.press("Control+Space")
    proposals = page.get_by_role("listbox", name="Proposals")
    expect(proposals.get_by_role("option").first).to_contain_text("type")
    text.press("Enter")
    text.press_sequentially("cond")
    expect(proposals.get_by_role("option")).to_have_count(1)
    expect(proposals.get_by_role("option")).to_contain_text("condition")
    text.press("Tab")
    expect(text).to_have_value('{"name": "x", "steps": [{"key": "a", "type": "condition"')
    expect(proposals).to_have_count(0)
    text.press_sequentially(', "')
    proposals.get_by_role("option", name="config").click()
    text.press_sequentially('"on')
    text.press("ArrowDown")
    text.press("Enter")
    expect(text).to_have_value('{"name": "x", "steps": [{"key": "a", "type": "condition", "config": {"onFalse": ""}')
    text.press("Control+Space")
    expect(proposals.get_by_role("option")).to_have_count(1)
    text.press("Escape")
    expect(proposals).to_have_count(0)


def test_nothing_in_a_flow_an_event_an_approval_or_an_error_is_run(flow_site: Site, open_page: OpenPage) -> None:
    paths = ["/flows", "/events", "/approvals", "/runs"]
    for number, payload in enumerate(PAYLOADS[::5]):
        asks = {"key": "ask", "type": "approval", "config": {"title": payload, "data": "{{ event.payload }}"}}
        fails = {"key": "stop", "type": "fail", "config": {"message": f"{payload} {{{{ event.payload.x }}}}"}}
        for kind, step in (("asks", asks), ("fails", fails)):
            name, trigger = f"{kind} {payload}"[:200], f"{kind}_{number}"
            flow = {
                "name": name,
                "description": payload,
                "trigger_type": trigger,
                "steps": [step, REMINDER["steps"][3]],
            }
            made = flow_site.ask("/api/workflows", flow)["id"]
            flow_site.ask(f"/api/workflows/{made}/publish", {})
            sent = {"type": trigger, "source": payload, "payload": {payload: payload, "x": payload}}
            event = flow_site.ask("/api/events", sent)["id"]
            [run] = flow_site.ask(f"/api/events/{event}")["runs"]
            if number % 4 == 0:
                paths += [f"/flows/{made}", f"/flow-runs/{run}", f"/runs/{run}", f"/runs/{run}?tab=journal"]
    page = open_page(flow_site, "/")
    for path in paths:
        page.goto(flow_site.address + path)
        settle(page)
        for button in page.locator("main button[aria-expanded=false], main summary").all()[:3]:
            button.click()
        assert page.evaluate("window.hit") is None, path


def test_what_is_taken_from_a_draft_is_gone_and_a_person_decides_the_row_that_is_clicked(
    flow_site: Site, open_page: OpenPage, expect: Any
) -> None:
    page = open_page(flow_site, "/flows/new")
    text = page.get_by_label("Document of the flow")
    ask = {"key": "ask", "type": "approval", "config": {"title": "Send to {{ context.item }}?"}}
    each = {"key": "each", "type": "for_each", "config": {"items": ["ana", "bea"], "steps": [ask]}}
    document = {"name": "letters", "trigger_type": "letters", "steps": [each, {"key": "done", "type": "end"}]}
    text.fill(json.dumps(document | {"description": "later", "trigger": {"topic": "letters"}}))
    page.get_by_role("button", name="Save draft").click()
    expect(page.get_by_role("heading", name="letters v1")).to_be_visible()
    text.fill(json.dumps(document))
    page.get_by_role("button", name="Save draft").click()
    expect(page.get_by_text("The draft is saved.").first).to_be_visible()
    page.reload()
    expect(text).to_have_value(re.compile('"name": "letters"'))
    expect(text).not_to_have_value(re.compile("topic|later"))
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("button", name="Deactivate")).to_be_visible()

    page.goto(flow_site.address + "/events")
    page.get_by_role("button", name="Send event").click()
    page.get_by_role("dialog").get_by_label("Type").fill("letters")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    page.goto(flow_site.address + "/approvals")
    page.get_by_role("row").filter(has_text="Send to bea?").get_by_role("button", name="Approve").click()
    page.get_by_role("dialog").get_by_role("button", name="Approve").click()
    expect(page.get_by_role("cell", name="Send to bea?")).to_have_count(0)
    expect(page.get_by_role("cell", name="Send to ana?")).to_be_visible()
