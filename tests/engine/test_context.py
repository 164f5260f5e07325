"""What workflow code may ask of its run, and what its logger says when."""

import asyncio
import logging
import os
from contextvars import ContextVar
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from msgspec import UNSET

from batuta import (
    InvalidInput,
    RunFailed,
    Signal,
    activity,
    info,
    logger,
    now,
    patched,
    publish,
    random,
    side_effect,
    uuid,
    workflow,
)
from batuta.errors import WorkerError
from tests.engine.kit import commands, journal_of, parked, replay, world


@activity
async def echo(text: str) -> str:
    return text


async def test_info_says_who_and_where_the_run_is() -> None:
    @workflow(version="7")
    async def looks() -> dict[str, Any]:
        found = info()
        await asyncio.sleep(60)
        later = info()
        return {
            "id": found.id,
            "workflow": found.workflow,
            "queue": found.queue,
            "namespace": found.namespace,
            "version": found.version,
            "entries": [found.entries, later.entries],
            "same": found.run_id == later.run_id and found.started_at == later.started_at,
            "started_now": found.started_at == now() or found.started_at < now(),
        }

    async with world(looks) as env:
        assert await env.run(looks, id="order-1") == {
            "id": "order-1",
            "workflow": "looks",
            "queue": "default",
            "namespace": "default",
            "version": "7",
            "entries": [1, 2],
            "same": True,
            "started_now": True,
        }


async def test_now_stands_still_within_a_turn() -> None:
    @workflow
    async def looks() -> list[datetime]:
        return [now(), now(), *[now() for _ in range(100)]]

    async with world(looks) as env:
        moments = await env.run(looks)
        assert len(set(moments)) == 1


async def test_info_knows_whether_it_replays() -> None:
    seen: list[bool] = []

    @workflow
    async def looks() -> None:
        seen.append(info().replaying)
        await echo("x")
        seen.append(info().replaying)

    async with world(looks, echo, always_replay=False) as env:
        handle = await env.start(looks)
        await handle.result()
        assert seen == [False, False]
        replay(looks, await journal_of(env, handle)).tear_down()
        assert seen == [False, False, True, True]


@pytest.mark.parametrize("ask", [now, random, uuid, info])
async def test_asking_outside_a_workflow_is_an_error_that_names_the_question(ask: Any) -> None:
    with pytest.raises(WorkerError, match=f"{ask.__name__}.. was called outside a workflow"):
        ask()


# -- side effects

made: list[str] = []


def make() -> str:
    made.append("x")
    return f"value {len(made)}"


async def test_a_side_effect_is_made_once_and_given_from_the_journal_ever_after() -> None:
    @workflow
    async def asks() -> list[str]:
        first = await side_effect(make)
        await echo("a turn")
        return [first, await side_effect(make)]

    made.clear()
    async with world(asks, echo) as env:
        handle = await env.start(asks)
        assert await handle.result() == ["value 1", "value 2"]
        assert await commands(handle) == ["side_effect", "activity echo", "side_effect", "complete"]
        replay(asks, await journal_of(env, handle)).tear_down()
        assert len(made) == 2


async def test_a_side_effect_is_decoded_to_its_type_also_live() -> None:
    @workflow
    async def asks() -> list[str]:
        typed = await side_effect(lambda: Decimal("1.50"), Decimal)
        plain: Any = await side_effect(lambda: (1, 2))
        return [repr(typed), repr(plain)]

    async with world(asks) as env:
        assert await env.run(asks) == ["Decimal('1.50')", "[1, 2]"]


async def test_a_side_effect_may_look_at_the_environment() -> None:
    @workflow
    async def asks() -> bool:
        return await side_effect(lambda: "PATH" in os.environ)

    async with world(asks) as env:
        assert await env.run(asks) is True


async def test_a_side_effect_that_raises_fails_like_plain_code() -> None:
    def fails() -> int:
        raise KeyError("no such flag")

    @workflow
    async def asks() -> str:
        try:
            await side_effect(fails)
        except KeyError as error:
            return await echo(str(error))
        return "fine"

    async with world(asks, echo) as env:
        assert await env.run(asks) == "'no such flag'"


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), asyncio.CancelledError("odd")])
async def test_whatever_a_side_effect_raises_is_kept_and_replays(error: BaseException) -> None:
    def fails() -> int:
        raise error

    @workflow
    async def asks() -> str:
        try:
            await side_effect(fails)
        except BaseException as caught:  # noqa: BLE001 - that is the point
            return await echo(type(caught).__name__)
        return "fine"

    async with world(asks, echo) as env:
        assert await env.run(asks) == "ActivityFailed"


@pytest.mark.parametrize(
    "act",
    [lambda: random().random(), uuid, lambda: publish("x", 1), lambda: echo("x"), lambda: patched("x")],
    ids=["random", "uuid", "publish", "activity", "patched"],
)
async def test_a_side_effect_that_acts_parks_the_run(act: Any) -> None:
    """A replay does not call it: what it did to the run would be missing there."""

    @workflow
    async def asks() -> None:
        try:
            await side_effect(act)
        except Exception:  # noqa: BLE001 - swallowing the refusal does not help
            await asyncio.sleep(1)

    async with world(asks, echo) as env:
        handle = await env.start(asks)
        assert "side_effect()" in await parked(env, handle)


async def test_what_a_side_effect_sets_in_its_context_stays_there() -> None:
    setting = ContextVar("setting", default="none")

    def sets() -> None:
        setting.set("set")

    @workflow
    async def asks() -> str:
        await side_effect(sets)
        return await echo(setting.get())

    async with world(asks, echo) as env:
        assert await env.run(asks) == "none"


async def test_a_side_effect_without_a_json_form_is_refused() -> None:
    @workflow
    async def asks() -> str:
        return str(await side_effect(object))

    async with world(asks) as env:
        with pytest.raises(RunFailed, match="a side effect has no JSON form") as caught:
            await env.run(asks)
        assert isinstance(caught.value.__cause__, InvalidInput)


# -- the logger


@workflow
async def talks() -> None:
    logger.info("hello %s", "one")
    await echo("x")
    logger.warning("hello two", extra={"order": 7})
    await asyncio.sleep(3600)
    logger.info("hello three")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "batuta.workflow"]


async def test_log_lines_come_once_however_often_the_run_is_replayed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with world(talks, echo) as env:
        handle = await env.start(talks)
        await env.settle()
        await env.crash()
        await handle.result()
        assert said(caplog) == ["hello one", "hello two", "hello three"]


async def test_log_lines_carry_the_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with world(talks, echo) as env:
        handle = await env.start(talks, id="order 9")
        await handle.result()
        records: list[Any] = [record for record in caplog.records if record.name == "batuta.workflow"]
        assert {(r.run, r.workflow, r.run_id) for r in records} == {("order 9", "talks", str(handle.run_id))}
        assert records[1].order == 7


async def test_log_lines_wait_until_their_turn_is_durable(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def breaks() -> None:
        logger.info("from a turn that cannot be kept")
        await asyncio.Event().wait()

    caplog.set_level(logging.INFO)
    async with world(breaks) as env:
        await env.start(breaks)
        await env.settle()
        assert said(caplog) == []


async def test_the_logger_speaks_at_once_outside_a_workflow(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logger.info("plain")
    assert said(caplog) == ["plain"]


async def test_every_executed_and_every_replayed_activity_leaves_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:  # covers B-10
    caplog.set_level(logging.DEBUG, "batuta.engine")
    async with world(talks, echo, always_replay=False) as env:
        handle = await env.start(talks, id="order 10")
        await handle.result()
        lines = [line for line in caplog.messages if "activity echo" in line]
        assert lines == [
            "executed activity echo seq 1 of run order 10",
            "replayed activity echo seq 1 of run order 10",
        ]


async def test_a_log_line_does_not_go_out_with_the_turn_before_it(caplog: pytest.LogCaptureFixture) -> None:
    note = Signal("note", int)

    @workflow
    async def tells() -> None:
        while True:
            logger.warning("note %d", await note.wait())

    async with world(tells) as env:
        handle = await env.start(tells)
        await env.settle()
        durable, gate, commit = asyncio.Event(), asyncio.Event(), env.store.commit

        async def slow(worker_id: str, changes: Any) -> Any:
            if durable.is_set():
                await gate.wait()
                return await commit(worker_id, changes)
            durable.set()
            verdicts = await commit(worker_id, changes)
            await handle.signal(note, 2)  # its turn runs while nobody here knows yet that the first is durable
            for _ in range(20):
                await asyncio.sleep(0)
            return verdicts

        env.store.commit = slow  # type: ignore[method-assign]  # a store that takes its time
        await handle.signal(note, 1)
        await env.settle()
        assert caplog.messages == ["note 1"]
        gate.set()
        await env.settle()
        assert caplog.messages == ["note 1", "note 2"]
        env.store.commit = commit  # type: ignore[method-assign]  # as before
        await handle.terminate()


async def test_random_numbers_of_a_run_cannot_be_told_from_its_id() -> None:
    @workflow
    async def draws() -> list[str]:
        return [str(uuid()), str(random().random())]

    async with world(draws) as env:
        handle = await env.start(draws)
        drawn = await handle.result()
        first = (await handle.journal())[0].body.start
        assert first is not UNSET
        number = handle.run_id.int
        guesses = (first.seed == number >> bits & (1 << size) - 1 for bits in range(128) for size in (32, 48, 62, 64))
        assert not any(guesses)
        again = await env.start(draws)
        assert drawn != await again.result()
