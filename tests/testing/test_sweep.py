"""`crash_sweep`: nothing is found where nothing is wrong, and every planted fault is, with the point."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batuta import InvalidInput, activity, activity_info, checkpoint, job, last_checkpoint, now, random, uuid, workflow
from batuta.cli.demo.ledger import Ledger, read_ledger
from batuta.cli.demo.orders import Order, Shop
from batuta.cli.demo.orders import order as demo_order
from batuta.testing import CrashChangesResult, Environment, crash_sweep, double, in_virtual_time
from tests.testing.shop import app, approval, approve, charge, family, order, reserve

STORES = pytest.mark.parametrize("store", ["memory", "sqlite"])
WRITING = {"commit.before", "commit.after", "commit.effects", "start.before_commit", "start.after_commit"}


@STORES
def test_the_demo_survives_a_crash_at_every_point(store: Any, tmp_path: Path) -> None:
    shop = Shop(Ledger(tmp_path / "ledger"))
    swept = crash_sweep(demo_order, Order("lamp", 2, 9_900, "4000 1234"), activities=[shop], store=store)
    assert swept.ending == "shipped as BR-4711"
    assert not swept.unreached
    sites = {point.site for point in swept.points}
    assert sites >= WRITING | {"claim.before", "claim.after", "replay.after", "activity.after", "activity.failed"}
    assert ("commit.inside" in sites) == (store == "sqlite")
    assert sum(point.site == "commit.effects" for point in swept.points) == 8
    assert swept.executions == {"reserve": 1, "charge": 1, "pack": 1, "ship": 2}
    assert all(swept.again[name] >= 3 for name in swept.executions)
    assert "crashes on" in str(swept)
    assert any(event.what == "began" for event in read_ledger(tmp_path / "ledger"))


@STORES
def test_threads_long_sleeps_and_children_survive_too(store: Any) -> None:
    swept = crash_sweep(
        family, ["a", "b"], workflows=[order], activities=app.activities, store=store, most=60, downtime=20.0
    )
    assert [end[:5] for end in swept.ending] == ["1 x a", "1 x b"]
    assert len(swept.points) > 50  # threads take turns by chance: not every point comes in every life


def test_a_failed_run_fails_in_the_same_words_after_every_crash(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(Ledger(tmp_path / "ledger"))
    swept = crash_sweep(demo_order, Order("lamp", 2, 9_900, "4000 0000"), activities=[shop])
    assert "was declined" in str(swept.ending)
    assert "parked" not in caplog.text, "a run whose worker was killed in its turn"


@STORES
def test_a_script_sends_signals_in_every_life(store: Any) -> None:
    async def boss(env: Environment, handle: Any) -> None:
        await env.advance(3 * 86_400)
        await handle.signal(approve, True, message_id="once")

    swept = crash_sweep(approval, script=boss, store=store)
    assert swept.ending == "approved"
    assert {"evict.before", "message.read", "claim.after", "replay.after"} <= {point.site for point in swept.points}


def test_jobs_are_swept_with_their_checkpoints() -> None:
    @job
    async def import_all() -> int:
        for number in range(last_checkpoint() or 0, 3):
            await checkpoint(number + 1)
        return 3

    swept = crash_sweep(import_all)
    assert swept.ending == 3
    assert swept.executions == {"import_all": 1}
    assert {"checkpoint.before", "checkpoint.after"} <= {point.site for point in swept.points}


def test_chance_is_the_same_in_every_life() -> None:
    @workflow
    async def gambles() -> str:
        await reserve("tea")
        return f"{random().random()} {uuid()}"

    assert len(crash_sweep(gambles, activities=[reserve]).points) > 10


def test_doubles_answer_a_repeated_attempt_as_they_did_and_begin_anew_in_every_life() -> None:
    fake = double(reserve, results=[ConnectionError("away"), "the only one"])
    swept = crash_sweep(order, "tea", activities=[*app.activities, fake])
    assert swept.ending.startswith("the only one, ")
    assert swept.again["reserve"] > 3


def test_an_activity_that_is_not_idempotent_is_found_with_the_point() -> None:
    def with_a_memory() -> Sequence[object]:
        sold: list[str] = []

        @activity
        async def sell(what: str) -> int:
            sold.append(what)
            return len(sold)

        return [sell]

    @activity
    async def sell(what: str) -> int:
        raise NotImplementedError

    @workflow
    async def sells() -> int:
        return await sell("tea")

    with pytest.raises(CrashChangesResult, match="the run ends with 2, and without a crash with 1") as caught:
        crash_sweep(sells, activities=with_a_memory)
    assert "killed at activity.after, passage 1 (an activity has returned, nothing is recorded)" in str(caught.value)
    assert {"activity.after", "commit.before"} <= {point.site for point in caught.value.points}
    assert not {"activity.before", "close.durable"} & {point.site for point in caught.value.points}


def test_code_that_is_not_deterministic_is_found_with_the_point() -> None:
    lives: list[int] = []

    @workflow
    async def moody() -> str:
        lives.append(1)  # a global: a replay finds it changed
        if len(lives) % 7 == 0:
            await charge("4000")
        await reserve("tea")
        await reserve("cup")
        return "done"

    with pytest.raises(AssertionError, match=r"crashes made a difference(?s:.*)killed at .*passage(?s:.*)Stuck"):
        crash_sweep(moody, activities=[reserve, charge], most=12)


def test_a_result_that_is_another_each_time_is_told_apart_from_one_that_a_crash_changes() -> None:
    lives: list[int] = []

    @activity
    async def count() -> int:
        lives.append(1)
        return len(lives)

    @workflow
    async def counts() -> dict[str, Any]:
        return {"count": await count(), "what": "tea"}

    with pytest.raises(AssertionError, match="two lives without a crash come to different ends"):
        crash_sweep(counts, activities=[count])
    assert crash_sweep(counts, activities=[count], key=lambda end: end["what"]).points


def test_a_time_that_an_execution_takes_again_may_be_left_out_of_the_comparison() -> None:
    @activity
    async def slow() -> int:
        await asyncio.sleep(1)
        return activity_info().attempt

    @workflow
    async def times() -> list[float]:
        return [await slow(), now().timestamp()]

    with pytest.raises(CrashChangesResult):
        crash_sweep(times, activities=[slow])
    assert crash_sweep(times, activities=[slow], key=lambda end: end[0]).points


@in_virtual_time
async def test_it_may_be_called_where_an_event_loop_is_running() -> None:
    assert crash_sweep(order, "tea", activities=app.activities, most=3).ending.startswith("1 x tea")


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="neither a workflow nor a job"):
        crash_sweep(reserve, "tea")  # type: ignore[arg-type]  # that is what is refused
    with pytest.raises(InvalidInput, match="'memory' or 'sqlite'"):
        crash_sweep(order, "tea", store="postgres")  # type: ignore[arg-type]  # that is what is refused
    with pytest.raises(InvalidInput, match="at least 1"):
        crash_sweep(order, "tea", activities=app.activities, most=0)
