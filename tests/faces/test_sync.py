"""The blocking client: the same verbs, from any thread, in any process."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import assert_type

import pytest

import batuta.sync
from batuta import (
    AlreadyStarted,
    ClientError,
    InvalidInput,
    LetterResolved,
    MatchesEverything,
    Query,
    QuotaExceeded,
    Retry,
    RunCancelled,
    RunClosed,
    RunFailed,
    RunState,
    RunTerminated,
    Schedule,
    Signal,
    UnknownRun,
    UnknownSchedule,
    Update,
    activity,
    cron,
    every,
    job,
    publish,
    workflow,
)
from batuta.errors import InvalidURL, StoreUnavailable

PATIENCE = 20.0


@activity
def double(n: int) -> int:
    if n < 0:
        raise ValueError("too small")
    return 2 * n


@workflow
async def doubles(n: int) -> int:
    return await double.with_options(retry=Retry(attempts=1))(n)


@workflow
async def sleeps() -> None:
    await asyncio.sleep(3600)


done: Signal[None] = Signal("done", None)
put = Update("put", int)
size = Query("size", int)


@workflow
async def basket() -> list[str]:
    items: list[str] = []
    size.handle(lambda: len(items))

    @put.handle
    def append(item: str) -> int:
        items.append(item)
        publish("last", item)
        return len(items)

    await done.wait()
    return items


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def client(url: str) -> Iterator[batuta.sync.Client]:
    """A client with a worker in its thread."""
    with batuta.sync.connect(url) as made, made.worker(workflows=[doubles, sleeps, basket], activities=[double]):
        yield made


def test_a_run_goes_from_start_to_result(client: batuta.sync.Client) -> None:
    handle = client.start(doubles, 21, id="a")
    assert assert_type(handle.result(timeout=PATIENCE), int) == 42
    assert (handle.id, handle.describe().state) == ("a", RunState.COMPLETED)
    assert [str(line.kind) for line in handle.journal()] == ["started", "activity_done"]
    assert client.get("a", doubles).result() == 42
    assert repr(handle) == "<run a>"


def test_where_the_time_of_a_run_went_and_how_two_differ(client: batuta.sync.Client) -> None:
    one, other = client.start(doubles, 21), client.start(doubles, 4)
    assert (one.result(timeout=PATIENCE), other.result(timeout=PATIENCE)) == (42, 8)
    assert [str(step.kind) for step in one.timeline().steps] == ["start", "activity", "end"]
    assert client.get_run(str(one.run_id)).timeline().run_id == one.run_id
    assert [pair.differs for pair in other.diff(one).steps] == [["input"], ["input", "output"], ["output"]]


def test_schedules_are_made_and_triggered_by_blocking_code(client: batuta.sync.Client) -> None:
    schedules = client.schedules
    assert schedules.create(Schedule("a", cron("@yearly"), doubles, 21)).when == "@yearly (UTC)"
    assert [each.id for each in schedules.list()] == ["a"]
    assert schedules.trigger("a").result(PATIENCE) == 42
    schedules.pause("a", reason="why")
    assert schedules.get("a").reason == "why"
    schedules.resume("a")
    assert len(schedules.next_times("a", 2)) == 2
    start = datetime(2020, 6, 1, tzinfo=UTC)
    assert schedules.backfill("a", start, start + timedelta(days=365)) == ["a:2021-01-01T00:00:00Z"]
    assert schedules.update(Schedule("a", every(60), doubles, 2)).arguments == [2]
    schedules.delete("a")
    with pytest.raises(UnknownSchedule):
        schedules.get("a")


def test_runs_are_operated_and_the_log_is_read_by_blocking_code(client: batuta.sync.Client) -> None:
    run = client.start(sleeps, id="a", delay=3600)
    assert run.pause("why")
    assert run.describe().state is RunState.PAUSED
    assert run.resume()
    client.start(sleeps, id="b", delay=3600)
    selection = client.select(workflow=sleeps)
    assert selection.count() == 2
    assert [selection.pause().done, selection.resume().done] == [2, 2]
    held = selection.pause().done  # so that no worker takes them while they are asked to end
    assert [held, selection.cancel().done, selection.terminate().done] == [2, 2, 0]
    client.start(sleeps, id="c", delay=3600)
    assert selection.terminate("over").done == 1
    assert run.delete() == 1
    assert selection.delete().done == 2
    assert selection.retry().matched == 0
    assert client.audit(target="a", limit=1).rows[0].verb == "delete"
    report = client.verify_audit()
    assert (report.rows, report.problem) == (14, "")
    with pytest.raises(MatchesEverything):
        client.select()


def test_dead_letters_are_seen_to_by_blocking_code(client: batuta.sync.Client) -> None:
    run = client.start(doubles, -1, id="a")
    with pytest.raises(RunFailed):
        run.result(PATIENCE)
    assert [letter.id for letter in client.dead_letters.list().letters] == ["a"]
    assert [group.count for group in client.dead_letters.groups().groups] == [1]
    assert client.dead_letters.reprocess(name=doubles, dry_run=True).matched == client.dead_letters.count() == 1
    assert client.dead_letters.discard("a", reason="seen") == 1
    assert client.dead_letters.get("a").note == "seen"
    with pytest.raises(LetterResolved):
        client.dead_letters.reprocess("a")


def test_errors_are_those_of_the_async_client(client: batuta.sync.Client) -> None:
    with pytest.raises(RunFailed) as caught:
        client.start(doubles, -1, id="a").result(PATIENCE)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(AlreadyStarted):
        client.start(doubles, 1, id="a", if_exists="reject")
    with pytest.raises(UnknownRun):
        client.get("nobody")
    with pytest.raises(InvalidInput, match="limit"):
        client.list(limit=0)


def test_runs_are_cancelled_terminated_listed_and_counted(client: batuta.sync.Client) -> None:
    one, two = client.start(sleeps, id="s-1"), client.start(sleeps, id="s-2")
    one.cancel("enough")
    two.terminate("now")
    with pytest.raises(RunCancelled):
        one.result(PATIENCE)
    with pytest.raises(RunTerminated, match="now"):
        two.result(PATIENCE)
    with pytest.raises(RunClosed):
        two.cancel()
    assert [run.id for run in client.list(id_prefix="s-", limit=1).runs] == ["s-2"]
    assert client.count(state="cancelled") == 1


def test_runs_are_talked_to(client: batuta.sync.Client) -> None:
    handle = client.start(basket, id="basket")
    assert handle.update(put, "apple") == 1
    assert handle.update("put", "pear") == 2
    assert handle.query(size) == 2
    assert handle.published("last", str) == "pear"
    assert handle.published() == {"last": "pear"}
    handle.signal(done)
    assert handle.result(timeout=PATIENCE) == ["apple", "pear"]


def test_a_result_that_does_not_come_in_time_is_a_timeout_and_the_run_goes_on(client: batuta.sync.Client) -> None:
    handle = client.start(sleeps)
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.01)
    assert handle.describe().state is not RunState.FAILED


def test_many_threads_share_one_client(client: batuta.sync.Client) -> None:
    def one(n: int) -> int:
        return client.start(doubles, n, id=str(n)).result(PATIENCE)

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(200))) == [2 * n for n in range(200)]
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("batuta-sync") == 1


def test_threads_that_use_it_first_at_the_same_moment_connect_once(sqlite_url: str) -> None:
    client = batuta.sync.connect(sqlite_url)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: client.count(), range(8))) == [0] * 8
    assert [thread.name for thread in threading.enumerate()].count("batuta-sync") == 1
    client.close()


def test_it_connects_at_first_use_and_says_at_once_that_a_url_is_wrong(tmp_path: Path) -> None:
    client = batuta.sync.connect(f"sqlite:///{tmp_path / 'later.db'}")
    assert not (tmp_path / "later.db").exists()
    assert client.count() == 0
    client.close()
    with pytest.raises(InvalidURL):
        batuta.sync.connect("mysql://shop")


def test_a_database_that_is_away_is_tried_again_by_the_next_call(tmp_path: Path) -> None:
    client = batuta.sync.connect("postgresql://nobody@127.0.0.1:9/shop?connect_timeout=1")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9"):
            client.count()
    client.close()


async def test_it_refuses_to_stop_an_event_loop(sqlite_url: str) -> None:
    client = batuta.sync.connect(sqlite_url)
    with pytest.raises(ClientError, match="inside an event loop"):
        client.count()
    with pytest.raises(ClientError, match="to_thread"), client:
        pass
    handle = await asyncio.to_thread(client.start, doubles, 1)
    with pytest.raises(ClientError, match="inside an event loop"):
        handle.describe()
    await asyncio.to_thread(client.close)


def test_a_closed_client_says_so(sqlite_url: str) -> None:
    with batuta.sync.connect(sqlite_url) as client:
        handle = client.start(doubles, 1)
    client.close()
    for call in (client.count, handle.describe, client.__enter__):
        with pytest.raises(ClientError, match="closed"):
            call()


def test_a_worker_ends_with_its_client(sqlite_url: str) -> None:
    with batuta.sync.connect(sqlite_url) as client, client.worker(workflows=[doubles], activities=[double]):
        assert client.start(doubles, 2).result(PATIENCE) == 4
        client.close()
    assert "batuta-lease" not in [thread.name for thread in threading.enumerate()]


def test_closing_tells_threads_that_wait(sqlite_url: str) -> None:
    client = batuta.sync.connect(sqlite_url)
    handle = client.start(sleeps)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle.result)
        _until(lambda: bool(handle._home.thread.calls))
        client.close()
        with pytest.raises(ClientError, match="closed"):
            waiting.result(PATIENCE)


def _threads_of_clients() -> int:
    gc.collect()
    return [thread.name for thread in threading.enumerate()].count("batuta-sync")


def test_clients_that_are_dropped_leave_no_threads_and_no_connections(url: str) -> None:
    before = _threads_of_clients()
    files = len(os.listdir("/dev/fd"))
    for _ in range(3):
        assert batuta.sync.connect(url).count() == 0
    _until(lambda: _threads_of_clients() == before)
    _until(lambda: len(os.listdir("/dev/fd")) <= files)


def test_a_handle_serves_when_its_client_is_dropped_and_then_leaves_nothing(url: str) -> None:
    before = _threads_of_clients()
    handle = batuta.sync.connect(url).start(sleeps, id="a")
    assert _threads_of_clients() == before + 1
    assert handle.describe().id == "a"
    del handle
    _until(lambda: _threads_of_clients() == before)


def test_a_worker_that_was_started_goes_on_when_its_client_is_dropped(sqlite_url: str) -> None:
    batuta.sync.connect(sqlite_url).worker(workflows=[doubles], activities=[double]).__enter__()
    gc.collect()
    with batuta.sync.connect(sqlite_url) as client:
        assert client.start(doubles, 2).result(PATIENCE) == 4
    for thread in list(batuta.sync._threads):
        thread.close()


def _until(condition: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(2_000):
        if condition():
            return
        deadline.wait(0.005)
    raise AssertionError("it never came true")


# -- processes

PRELUDE = """
import asyncio, logging, os, sys, threading
import batuta.sync
from batuta import ClientError, activity, workflow

logging.getLogger("asyncio").setLevel(logging.ERROR)  # it also says what took more than 0.1 s: a busy machine does that

@activity
def double(n: int) -> int:
    return 2 * n

@workflow
async def doubles(n: int) -> int:
    return await double(n)

@workflow
async def sleeps() -> None:
    await asyncio.sleep(3600)

client = batuta.sync.connect("sqlite:///shop.db")
"""
HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Where the tests run in a shell's background, it is ignored from the beginning."""


def run(program: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    text = PRELUDE + textwrap.dedent(program)
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", text],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=45,
        check=False,
    )


def test_a_program_that_never_closes_its_client_ends_quietly(tmp_path: Path) -> None:
    outcome = run(
        """
        worker = client.worker(workflows=[doubles], activities=[double], grace=1.0)
        worker.__enter__()
        print(client.start(doubles, 4).result(20))
        """,
        tmp_path,
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "8\n", "")


def test_a_program_that_drops_its_client_last_ends_quietly(tmp_path: Path) -> None:
    outcome = run("client.start(sleeps)\ndel client\nprint('dropped')\n", tmp_path)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "dropped\n", "")


HUNG = """
@activity
def hangs() -> None:
    began.set()
    threading.Event().wait()

@workflow
async def hang() -> None:
    await hangs()

began = threading.Event()
"""


def test_a_program_ends_while_an_activity_of_its_worker_hangs(url: str, tmp_path: Path) -> None:
    program = """
        client = batuta.sync.connect(URL)
        client.worker(workflows=[doubles, hang], activities=[double, hangs], grace=0.1).__enter__()
        print(client.start(doubles, 4).result(20))
        client.start(hang)
        began.wait()
        """
    outcome = run(HUNG + textwrap.dedent(program.replace("URL", repr(url))), tmp_path)
    said = [line for line in outcome.stderr.splitlines() if "durability" not in line]
    assert (outcome.returncode, outcome.stdout) == (0, "8\n"), outcome.stderr
    assert said == ["1 runs were still busy after 0.1 s and will run elsewhere"]


def test_an_async_program_ends_while_an_activity_and_a_hook_of_its_worker_hang(tmp_path: Path) -> None:
    outcome = run(
        HUNG
        + textwrap.dedent(
            """
            from batuta import Retry, connect
            from batuta.engine.worker import dead_letter_alerts

            dead_letter_alerts._LAST_CALLS = 0.1
            is_told = threading.Event()

            def told(letter):
                is_told.set()
                threading.Event().wait()

            @activity(retry=Retry(attempts=1))
            async def fails() -> None:
                raise ValueError

            @workflow
            async def failing() -> None:
                await fails()

            async def main():
                code = {"workflows": [hang, failing], "activities": [hangs, fails]}
                async with connect("memory://") as client:
                    async with client.worker(**code, grace=0.1, on_dead_letter=told):
                        await client.start(hang)
                        await client.start(failing)
                        await asyncio.to_thread(began.wait)
                        await asyncio.to_thread(is_told.wait)
                print("left")

            asyncio.run(main())
            """
        ),
        tmp_path,
    )
    assert (outcome.returncode, outcome.stdout) == (0, "left\n"), outcome.stderr


def test_a_thread_that_waits_for_a_result_does_not_keep_the_program_alive(tmp_path: Path) -> None:
    outcome = run(
        """
        handle = client.start(sleeps)
        def wait():
            try:
                handle.result()
            except ClientError as error:
                print("told:", "closed" in str(error))
        threading.Thread(target=wait).start()
        """,
        tmp_path,
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "told: True\n", "")


def test_a_forked_process_gets_connections_of_its_own(tmp_path: Path) -> None:
    outcome = run(
        """
        handle = client.start(doubles, 1, id="a")
        pid = os.fork()
        if pid == 0:
            assert client.get("a").id == "a"
            client.start(doubles, 2, id="b")
            try:
                handle.describe()
            except ClientError as error:
                assert "get(id)" in str(error), error
            else:
                os._exit(1)
            client.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        print(client.count(), client.get("b").id, handle.describe().id)
        client.close()
        """,
        tmp_path,
    )
    assert (outcome.returncode, outcome.stdout) == (0, "2 b a\n"), outcome.stderr


def test_a_fork_cannot_take_memory_along(tmp_path: Path) -> None:
    outcome = run(
        """
        client = batuta.sync.connect("memory://")
        client.count()
        pid = os.fork()
        if pid == 0:
            try:
                client.count()
            except ClientError as error:
                os._exit("memory" not in str(error))
            os._exit(2)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        client.close()
        """,
        tmp_path,
    )
    assert (outcome.returncode, outcome.stdout) == (0, "0\n"), outcome.stderr


def test_ctrl_c_ends_the_wait_and_the_program(tmp_path: Path) -> None:
    program = PRELUDE + "handle = client.start(sleeps)\nprint('waits', flush=True)\nhandle.result()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{HEARS_CTRL_C}\n{program}"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors


@job
def triple(n: int) -> int:
    return 3 * n


def test_jobs_and_queues_have_the_same_verbs() -> None:
    with batuta.sync.connect("memory://") as client:
        client.limit_queue("default", concurrency=3, rate="1000/s")
        client.pause_queue("default", "wait")
        batch = client.enqueue_many([triple.call(n) for n in range(3)], on_done=triple.call(5))
        with client.worker(jobs=[triple]):
            alone = client.enqueue(triple, 7)
            assert_type(alone, batuta.sync.Handle[int])
            assert "paused: wait" in alone.describe().reason
            client.resume_queue("default")
            assert alone.result(PATIENCE) == 21
            assert [handle.result(PATIENCE) for handle in batch] == [0, 3, 6]
            assert batch.done is not None
            assert batch.done.result(PATIENCE) == 15
            assert [attempt.number for attempt in alone.attempts()] == [1]
            assert alone.progress() is None
        [queue] = client.queues()
        assert (queue.name, queue.concurrency, str(queue.rate)) == ("default", 3, "1000/s")


def test_retention_is_set_and_gone_by_from_blocking_code(client: batuta.sync.Client) -> None:
    assert client.retention.set("30d", workflow="doubles")
    assert [rule.seconds for rule in client.retention.list()] == [2_592_000.0]
    assert client.retention.prune() == 0
    assert client.retention.delete(workflow="doubles")
    assert client.retention.list() == []


def test_quotas_are_set_and_gone_by_from_blocking_code(client: batuta.sync.Client) -> None:
    assert client.quotas.set("open_runs", 1)
    client.start(sleeps)
    with pytest.raises(QuotaExceeded):
        client.start(sleeps)
    assert [(quota.limit, quota.used) for quota in client.quotas.list()] == [(1, 1)]
    assert client.quotas.delete("open_runs")
    client.start(sleeps)


def test_flows_are_made_started_and_looked_at_by_blocking_code(sqlite_url: str) -> None:
    steps = [
        {"key": "a", "type": "set", "config": {"values": {"n": "{{ event.payload.n }}"}}},
        {"key": "z", "type": "end"},
    ]
    with batuta.sync.connect(sqlite_url) as client, client.worker(**client.flows.parts()):
        draft = client.flows.create({"name": "f", "trigger_type": "happened", "steps": steps})
        client.flows.publish(draft.id)
        sent = client.flows.events.send("happened", {"n": 7})
        [run_id] = client.flows.runs.of_events([sent.event.id])[sent.event.id]
        client.get(run_id).result(30)
        assert client.flows.runs.get(run_id).run.context["n"] == 7
        assert [one.name for one in client.flows.list().workflows] == ["f"]
        client.flows.secrets.set("crm", "s3cr3t")
        assert client.flows.secrets.names() == ["crm"]
