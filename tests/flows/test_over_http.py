"""The examples and rules of the flows' requirements, over HTTP, on each database."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

import batuta
from batuta.clock import SECOND, SystemClock
from batuta.flows.interpreter import LONG_LIST
from batuta.metrics import Metrics
from batuta.metrics.exposition import exposition
from tests.flows.http import CHECK, DONE, NOTIFY, SPRINT, Orkestr, Receiver, at_work, calling, orkestr


@pytest.fixture
async def api(url: str) -> AsyncIterator[Orkestr]:
    async with orkestr(url) as made:
        yield made


def messages(run: Any, level: str = "info") -> list[str]:
    return [line["message"] for line in run["logs"] if line["level"] == level]


def paths(run: Any) -> list[tuple[str, str]]:
    return [(step["step_key"], step["status"]) for step in run["steps"]]


# covers E-01
async def test_every_record_has_the_fields_of_its_model(api: Orkestr) -> None:
    flow = await api.published()
    assert set(flow) == set(
        "id tenant_id name description trigger_type version is_active published_at steps trigger created_at "
        "updated_at".split()
    )
    event = await api.event({"amount": 2500})
    assert set(event) == set("id tenant_id type payload source external_id created_at".split())
    assert flow["tenant_id"] == event["tenant_id"] == "default"
    run = await api.ended(await api.run_of(event))
    of_run = "id workflow_id event_id status dispatch_status context error started_at finished_at created_at updated_at"
    assert set(of_run.split()) <= set(run)
    assert (run["workflow_id"], run["event_id"]) == (flow["id"], event["id"])
    of_step = (
        "id run_id step_key step_type status input output error provider_ref attempt started_at finished_at "
        "created_at updated_at"
    )
    assert all(set(of_step.split()) <= set(step) and step["run_id"] == run["id"] for step in run["steps"])
    assert all(set(line) == set("id run_id level message context created_at".split()) for line in run["logs"])
    assert all(set(line) == set("id entity entity_id action details created_at".split()) for line in run["audit"])
    for record in (flow, event, run, *run["steps"], *run["logs"], *run["audit"]):
        assert str(UUID(record["id"])) == record["id"]


# covers E-02
async def test_an_event_is_normalised_and_a_repeat_is_the_first_one(api: Orkestr) -> None:
    await api.published()
    sent = {"type": " Invoice-Overdue ", "source": "  CRM ", "external_id": "inv-1", "payload": {"amount": 2500}}
    first = await api.post("/api/events", sent, 201)
    assert (first["type"], first["source"]) == ("invoice_overdue", "crm")
    assert "_idempotent" not in first
    again = await api.post("/api/events", sent | {"payload": {"amount": 1}}, 200)
    assert again == first | {"_idempotent": True}
    elsewhere = await api.post("/api/events", sent | {"source": "shop"}, 201)
    assert elsewhere["id"] != first["id"]
    unnamed = [await api.post("/api/events", {"type": "invoice_overdue"}, 201) for _ in range(2)]
    assert unnamed[0]["id"] != unnamed[1]["id"]
    counted = (await api.web.get("/metrics")).body.decode()
    assert 'batuta_events_total{namespace="default",outcome="repeated"} 1.0' in counted
    found = await api.get("/api/events", source="crm")
    assert [(one["id"], len(one["runs"])) for one in found["events"]] == [(first["id"], 1)]


# covers E-02
async def test_the_same_event_from_many_at_once_begins_one_run(api: Orkestr) -> None:
    await api.published()
    sent = [api.event({"amount": 2500}, external_id="inv-1") for _ in range(20)]
    found = await asyncio.gather(*sent)
    assert len({one["id"] for one in found}) == 1
    assert sum("_idempotent" not in one for one in found) == 1
    await api.run_of(found[0])


# covers E-03
async def test_a_published_flow_never_changes_and_a_new_version_is_a_new_draft(api: Orkestr) -> None:
    draft = await api.post("/api/workflows", SPRINT, 201)
    assert (draft["version"], draft["published_at"], draft["is_active"]) == (1, None, False)
    changed = await api.patch(f"/api/workflows/{draft['id']}", {"description": "new"})
    assert changed["description"] == "new"
    more = await api.patch(f"/api/workflows/{draft['id']}", {"trigger": {"topic": "invoices"}, "format": 1})
    assert (more["description"], more["trigger"]) == ("new", {"topic": "invoices"})
    gone = await api.patch(f"/api/workflows/{draft['id']}", {"trigger": None, "description": None})
    assert (gone["description"], gone["trigger"]) == (None, None)
    published = await api.post(f"/api/workflows/{draft['id']}/publish")
    assert published["published_at"] is not None
    assert published["is_active"]
    refused = await api.post(f"/api/workflows/{draft['id']}/publish", expect=409)
    assert refused["code"] == "flow_conflict"
    await api.patch(f"/api/workflows/{draft['id']}", {"steps": [NOTIFY, DONE]}, 409)
    assert await api.get(f"/api/workflows/{draft['id']}") == published
    second = await api.post(f"/api/workflows/{draft['id']}/versions", expect=201)
    assert (second["version"], second["published_at"], second["steps"]) == (2, None, draft["steps"])
    await api.post(f"/api/workflows/{second['id']}/publish")
    active = await api.get("/api/workflows", name=SPRINT["name"])
    assert [(one["version"], one["is_active"]) for one in active["workflows"]] == [(2, True), (1, False)]
    third = await api.post("/api/workflows", SPRINT, 201)
    assert third["version"] == 3


BROKEN = {
    "unknown step type": ([{"key": "a", "type": "nope"}, DONE], "steps[0].type"),
    "no end": ([NOTIFY, NOTIFY | {"key": "again"}], "steps"),
    "the end first": ([DONE, NOTIFY], "steps[0]"),
    "the same key twice": ([NOTIFY, NOTIFY, DONE], "steps[1].key"),
    "one step": ([DONE], "steps"),
    "a step that is not there": ([CHECK, NOTIFY, DONE | {"key": "other"}], "steps[0].config.onFalse"),
    "a circle without a wait": ([NOTIFY, CHECK | {"config": CHECK["config"] | {"onFalse": "notify"}}, DONE], "steps"),
    "a reference to a later step": (
        [
            {"key": "first", "type": "set", "config": {"values": {"x": "{{ steps.notify.output }}"}}},
            NOTIFY,
            DONE,
        ],
        "steps[0].config.values",
    ),
}


# covers E-03
async def test_a_flow_that_cannot_be_is_refused_with_the_path_of_each_fault(api: Orkestr) -> None:
    for name, (steps, path) in BROKEN.items():
        refused = await api.post("/api/workflows", SPRINT | {"steps": steps}, 400)
        assert refused["code"] == "invalid_flow", name
        assert any(fault["path"].startswith(path) for fault in refused["faults"]), (name, refused)
    assert (await api.get("/api/workflows"))["workflows"] == []


# covers E-03
async def test_bad_input_is_the_right_problem_and_changes_nothing(api: Orkestr) -> None:
    draft = await api.post("/api/workflows", SPRINT, 201)
    event = await api.event({"amount": 1})
    started = await api.post("/api/runs", {"workflow_id": draft["id"], "event_id": event["id"]}, 409)
    assert (started["code"], "draft" in started["detail"]) == ("flow_conflict", True)
    await api.post("/api/runs", {"workflow_id": "x", "event_id": event["id"]}, 404)
    await api.post("/api/runs", {"workflow_id": event["id"], "event_id": event["id"]}, 404)
    bodies: list[dict[str, Any]] = [
        {"payload": {}},
        {"type": "x", "payload": [1]},
        {"type": "x", "payload": "text"},
        {"type": " "},
    ]
    for body in bodies:
        refused = await api.post("/api/events", body, 400)
        assert refused["code"] == "invalid_input", body
    large = await api.post("/api/workflows", SPRINT | {"description": "x" * 1_000_000}, (400, 413))
    assert large["code"] in ("invalid_flow", "too_large")
    twice = await api.web.ask("POST", "/api/workflows", data=b'{"name": "a", "name": "b", "steps": []}')
    assert (twice.status, "twice" in twice.json["detail"]) == (400, True)
    await api.patch(f"/api/workflows/{draft['id']}", {}, 400)
    await api.post(f"/api/workflows/{draft['id']}/activate", expect=409)
    assert (await api.get("/api/runs"))["runs"] == []
    assert [one["id"] for one in (await api.get("/api/events"))["events"]] == [event["id"]]
    assert await api.get(f"/api/workflows/{draft['id']}") == draft


# covers E-04
@pytest.mark.parametrize(
    "cursor", ["x", "", "[", '["a",1e99]', '["a",99999999999999999999]', '["\\u0000",1]', "-" * 500]
)
async def test_a_cursor_that_no_page_ended_with_is_refused_in_every_list(api: Orkestr, cursor: str) -> None:
    event = await api.event({"amount": 1})
    draft = await api.post("/api/workflows", SPRINT, 201)
    for path in ("/api/workflows", "/api/events", "/api/runs", "/api/runs/failed", "/api/approvals"):
        assert (await api.get(path, 400, cursor=cursor))["code"] == "invalid_input", path
    for linked in ({"event_id": event["id"]}, {"workflow_id": draft["id"]}):
        assert (await api.get("/api/runs", 400, cursor=cursor, **linked))["code"] == "invalid_input"


# covers E-04
async def test_a_run_by_hand_begins_once_for_an_event(api: Orkestr) -> None:
    flow = await api.published(activate=False)
    event = await api.event({"amount": 2500})
    assert (await api.get(f"/api/events/{event['id']}"))["runs"] == []
    asked = {"workflow_id": flow["id"], "event_id": event["id"]}
    first = await api.post("/api/runs", asked, 201)
    again = await api.post("/api/runs", asked, 200)
    assert (again["id"], again["_idempotent"], "_idempotent" in first) == (first["id"], True, False)
    await api.ended(first["id"], "COMPLETED")
    replayed = await api.post(f"/api/events/{event['id']}/replay", expect=201)
    assert (replayed["payload"], replayed["id"] != event["id"]) == ({"amount": 2500}, True)


# covers E-04
async def test_an_active_flow_begins_with_each_event_of_its_type_that_its_filter_lets_in(api: Orkestr) -> None:
    rule = {"field": "amount", "operator": "gte", "value": 1000}
    await api.published(SPRINT | {"trigger": {"filter": rule}})
    other = await api.published(SPRINT | {"name": "other", "trigger_type": "invoice paid"})
    assert other["trigger_type"] == "invoice_paid"
    begun = [
        len((await api.get(f"/api/events/{e['id']}"))["runs"])
        for e in [await api.event({"amount": n}) for n in (999, 1000)]
    ]
    assert begun == [0, 1]
    flow = (await api.get("/api/workflows", name=SPRINT["name"]))["workflows"][0]
    await api.post(f"/api/workflows/{flow['id']}/deactivate")
    late = await api.event({"amount": 1000})
    assert (await api.get(f"/api/events/{late['id']}"))["runs"] == []
    await api.post(f"/api/workflows/{flow['id']}/activate")
    await api.run_of(await api.event({"amount": 1000}))


# covers E-05, E-06, E-07, E-12
async def test_the_documents_example_runs_word_for_word(api: Orkestr) -> None:
    await api.published()
    run = await api.done({"amount": 2500})
    assert (run["status"], run["dispatch_status"], run["error"]) == ("COMPLETED", "DISPATCHED", None)
    assert paths(run) == [("check_overdue", "COMPLETED"), ("notify", "COMPLETED"), ("done", "COMPLETED")]
    check, notify, _ = run["steps"]
    assert check["output"] == {"result": True, "rule": CHECK["config"]["rule"]}
    assert check["input"] == notify["input"] == {"amount": 2500}
    assert notify["output"] == {"dryRun": True, "actionType": "webhook"}
    assert notify["provider_ref"].startswith("dry-run-")
    assert UUID(notify["provider_ref"].removeprefix("dry-run-")).version == 5
    assert run["context"]["steps"]["check_overdue"]["output"]["result"] is True
    said = messages(run)
    wanted = [
        'Step "check_overdue" (condition) → RUNNING',
        'Step "check_overdue" (condition) → COMPLETED',
        'Step "notify" (action) created as PENDING',
        'Action "notify" intent persisted before execution',
        'Step "notify" (action) → COMPLETED',
        "Run completed successfully",
    ]
    assert [line for line in said if line in wanted] == wanted
    assert messages(run, "warn") == messages(run, "error") == []


# covers E-05
async def test_every_type_of_step_of_the_document_runs(api: Orkestr) -> None:
    ask = {"key": "ask", "type": "ai_task", "config": {"fallback": "use_default_template"}}
    pause = {"key": "pause", "type": "delay", "config": {"seconds": 0.01}}
    await api.published(SPRINT | {"steps": [CHECK, NOTIFY, ask, pause, DONE]})
    run = await api.done({"amount": 2500})
    assert [(step["step_type"], step["status"]) for step in run["steps"]] == [
        (kind, "COMPLETED") for kind in ("condition", "action", "ai_task", "delay", "end")
    ]
    assert all(step["attempt"] == 1 and step["started_at"] <= step["finished_at"] for step in run["steps"])
    wanted = {"fallbackUsed": True, "fallback": "use_default_template", "data": {"amount": 2500}}
    assert run["context"]["steps"]["ask"]["output"] == wanted
    assert run["context"]["steps"]["pause"]["output"] == {"seconds": 0.01}


# covers E-04
async def test_a_run_that_waits_for_a_worker_shows_its_first_step(url: str) -> None:
    async with orkestr(url, working=False) as api:
        flow = await api.published(activate=False)
        event = await api.event({"amount": 2500})
        begun = await api.post("/api/runs", {"workflow_id": flow["id"], "event_id": event["id"]}, 201)
        run = await api.get(f"/api/runs/{begun['id']}")
        [first] = run["steps"]
        assert (first["step_key"], first["status"], first["input"]) == ("check_overdue", "PENDING", event["payload"])
        assert (len(run["logs"]), len(run["audit"])) == (2, 2)
        async with at_work(api.client):
            ended = await api.ended(begun["id"], "COMPLETED")
    assert ended["steps"][0]["id"] == first["id"]


# covers E-06
async def test_a_condition_that_does_not_hold_goes_to_the_end_and_skips_the_action(api: Orkestr) -> None:
    await api.published()
    run = await api.done({"amount": 50})
    assert (run["status"], paths(run)) == ("COMPLETED", [("check_overdue", "COMPLETED"), ("done", "COMPLETED")])
    assert 'Condition routed: "check_overdue" → "done" (branch: false)' in messages(run)
    assert run["steps"][0]["output"]["result"] is False


# covers E-07
async def test_a_webhook_is_sent_with_the_id_of_its_step_run_as_the_key(api: Orkestr) -> None:
    async with Receiver() as receiver:
        await api.published(calling(receiver.url))
        run = await api.done({"amount": 2500})
    [notify] = [step for step in run["steps"] if step["step_key"] == "notify"]
    assert (run["status"], receiver.keys) == ("COMPLETED", [notify["id"]])
    assert notify["output"]["status"] == 200


# covers E-07, E-08, E-14
async def test_a_receiver_that_is_away_fails_the_run_after_three_attempts_with_its_logs(api: Orkestr) -> None:
    await api.published(calling("http://localhost:19999/does-not-exist"))
    event = await api.event({"amount": 2500})
    run_id = await api.run_of(event)
    retrying = await api.until(run_id, lambda run: any(s["status"] == "RETRYING" for s in run["steps"]))
    [step] = [one for one in retrying["steps"] if one["status"] == "RETRYING"]
    assert step["provider_ref"] == f"intent-{step['id']}-attempt-{step['attempt']}"
    run = await api.ended(run_id)
    assert paths(run) == [("check_overdue", "COMPLETED"), ("notify", "FAILED")]
    warned, errors = messages(run, "warn"), messages(run, "error")
    assert [line.partition(", will retry")[0] for line in warned] == [
        f'Step "notify" failed (attempt {n}/3)' for n in (1, 2)
    ]
    assert len(errors) == 2
    assert run["error"].startswith('Step "notify" failed after 3 attempt(s): ')
    assert errors[0] == run["error"]
    listed = await api.get("/api/runs/failed")
    assert [(one["id"], len(one["logs"]), paths(one)) for one in listed["runs"]] == [(run_id, 2, paths(run))]
    kinds = {(line["entity"], line["action"]) for line in run["audit"]}
    assert {("run", "created"), ("run", "failed"), ("step_run", "failed"), ("step_run", "status_changed")} <= kinds


# covers E-08
async def test_a_failed_run_is_retried_from_its_failed_step(api: Orkestr) -> None:
    once = {"retry": {"attempts": 1}}
    async with Receiver([500]) as receiver:
        await api.published(calling(receiver.url, **once))
        failed = await api.done({"amount": 2500})
        assert failed["status"] == "FAILED"
        await api.post(f"/api/runs/{failed['id']}/retry", {"reason": "they are back"})
        run = await api.ended(failed["id"], "COMPLETED")
    assert paths(run)[-1] == ("done", "COMPLETED")
    assert len(receiver.keys) == 2
    assert len(set(receiver.keys)) == 1, "a retry is the same request"
    assert (await api.get("/api/runs/failed"))["runs"] == []


# covers E-08, E-14
async def test_the_log_of_a_retried_run_is_that_of_all_its_tries(api: Orkestr) -> None:
    async with Receiver([500] * 4) as receiver:
        await api.published(calling(receiver.url, retry={"attempts": 2, "first": 0.01}))
        told = [await api.done({"amount": 2500})]
        for status in ("FAILED", "COMPLETED"):
            await api.post(f"/api/runs/{told[0]['id']}/retry")
            told.append(await api.ended(told[0]["id"], status))
    assert len({one["created_at"] for one in told}) == 1
    for before, after in itertools.pairwise(told):
        for name in ("logs", "audit"):
            assert after[name][: len(before[name])] == before[name]
            assert len(after[name]) > len(before[name])
    logs, audit = told[-1]["logs"], told[-1]["audit"]
    assert all(len({one["id"] for one in lines}) == len(lines) for lines in (logs, audit))
    failed = [place for place, line in enumerate(logs) if line["message"].startswith("Run failed: ")]
    assert (len(failed), failed[1] < len(logs) - 1, logs[-1]["message"]) == (2, True, "Run completed successfully")
    assert [one["level"] for one in logs if one["level"] != "info"] == ["warn", "error", "error"] * 2
    assert [one["details"]["to"] for one in audit if one["entity"] == "run" and "to" in one["details"]] == [
        "RUNNING",
        "FAILED",
        "FAILED",
        "COMPLETED",
    ]


# covers E-09
async def test_an_ai_task_without_an_endpoint_passes_its_input_through_and_says_so(api: Orkestr) -> None:
    ask = {"key": "ask", "type": "ai_task", "config": {"prompt": "greet", "fallback": "use_default_template"}}
    await api.published(SPRINT | {"steps": [ask, DONE]})
    run = await api.done({"amount": 1})
    wanted = {"fallbackUsed": True, "fallback": "use_default_template", "data": {"amount": 1}}
    assert wanted.items() <= run["steps"][0]["output"].items()


# covers E-10
async def test_a_run_that_no_worker_can_take_says_so_and_recovers_by_itself(url: str) -> None:
    async with orkestr(url, working=False) as api:
        await api.published()
        run_id = await api.run_of(await api.event({"amount": 2500}))
        run = await api.get(f"/api/runs/{run_id}")
        assert (run["status"], run["dispatch_status"]) == ("PENDING", "FAILED")
        assert run["error"].startswith("Dispatch to queue failed: no live worker")
        assert [one["id"] for one in (await api.get("/api/runs"))["runs"]] == [run_id]
        async with at_work(api.client):
            run = await api.ended(run_id)
    assert (run["status"], run["dispatch_status"], run["error"]) == ("COMPLETED", "DISPATCHED", None)


# covers E-12
async def test_later_steps_use_what_earlier_ones_found(api: Orkestr) -> None:
    async with Receiver() as receiver:
        said = {
            "actionType": "webhook",
            "url": receiver.url,
            "body": {"late": "{{ steps.check_overdue.output.result }}"},
        }
        note = {"key": "note", "type": "set", "config": {"values": {"sum": "{{ add(event.payload.amount, 1) }}"}}}
        await api.published(SPRINT | {"steps": [CHECK, note, NOTIFY | {"config": said}, DONE]})
        run = await api.done({"amount": 2500})
    assert run["context"]["sum"] == 2501
    assert receiver.requests[0][1] == b'{"late":true}'


# covers E-14
async def test_what_was_done_to_flows_is_in_the_audit_log(api: Orkestr) -> None:
    flow = await api.published()
    await api.post(f"/api/workflows/{flow['id']}/deactivate", {"reason": "holidays"})
    log = (await api.get("/api/v1/audit", target=f"{SPRINT['name']}@1"))["rows"]
    assert [(row["verb"], row["reason"]) for row in reversed(log)] == [
        ("create flow", ""),
        ("publish flow", ""),
        ("deactivate flow", "holidays"),
    ]


# covers E-14
async def test_every_record_has_its_audit_log(api: Orkestr) -> None:
    flow = await api.published(activate=False)
    await api.post(f"/api/workflows/{flow['id']}/activate", {"reason": "now"})
    event = await api.event({"amount": 50})
    run = await api.ended(await api.run_of(event))

    async def actions(entity: str, id: str) -> list[tuple[str, str]]:
        found = (await api.get("/api/audit", entity=entity, entity_id=id))["audit"]
        assert all(set(line) == set("id entity entity_id action details created_at".split()) for line in found)
        assert all(str(UUID(line["id"])) == line["id"] for line in found)
        assert all(line["entity_id"] == id for line in found if line["entity"] == entity)
        return [(line["entity"], line["action"]) for line in found]

    assert await actions("workflow", flow["id"]) == [
        ("workflow", "created"),
        ("workflow", "published"),
        ("workflow", "status_changed"),
    ]
    assert await actions("event", event["id"]) == [("event", "created")]
    assert await actions("run", run["id"]) == [(line["entity"], line["action"]) for line in run["audit"]]
    await api.get("/api/audit", 400, entity="seed", entity_id="x")
    await api.get("/api/audit", 400, entity="run")
    for entity in ("run", "workflow", "event"):
        await api.get("/api/audit", 404, entity=entity, entity_id="x")


async def test_a_run_is_cancelled(api: Orkestr) -> None:
    wait = {"key": "wait", "type": "delay", "config": {"duration": "1h"}}
    await api.published(SPRINT | {"steps": [wait, DONE]})
    run_id = await api.run_of(await api.event({}))
    await api.until(run_id, lambda run: run["status"] == "RUNNING" and run["steps"])
    await api.post(f"/api/runs/{run_id}/cancel", {"reason": "no longer needed"})
    run = await api.ended(run_id)
    assert (run["status"], paths(run)) == ("CANCELLED", [("wait", "SKIPPED")])


# covers E-04
async def test_a_run_that_is_cancelled_before_it_began_has_skipped_its_first_step(url: str) -> None:
    wait = {"key": "wait", "type": "delay", "config": {"duration": "1h"}}
    async with orkestr(url, working=False) as api:
        await api.published(SPRINT | {"steps": [wait, DONE]})
        run_id = await api.run_of(await api.event({}))
        [pending] = (await api.get(f"/api/runs/{run_id}"))["steps"]
        await api.post(f"/api/runs/{run_id}/cancel")
        run = await api.get(f"/api/runs/{run_id}")
        assert (run["status"], run["started_at"], paths(run)) == ("CANCELLED", None, [("wait", "SKIPPED")])
        assert run["steps"][0]["id"] == pending["id"]
        changed = [one["details"] for one in run["audit"] if one["entity"] == "run"][-1]
        assert changed == {"from": "PENDING", "to": "CANCELLED"}


# covers E-04
async def test_a_run_that_waits_for_room_shows_its_first_step(api: Orkestr) -> None:
    ask = {"key": "ask", "type": "approval", "config": {"title": "?"}}
    concurrency = {"key": "{{ event.payload.customer }}", "overlap": "buffer"}
    await api.published(SPRINT | {"steps": [ask, DONE], "trigger": {"concurrency": concurrency}})
    first, second = [await api.run_of(await api.event({"customer": "a", "n": n})) for n in (1, 2)]
    await api.until(first, lambda run: [one["status"] for one in run["steps"]] == ["RUNNING"])
    waiting = await api.until(second, lambda run: run["started_at"] is not None)
    assert paths(waiting) == [("ask", "PENDING")]
    refused = await api.post(f"/api/runs/{second}/decide", {"step": "ask", "approved": True}, 409)
    assert "waits for no decision" in refused["detail"]
    await api.post(f"/api/runs/{first}/decide", {"step": "ask", "approved": True})
    begun = await api.until(second, lambda run: paths(run) == [("ask", "RUNNING")])
    assert begun["steps"][0]["id"] == waiting["steps"][0]["id"]
    await api.post(f"/api/runs/{second}/cancel")
    await api.ended(second, "CANCELLED")


async def test_a_decision_that_no_worker_takes_up_is_kept_for_the_next_one(url: str) -> None:
    ask = {"key": "ask", "type": "approval", "config": {"title": "?"}}
    decision = {"step": "ask", "approved": True, "comment": "fine", "timeout": 0}
    async with orkestr(url, working=False) as api:
        await api.published(SPRINT | {"steps": [ask, DONE]})
        run_id = await api.run_of(await api.event({}))
        decide = f"/api/runs/{run_id}/decide"
        assert "no decision" in (await api.post(decide, decision, 409))["detail"], "it has not begun"
        async with at_work(api.client):
            await api.until(run_id, lambda run: paths(run) == [("ask", "RUNNING")])
        await api.post(decide, decision | {"timeout": 31}, 400)
        for _ in range(2):
            answer = await api.post(decide, decision, 202)
            assert answer == {"id": run_id, "step": "ask", "approved": True, "pending": True}
        async with at_work(api.client):
            run = await api.ended(run_id, "COMPLETED")
    assert run["steps"][0]["output"]["comment"] == "fine"


async def test_a_person_approves_or_rejects(api: Orkestr) -> None:
    ask = {"key": "ask", "type": "approval", "config": {"title": "Write off {{ event.payload.amount }}?"}}
    await api.published(SPRINT | {"steps": [ask, DONE]})
    runs = [await api.run_of(await api.event({"amount": n})) for n in (1, 2)]
    for run_id in runs:
        await api.until(run_id, lambda run: any(step["status"] == "RUNNING" for step in run["steps"]))
    waiting = {one["run_id"]: one for one in (await api.get("/api/approvals"))["approvals"]}
    assert set(waiting) == set(runs)
    assert waiting[runs[0]]["title"] == "Write off 1?"
    await api.post(f"/api/runs/{runs[0]}/decide", {"step": "ask", "approved": True, "comment": "fine"})
    await api.post(f"/api/runs/{runs[1]}/decide", {"step": "ask", "approved": False})
    approved, rejected = await api.ended(runs[0]), await api.ended(runs[1])
    assert (approved["status"], rejected["status"]) == ("COMPLETED", "FAILED")
    said = approved["steps"][0]["output"]
    assert (said["approved"], said["comment"], said["by"]) == (True, "fine", "loopback")
    await api.post(f"/api/runs/{runs[0]}/decide", {"step": "ask", "approved": True}, 409)
    assert (await api.get("/api/approvals"))["approvals"] == []


@pytest.mark.parametrize("count", [3, LONG_LIST + 1])
async def test_a_person_decides_the_item_that_was_asked_about(api: Orkestr, count: int) -> None:
    ask = {"key": "ask", "type": "approval", "config": {"title": "{{ context.item }}?", "onRejected": "no"}}
    no = {"key": "no", "type": "set", "config": {"values": {"rejected": True}}}
    steps = [ask, {"key": "yes", "type": "end"}, no]
    config = {"items": "{{ event.payload.items }}", "concurrency": 3, "steps": steps}
    await api.published(SPRINT | {"steps": [{"key": "each", "type": "for_each", "config": config}, DONE]})
    run_id = await api.run_of(await api.event({"items": list(range(count))}))
    async with asyncio.timeout(60):
        while len(waiting := (await api.get("/api/approvals"))["approvals"]) < 3:
            await asyncio.sleep(0.02)
    asked = next(one for one in waiting if one["title"] == "1?")
    decision = {"step": "ask", "step_run_id": asked["step_run_id"], "approved": False}
    # From the page of its run as from that of all approvals: a long list is done by other runs.
    await api.post(f"/api/runs/{run_id if count > 3 else asked['run_id']}/decide", decision)
    run = await api.until(run_id, lambda run: any(step["step_key"] == "no" for step in run["steps"]))
    shown = [(step["input"]["title"], step["index"]) for step in run["steps"] if step["step_key"] == "ask"]
    assert all(title == f"{index}?" for title, index in shown)
    given = {step["input"]["title"]: step["output"] for step in run["steps"] if step["step_key"] == "ask"}
    assert given["1?"]["approved"] is False
    assert given["0?"] is given["2?"] is None
    assert (await api.post(f"/api/runs/{run_id}/decide", decision, (409, 422)))["detail"]
    assert (await api.post(f"/api/runs/{run_id}/decide", decision | {"step_run_id": "no"}, 409))["detail"]
    await api.post(f"/api/runs/{run_id}/cancel")
    await api.ended(run_id, "CANCELLED")


async def test_a_person_decides_what_a_sub_flow_asks(api: Orkestr) -> None:
    ask = {"key": "ask", "type": "approval", "config": {"title": "inner?"}}
    await api.published({"name": "inner", "steps": [ask, DONE]})
    inner = {"key": "inner", "type": "sub_flow", "config": {"workflow": "inner"}}
    await api.published(SPRINT | {"steps": [inner, DONE]})
    run_id = await api.run_of(await api.event({}))
    async with asyncio.timeout(60):
        while not (waiting := (await api.get("/api/approvals"))["approvals"]):
            await asyncio.sleep(0.02)
    [asked] = waiting
    assert (asked["name"], str(UUID(asked["run_id"]))) == ("inner", asked["run_id"])
    assert (await api.get(f"/api/runs/{asked['run_id']}"))["id"] == asked["run_id"]
    await api.post(f"/api/runs/{asked['run_id']}/decide", {"step": "ask", "approved": True})
    assert (await api.ended(run_id))["status"] == "COMPLETED"


async def test_an_event_wakes_the_runs_that_wait_for_it(api: Orkestr) -> None:
    wait = {
        "key": "paid",
        "type": "wait_event",
        "config": {"event": "InvoicePaid", "correlation": {"field": "invoice", "value": "{{ event.payload.invoice }}"}},
    }
    await api.published(SPRINT | {"steps": [wait, DONE]})
    runs = [await api.run_of(await api.event({"invoice": n})) for n in (1, 2)]
    for run_id in runs:
        await api.until(run_id, lambda run: any(step["status"] == "RUNNING" for step in run["steps"]))
    async with asyncio.timeout(30):
        while len(await api.client.flows.runs.waits("invoice_paid", "invoice", 2)) < 1:
            await asyncio.sleep(0.02)
    await api.event({"invoice": 2, "by": "card"}, type="invoice-paid")
    run = await api.ended(runs[1])
    assert run["steps"][0]["output"]["payload"] == {"invoice": 2, "by": "card"}
    assert (await api.get(f"/api/runs/{runs[0]}"))["status"] == "RUNNING"
    await api.post(f"/api/runs/{runs[0]}/cancel", {})


async def test_an_event_that_came_before_the_step_began_is_heard_once(api: Orkestr) -> None:
    correlation = {"field": "invoice", "value": "{{ event.payload.invoice }}"}
    ask: dict[str, Any] = {"key": "ask", "type": "approval", "config": {"title": "?"}}
    paid: dict[str, Any] = {"type": "wait_event", "config": {"event": "invoice_paid", "correlation": correlation}}
    more: dict[str, Any] = {"key": "again", "timeout": 0.2, "config": paid["config"] | {"onTimeout": "other"}}
    other: dict[str, Any] = {"key": "other", "type": "wait_event", "timeout": 0.2}
    other["config"] = {"event": "invoice_paid", "onTimeout": "done"}
    await api.event({"invoice": 1, "n": 0}, type="invoice_paid")  # before the run
    await api.published(SPRINT | {"steps": [ask, paid | {"key": "paid"}, paid | more, other, DONE]})
    run_id = await api.run_of(await api.event({"invoice": 1}))
    for payload in ({"invoice": 2, "n": 1}, {"invoice": 1, "n": 2}):
        await api.event(payload, type="invoice_paid")
    await api.until(run_id, lambda run: any(step["status"] == "RUNNING" for step in run["steps"]))
    await api.post(f"/api/runs/{run_id}/decide", {"step": "ask", "approved": True})
    run = await api.ended(run_id)
    outputs = {step["step_key"]: step["output"] for step in run["steps"]}
    assert outputs["paid"]["payload"] == {"invoice": 1, "n": 2}
    assert outputs["again"] == {"timedOut": True}, "it was heard already"
    assert outputs["other"] == {"timedOut": True}, "without a correlation only later ones count"


async def test_a_replayed_event_takes_no_answer_that_came_for_the_first(api: Orkestr) -> None:
    correlation = {"field": "invoice", "value": "{{ event.payload.invoice }}"}
    config = {"event": "invoice_paid", "correlation": correlation, "onTimeout": "done"}
    paid: dict[str, Any] = {"key": "paid", "type": "wait_event", "timeout": 30, "config": config}
    await api.published(SPRINT | {"steps": [paid, DONE]})
    first = await api.event({"invoice": 1})
    await api.event({"invoice": 1}, type="invoice_paid")
    assert (await api.ended(await api.run_of(first)))["steps"][0]["output"]["payload"] == {"invoice": 1}
    run_id = await api.run_of(await api.post(f"/api/events/{first['id']}/replay", expect=201))
    await api.until(run_id, lambda run: bool(run["steps"]))
    await api.event({"invoice": 1, "n": 2}, type="invoice_paid")
    assert (await api.ended(run_id))["steps"][0]["output"]["payload"] == {"invoice": 1, "n": 2}


async def test_an_earlier_event_is_heard_also_when_the_senders_clock_is_ahead(
    api: Orkestr, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask: dict[str, Any] = {"key": "ask", "type": "approval", "config": {"title": "?"}}
    correlation = {"field": "invoice", "value": "{{ event.payload.invoice }}"}
    config = {"event": "invoice_paid", "correlation": correlation, "onTimeout": "done"}
    paid: dict[str, Any] = {"key": "paid", "type": "wait_event", "timeout": 0.2, "config": config}
    await api.published(SPRINT | {"steps": [ask, paid, DONE]})
    ahead = SystemClock().now() + 3_600 * SECOND
    monkeypatch.setattr(api.client.flows.events._clock, "now", lambda: ahead)
    run_id = await api.run_of(await api.event({"invoice": 1}))
    await api.event({"invoice": 1, "n": 2}, type="invoice_paid")
    await api.until(run_id, lambda run: any(step["status"] == "RUNNING" for step in run["steps"]))
    await api.post(f"/api/runs/{run_id}/decide", {"step": "ask", "approved": True})
    steps = (await api.ended(run_id))["steps"]
    assert steps[1]["output"].get("payload") == {"invoice": 1, "n": 2}


async def test_runs_of_a_version_go_on_with_their_own_document(api: Orkestr) -> None:
    ask = {"key": "ask", "type": "approval", "config": {"title": "?"}}
    first = await api.published(SPRINT | {"steps": [ask, CHECK, DONE]})
    run_id = await api.run_of(await api.event({"amount": 2500}))
    await api.until(run_id, lambda run: any(step["status"] == "RUNNING" for step in run["steps"]))
    second = await api.post(f"/api/workflows/{first['id']}/versions")
    await api.patch(f"/api/workflows/{second['id']}", {"steps": [NOTIFY, DONE]})
    await api.post(f"/api/workflows/{second['id']}/publish")
    newer = await api.done({"amount": 2500})
    await api.post(f"/api/runs/{run_id}/decide", {"step": "ask", "approved": True})
    older = await api.ended(run_id)
    assert [step["step_key"] for step in older["steps"]] == ["ask", "check_overdue", "done"]
    assert [step["step_key"] for step in newer["steps"]] == ["notify", "done"]


async def test_only_runs_of_flows_are_shown(api: Orkestr) -> None:
    await api.client.start("elsewhere", id="not-a-flow")
    await api.client.start("flow.wait", None, id="00000000-0000-4000-8000-000000000000")
    assert (await api.get("/api/runs"))["runs"] == []
    await api.get("/api/runs/not-a-flow", 404)
    await api.get("/api/runs/00000000-0000-4000-8000-000000000000", 404)


async def test_a_namespace_sees_triggers_and_reads_nothing_of_another(url: str) -> None:
    async with orkestr(url) as ours, orkestr(url, working=False, namespace="theirs") as theirs:
        flow = await ours.published()
        event = await ours.event({"amount": 2500}, external_id="1")
        run_id = await ours.run_of(event)
        await ours.ended(run_id)
        other = await theirs.event({"amount": 2500}, external_id="1")
        assert (other["tenant_id"], "_idempotent" in other) == ("theirs", False)
        assert (await theirs.get(f"/api/events/{other['id']}"))["runs"] == []
        for path in (f"workflows/{flow['id']}", f"events/{event['id']}", f"runs/{run_id}"):
            await theirs.get(f"/api/{path}", 404)
        for entity, id in (("workflow", flow["id"]), ("event", event["id"]), ("run", run_id)):
            await theirs.get("/api/audit", 404, entity=entity, entity_id=id)
        for path in ("workflows", "runs", "runs/failed", "approvals"):
            assert not next(iter((await theirs.get(f"/api/{path}")).values()))
        await theirs.post("/api/runs", {"workflow_id": flow["id"], "event_id": other["id"]}, 404)
        for act in ("publish", "versions", "activate", "deactivate"):
            await theirs.post(f"/api/workflows/{flow['id']}/{act}", expect=404)
        for act in ("retry", "cancel"):
            await theirs.post(f"/api/runs/{run_id}/{act}", expect=404)
        await theirs.post(f"/api/events/{event['id']}/replay", expect=404)
        await ours.client.flows.secrets.set("crm", "s3cr3t")
        assert await theirs.get("/api/secrets") == {"secrets": []}
        assert await ours.get(f"/api/workflows/{flow['id']}") == flow


async def test_runs_of_flows_are_counted_by_the_name_of_their_flow(sqlite_url: str) -> None:
    metrics = Metrics()
    items = list(range(LONG_LIST + 1))
    part = {"key": "each", "type": "for_each", "config": {"items": items, "steps": [NOTIFY]}}
    async with batuta.connect(sqlite_url, middleware=[metrics]) as client, client.worker(flows=True):
        for name in ("a", "b"):
            draft = await client.flows.create(SPRINT | {"name": name, "steps": [part, DONE]})
            await client.flows.publish(draft.id)
        sent = await client.flows.events.send("invoice_overdue", {"amount": 500})
        for id in (await client.flows.runs.of_events([sent.event.id]))[sent.event.id]:
            await (await client.get(id)).result(60)
        text = exposition(metrics).decode()
    for name in ("a", "b"):  # runs that do parts of lists are not counted
        labels = f'flow="{name}",namespace="default",state="completed"'
        assert f"batuta_flow_run_duration_seconds_count{{{labels}}} 1.0" in text
