"""Activities in processes: they compute beside the worker, are killed when they must end, and harm nobody."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batuta import ActivityTimeout, InvalidInput, Retry, activity, connect, workflow
from batuta.errors import NotSerialisable, ProcessDied
from tests.engine import crunch as c
from tests.engine.arena import PATIENCE, until

ALL = [c.is_throttled, c.crunch, c.whoami, c.refuses, c.dies, c.copies, c.spins, c.asks, c.lies, c.begets, c.tells]


def calling(call: Any) -> Any:
    """A workflow that makes this call."""

    @workflow(name="calling")
    async def calls(*arguments: Any) -> Any:
        try:
            return await call(*arguments)
        except Exception as error:  # noqa: BLE001 - the tests look at it
            return f"{type(error).__name__}: {error}"

    return calls


async def result_of(call: Any, *arguments: Any) -> Any:
    calls = calling(call)
    async with connect("memory://") as client, client.worker(workflows=[calls], activities=ALL, processes=2):
        return await (await client.start(calls, *arguments)).result(PATIENCE)


async def test_a_process_may_ask_to_be_tried_again_later() -> None:
    assert await result_of(c.is_throttled, "later") == "done"  # its policy would have it wait for a minute


async def test_never_and_types_hold_for_errors_of_another_process() -> None:
    assert await result_of(c.is_throttled, "key") == f"KeyError: {KeyError(c.Late.FEE, 1)}"


async def test_an_error_that_only_the_process_knows_is_an_activity_failed() -> None:
    late = c.is_throttled.with_options(retry=Retry(attempts=1))
    loaded = sys.modules.pop("wave", None)
    try:
        assert await result_of(late, "late") == "ActivityFailed: 1"
        assert "wave" not in sys.modules
    finally:
        if loaded is not None:
            sys.modules["wave"] = loaded


def marks(folder: Path, what: str) -> list[int]:
    """The processes that left such a mark."""
    found = [path.read_text() for path in folder.glob(f"{what}.*")]
    return [int(text) for text in found if text]


async def until_marked(folder: Path, what: str, count: int = 1) -> list[int]:
    async def there() -> bool:
        return len(marks(folder, what)) >= count

    await until(there)
    return marks(folder, what)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until_gone(pid: int) -> None:
    async def gone() -> bool:
        return not is_alive(pid)

    await until(gone)


# -- computing


async def test_typed_values_cross_as_json(real_time: None) -> None:
    assert await result_of(c.crunch, c.Numbers([2, 3])) == {"values": [4, 9, 1, 1]}


async def test_a_process_is_another_one_and_is_used_again(real_time: None) -> None:
    @workflow
    async def thrice() -> list[int]:
        return [await c.whoami() for _ in range(3)]

    async with connect("memory://") as client, client.worker(workflows=[thrice], activities=ALL):
        pids = await (await client.start(thrice)).result(PATIENCE)
    assert len(set(pids)) == 1
    assert pids[0] != os.getpid()
    await until_gone(pids[0])


async def test_a_process_publishes_once_also_when_its_attempt_is_repeated(real_time: None) -> None:
    calls = calling(c.tells)
    async with connect("memory://") as client, client.worker(workflows=[calls], activities=ALL):
        ids = await (await client.start(calls, "all")).result(PATIENCE)
        third, second, first = (await client.bus.messages("orders")).messages
    assert [first.id, second.id, third.id] == ids
    assert (first.payload, first.key, first.source) == ({"values": [1]}, "k", "/batuta/default/tells")
    assert third.id == "3"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("unfit", "NotSerialisable: the payload of a message on topic 'orders'"),
        ("long", "TooLarge: the payload of a message on topic 'orders'"),
        ("nowhere", "InvalidInput: topic"),
    ],
)
async def test_what_a_process_cannot_publish_is_named(real_time: None, kind: str, said: str) -> None:
    assert (await result_of(c.tells, kind)).startswith(said)


async def test_a_process_that_died_while_it_was_idle_costs_no_attempt(real_time: None) -> None:
    calls = calling(c.whoami)  # has one attempt
    async with connect("memory://") as client, client.worker(workflows=[calls], activities=ALL):
        first = await (await client.start(calls)).result(PATIENCE)
        os.kill(first, signal.SIGKILL)
        await until_gone(first)
        second = await (await client.start(calls)).result(PATIENCE)
    assert isinstance(second, int), second
    assert second != first


async def test_an_exception_in_the_process_is_raised_in_the_workflow(real_time: None) -> None:
    assert await result_of(c.refuses, "no") == "Refused: no"
    assert await result_of(c.refuses, "never") == "NonRetryable: never"
    assert (await result_of(c.refuses, "exits")).startswith("ActivityFailed: 3")


async def test_a_result_without_a_json_form_is_named(real_time: None) -> None:
    assert NotSerialisable.__name__ in await result_of(c.lies)


async def test_heartbeats_and_details_cross_too(real_time: None, tmp_path: Path) -> None:
    assert await result_of(c.copies, str(tmp_path)) == [2, 3]


async def test_it_may_be_completed_from_outside(real_time: None, tmp_path: Path) -> None:
    calls = calling(c.asks)
    async with connect("memory://") as client, client.worker(workflows=[calls], activities=ALL):
        handle = await client.start(calls, str(tmp_path))

        async def waits() -> bool:
            return any(attempt.outside for attempt in (await handle.describe()).attempts)

        await until(waits)
        await client.complete((tmp_path / "token").read_text(), "answered")
        assert await handle.result(PATIENCE) == "answered"


# -- ending


@pytest.mark.parametrize(("how", "code"), [("kill", "signal 9"), ("exit", "exit code 7")])
async def test_a_process_that_dies_is_a_failed_attempt(real_time: None, tmp_path: Path, how: str, code: str) -> None:
    assert await result_of(c.dies, str(tmp_path), how) == "alive"
    assert len(marks(tmp_path, "died")) == 2
    once = c.dies.with_options(retry=Retry(attempts=1))
    said = await result_of(once, str(tmp_path), how)
    assert said.startswith(ProcessDied.__name__)
    assert code in said


async def test_the_death_of_a_process_is_noticed_while_one_that_it_began_lives(real_time: None, tmp_path: Path) -> None:
    @workflow
    async def both() -> tuple[str, int]:
        try:
            return await c.begets(str(tmp_path), "dies"), 0
        except ProcessDied as error:
            return str(error), await c.whoami()  # there is room for one at a time

    async with connect("memory://") as client, client.worker(workflows=[both], activities=ALL, processes=1):
        said, pid = await (await client.start(both)).result(PATIENCE)
        assert "exit code 7" in said
        assert pid
        (begotten,) = marks(tmp_path, "begotten")
        await until_gone(begotten)  # it is killed, too


async def test_a_process_that_is_killed_takes_those_that_it_began_along(real_time: None, tmp_path: Path) -> None:
    calls = calling(c.begets)
    async with connect("memory://") as client, client.worker(workflows=[calls], activities=ALL, processes=1):
        handle = await client.start(calls, str(tmp_path), "hangs")
        (begets,) = await until_marked(tmp_path, "begets")
        (begotten,) = marks(tmp_path, "begotten")
        await handle.cancel()
        await until_gone(begets)
        await until_gone(begotten)


HANGS = """
import os, sys, time
from pathlib import Path
import batuta.sync
from batuta import workflow
from tests.engine.crunch import begets

@workflow
async def hangs(folder: str) -> str:
    return await begets(folder, "hangs")

if __name__ == "__main__":
    folder = sys.argv[1]
    client = batuta.sync.connect("memory://")
    client.worker(workflows=[hangs], activities=[begets], grace=0.1).__enter__()
    client.start(hangs, folder)
    while not any(mark.read_text() for mark in Path(folder).glob("begets.*")):
        time.sleep(0.01)
    if sys.argv[2] == "forks":
        if os.fork() == 0:
            sys.exit(0)  # as the end of any program: what is registered for it is done
        os.wait()
        print(os.fork() or time.sleep(120), flush=True)
        time.sleep(120)
"""


def _hanging(tmp_path: Path, how: str) -> subprocess.Popen[str]:
    program = tmp_path / "hangs.py"
    program.write_text(HANGS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [sys.executable, str(program), str(tmp_path), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # multiprocessing has something to say in a forked process that ends
        text=True,
        env=environment,
    )


async def test_a_program_ends_while_a_process_of_its_worker_hangs(real_time: None, tmp_path: Path) -> None:
    program = _hanging(tmp_path, "ends")
    try:
        assert await asyncio.to_thread(program.wait, PATIENCE) == 0
    finally:
        program.kill()
        program.communicate()
    for what in ("begets", "begotten"):
        await until_gone(marks(tmp_path, what)[0])


async def test_a_forked_process_leaves_the_workers_processes_alone_and_cannot_keep_them_alive(
    real_time: None, tmp_path: Path
) -> None:
    program = _hanging(tmp_path, "forks")
    assert program.stdout is not None
    forked = int(await asyncio.to_thread(program.stdout.readline))
    try:
        pids = [marks(tmp_path, what)[0] for what in ("begets", "begotten")]
        assert [is_alive(pid) for pid in pids] == [True, True]
        program.kill()
        await asyncio.to_thread(program.wait)
        for pid in pids:
            await until_gone(pid)
    finally:
        os.kill(forked, signal.SIGKILL)
        program.kill()
        program.communicate()


async def test_a_process_over_its_time_is_killed_and_the_others_go_on(real_time: None, tmp_path: Path) -> None:
    folder = str(tmp_path)

    @workflow
    async def both() -> list[str]:
        await asyncio.gather(c.spins(folder, "first"), c.spins(folder, "second"))  # the time has no start of one in it
        other = asyncio.create_task(c.spins(folder, "other"))
        try:
            await c.spins.with_options(timeout=2)(folder, "endless")
        except ActivityTimeout as error:
            return [error.kind, await other, await c.spins(folder, "later")]
        return []

    async with connect("memory://") as client, client.worker(workflows=[both], activities=ALL, processes=2):
        handle = await client.start(both)
        for name in ("first", "second"):
            await until_marked(tmp_path, name)
        for name in ("first", "second"):
            (tmp_path / f"{name}-may-end").touch()
        (endless,) = await until_marked(tmp_path, "endless")
        await until_marked(tmp_path, "other")
        await until_gone(endless)
        (tmp_path / "other-may-end").touch()
        (tmp_path / "later-may-end").touch()
        assert await handle.result(PATIENCE) == ["attempt", "other", "later"]
        assert len(marks(tmp_path, "other")) == 1


async def test_a_process_that_is_silent_for_too_long_is_killed(real_time: None, tmp_path: Path) -> None:
    async def after_a_start() -> str:
        await c.whoami()
        return await c.spins.with_options(heartbeat=1)(str(tmp_path), "silent")

    assert "sent no heartbeat for 1 s" in await result_of(after_a_start)
    (pid,) = marks(tmp_path, "silent")
    await until_gone(pid)


async def test_a_cancelled_run_kills_its_process(real_time: None, tmp_path: Path) -> None:
    calls = calling(c.spins)
    async with connect("memory://") as client, client.worker(workflows=[calls], activities=ALL):
        handle = await client.start(calls, str(tmp_path), "endless")
        (pid,) = await until_marked(tmp_path, "endless")
        await handle.cancel()
        await until_gone(pid)


async def test_a_graceful_stop_waits_for_a_process(real_time: None, tmp_path: Path) -> None:
    calls = calling(c.spins)
    async with connect("memory://") as client:
        async with client.worker(workflows=[calls], activities=ALL) as worker:
            handle = await client.start(calls, str(tmp_path), "a")
            (pid,) = await until_marked(tmp_path, "a")
            os.kill(pid, signal.SIGTERM)  # as from a supervisor that signals the whole group
            os.kill(pid, signal.SIGINT)
            stopping = asyncio.create_task(worker.stop(PATIENCE))
            (tmp_path / "a-may-end").touch()
            await stopping
        await until_gone(pid)
        assert len(marks(tmp_path, "a")) == 1
        async with client.worker(workflows=[calls], activities=ALL):
            assert await handle.result(PATIENCE) == "a"
        assert len(marks(tmp_path, "a")) == 1


async def test_after_the_grace_its_process_is_killed(real_time: None, tmp_path: Path) -> None:
    calls = calling(c.spins)
    async with connect("memory://") as client:
        async with client.worker(workflows=[calls], activities=ALL) as worker:
            await client.start(calls, str(tmp_path), "a")
            (pid,) = await until_marked(tmp_path, "a")
            await worker.stop(0.01)
        await until_gone(pid)


async def test_activities_beyond_the_process_limit_wait(real_time: None, tmp_path: Path) -> None:
    @workflow
    async def three() -> list[str]:
        return list(await asyncio.gather(*(c.spins(str(tmp_path), name) for name in "abc")))

    async with connect("memory://") as client, client.worker(workflows=[three], activities=ALL, processes=2):
        handle = await client.start(three)
        await until_marked(tmp_path, "a")
        await until_marked(tmp_path, "b")
        assert not marks(tmp_path, "c")
        (tmp_path / "a-may-end").touch()
        await until_marked(tmp_path, "c")
        for name in "bc":
            (tmp_path / f"{name}-may-end").touch()
        assert await handle.result(PATIENCE) == ["a", "b", "c"]


# -- bad input


def test_an_async_function_cannot_have_a_process() -> None:
    with pytest.raises(InvalidInput, match="async def"):

        @activity(process=True)
        async def waits() -> None: ...


def test_an_activity_that_a_child_process_cannot_import_is_refused() -> None:
    with pytest.raises(InvalidInput, match="top of its module"):

        @activity(process=True)
        def closure() -> None: ...

    with pytest.raises(InvalidInput, match="top of its module"):
        activity(process=True)(lambda: None)
    with pytest.raises(InvalidInput, match="top of its module"):

        class Gateway:
            @activity(process=True)
            def method(self) -> None: ...


async def test_a_function_that_its_module_has_under_another_name_is_refused_by_the_worker() -> None:
    def hidden() -> None: ...

    hidden.__qualname__ = "nowhere"
    async with connect("memory://") as client:
        with pytest.raises(InvalidInput, match="could not find it"):
            client.worker(activities=[activity(process=True)(hidden)])


def test_process_is_no_option_of_a_call() -> None:
    with pytest.raises(InvalidInput, match="unknown activity options process"):
        c.crunch.with_options(process=False)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "5", True])
def test_a_limit_that_cannot_be_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="limit="):
        activity(limit=bad)(c.note)
