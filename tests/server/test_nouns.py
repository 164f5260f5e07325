"""Jobs, schedules, queues, workers, dead letters, quotas, retention, audit and the admin routes over HTTP."""

import asyncio
from typing import Any

import pytest

import batuta
from batuta import workflow
from batuta.server import Server
from batuta.testing import Environment
from batuta.testing.virtualtime import VirtualLoop
from tests.server.shop import APP, AWAY
from tests.server.test_runs import ended, until
from tests.server.web import Web


async def test_a_job_is_enqueued_and_shown(web: Web, worker: None) -> None:
    made = await web.post("/api/v1/jobs", {"name": "send", "input": ["ann"], "id": "j"})
    assert (made.status, made.json["job"]) == (201, "send")
    shown = await until(lambda: web.get("/api/v1/jobs/j"), lambda found: found["state"] == "completed")
    assert (shown["result"], shown["input"]) == ("sent to ann", ["ann"])
    assert [one["id"] for one in (await web.get("/api/v1/jobs", state="completed")).json["runs"]] == ["j"]
    assert (await web.get("/api/v1/jobs/count")).json == {"count": 1}
    assert (await web.get("/api/v1/jobs/states")).json["states"]["completed"] == 1
    assert (await web.get("/api/v1/jobs/j/attempts")).json["state"] == "completed"


async def test_a_job_is_cancelled_and_a_workflow_is_no_job(web: Web) -> None:
    await web.post("/api/v1/jobs", {"name": "send", "input": ["ann"], "id": "j", "delay": 60})
    assert (await web.post("/api/v1/jobs/j/cancel", {"reason": "no"})).json["requested"] == "cancel"
    await web.post("/api/v1/runs", {"name": "order", "input": [1], "id": "w"})
    assert (await web.post("/api/v1/jobs/w/cancel")).json["code"] == "invalid_input"


async def test_schedules_live_over_http(web: Web) -> None:
    made = await web.post("/api/v1/schedules", {"id": "s", "name": "order", "input": [1], "cron": "0 2 * * *"})
    assert (made.status, made.json["workflow"]) == (201, "order")
    twice = await web.post("/api/v1/schedules", {"id": "s", "name": "order", "every": 60})
    assert (twice.status, twice.json["code"]) == (409, "schedule_exists")
    changed = await web.ask("PUT", "/api/v1/schedules/s", {"name": "order", "input": [2], "every": 3600})
    assert changed.json["arguments"] == [2]
    assert (await web.post("/api/v1/schedules/s/pause", {"reason": "holiday"})).json["paused"] is True
    assert (await web.get("/api/v1/schedules/s")).json["paused"] is True
    assert (await web.post("/api/v1/schedules/s/resume")).json["paused"] is False
    assert len((await web.get("/api/v1/schedules/s/next", count=3)).json["next"]) == 3
    begun = await web.post("/api/v1/schedules/s/trigger")
    assert (begun.status, (await web.get(f"/api/v1/runs/{begun.json['run_id']}")).status) == (201, 200)
    assert len((await web.post("/api/v1/schedules/s/backfill", {"since": "3h"})).json["begun"]) == 3
    assert [one["id"] for one in (await web.get("/api/v1/schedules")).json["schedules"]] == ["s"]
    assert (await web.ask("DELETE", "/api/v1/schedules/s?reason=done")).json["deleted"] is True
    assert (await web.get("/api/v1/schedules/s")).json["code"] == "unknown_schedule"


async def test_queues_are_limited_paused_and_resumed(web: Web) -> None:
    set_ = await web.ask("PATCH", "/api/v1/queues/mail", {"concurrency": 5, "rate": "100/min", "reason": "slow server"})
    assert (set_.json["concurrency"], set_.json["rate"]) == (5, "100/min")
    assert (await web.ask("PATCH", "/api/v1/queues/mail", {"concurrency": None})).json["concurrency"] is None
    assert (await web.post("/api/v1/queues/mail/pause", {"reason": "down"})).json["paused"] is True
    assert (await web.post("/api/v1/queues/mail/resume")).json["paused"] is False
    assert (await web.post("/api/v1/queues/none/resume")).json["code"] == "unknown_queue"
    assert [one["name"] for one in (await web.get("/api/v1/queues")).json["queues"]] == ["mail"]
    verbs = [(row["verb"], row["reason"]) for row in (await web.get("/api/v1/audit", target="mail")).json["rows"]]
    assert verbs[-1] == ("limit queue", "slow server")


async def test_workers_and_their_code_are_listed(web: Web, worker: None) -> None:
    found = (await web.get("/api/v1/workers")).json["workers"]
    assert [(one["live"], one["queues"]) for one in found] == [(True, ["default"])]
    code = {(one["name"], one["kind"]) for one in (await web.get("/api/v1/workflows")).json["workflows"]}
    assert {("order", "workflow"), ("charge", "activity")} <= code


async def test_what_workflows_and_jobs_take_is_published_by_workers(web: Web, worker: None) -> None:
    basket = (await web.get("/api/v1/workflows/basket")).json
    assert basket["signals"][0]["args"][0]["schema"] == {"type": "integer"}
    assert basket["updates"] == [
        {
            "name": "put",
            "args": [{"name": "item", "schema": {"type": "string"}, "required": True, "default": None}],
            "answer": {"type": "integer"},
        }
    ]
    assert [one["name"] for one in (await web.get("/api/v1/workflows/send", kind="job")).json["input"]] == ["to"]
    unknown = await web.get("/api/v1/workflows/send", version="9")
    assert (unknown.status, unknown.json["code"]) == (404, "unknown_workflow")
    await web.post("/api/v1/runs", {"name": "basket", "id": "b"})
    assert (await web.get("/api/v1/runs/b/page")).json["takes"] == basket


async def dead(web: Web, *names: str) -> None:
    for name in names:
        await web.post("/api/v1/jobs", {"name": "send", "input": ["nobody"], "id": name})
    await until(lambda: web.get("/api/v1/dead-letters/count"), lambda found: found["count"] == len(names))


async def test_dead_letters_are_grouped_reprocessed_and_discarded(web: Web, worker: None) -> None:
    await dead(web, "d1", "d2", "d3")
    group = (await web.get("/api/v1/dead-letters/groups")).json["groups"][0]
    assert (group["count"], group["example"]["error"]) == (3, "ValueError")
    shown = (await web.get("/api/v1/dead-letters/d1")).json
    assert "no such address" in shown["traceback"]
    one = await web.post(
        "/api/v1/dead-letters/reprocess", {"ids": ["d1"], "input": ["ann"], "mode": "start", "wait": 10}
    )
    assert (one.status, one.json["state"], one.json["result"]["reprocessed"]) == (200, "done", 1)
    assert (await ended(web, "d1"))["result"] == "sent to ann"
    dry = await web.post(
        "/api/v1/dead-letters/discard", {"everything": True, "dry_run": True, "reason": "x", "wait": 10}
    )
    assert dry.json["result"] == {"matched": 2, "discarded": 0}
    which = {"filter": {"fingerprint": group["fingerprint"]}, "reason": "spam", "wait": 10}
    assert (await web.post("/api/v1/dead-letters/discard", which)).json["result"]["discarded"] == 2
    again = await web.post("/api/v1/dead-letters/discard", {"ids": ["d2"], "reason": "x", "wait": 10})
    assert (again.json["state"], again.json["problem"]["code"]) == ("failed", "dead_letter_resolved")
    states = [one["state"] for one in (await web.get("/api/v1/dead-letters", state="any")).json["dead_letters"]]
    assert sorted(states) == ["discarded", "discarded", "reprocessed"]
    assert (await web.post("/api/v1/dead-letters/reprocess", {"filter": {}})).json["code"] == "matches_everything"


async def test_the_admin_routes_count_and_reprocess_dead_letters(web: Web, worker: None) -> None:  # covers D-04
    await dead(web, "d1", "d2", "d3")
    metrics = (await web.get("/admin/v1/metrics/queues")).json
    assert (metrics["dlq"], metrics["queues"][0]["name"]) == ({"pending_messages": 3}, "default")
    asked = {"max_messages": 2, "filter": {"name": "send"}}
    again = (await web.post("/admin/v1/maintenance/reprocess-dlq", asked)).json
    assert again == {"successful_count": 0, "failed_count": 2, "pending_count": 0}
    assert (await web.get("/admin/v1/metrics/queues")).json["dlq"] == {"pending_messages": 3}  # they went back
    AWAY.clear()
    try:
        done = (await web.post("/admin/v1/maintenance/reprocess-dlq", {"max_messages": 10})).json
    finally:
        AWAY.add("nobody")
    assert done == {"successful_count": 3, "failed_count": 0, "pending_count": 0}
    assert (await web.get("/admin/v1/metrics/queues")).json["dlq"] == {"pending_messages": 0}
    for wrong in ({"max_messages": 0}, {"max_messages": 1_001}, {"filter": {"colour": "red"}}):
        assert (await web.post("/admin/v1/maintenance/reprocess-dlq", wrong)).json["code"] == "invalid_input"


async def test_reprocessed_runs_that_do_not_end_in_time_are_pending(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batuta.server.admin._LONGEST", 0.05)
    async with batuta.connect("memory://") as client:
        server = Server(client)
        quick = Web(server.serve)
        quick = quick.with_headers(x_csrf_token=(await quick.get("/api/v1/session")).json["csrf_token"])
        async with client.worker(jobs=APP.jobs):
            await dead(quick, "d1")
        done = (await quick.post("/admin/v1/maintenance/reprocess-dlq")).json
        await server.close()
    assert done == {"successful_count": 0, "failed_count": 0, "pending_count": 1}


async def test_quotas_and_retention_are_set_and_deleted(web: Web) -> None:
    quota: Any = (await web.ask("PUT", "/api/v1/quotas/open_runs", {"limit": 1, "reason": "small"})).json["quotas"][0]
    assert (quota["name"], quota["limit"]) == ("open_runs", 1)
    await web.post("/api/v1/runs", {"name": "order", "input": [1]})
    refused = await web.post("/api/v1/runs", {"name": "order", "input": [1]})
    assert (refused.status, refused.json["code"], refused.json["quota"]) == (429, "quota_exceeded", "open_runs")
    assert "retry-after" in refused.headers
    assert (await web.ask("DELETE", "/api/v1/quotas/open_runs")).json == {"quotas": []}
    assert (await web.ask("PUT", "/api/v1/quotas/colour", {"limit": 1})).json["code"] == "unknown_quota"
    rules = (await web.ask("PUT", "/api/v1/retention", {"keep": "30d", "state": "completed"})).json
    assert rules == {"retention": [{"workflow": None, "state": "completed", "keep": "30d"}]}
    named = await web.ask("PUT", "/api/v1/retention", {"keep": "1d", "workflow": "order"})
    assert named.json["retention"][-1]["workflow"] == "order"
    await web.ask("DELETE", "/api/v1/retention?workflow=order")
    assert (await web.post("/api/v1/retention/prune", {"dry_run": True})).json == {"runs": 0, "dry_run": True}
    assert (await web.ask("DELETE", "/api/v1/retention?state=completed")).json == {"retention": []}


async def test_the_overview_counts_what_the_filter_lets_through(web: Web, worker: None) -> None:
    await web.post("/api/v1/runs", {"name": "order", "input": [1], "id": "a"})
    await web.post("/api/v1/runs", {"name": "order", "input": [-1], "id": "b"})
    await ended(web, "a"), await ended(web, "b")
    found = (await web.get("/api/v1/overview", name="order")).json
    assert (found["states"]["completed"], found["states"]["failed"], found["total"]) == (1, 1, 2)
    assert [bar["id"] for bar in found["workflows"][0]["last"]] == ["b", "a"]
    assert sum(bucket["started"] for bucket in found["chart"]["buckets"]) == 2
    assert found["chart"]["seconds"] == 10  # five minutes: before the first run there is nothing to draw
    assert (await web.get("/api/v1/overview", name="other")).json["total"] == 0
    assert (await web.get("/api/v1/status")).json["dead_letters"] == 1
    assert (await web.get("/api/v1/audit/verify")).json["problem"] == ""


@workflow
async def checkout(seconds: int) -> None:
    await asyncio.sleep(seconds)


@workflow
async def reconcile() -> None:
    await asyncio.sleep(600)


def test_durations_are_of_all_runs_and_not_of_the_last_ones_of_each_workflow() -> None:
    """A slow workflow that runs seldom counted as much as a fast one that runs often."""

    async def overview() -> Any:
        async with Environment(workflows=[checkout, reconcile]) as env:
            for number in range(100):
                await env.start(checkout, 1 + number // 50)
            for _ in range(3):
                await env.start(reconcile)
            await env.advance(601)
            server = Server(env.client)
            found = await Web(server.serve).get("/api/v1/overview")
            await server.close()
            return found.json

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found = runner.run(overview())
    assert [round(found["p50"]), round(found["p95"])] == [2, 2]
    fast, slow = found["workflows"]
    assert [round(fast["p50"], 1), round(fast["p95"]), len(fast["last"])] == [1.5, 2, 36]
    assert [round(slow["p50"]), round(slow["p95"])] == [600, 600]


@pytest.mark.parametrize(
    "times", ["since=9999-12-31T23:59:59Z", "until=0001-01-01T00:00:00Z", "since=0001-01-01T00:00:00Z&until=9999-12-31"]
)
async def test_an_overview_of_times_at_the_ends_of_the_calendar_is_empty(web: Web, times: str) -> None:
    found = await web.get(f"/api/v1/overview?{times}")
    assert (found.status, found.json["total"], len(found.json["chart"]["buckets"])) == (200, 0, 30)


async def test_the_overview_has_workflows_before_jobs(web: Web) -> None:
    await web.post("/api/v1/jobs", {"name": "a-job", "id": "j", "delay": 60})
    await web.post("/api/v1/runs", {"name": "order", "input": [1], "id": "w"})
    found = (await web.get("/api/v1/overview", kind="any")).json["workflows"]
    assert [(one["kind"], one["name"]) for one in found] == [("workflow", "order"), ("job", "a-job")]


async def test_health_needs_no_credential_and_readiness_tells_why_not(web: Web, server: Any) -> None:
    assert (await web.get("/healthz")).json == {"status": "ok"}
    assert (await web.get("/readyz")).json["status"] == "ready"
    server.draining = True
    answer = await web.get("/readyz")
    assert (answer.status, answer.json["checks"]["draining"]["ok"]) == (503, False)


async def test_redaction_of_a_namespace_is_switched_on_and_off(web: Web) -> None:
    assert (await web.get("/api/v1/redaction")).json == {"required": False}
    for required in (True, False):
        set_ = await web.ask("PUT", "/api/v1/redaction", {"required": required, "reason": "audit"})
        assert set_.json == (await web.get("/api/v1/redaction")).json == {"required": required}
    rows = (await web.get("/api/v1/audit")).json["rows"]
    assert [(row["verb"], row["reason"]) for row in rows[:2]] == [("clear mark", "audit"), ("set mark", "audit")]


async def test_redaction_that_a_server_switched_holds_from_its_next_answer_on(web: Web) -> None:
    await web.post("/api/v1/runs", {"name": "order", "input": [1], "id": "o", "tags": {"cpf": "123.456.789-09"}})
    for required in (True, False):
        await web.get("/api/v1/runs/o")  # the server knows what the namespace says
        await web.ask("PUT", "/api/v1/redaction", {"required": required, "reason": "audit"})
        assert (b"123.456.789-09" in (await web.get("/api/v1/runs/o")).body) is not required


async def test_redaction_that_is_switched_on_while_it_is_read_holds_from_then_on(
    web: Web, server: Server, client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch
) -> None:
    await web.post("/api/v1/runs", {"name": "order", "input": [1], "id": "o", "tags": {"cpf": "123.456.789-09"}})
    has_read, may_go_on = asyncio.Event(), asyncio.Event()
    namespace = type(client.namespace)
    real = namespace.requires_redaction

    async def slow(self: Any) -> bool:
        found = await real(self)
        if not found:
            has_read.set()
            await may_go_on.wait()
        return found

    server._marks.clear()
    monkeypatch.setattr(namespace, "requires_redaction", slow)
    asked = asyncio.create_task(web.get("/api/v1/runs/o"))
    await has_read.wait()
    await web.ask("PUT", "/api/v1/redaction", {"required": True, "reason": "audit"})
    may_go_on.set()
    assert b"123.456.789-09" not in (await asked).body
    assert b"123.456.789-09" not in (await web.get("/api/v1/runs/o")).body


async def test_namespaces_of_the_whole_database_are_listed_for_those_who_may_use_them(sqlite_url: str) -> None:
    for name in ("acme", "beta"):
        async with batuta.connect(sqlite_url, namespace=name) as client:
            await client.start("order", 1)
    async with batuta.connect(sqlite_url) as client:
        server = Server(client, connect=lambda name: batuta.connect(sqlite_url, namespace=name))
        everybody = Web(server.serve)
        found = (await everybody.get("/api/v1/namespaces")).json
        assert (found["current"], [one["name"] for one in found["namespaces"]]) == (
            "default",
            ["acme", "beta", "default"],
        )
        key = (await client.api_keys.create("ann", "admin")).key
        await server.close()
        bound = Web(Server(client).serve, {"authorization": f"Bearer {key}"})
        assert [one["name"] for one in (await bound.get("/api/v1/namespaces")).json["namespaces"]] == ["default"]
