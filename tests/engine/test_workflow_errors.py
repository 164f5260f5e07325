"""An error that leaves workflow code: declared, it is an outcome; else it is a bug, which is seen and can be mended."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from batuta import Failed, InvalidInput, Retry, RunFailed, RunState, Signal, Workflow, activity, run_child, workflow
from batuta.journal.entries import Command, CommandKind, decode_body
from batuta.testing import Environment
from batuta.verify import verify
from tests.engine.arena import PATIENCE, Arena, until_state
from tests.engine.kit import journal_of, parked, replay, world

done: list[str] = []
broken: set[str] = set()
STOP = Signal("stop", str)


@pytest.fixture(autouse=True)
def _anew() -> None:
    done.clear()
    broken.clear()
    broken.add("code")


class Declined(Failed):
    """A customer's card was declined."""


class OutOfStock(Exception):
    """There is none left."""


@activity
async def reserve(order: str) -> str:
    done.append(f"reserve {order}")
    return f"hold {order}"


@activity
async def release(order: str) -> None:
    done.append(f"release {order}")


@activity(retry=Retry(attempts=1))
async def sold_out(order: str) -> None:
    done.append(f"sold out {order}")
    raise OutOfStock(order)


def customer(order: str) -> dict[str, str]:
    return None if "code" in broken else {"name": order}  # type: ignore[return-value]


@workflow
async def buy(order: str) -> str:
    hold = await reserve(order)
    return f"{hold} for {customer(order)['name']}"


@workflow
async def buys_at_once(order: str) -> str:
    return customer(order)["name"]


@workflow
async def buys_and_cleans_up(order: str) -> str:
    hold = await reserve(order)
    try:
        return f"{hold} for {customer(order)['name']}"
    finally:
        if "code" in broken:
            await release(order)


@workflow(on_error="park")
async def patient(order: str) -> str:
    hold = await reserve(order)
    return f"{hold} for {customer(order)['name']}"


@workflow(on_error="park", fails=[OutOfStock])
async def patient_but_declares(order: str) -> None:
    await reserve(order)
    raise OutOfStock(order)


@workflow
async def declines(order: str) -> None:
    await reserve(order)
    raise Declined(order)


@workflow(fails=[OutOfStock])
async def declares(order: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(sold_out_in_code(order))


async def sold_out_in_code(order: str) -> None:
    await reserve(order)
    raise OutOfStock(order)


@workflow(fails=[OutOfStock])
async def declares_what_an_activity_raises(order: str) -> None:
    await sold_out(order)


@workflow(fails=[OutOfStock], dead_letter=True)
async def declares_and_keeps(order: str) -> None:
    raise OutOfStock(order)


@workflow
async def parent(order: str) -> str:
    return await run_child(buy, order)


@workflow
async def listens(order: str) -> None:
    @STOP.handle
    def stop(why: str) -> None:
        raise KeyError(why)

    await asyncio.sleep(3600)


@workflow
async def both(order: str) -> None:
    errors = await asyncio.gather(sold_out(order), sold_out_in_code(order), return_exceptions=True)
    raise ExceptionGroup("both", [error for error in errors if isinstance(error, Exception)])


ALL: list[Workflow[..., Any]] = [
    buy,
    buys_at_once,
    buys_and_cleans_up,
    patient,
    patient_but_declares,
    declines,
    declares,
    declares_what_an_activity_raises,
    declares_and_keeps,
    parent,
    listens,
    both,
]
ACTIVITIES = [reserve, release, sold_out]


def kit(**more: Any) -> Any:
    return world(*ALL, *ACTIVITIES, **more)


async def failed(env: Environment, what: Workflow[..., Any], **options: Any) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        await env.run(what, "a", **options)
    return caught.value


async def letters(env: Environment) -> list[tuple[str, str, str]]:
    found = (await env.dead_letters.list()).letters
    return [(letter.name, str(letter.reason), letter.error) for letter in found]


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.levelno >= logging.ERROR]


# -- a bug


@pytest.mark.parametrize("what", [buy, buys_at_once])
async def test_a_bug_fails_the_run_at_once_with_a_log_line_a_reason_and_a_dead_letter(
    what: Workflow[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with kit() as env:
        error = await failed(env, what)
        assert isinstance(error.__cause__, TypeError)
        assert "test_workflow_errors.py" in error.traceback
        assert "customer(order)" in error.traceback
        assert await letters(env) == [(what.name, "workflow_error", "TypeError")]
        (letter,) = (await env.dead_letters.list(reason="workflow_error")).letters
        seen = await (await env.client.get(letter.id)).describe()
    place = f" in {what.name})"
    assert seen.state is RunState.FAILED
    assert seen.reason.startswith("TypeError: 'NoneType' object is not subscriptable (test_workflow_errors.py:")
    assert seen.reason.endswith(place)
    assert letter.message.endswith(place)
    assert letter.activity == ""
    (line,) = lines(caplog)
    assert line.name == "batuta.engine"
    assert f"workflow {what.name} of run {letter.id} failed: TypeError" in line.getMessage()
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], TypeError)


async def test_a_bug_in_a_handler_of_signals_is_one_too(caplog: pytest.LogCaptureFixture) -> None:
    async with kit() as env:
        handle = await env.start(listens, "a")
        await handle.signal(STOP, "now")
        with pytest.raises(RunFailed):
            await handle.result()
        assert await letters(env) == [("listens", "workflow_error", "KeyError")]
    assert len(lines(caplog)) == 1


async def test_of_parent_and_child_only_the_child_is_a_dead_letter_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with kit() as env:
        error = await failed(env, parent)
        assert isinstance(error.__cause__, RunFailed)
        assert await letters(env) == [("buy", "workflow_error", "TypeError")]
    assert len(lines(caplog)) == 1


async def test_a_bug_beside_a_failed_activity_is_logged_and_the_letter_is_the_activitys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with kit() as env:
        await failed(env, both)
        assert await letters(env) == [("both", "exhausted", "OutOfStock")]
    assert len(lines(caplog)) == 1


async def test_a_run_that_is_tried_again_is_a_dead_letter_after_its_last_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with kit() as env:
        await failed(env, buy, retry=Retry(attempts=3, first=1.0))
        assert await letters(env) == [("buy", "workflow_error", "TypeError")]
    assert len(lines(caplog)) == 3
    assert done == ["reserve a"] * 3


async def test_a_replay_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with kit() as env:
        await failed(env, buy)
        caplog.clear()
        report = await verify(env.store, ALL)
    assert not report.violations
    assert not lines(caplog)


async def test_an_error_whose_class_answers_every_question_with_an_error_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Hostile(Exception):
        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

        def __str__(self) -> str:
            raise RuntimeError("no words")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no comparing")

        __hash__ = None  # type: ignore[assignment]

    @workflow
    async def hostile() -> None:
        raise Hostile

    async with world(hostile) as env:
        with pytest.raises(RunFailed):
            await env.run(hostile)
        assert await letters(env) == [("hostile", "workflow_error", "Hostile")]
    assert len(lines(caplog)) == 1
    assert "raise Hostile" in caplog.text  # Python 3.13 can format the error itself


@workflow
async def cancels_its_own_task(order: str) -> str:
    holding = asyncio.create_task(reserve(order))
    await asyncio.sleep(0)
    if "code" in broken:
        holding.cancel()
    return await holding


async def test_a_cancellation_that_was_not_asked_for_fails_the_run_as_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    async with world(cancels_its_own_task, reserve) as env:
        error = await failed(env, cancels_its_own_task)
        assert "return await holding" in error.traceback
        assert await letters(env) == [("cancels_its_own_task", "workflow_error", "CancelledError")]
        (run,) = (await env.client.list(workflow="cancels_its_own_task")).runs
        assert run.reason.startswith("CancelledError (test_workflow_errors.py:")
    (line,) = lines(caplog)
    assert "workflow cancels_its_own_task of run" in line.getMessage()


async def test_a_cancellation_that_was_asked_for_ends_the_run_as_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    async with kit() as env:
        handle = await env.start(listens, "a")
        await env.settle()
        await handle.cancel("not wanted")
        await env.settle()
        assert (await handle.describe()).state is RunState.CANCELLED
        assert await letters(env) == []
    assert not lines(caplog)


async def test_an_old_journal_that_ended_as_cancelled_without_a_request_replays() -> None:
    async with world(cancels_its_own_task, reserve) as env:
        handle = await env.start(cancels_its_own_task, "a")
        await env.settle()
        (entry,) = await journal_of(env, handle)
    body = decode_body(entry)
    body.commands[-1] = Command(body.commands[-1].seq, CommandKind.CANCELLED)
    machine = replay(cancels_its_own_task, [replace(entry, body=msgspec.json.encode(body).decode())])
    assert machine.outcome is not None
    assert machine.outcome.kind is CommandKind.CANCELLED
    machine.tear_down()


# -- what is meant


@pytest.mark.parametrize("what", [declines, declares, declares_what_an_activity_raises])
async def test_a_declared_error_is_no_dead_letter_and_no_error_in_the_log(
    what: Workflow[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with kit() as env:
        error = await failed(env, what)
        assert await letters(env) == []
        (run,) = (await env.client.list(workflow=what.name)).runs
    assert run.state is RunState.FAILED
    assert run.reason
    assert error.traceback
    assert not lines(caplog)


async def test_a_declared_error_is_a_dead_letter_where_the_definition_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with kit() as env:
        await failed(env, declares_and_keeps)
        assert await letters(env) == [("declares_and_keeps", "raised", "OutOfStock")]
    assert not lines(caplog)


@pytest.mark.parametrize(
    "given",
    [
        {"fails": OutOfStock},
        {"fails": "OutOfStock"},
        {"fails": ["OutOfStock"]},
        {"fails": [OutOfStock("a")]},
        {"fails": [BaseException]},
        {"fails": 5},
        {"on_error": "stop"},
        {"on_error": None},
    ],
)
def test_a_definition_refuses_what_cannot_be_declared(given: dict[str, Any]) -> None:
    async def code() -> None: ...

    with pytest.raises(InvalidInput):
        workflow(**given)(code)


# -- parked instead


async def test_with_on_error_park_the_run_is_parked_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with kit() as env:
        handle = await env.start(patient, "a")
        reason = await parked(env, handle)
        assert reason.startswith("the workflow raised TypeError: 'NoneType' object is not subscriptable (test_workflow")
        assert 'customer(order)["name"]' in reason.replace("'", '"')
        assert await letters(env) == []
        assert [entry.kind for entry in await journal_of(env, handle)] == ["started"]
        broken.clear()
        await handle.retry()
        assert await handle.result() == "hold a for a"
    assert done == ["reserve a"], "what was done is not done again"
    (line,) = lines(caplog)
    assert "is parked as needs_code: the workflow raised TypeError: 'NoneType'" in line.getMessage()
    assert "Traceback" not in line.getMessage(), "a log line with its newlines written out can't be read"
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], TypeError)


async def test_with_on_error_park_a_declared_error_fails_the_run() -> None:
    async with kit() as env:
        error = await failed(env, patient_but_declares)
        assert isinstance(error.__cause__, OutOfStock)


async def test_a_start_whose_first_turn_raises_is_parked_and_not_lost() -> None:
    @workflow(on_error="park")
    async def at_once(order: str) -> str:
        return customer(order)["name"]

    async with world(at_once) as env:
        handle = await env.start(at_once, "a")
        assert "the workflow raised TypeError" in await parked(env, handle)
        broken.clear()
        await handle.retry()
        assert await handle.result() == "a"


async def test_the_failed_answer_of_an_activity_is_kept_when_the_run_is_parked() -> None:
    @workflow(on_error="park")
    async def catches(order: str) -> str:
        try:
            await sold_out(order)
        except OutOfStock:
            return customer(order)["name"]
        return ""

    async with world(catches, sold_out) as env:
        handle = await env.start(catches, "a")
        await parked(env, handle)
        await env.crash()
        broken.clear()
        await handle.retry()
        assert await handle.result() == "a"
    assert done == ["sold out a"]


async def test_a_journal_that_failed_replays_under_on_error_park() -> None:
    async with kit() as env:
        await failed(env, buy)
        (run,) = (await env.client.list(workflow="buy")).runs
        strict = workflow(name="buy", on_error="park")(buy.fn)
        report = await verify(env.store, [strict])
        assert not report.violations, report.violations
        assert run.state is RunState.FAILED


# -- on every store


async def test_a_dead_letter_of_a_bug_goes_on_from_the_failed_step_after_the_fix(arena: Arena) -> None:
    client = await arena.client()
    async with client.worker(workflows=ALL, activities=ACTIVITIES):
        ids = []
        for what in (buy, buys_at_once, buys_and_cleans_up):
            handle = await client.start(what, "a", id=what.name)
            with pytest.raises(RunFailed):
                await handle.result()
            ids.append(handle.id)
        assert await client.dead_letters.count(reason="workflow_error") == 3
        assert (await (await client.get("buy")).describe()).reason.startswith("TypeError: ")
        broken.clear()
        assert (await client.dead_letters.reprocess(error="TypeError")).reprocessed == 3
        assert await (await client.get("buy")).result() == "hold a for a"
        assert await (await client.get("buys_at_once")).result() == "a"
        assert await (await client.get("buys_and_cleans_up")).result() == "hold a for a"
    assert sorted(done) == ["release a", "reserve a", "reserve a"], "what was done is not done again"


async def test_a_parked_run_keeps_the_answer_that_its_code_stumbled_over(arena: Arena) -> None:
    client = await arena.client()
    async with client.worker(workflows=ALL, activities=ACTIVITIES):
        handle = await client.start(patient, "a")
        await until_state(handle, RunState.NEEDS_CODE)
        assert done == ["reserve a"]
        assert not (await verify(arena.store(client), ALL)).violations
    broken.clear()
    async with client.worker(workflows=ALL, activities=ACTIVITIES):
        await handle.retry()
        assert await handle.result() == "hold a for a"
        report = await verify(arena.store(client), ALL)
        assert not report.violations, report.violations
    assert done == ["reserve a"]


async def test_a_parked_run_goes_on_by_itself_when_the_fix_is_deployed(arena: Arena) -> None:
    client = await arena.client()
    async with client.worker(workflows=ALL, activities=ACTIVITIES):
        handle = await client.start(patient, "a")
        await until_state(handle, RunState.NEEDS_CODE)

    @workflow(name="patient", on_error="park")
    async def fixed(order: str) -> str:
        return f"{await reserve(order)} for {order}"

    async with client.worker(workflows=[fixed], activities=ACTIVITIES):
        assert await handle.result(PATIENCE) == "hold a for a"
    assert done == ["reserve a"], "what was done is not done again"
