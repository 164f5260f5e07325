"""Seeds: the same one is the same order everywhere, and some of a hundred find what the usual order hides."""

import asyncio
import hashlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from batuta import InvalidInput, Retry, activity, activity_info, job, random, uuid, workflow
from batuta.testing import (
    Environment,
    OrderChangesResult,
    Stuck,
    crash_sweep,
    double,
    in_virtual_time,
    interleavings,
    run,
)
from tests.testing import races, shop
from tests.testing.races import everything_under, fail, look

EVERYTHING = "658b4081437c3ea9f66f3e56cdb14ee4c510dfa6a1e758649648f5262dfd6be0"
"""The digest of what happens in `everything_under` seeds 0 to 9: whatever the machine, the Python, the hash seed."""

ACTIVITIES = [look, fail]
FOUND: list[Any] = [
    pytest.param(races.loses_an_update, {}, "ends with 9, and in the usual order with 8", id="a lost update"),
    pytest.param(races.forgets_a_signal, {"script": races.say_ready}, "ends with Stuck", id="a forgotten signal"),
    pytest.param(races.gives_up, {}, "ends with 'gave up'", id="a timeout before the answer"),
    pytest.param(races.takes_the_first, {}, "ends with 'dear'", id="the first of two"),
    pytest.param(races.tells_the_first_error, {}, "ends with 'right'", id="the first of two errors"),
    pytest.param(races.lines_up_children, {"workflows": [races.child]}, r"\['bob', 'ada'\]", id="ends of children"),
    pytest.param(races.forgets_to_pay_back, {"script": races.cancel}, "ends with 5", id="a cancel in between"),
    pytest.param(races.overwrites_a_correction, {"script": races.correct_it}, "ends with 3", id="an early update"),
]
RIGHT: list[Any] = [
    (races.loses_no_update, {}),
    (races.forgets_no_signal, {"script": races.say_ready}),
    (races.takes_the_best, {}),
    (races.tells_all_errors, {}),
    (races.gathers_children, {"workflows": [races.child]}),
    (races.pays_back, {"script": races.cancel}),
]


@pytest.mark.parametrize(("race", "options", "told"), FOUND)
def test_a_race_that_the_usual_order_hides_is_found(race: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(OrderChangesResult, match=told):
        interleavings(race, activities=ACTIVITIES, **options)


@pytest.mark.parametrize(("right", "options"), RIGHT, ids=lambda one: getattr(one, "name", ""))
def test_correct_code_passes_in_a_hundred_orders(right: Any, options: dict[str, Any]) -> None:
    found = interleavings(right, activities=ACTIVITIES, **options)
    assert found.seeds == list(range(100))
    assert set(map(str, found.endings.values())) == {str(found.ending)}
    assert found.orders > 1
    assert str(found) == f"100 seeds, {found.orders} orders, the usual end: {found.ending!r}"


def test_every_order_of_three_answers_is_tried() -> None:
    @workflow
    async def three() -> list[str]:
        return list(await asyncio.gather(*(look(what) for what in "abc")))

    assert interleavings(three, activities=[look]).orders == 6


def test_the_error_names_the_seed_and_tells_what_happened() -> None:
    with pytest.raises(OrderChangesResult) as caught:
        interleavings(races.loses_an_update, activities=ACTIVITIES)
    seed, told = caught.value.seeds[0], str(caught.value)
    assert f"With seed {seed} the run ends with 9, and in the usual order with 8. What happened" in told
    assert f"interleavings(..., seed={seed}) or Environment(..., seed={seed})" in told
    assert '  look("price") returns "price"; it completes 9\n' in told
    assert caught.value.happened[0].what == "loses_an_update() starts"
    assert len(caught.value.seeds) == 5  # enough is enough


def test_one_seed_alone_is_the_same_again_and_in_an_environment() -> None:
    with pytest.raises(OrderChangesResult) as caught:
        interleavings(races.loses_an_update, activities=ACTIVITIES)
    with pytest.raises(OrderChangesResult) as again:
        interleavings(races.loses_an_update, activities=ACTIVITIES, seed=caught.value.seeds[0])
    assert again.value.happened == caught.value.happened

    async def alone() -> None:
        async with Environment(
            workflows=[races.loses_an_update], activities=ACTIVITIES, seed=caught.value.seeds[0]
        ) as env:
            assert await env.run(races.loses_an_update) == 9
            assert await env.happened() == caught.value.happened

    run(alone())


def digest(seeds: Sequence[int] = range(10)) -> str:
    lines = [line for seed in seeds for line in run(everything_under(seed))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_a_seed_is_the_same_order_on_every_python_and_machine() -> None:
    assert digest() == EVERYTHING


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_is_the_same_order_whatever_the_hash_seed(hash_seed: str) -> None:
    program = "from tests.testing.test_seeds import digest; print(digest(range(3)))"
    environ = os.environ | {"PYTHONHASHSEED": hash_seed}
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False, env=environ
    )
    assert said.stdout.strip() == digest(range(3)), said.stderr


def test_a_seed_is_the_same_order_again_on_sqlite() -> None:
    first = run(everything_under(1, "sqlite"))
    assert first == run(everything_under(1, "sqlite"))
    assert first != run(everything_under(2, "sqlite"))


def test_threads_that_take_their_time_do_not_change_the_order() -> None:
    @activity
    def dawdle(number: int) -> int:
        time.sleep(secrets.randbelow(3) / 1000)
        return number

    @workflow
    async def dawdles() -> list[int]:
        ended: list[int] = []

        async def twice(number: int) -> None:
            ended.append(await dawdle(number))
            ended.append(await dawdle(number))

        await asyncio.gather(*(twice(number) for number in range(4)))
        return ended

    async def let_time_pass(env: Environment, handle: Any) -> None:
        await env.advance(100)

    found = [
        interleavings(dawdles, activities=[dawdle], script=let_time_pass, seeds=3, key=len).endings for _ in range(5)
    ]
    assert all(one == found[0] for one in found)


def test_a_seed_is_the_same_order_when_every_turn_is_replayed() -> None:
    async def replayed() -> int:
        async with Environment(
            workflows=[races.loses_an_update], activities=ACTIVITIES, seed=0, always_replay=True
        ) as env:
            return await env.run(races.loses_an_update)

    assert run(replayed()) == interleavings(races.loses_an_update, activities=ACTIVITIES, seed=0, check=bool).endings[0]


# -- what takes how long


def test_no_attempt_is_over_its_time_by_chance() -> None:
    @activity(timeout=2.0, retry=Retry(attempts=1))
    async def timed(what: str) -> str:
        await asyncio.sleep(0.9)
        return what

    @activity(heartbeat=1.0, retry=Retry(attempts=1))
    async def beating(what: str) -> str:
        return what

    @workflow
    async def both() -> list[str]:
        return list(await asyncio.gather(timed("a"), beating("b")))

    assert interleavings(both, activities=[timed, beating]).ending == ["a", "b"]


def test_timers_that_are_longer_than_the_slowest_come_after_it() -> None:
    assert interleavings(races.gives_up, activities=ACTIVITIES, slowest=9.0).ending == "answer"


def test_a_check_says_which_ends_are_right_where_they_may_differ() -> None:
    found = interleavings(races.gives_up, activities=ACTIVITIES, check=lambda ending: ending in ("answer", "gave up"))
    assert set(found.endings.values()) == {"answer", "gave up"}

    def refuse(ending: str) -> None:
        assert ending == "answer", "it gave up"

    with pytest.raises(OrderChangesResult, match="'gave up', which the check refuses: it gave up"):
        interleavings(races.gives_up, activities=ACTIVITIES, check=refuse)
    with pytest.raises(AssertionError, match="even in the usual order the run ends with 'answer', which the check ref"):
        interleavings(races.gives_up, activities=ACTIVITIES, check=lambda ending: False)


def test_a_key_says_what_of_the_end_must_be_the_same() -> None:
    with pytest.raises(OrderChangesResult):
        interleavings(races.takes_the_first, activities=ACTIVITIES, key=str.upper)
    found = interleavings(races.takes_the_first, activities=ACTIVITIES, key=type)
    assert set(found.endings.values()) == {"cheap", "dear"}


def test_chance_in_a_workflow_is_the_same_under_every_seed() -> None:
    @workflow
    async def gambles() -> str:
        await asyncio.gather(look("a"), look("b"))
        return f"{random().random()} {uuid()}"

    assert interleavings(gambles, activities=[look], seeds=10).orders == 2


# -- attempts that fail


def counting() -> Sequence[object]:
    done: list[str] = []

    @activity(name="look")
    async def look_and_count(what: str) -> str:
        done.append(activity_info().key)
        return f"{len(done)} {len(set(done))}"

    return [look_and_count]


@workflow
async def looks_once() -> str:
    return await look("here")


def test_attempts_may_fail_before_their_code_and_after_it_and_never_for_good() -> None:
    found = interleavings(looks_once, activities=counting, failing=0.5, check=bool)
    assert set(found.endings.values()) == {"1 1", "2 1", "3 1"}
    with pytest.raises(OrderChangesResult, match="look fails in attempt 1, and is tried again"):
        interleavings(looks_once, activities=counting, failing=0.5)


def test_an_attempt_after_which_no_other_is_made_does_not_fail() -> None:
    def named(**options: Any) -> Any:
        @activity(**options)
        async def lonely() -> str:
            return "done"

        @workflow
        async def calls() -> str:
            return await lonely()

        return interleavings(calls, activities=[lonely], failing=0.9, seeds=20).ending

    assert named(retry=Retry(attempts=1)) == "done"
    assert named(retry=Retry(attempts=2)) == "done"
    assert named(once=True) == "done"
    assert named(total_timeout=3.0) == "done"
    assert named(retry=Retry(never=["InjectedFault"])) == "done"


# -- what it goes with


def test_threads_retries_children_and_long_sleeps_come_to_the_same_end() -> None:
    found = interleavings(
        shop.family, ["a", "b"], workflows=[shop.order], activities=shop.app.activities, failing=0.2, seeds=20
    )
    assert [end[:5] for end in found.ending] == ["1 x a", "1 x b"]
    assert found.orders == 21


def test_jobs_and_sqlite() -> None:
    assert interleavings(shop.letter, "ada", seeds=3).ending == "dear ada"
    assert interleavings(races.takes_the_best, activities=ACTIVITIES, seeds=3, store="sqlite").ending == "cheap"

    @job
    async def never() -> None: ...

    assert interleavings(looks_once, activities=[look], jobs=[never], seeds=1).ending == "here"


def test_doubles_are_reset_before_each_run() -> None:
    fake = double(look, results=["the only one"])
    assert interleavings(looks_once, activities=[fake], seeds=5).ending == "the only one"


def test_a_run_that_hangs_is_told_with_what_it_waits_for() -> None:
    with pytest.raises(OrderChangesResult) as caught:
        interleavings(races.forgets_a_signal, activities=ACTIVITIES, script=races.say_ready, seeds=5)
    assert "run 'seeded' of 'forgets_a_signal' is" in str(caught.value)
    assert caught.value.happened[1].what.startswith("signal ready")


def test_a_run_that_goes_on_for_ever_is_ended_and_told() -> None:
    with pytest.raises(OrderChangesResult, match=r"it goes on and on, and has 10\d\d entries") as caught:
        interleavings(races.asks_for_ever, activities=ACTIVITIES, script=races.say_ready)
    assert len(caught.value.seeds) == 1


@workflow
async def naps() -> None:
    await asyncio.sleep(10)


@in_virtual_time
async def test_a_pause_is_told_as_one() -> None:
    async with Environment(workflows=[naps], seed=1) as env:
        handle = await env.start(naps)
        await env.advance(2)
        await handle.pause()
        await env.advance(20)
        await handle.resume()
        await handle.result()
        told = [one.what for one in await env.happened()]
        assert told[1:2] == ["it is resumed, after a pause of 20 s"]
        assert not any("fails" in one for one in told)


def test_a_long_story_is_cut_in_the_middle() -> None:
    @workflow
    async def lines_up() -> list[str]:
        ended: list[str] = []

        async def have(what: str) -> None:
            ended.append(await look(what))

        await asyncio.gather(*(have(str(number)) for number in range(60)))
        return ended

    with pytest.raises(OrderChangesResult, match=r"\n +\.\.\.  21 more\n"):
        interleavings(lines_up, activities=[look])


def test_a_crash_at_every_point_of_another_order() -> None:
    swept = crash_sweep(races.loses_no_update, activities=ACTIVITIES, seed=3, most=10)
    assert swept.ending == 8


def test_a_workflow_that_is_not_deterministic_is_found_out() -> None:
    turns: list[int] = []

    @workflow
    async def moody() -> str:
        turns.append(1)  # a global: the replay finds it changed
        await look(str(len(turns)))
        return "done"

    with pytest.raises(AssertionError, match=r"even in the usual order .*replay"):
        interleavings(moody, activities=[look], always_replay=False)


@in_virtual_time
async def test_it_may_be_called_where_an_event_loop_is_running() -> None:
    assert interleavings(looks_once, activities=[look], seeds=2).ending == "here"


@in_virtual_time
async def test_an_environment_goes_on_with_its_ids_after_one_inside_of_it() -> None:
    found = set()
    for _ in range(2):
        async with Environment(workflows=[looks_once], activities=[look], seed=1) as env:
            async with Environment(workflows=[looks_once], activities=[look], seed=2) as inner:
                await inner.run(looks_once)
            found.add((await env.start(looks_once)).run_id)
    assert len(found) == 1


@pytest.mark.parametrize("tried", [interleavings, crash_sweep])
def test_an_activity_that_is_forgotten_is_named(tried: Any) -> None:
    with pytest.raises(Stuck, match="activity 'look' is not known here"):
        tried(looks_once)


@in_virtual_time
async def test_an_app_may_have_a_seed() -> None:
    async with Environment.of(shop.app, double(shop.reserve, returns="some"), seed=1) as env:
        await env.run(shop.order, "tea")
        assert [one.seconds for one in await env.happened()][1] > 0


async def test_a_seed_needs_virtual_time() -> None:
    with pytest.raises(RuntimeError, match="a seed needs virtual time"):
        async with Environment(workflows=[looks_once], activities=[look], seed=1):
            pass


def test_bad_input_is_refused_by_name() -> None:
    for told, options in (
        ("neither a workflow nor a job", {}),
        ("seeds=0 must be", {"seeds": 0}),
        ("seed='a' must be a whole number", {"seeds": "a"}),
        ("seeds=None must be", {"seeds": None}),
        ("slowest=0 must be", {"slowest": 0}),
        ("slowest='1' must be", {"slowest": "1"}),
        ("failing=1 must be", {"failing": 1}),
        ("failing=None must be", {"failing": None}),
    ):
        work: Any = looks_once if options else look
        with pytest.raises(InvalidInput, match=told):
            interleavings(work, activities=[look], **options)
    with pytest.raises(InvalidInput, match="give seed=, too"):
        Environment(workflows=[looks_once], failing=0.5)
