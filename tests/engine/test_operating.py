"""Operators act on many runs at once, and what they did is in the log, on every store."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from batuta import (
    Batuta,
    InvalidFork,
    InvalidInput,
    MatchesEverything,
    Rate,
    Retry,
    RunClosed,
    RunFailed,
    RunOpen,
    RunState,
    Signal,
    UnknownRun,
    activity,
    continue_as_new,
    job,
    workflow,
)
from batuta.authoring.client.bulk_operations import Course
from batuta.authoring.client.calendar import every
from batuta.authoring.client.schedules import Schedule
from batuta.connect import connect
from batuta.errors import StoreUnavailable
from batuta.verify import verify
from tests.engine.arena import Arena, until

gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def _afresh() -> None:
    gates["gate"] = asyncio.Event()
    broken.clear()


@activity
async def waits() -> None:
    await gates["gate"].wait()


@workflow
async def two_steps() -> str:
    await waits()
    await waits()
    return "done"


broken: set[str] = set()


@activity(retry=Retry(attempts=1))
async def once_broken(name: str) -> str:
    if name in broken:
        raise ConnectionError(name)
    return name


@workflow
async def fails_first(name: str) -> str:
    return await once_broken(name)


@job
async def mail(to: str) -> None: ...


async def count(client: Batuta, state: str, kind: str = "workflow") -> int:
    return await client.count(state=state, kind=kind)


async def test_runs_are_paused_and_resumed_under_way(arena: Arena) -> None:
    client = await arena.client()
    worker = await arena.worker(client, two_steps, waits)
    handles = [await client.start(two_steps, tags={"shop": "1"}) for _ in range(30)]
    counts = await client.select(tags={"shop": "1"}).pause("look")
    assert (counts.matched, counts.done, counts.refused) == (30, 30, {})

    async def all_know() -> bool:
        session = worker.session
        return session is not None and sum(run.pausing == "look" for run in session.runs.values()) == 30

    await until(all_know)
    gates["gate"].set()

    async def all_paused() -> bool:
        return await count(client, "paused") == 30

    await until(all_paused)
    report = await verify(arena.store(client), [two_steps])
    assert not report.violations, report
    assert (await client.select(state="paused").resume()).done == 30
    assert [await handle.result(20) for handle in handles] == ["done"] * 30
    assert len((await client.audit(verb="pause", limit=1000)).rows) == 30
    assert (await client.verify_audit()).problem == ""


async def test_more_than_a_batch_is_done_in_several(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batuta.engine.backend.bulk_operations.BATCH", 7)
    client = await arena.client()
    await client.enqueue_many([mail.call(str(number)) for number in range(30)])
    selection = client.select(job=mail)
    assert await selection.count() == await selection.count("pause") == 30
    assert (await selection.pause()).done == 30
    assert await selection.count("pause") == 0
    assert (await selection.resume()).done == 30
    assert (await selection.cancel("no more")).done == 30
    assert (await selection.cancel("no more")).done == 0
    assert await count(client, "cancelled", "job") == 30
    await client.enqueue_many([mail.call(str(number)) for number in range(30)])
    assert (await selection.terminate("over")).done == 30
    assert await count(client, "terminated", "job") == 30
    assert (await selection.delete()).done == 60
    assert await client.count(kind="any") == 0
    assert (await client.verify_audit()).rows == 180


async def test_an_operation_goes_on_in_another_process_without_doing_a_run_twice(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, fails_first, once_broken)
    broken.update("abc")
    for name in "abc":
        await client.start(fails_first, name, id=name)

    async def failed(runs: int) -> None:
        async def reached() -> bool:
            return await count(client, "failed") == runs

        await until(reached)

    await failed(3)
    began = datetime.now(UTC)
    selection = client.select(workflow=fails_first, created_before=began)
    first = Course(operation="mend", tell=lambda _: None)
    assert (await client.select(id_prefix="b").on(first).retry()).done == 1
    await failed(4)  # it was tried again, and failed again: then its process ended
    told: list[int] = []
    rest = Course(operation="mend", began=began, tell=lambda counts: told.append(counts.done))
    counts = await selection.on(rest).retry()
    assert (counts.matched, counts.done, told[-1]) == (3, 3, 3)
    await failed(6)
    assert [len((await client.list(id_prefix=name)).runs) for name in "abc"] == [2, 2, 2]
    assert [row.detail["operation"] for row in (await client.audit(verb="retry")).rows] == ["mend"] * 3


async def test_a_run_that_an_operation_let_go_on_stays_paused_when_it_was_paused_since(arena: Arena) -> None:
    client = await arena.client()
    handles = [await client.start(two_steps, id=id) for id in "ab"]
    selection, began = client.select(workflow=two_steps), datetime.now(UTC)
    await selection.pause()
    assert (await client.select(id_prefix="a").on(Course(operation="go", tell=lambda _: None)).resume()).done == 1
    await handles[0].pause("not this one")
    counts = await selection.on(Course(operation="go", began=began, tell=lambda _: None)).resume()
    assert (counts.matched, counts.done) == (2, 2)
    assert [(await handle.describe()).state for handle in handles] == ["paused", "pending"]


async def test_runs_that_are_started_meanwhile_are_not_among_them(arena: Arena) -> None:
    client = await arena.client()
    await client.start(two_steps, id="first")
    selection = client.select(workflow=two_steps)
    assert (await selection.pause()).matched == 1
    await client.start(two_steps, id="second")
    assert await count(client, "pending") == 1


async def test_a_filter_that_restricts_nothing_must_be_meant(arena: Arena) -> None:
    client = await arena.client()
    await client.start(two_steps)
    unrestricted: list[dict[str, Any]] = [{}, {"queue": None}, {"tags": {}}]
    for where in unrestricted:
        with pytest.raises(MatchesEverything):
            client.select(**where)
    assert (await client.select(everything=True).pause()).done == 1


async def test_a_verb_is_not_for_every_state(arena: Arena) -> None:
    client = await arena.client()
    await client.start(two_steps)
    with pytest.raises(InvalidInput, match="not to runs that are completed"):
        await client.select(state="completed").pause()
    with pytest.raises(InvalidInput, match="not to runs that are pending"):
        await client.select(state="pending").delete()
    with pytest.raises(InvalidInput, match="not an operation on many runs"):
        await client.select(state="pending").apply("discard")
    assert await count(client, "pending") == 1


async def test_failed_runs_go_on_from_where_they_failed(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, fails_first, once_broken)
    broken.update({"a", "b"})
    handles = [await client.start(fails_first, name, id=name) for name in ("a", "b", "c")]
    for handle in handles[:2]:
        with pytest.raises(RunFailed):
            await handle.result()
    assert await handles[2].result() == "c"
    broken.clear()
    counts = await client.select(workflow=fails_first).retry("mended")
    assert (counts.matched, counts.done, counts.refused) == (2, 2, {})
    assert [await (await client.get(id)).result(20) for id in ("a", "b")] == ["a", "b"]
    rows = (await client.audit(verb="retry")).rows
    assert {(row.target, row.reason) for row in rows} == {("a", "mended"), ("b", "mended")}
    assert {row.detail["filter"]["name"] for row in rows} == {"fails_first"}


async def test_many_runs_are_forked_with_an_edit_and_reset_to_a_point(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, fails_first, once_broken)
    for id in ("a", "b", "c"):
        assert await (await client.start(fails_first, id, id=id)).result(20) == id
    some = client.select(workflow=fails_first)
    assert await some.count("fork") == 3
    counts = await some.fork("{id}-x", output={1: "edited"}, reason="what if")
    assert (counts.matched, counts.done, counts.refused) == (3, 3, {})
    for id in ("a", "b", "c"):
        copy = await client.get(f"{id}-x")
        assert await copy.result(20) == "edited"
        assert (await copy.describe()).forked_from == (await client.get(id)).run_id
    counts = await client.select(workflow=fails_first, id_prefix="a").fork("{id}-x", output={1: "edited"})
    assert (counts.matched, counts.done, counts.refused) == (2, 1, {"AlreadyStarted": 1})
    before = (await client.get("b")).run_id
    for _ in range(2):  # the second time its two runs match, and the last one is reset
        counts = await client.select(workflow=fails_first, id_prefix="b", state="completed").reset(0, reason="anew")
        assert counts.refused == {}
        assert [await (await client.get(id)).result(20) for id in ("b", "b-x")] == ["b", "edited"]
    assert counts.done == counts.matched - 2 == 2
    again = await (await client.get("b")).describe()
    assert (again.forked_at, again.run_id != before) == (0, True)
    rows = (await client.audit(verb="fork", target="a")).rows
    assert (rows[-1].reason, rows[-1].detail["output"]) == ("what if", [1])
    assert rows[-1].detail["filter"]["name"] == "fails_first"
    assert (await verify(arena.store(client))).violations == []


async def test_a_fork_or_reset_of_many_that_makes_no_sense_changes_nothing(arena: Arena) -> None:
    client = await arena.client()
    await (await client.start(fails_first, "a", id="a")).terminate()
    some = client.select(workflow=fails_first)
    for call in (lambda: some.fork("copy", at=0), lambda: some.apply("fork"), lambda: some.apply("reset")):
        with pytest.raises(InvalidInput):
            await call()
    with pytest.raises(InvalidFork):
        await some.reset("here")  # type: ignore[arg-type]  # what it must refuse
    assert (await some.reset(9)).refused == {"InvalidFork": 1}
    assert (await some.fork("{id}-b", output={1: "x"})).refused == {"InvalidFork": 1}  # its code is not here
    assert await client.count() == 1


async def test_a_bulk_act_stopped_by_a_store_error_leaves_nothing_running(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await arena.client()
    for number in range(30):
        await (await client.start(fails_first, "a", id=f"r{number}")).terminate()
    store, fork = arena.store(client), arena.store(client).fork
    asked = 0

    async def fails_once(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise StoreUnavailable("away")
        await gates["gate"].wait()
        return await fork(*args)

    monkeypatch.setattr(store, "fork", fails_once)
    with pytest.raises(StoreUnavailable, match="away"):
        await client.select(workflow=fails_first).fork("{id}-x", at=-1)
    begun = asked
    gates["gate"].set()
    for _ in range(20):
        await client.count()
    assert (asked, await client.count()) == (begun, 30)


go_on = Signal("go on")


@workflow
async def goes_on(number: int) -> None:
    await go_on.wait()
    continue_as_new(number + 1)


@pytest.mark.parametrize("verb", ["reset", "fork"])
async def test_one_of_many_that_goes_on_as_another_run_meanwhile_is_not_passed_over(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    client = await arena.client()
    await arena.worker(client, goes_on)
    first, store = await client.start(goes_on, 0, id="r"), arena.store(client)
    listed = store.list_runs

    async def follows() -> bool:
        run = await store.get("r")
        return run.run_id != first.run_id and run.head == 0

    async def list_runs(*args: Any) -> Any:
        page = await listed(*args)
        await first.signal(go_on)
        await until(follows)
        return page

    monkeypatch.setattr(store, "list_runs", list_runs)
    some = client.select(workflow=goes_on)
    counts = await (some.reset(0) if verb == "reset" else some.fork("{id}-x", at=0))
    assert (counts.matched, counts.done, counts.refused) == (1, 1, {})
    [row] = (await client.audit(verb=verb)).rows
    assert row.target == "r"


@activity
async def other_call() -> str:
    return "other"


@workflow(name="calls", version="1")
async def calls_1() -> str:
    return await once_broken("a")


@workflow(name="calls", version="2")
async def calls_2() -> str:
    return await other_call()


async def test_each_of_many_is_held_against_the_code_of_its_version(arena: Arena) -> None:
    client, elsewhere = await arena.client(), await arena.client()
    await arena.worker(client, calls_1, calls_2, once_broken, other_call)
    for code in (calls_1, calls_2):
        await (await client.start(code, id=f"v{code.version}")).result(20)
    some = elsewhere.select(workflow="calls")
    counts = await some.fork("{id}-x", output={1: "x"}, code=[calls_1, calls_2])
    assert (counts.done, counts.refused) == (2, {})
    counts = await elsewhere.select(id_prefix="v1").fork("{id}-y", output={1: "y"}, code=calls_2)
    assert (counts.done, counts.refused) == (0, {"InvalidFork": 2})  # it does not replay them


async def test_one_run_is_deleted_when_it_has_ended(arena: Arena) -> None:
    client = await arena.client()
    handle = await client.start(two_steps, id="r")
    with pytest.raises(RunOpen):
        await handle.delete()
    await handle.terminate()
    assert await handle.delete("old") == 1
    with pytest.raises(UnknownRun):
        await client.get("r")
    with pytest.raises(UnknownRun):
        await handle.delete()


async def test_every_act_of_a_client_is_in_the_log(arena: Arena) -> None:
    client = await arena.client()
    handle = await client.start(two_steps, id="r")
    await handle.pause("a")
    await handle.resume("b")
    other = await client.start(two_steps, id="s")
    await other.cancel("c")
    with pytest.raises(RunClosed):
        await other.cancel("c")
    await handle.terminate("d")
    await client.pause_queue("mail", "e")
    await client.limit_queue("mail", concurrency=3)
    await client.resume_queue("mail")
    await client.schedules.create(Schedule("nightly", every(60), two_steps))
    await client.schedules.pause("nightly", "f")
    await client.schedules.resume("nightly")
    await client.schedules.trigger("nightly")
    await client.schedules.delete("nightly")
    await handle.delete("g")
    rows = list(reversed((await client.audit()).rows))
    assert [(row.verb, row.target, row.reason) for row in rows] == [
        ("pause", "r", "a"),
        ("resume", "r", "b"),
        ("cancel", "s", "c"),
        ("terminate", "r", "d"),
        ("pause queue", "mail", "e"),
        ("limit queue", "mail", ""),
        ("resume queue", "mail", ""),
        ("put schedule", "nightly", ""),
        ("pause schedule", "nightly", "f"),
        ("resume schedule", "nightly", ""),
        ("trigger schedule", "nightly", ""),
        ("delete schedule", "nightly", ""),
        ("delete", "r", "g"),
    ]
    assert (rows[5].before, rows[5].after) == ({"concurrency": "none"}, {"concurrency": "3"})
    assert rows[8].after == {"paused": True}
    assert rows[11].before["work"] == "two_steps"
    assert [row.verb for row in (await client.audit(target="mail", limit=2)).rows] == ["resume queue", "limit queue"]
    page = await client.audit(target="mail", limit=2)
    assert [row.verb for row in (await client.audit(target="mail", cursor=page.cursor)).rows] == ["pause queue"]
    assert (await client.verify_audit()).problem == ""


async def test_the_log_shows_all_that_was_changed_about_a_schedule_but_payloads(arena: Arena) -> None:
    client = await arena.client()
    await client.schedules.create(Schedule("nightly", every(60), "work", 1))
    terms: dict[str, Any] = {
        "queue": "mail",
        "priority": 4,
        "timeout": 5.0,
        "jitter": 3.0,
        "key": "k",
        "tags": {"a": "b"},
    }
    await client.schedules.update(Schedule("nightly", every(60), "work", 1, catch_up=7, expires=9, **terms))
    more = terms | {"memo": "m", "headers": {"tenant": "t"}}
    await client.schedules.update(Schedule("nightly", every(60), "work", 2, catch_up=7, expires=9, **more))
    [_, before, after] = (await client.audit(verb="put schedule")).rows[::-1]
    plain = {"when": "every 1 min", "work": "work", "overlap": "skip", "paused": False, "catch_up": 3600.0}
    assert (before.before, before.detail) == (plain, None)
    assert before.after == after.before == after.after == plain | terms | {"catch_up": 7.0, "expires": 9.0}
    assert after.detail == {"changed": ["input", "options", "memo"]}


async def test_a_trigger_names_its_run_in_the_log(arena: Arena) -> None:
    client = await arena.client()
    await client.schedules.create(Schedule("nightly", every(60), two_steps))
    handle = await client.schedules.trigger("nightly")
    [row] = (await client.audit(verb="trigger schedule")).rows
    assert row.after == {"id": handle.id, "run_id": str(handle.run_id)}


async def test_what_changes_nothing_about_a_queue_or_schedule_is_not_in_the_log(arena: Arena) -> None:
    client = await arena.client()
    await client.resume_queue("mail")
    await client.limit_queue("mail", rate=None)
    await client.schedules.create(Schedule("nightly", every(60), two_steps))
    await client.schedules.resume("nightly")
    for _ in range(2):
        await client.pause_queue("mail", "down")
        await client.limit_queue("mail", concurrency=3)
        await client.schedules.pause("nightly", "down")
    await client.pause_queue("mail", "still down")
    rows = (await client.audit()).rows[::-1]
    assert [(row.verb, row.reason) for row in rows] == [
        ("put schedule", ""),
        ("pause queue", "down"),
        ("limit queue", ""),
        ("pause schedule", "down"),
        ("pause queue", "still down"),
    ]


async def test_limits_that_only_look_alike_are_changed(arena: Arena) -> None:
    client = await arena.client()
    for seconds in (12345.61, 12345.64):
        await client.limit_queue("mail", rate=Rate(5, seconds))
    [queue] = [one for one in await client.queues() if one.name == "mail"]
    assert queue.rate == Rate(5, 12345.64)


async def test_the_actor_comes_from_the_client_or_the_environment(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, real_time: None
) -> None:
    monkeypatch.setenv("BATUTA_ACTOR", "the environment")
    async with connect(sqlite_url, actor="ada") as ada, connect(sqlite_url) as other:
        await ada.pause_queue("a")
        await other.pause_queue("b")
        monkeypatch.delenv("BATUTA_ACTOR")
        async with connect(sqlite_url) as nameless:
            await nameless.pause_queue("c")
        names = [row.actor for row in (await ada.audit()).rows]
        assert names[1:] == ["the environment", "ada"]
        assert "@" in names[0]
        assert [row.target for row in (await ada.audit(actor="ada")).rows] == ["a"]
    with pytest.raises(InvalidInput, match="actor"):
        connect(sqlite_url, actor="a\nb")


async def test_a_state_of_one_run_says_that_it_is_paused(arena: Arena) -> None:
    client = await arena.client()
    handle = await client.start(two_steps)
    await handle.pause("look at it")
    found = await handle.describe()
    assert (found.state, found.reason) == (RunState.PAUSED, "look at it")
    assert found.paused_at is not None
    await handle.resume()
    assert (await handle.describe()).paused_at is None
