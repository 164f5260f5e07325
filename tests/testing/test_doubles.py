"""Doubles: they do what a test says, remember their calls, and refuse what their activity could not be."""

from unittest.mock import AsyncMock, Mock

import pytest

from batuta import InvalidInput, RunFailed, workflow
from batuta.testing import Environment, UnfitDouble, double, in_virtual_time
from tests.testing.shop import Carrier, Parcel, app, charge, letter, order, reserve


@workflow
async def reserves(times: int) -> list[str]:
    return [await reserve("tea", number) for number in range(times)]


@in_virtual_time
async def test_a_double_returns_what_it_is_told_and_knows_how_it_was_called() -> None:
    fake = double(reserve, returns="yes")
    async with Environment(workflows=[reserves], activities=[fake]) as env:
        assert await env.run(reserves, 2) == ["yes", "yes"]
    fake.assert_called(2)
    fake.assert_called_with("tea", 1)
    assert fake.called_with("tea", count=0) == 1
    assert fake.called_with("coffee") == 0
    assert [call.args for call in fake.calls] == [("tea", 0), ("tea", 1)]


@in_virtual_time
async def test_results_come_in_order_and_errors_among_them_are_raised() -> None:
    fake = double(reserve, results=["first", ConnectionError("away"), "second"])
    async with Environment(workflows=[reserves], activities=[fake]) as env:
        assert await env.run(reserves, 2) == ["first", "second"]
    fake.assert_called(2)
    assert [(call.args[1], call.attempt) for call in fake.calls] == [(0, 1), (1, 1), (1, 2)]


@in_virtual_time
async def test_a_double_that_fails_some_times_succeeds_after_the_retries_of_the_real_one() -> None:
    fake = double(reserve, lambda sku, count: f"{count} at last", fails=3, error=TimeoutError("slow"))
    async with Environment(workflows=[reserves], activities=[fake]) as env:
        begun = env.now
        assert await env.run(reserves, 1) == ["0 at last"]
        assert (env.now - begun).total_seconds() == 1 + 2 + 4
    fake.assert_called(1)
    assert len(fake.calls) == 4


@in_virtual_time
async def test_a_double_fails_as_often_as_its_activity_may_be_tried_and_then_the_run_does() -> None:
    fake = double(reserve, fails=4)
    async with Environment(workflows=[reserves], activities=[fake]) as env:
        with pytest.raises(RunFailed, match="fails 4 times"):
            await env.run(reserves, 1)


@in_virtual_time
async def test_a_call_beyond_the_last_result_fails_at_once_and_says_so() -> None:
    fake = double(reserve, results=["only one"])
    async with Environment(workflows=[reserves], activities=[fake]) as env:
        with pytest.raises(RunFailed, match=r"has 1 results, and is called once more with \('tea', 1\)"):
            await env.run(reserves, 2)
    assert len(fake.calls) == 2


@in_virtual_time
async def test_an_attempt_that_a_crash_repeats_gets_the_same_result() -> None:
    fake = double(reserve, results=["a", "b"])
    async with Environment(workflows=[reserves], activities=[fake, charge]) as env:
        handle = await env.start(reserves, 2)
        await env.crash()
        assert await handle.result() == ["a", "b"]


@in_virtual_time
async def test_a_double_beside_an_instance_takes_the_place_of_one_of_its_methods() -> None:
    fake = double(Carrier.ship, returns="by bike")
    async with Environment.of(app, fake) as env:
        assert await env.run(order, "tea") == "1 x tea, charged 4000, by bike"
    fake.assert_called_with(Parcel("tea", 100), express=True)


@in_virtual_time
async def test_jobs_have_doubles_too() -> None:
    fake = double(letter, returns="sent")
    async with Environment(jobs=[fake]) as env:
        assert await env.run(fake, "ada") == await env.run(letter, "ada") == "sent"
    assert fake.called_with("ada") == 2


async def test_a_double_called_outside_a_run_is_a_plain_call() -> None:
    fake = double(reserve, results=["a", "b"])
    assert [await fake("x"), await fake("y", 2)] == ["a", "b"]
    fake.assert_called(2)
    fake.reset()
    assert await fake("z") == "a"
    assert [call.args for call in fake.calls] == [("z",)]


@pytest.mark.parametrize("mock", [Mock(return_value="mocked"), AsyncMock(return_value="mocked")])
async def test_a_mock_stands_in_as_a_function_does(mock: Mock) -> None:
    assert await double(reserve, mock)("x") == "mocked"
    mock.assert_called_once_with("x")


def test_a_failed_assertion_shows_the_calls() -> None:
    fake = double(reserve, returns="x")
    with pytest.raises(AssertionError, match=r"never called with \('tea'\). Its calls: none"):
        fake.assert_called_with("tea")
    with pytest.raises(AssertionError, match="was called 0 times, not 1"):
        fake.assert_called(1)


def test_a_stand_in_that_cannot_take_the_calls_of_its_activity_is_refused() -> None:
    with pytest.raises(UnfitDouble, match="the double of 'reserve' takes"):
        double(reserve, lambda: "x")
    with pytest.raises(UnfitDouble, match="too many positional"):
        double(reserve, lambda sku: "x")
    with pytest.raises(UnfitDouble, match="express"):
        double(Carrier.ship, lambda parcel: "x")
    with pytest.raises(UnfitDouble, match="for a value, say returns="):
        double(reserve, "x")  # type: ignore[call-overload]  # that is what is refused


def test_a_result_of_another_type_than_the_activitys_is_refused() -> None:
    with pytest.raises(UnfitDouble, match=r"the double of 'charge' returns 5: .*Expected `str`"):
        double(charge, returns=5)
    with pytest.raises(UnfitDouble, match="Expected `str`"):
        double(charge, results=["ok", None])
    with pytest.raises(InvalidInput, match="Expected `str`"):
        double(charge)


def test_a_double_with_two_ways_to_answer_is_refused() -> None:
    with pytest.raises(UnfitDouble, match="returns and results"):
        double(charge, returns="a", results=["b"])


@in_virtual_time
async def test_a_stand_in_that_returns_what_its_activity_could_not_fails_the_run_at_once() -> None:
    fake = double(reserve, lambda sku, count: count)
    async with Environment(workflows=[reserves], activities=[fake]) as env:
        with pytest.raises(RunFailed, match="the double of 'reserve' returns 0"):
            await env.run(reserves, 1)
    assert len(fake.calls) == 1
