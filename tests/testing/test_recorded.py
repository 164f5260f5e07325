"""Recorded journals as one-line tests."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from batuta import App, InvalidInput, workflow
from batuta.testing import Environment, assert_replays, in_virtual_time, record, run
from tests.testing import shop
from tests.testing.shop import app, approval, order, reserve


def recorded(path: Path) -> Path:
    async def main() -> Path:
        async with Environment.of(app) as env:
            handle = await env.start(order, "tea")
            await handle.result()
            return await record(handle, path)

    return run(main())


@workflow(name="order")
async def other_order(sku: str) -> str:
    await asyncio.sleep(5)
    return await reserve(sku)


def test_what_was_recorded_is_replayed_by_the_same_code(tmp_path: Path) -> None:
    recorded(tmp_path / "journals" / "one.json")
    recorded(tmp_path / "journals" / "two.json")
    codes: list[Any] = [order, app, shop, [order, approval]]
    for code in codes:
        assert assert_replays(code, tmp_path / "journals" / "*.json") == 2


async def test_it_may_be_asked_where_an_event_loop_is_running(tmp_path: Path) -> None:
    file = await asyncio.to_thread(recorded, tmp_path / "one.json")
    assert assert_replays(order, file) == 1


def test_changed_code_is_told_apart_with_the_file_and_both_sides(tmp_path: Path) -> None:
    file = recorded(tmp_path / "one.json")
    with pytest.raises(
        AssertionError, match=r"1 of 1 journals are not replayed(?s:.*)one.json: run .* of 'order'"
    ) as caught:
        assert_replays(other_order, file)
    assert "reserve" in str(caught.value)


def test_a_journal_of_a_workflow_that_was_not_given_is_no_success(tmp_path: Path) -> None:
    file = recorded(tmp_path / "one.json")
    with pytest.raises(AssertionError, match="is of workflow 'order', which was not given"):
        assert_replays(App(workflows=[approval]), file)


def test_a_pattern_that_matches_nothing_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="there is no recorded journal"):
        assert_replays(order, tmp_path / "*.json")
    with pytest.raises(AssertionError, match="nothing is tested"):
        assert_replays(order)


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"one.json is not an exported journal"):
        assert_replays(order, tmp_path / "one.json")


def test_a_run_that_is_not_over_is_recorded_as_far_as_it_goes(tmp_path: Path) -> None:
    @in_virtual_time
    async def half_of_it() -> Path:
        async with Environment(workflows=[approval]) as env:
            handle = await env.start(approval)
            await env.settle()
            return await record(handle, tmp_path / "open.json")

    assert assert_replays(approval, half_of_it()) == 1
