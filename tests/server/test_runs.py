"""Runs over HTTP: everything that `batuta runs` does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.server.web import Response, Web


async def until(ask: Callable[[], Awaitable[Response]], wanted: Callable[[Any], bool]) -> Any:
    """The JSON of an answer, as soon as it is as wanted."""
    async with asyncio.timeout(20):
        while True:
            answer = await ask()
            if answer.status == 200 and wanted(answer.json):
                return answer.json
            await asyncio.sleep(0.01)


async def ended(web: Web, id: str) -> Any:
    return await until(lambda: web.get(f"/api/v1/runs/{id}"), lambda run: run["closed_at"] is not None)


async def test_a_run_is_started_and_shown_with_its_result(web: Web, worker: None) -> None:
    made = await web.post("/api/v1/runs", {"name": "order", "input": [5], "id": "a/b c", "tags": {"shop": "x"}})
    assert made.status == 201
    assert made.json["is_new"] is True
    assert made.headers["location"] == f"/api/v1/runs/{made.json['run_id']}"
    run = await ended(web, "a%2Fb%20c")
    assert (run["result"], run["input"], run["published"], run["tags"]) == (
        "charged 5",
        [5],
        {"amount": 5},
        {"shop": "x"},
    )
    assert (await web.get(made.headers["location"])).json["id"] == "a/b c"
    assert (await web.get(f"{made.headers['location']}/published/amount")).json["value"] == 5


async def test_a_start_with_a_taken_id_gives_the_run_or_a_problem(web: Web) -> None:
    first = await web.post("/api/v1/runs", {"name": "order", "input": [5], "id": "one"})
    again = await web.post("/api/v1/runs", {"name": "order", "input": [5], "id": "one"})
    assert (again.status, again.json["is_new"], again.json["run_id"]) == (200, False, first.json["run_id"])
    refused = await web.post("/api/v1/runs", {"name": "order", "input": [5], "id": "one", "if_exists": "reject"})
    assert (refused.status, refused.json["code"], refused.json["id"]) == (409, "already_started", "one")


async def test_runs_are_filtered_counted_and_paged(web: Web) -> None:
    for number in range(5):
        await web.post(
            "/api/v1/runs", {"name": "order", "input": [number], "id": f"o{number}", "tags": {"n": str(number)}}
        )
    first = (await web.get("/api/v1/runs", limit=3)).json
    assert [run["id"] for run in first["runs"]] == ["o4", "o3", "o2"]
    rest = (await web.get("/api/v1/runs", limit=3, cursor=first["cursor"])).json
    assert ([run["id"] for run in rest["runs"]], rest["cursor"]) == (["o1", "o0"], None)
    assert [run["id"] for run in (await web.get("/api/v1/runs", tag="n=2")).json["runs"]] == ["o2"]
    assert (await web.get("/api/v1/runs/count", state="pending", name="order")).json == {"count": 5}
    states = (await web.get("/api/v1/runs/states", id_prefix="o")).json
    assert (states["states"]["pending"], states["states"]["failed"], states["total"]) == (5, 0, 5)
    assert (await web.get("/api/v1/runs", since="1h", kind="any", retrying="true")).json["runs"] == []


async def test_a_page_of_runs_comes_with_counts_in_one_answer(web: Web) -> None:
    for number in range(3):
        await web.post("/api/v1/runs", {"name": "order", "input": [number], "id": f"o{number}"})
    page = (await web.get("/api/v1/runs/page", limit=2, state="pending", older_than="0s")).json
    assert [run["id"] for run in page["runs"]] == ["o2", "o1"]
    assert (page["cursor"] is not None, page["states"]["pending"], page["total"]) == (True, 3, 3)
    other = (await web.get("/api/v1/runs/page", state="failed")).json  # counts know of the states that are not chosen
    assert (other["runs"], other["states"]["pending"], other["total"]) == ([], 3, 0)
    assert (await web.get("/api/v1/runs/page", older_than="1h")).json["total"] == 0
    assert (await web.get("/api/v1/runs", older_than="yesterday")).json["code"] == "invalid_input"


async def test_the_end_of_a_run_is_waited_for(web: Web, worker: None) -> None:
    await web.post("/api/v1/runs", {"name": "order", "input": [-5], "id": "a"})
    assert (await web.get("/api/v1/runs/a", wait=20)).json["state"] == "failed"
    await web.post("/api/v1/jobs", {"name": "send", "input": ["ann"], "id": "j"})
    assert (await web.get("/api/v1/jobs/j", wait=20)).json["result"] == "sent to ann"
    await web.post("/api/v1/runs", {"name": "basket", "id": "b"})
    assert (await web.get("/api/v1/runs/b", wait=0.01)).json["state"] in ("pending", "running", "waiting")
    assert (await web.get("/api/v1/runs/b", wait=31)).json["code"] == "invalid_input"


async def test_a_run_tells_its_journal_timeline_attempts_and_diff(web: Web, worker: None) -> None:
    await web.post("/api/v1/runs", {"name": "order", "input": [5], "id": "a"})
    await web.post("/api/v1/runs", {"name": "order", "input": [6], "id": "b"})
    await ended(web, "a"), await ended(web, "b")
    first = (await web.get("/api/v1/runs/a/journal", limit=1)).json
    assert ([entry["kind"] for entry in first["entries"]], first["next"]) == (["started"], 0)
    rest = (await web.get("/api/v1/runs/a/journal", after=0)).json
    assert ([entry["kind"] for entry in rest["entries"]], rest["next"]) == (["activity_done"], None)
    timeline = (await web.get("/api/v1/runs/a/timeline")).json
    assert [step["kind"] for step in timeline["steps"]] == ["start", "publish", "activity", "end"]
    page = (await web.get("/api/v1/runs/a/page")).json
    assert (page["run"]["id"], page["timeline"]["run_id"]) == ("a", timeline["run_id"])
    diff = (await web.ask("GET", "/api/v1/runs/b/diff?with=a")).json
    assert (diff["left"]["id"], diff["right"]["id"], diff["same"]) == ("a", "b", 0)
    assert (await web.get("/api/v1/runs/a/attempts")).json["state"] == "completed"


async def test_a_run_takes_signals_updates_and_queries(web: Web, worker: None) -> None:
    await web.post("/api/v1/runs", {"name": "basket", "id": "b"})
    put = await web.post("/api/v1/runs/b/update", {"name": "put", "args": ["ham"], "update_id": "u1"})
    assert (put.status, put.json["answer"]) == (200, 1)
    assert (await web.post("/api/v1/runs/b/query", {"name": "size"})).json["answer"] == 1
    unknown = await web.post("/api/v1/runs/b/query", {"name": "colour"})
    assert (unknown.status, unknown.json["code"]) == (404, "unknown_query")
    sent = await web.post("/api/v1/runs/b/signal", {"name": "limit", "value": 1})
    assert sent.json["signal"] == "limit"
    assert (await ended(web, "b"))["result"] == ["ham"]
    closed = await web.post("/api/v1/runs/b/signal", {"name": "limit", "value": 1})
    assert (closed.status, closed.json["code"], closed.json["state"]) == (409, "run_closed", "completed")


async def test_an_update_that_is_not_answered_in_time_is_pending(web: Web) -> None:
    await web.post("/api/v1/runs", {"name": "basket", "id": "b"})
    put = await web.post("/api/v1/runs/b/update", {"name": "put", "args": ["x"], "update_id": "u1", "timeout": 0.01})
    assert (put.status, put.json["pending"], put.json["update_id"]) == (202, True, "u1")


async def test_a_query_without_the_code_says_who_has_it(web: Web) -> None:
    await web.post("/api/v1/runs", {"name": "basket", "id": "b"})
    asked = await web.post("/api/v1/runs/b/query", {"name": "size"})
    assert (asked.status, asked.json["code"], asked.json["workers"]) == (409, "needs_code", [])


async def test_a_run_is_paused_resumed_cancelled_and_deleted_with_reasons_in_the_audit_log(web: Web) -> None:
    await web.post("/api/v1/runs", {"name": "order", "input": [1], "id": "r"})
    assert (await web.post("/api/v1/runs/r/pause", {"reason": "look"})).json["news"] is True
    assert (await web.get("/api/v1/runs/r")).json["state"] == "paused"
    assert (await web.post("/api/v1/runs/r/resume")).json["requested"] == "resume"
    assert (await web.ask("DELETE", "/api/v1/runs/r?reason=old")).json["code"] == "run_open"
    assert (await web.post("/api/v1/runs/r/terminate", {"reason": "stuck"})).json["state"] == "terminated"
    assert (await web.ask("DELETE", "/api/v1/runs/r?reason=old")).json["deleted"] == 1
    assert (await web.get("/api/v1/runs/r")).json["code"] == "unknown_run"
    rows = (await web.get("/api/v1/audit", target="r")).json["rows"]
    assert [(row["verb"], row["reason"], row["actor"]) for row in rows] == [
        ("delete", "old", "loopback"),
        ("terminate", "stuck", "loopback"),
        ("resume", "", "loopback"),
        ("pause", "look", "loopback"),
    ]


@pytest.mark.parametrize("verb", ["terminate", "reset"])
async def test_verbs_that_lose_something_need_a_reason(web: Web, verb: str) -> None:
    await web.post("/api/v1/runs", {"name": "order", "input": [1], "id": "r"})
    refused = await web.post(
        f"/api/v1/runs/r/{verb}", {"reason": " ", "to": -1} if verb == "reset" else {"reason": " "}
    )
    assert (refused.status, refused.json["code"]) == (400, "invalid_input")
    assert (await web.get("/api/v1/runs/r")).json["state"] == "pending"


async def test_a_failed_run_is_retried_reset_and_forked(web: Web, worker: None) -> None:
    await web.post("/api/v1/runs", {"name": "order", "input": [-1], "id": "f"})
    failed = await ended(web, "f")
    assert (failed["state"], "cannot charge -1" in failed["error"]) == ("failed", True)
    forked = await web.post("/api/v1/runs/f/fork", {"id": "g", "args": [7]})
    assert (forked.status, forked.json["forked_from"]) == (201, "f")
    assert (await ended(web, "g"))["result"] == "charged 7"
    reset = await web.post("/api/v1/runs/f/reset", {"to": -1, "args": [8], "reason": "wrong amount"})
    assert reset.json["reset_to"] == -1
    assert (await ended(web, "f"))["result"] == "charged 8"


async def test_rows_do_not_wait_for_counts_of_very_many(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    await web.post("/api/v1/runs", {"name": "order", "input": [1], "id": "one"})

    async def counts_for_ever(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("batuta.server.runs.states_of", counts_for_ever)
    page = (await web.get("/api/v1/runs/page")).json
    assert ([run["id"] for run in page["runs"]], page["states"], page["total"]) == (["one"], None, None)


async def test_the_page_of_a_run_knows_its_parent_its_children_and_its_forks(web: Web, worker: None) -> None:
    parent = (await web.post("/api/v1/runs", {"name": "family", "input": [5], "id": "p"})).json["run_id"]
    await ended(web, "p")
    child = (await web.get("/api/v1/runs/child-5/page")).json
    assert (child["run"]["parent"], child["parent"]["id"], child["children"]) == (parent, "p", [])
    await web.post("/api/v1/runs/p/fork", {"id": "q", "args": [6]})
    await ended(web, "q")
    page = (await web.get("/api/v1/runs/p/page")).json
    assert page["parent"] is None
    assert [run["id"] for run in page["children"]] == ["child-5"]
    assert [run["id"] for run in page["forks"]] == ["q"]
    assert [run["id"] for run in (await web.get("/api/v1/runs", parent=parent)).json["runs"]] == ["child-5"]
    assert (await web.get("/api/v1/runs", parent="p")).json["code"] == "invalid_input"


async def test_many_runs_are_counted_first_and_then_changed_together(web: Web) -> None:
    for number in range(3):
        await web.post("/api/v1/runs", {"name": "order", "input": [number], "id": f"o{number}"})
    which = {"verb": "terminate", "filter": {"name": "order"}}
    assert (await web.post("/api/v1/runs/bulk/count", which)).json == {"verb": "terminate", "matched": 3}
    everything = await web.post("/api/v1/runs/bulk", {"verb": "terminate", "reason": "x"})
    assert everything.json["code"] == "matches_everything"
    fewer = await web.post("/api/v1/runs/bulk", which | {"reason": "x", "expected": 2})
    assert (fewer.status, fewer.json["code"], fewer.json["matched"]) == (409, "count_changed", 3)
    begun = await web.post("/api/v1/runs/bulk", which | {"reason": "x", "expected": 3})
    assert begun.status in (200, 202)
    done = await until(lambda: web.get(begun.headers["location"]), lambda found: found["state"] != "running")
    assert (done["state"], done["matched"], done["done"]) == ("done", 3, 3)
    assert (await web.get("/api/v1/operations")).json["operations"][0]["id"] == done["id"]
    nothing = await web.post("/api/v1/runs/bulk", which | {"reason": "x"})
    assert (nothing.status, nothing.json["code"]) == (404, "nothing_matches")


async def test_a_word_that_a_query_does_not_take_is_refused_with_where_the_words_are(web: Web) -> None:
    refused = await web.get("/api/v1/runs", state="bogus")
    assert (refused.status, refused.json["path"]) == (400, "state[0]")
    assert refused.json["detail"] == "query parameter state[0]: Invalid enum value 'bogus': /docs lists the values"
