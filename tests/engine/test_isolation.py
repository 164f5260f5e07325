"""What one run does wrong, or is done wrong with, harms no other run of its worker."""

import asyncio
import contextvars
import logging
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from batuta import ActivityTimeout, Retry, RunFailed, RunState, activity, activity_info, connect, logger, workflow
from batuta.errors import InvalidInput
from batuta.journal.records import Claim
from batuta.testing import Environment
from tests.engine.kit import parked, world

executed: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def nothing_executed() -> None:
    executed.clear()


@activity
async def slow(name: str) -> str:
    executed[name] += 1
    await asyncio.sleep(1)
    return name


@workflow
async def works(name: str) -> str:
    return await slow(name)


@workflow
async def adds(a: int, b: int = 2) -> int:
    return a + b


@workflow
async def adds_all(*numbers: int, by: int = 1) -> int:
    return sum(numbers) * by


async def neighbour(env: Environment) -> asyncio.Task[str]:
    """A healthy run with an activity in flight."""
    handle = await env.start(works, "neighbour")
    await env.settle()
    return asyncio.create_task(handle.result())


async def assert_unharmed(env: Environment, waiting: asyncio.Task[str]) -> None:
    """The neighbour came to its end and repeated nothing, and a later run is run as ever."""
    assert await waiting == "neighbour"
    assert executed["neighbour"] == 1
    assert await env.run(works, "later") == "later"


# -- starting


@pytest.mark.parametrize("rounds", range(7))
async def test_a_start_that_is_cancelled_harms_no_other_run(rounds: int) -> None:
    async with world(works, slow) as env:
        waiting = await neighbour(env)
        starting = asyncio.create_task(env.start(works, "cancelled"))
        for _ in range(rounds):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await assert_unharmed(env, waiting)


async def test_starts_that_are_cancelled_harm_no_other_run_on_a_database(sqlite_url: str, real_time: None) -> None:
    gate = asyncio.Event()

    @activity
    async def waits(name: str) -> str:
        executed[name] += 1
        await gate.wait()
        return name

    @workflow
    async def held(name: str) -> str:
        return await waits(name)

    async with connect(sqlite_url) as client, client.worker(workflows=[held], activities=[waits]):
        first = await client.start(held, "first")
        for rounds in range(1, 8):
            starting = asyncio.create_task(client.start(held, "cancelled"))
            for _ in range(rounds):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        last = await client.start(held, "last")
        gate.set()
        assert [await first.result(20), await last.result(20)] == ["first", "last"]
    assert executed["first"] == executed["last"] == 1


BAD: dict[str, tuple[str, tuple[Any, ...]]] = {
    "no int": ("adds", ("x",)),
    "too many": ("adds", (1, 2, 3)),
    "too few": ("adds", ()),
    "one of many": ("adds_all", (1, "x")),
}


@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_start_by_name_is_refused_and_those_beside_it_begin(bad: str) -> None:
    async with world(works, adds, adds_all, slow) as env:
        waiting = await neighbour(env)
        before, refused, after = [
            asyncio.create_task(env.start(what, *given)) for what, given in [("adds", (1,)), BAD[bad], ("adds", (1, 5))]
        ]
        with pytest.raises(InvalidInput):
            await refused
        assert await (await before).result() == 3
        assert await (await after).result() == 6
        await assert_unharmed(env, waiting)
        assert session_is_empty(env)


@pytest.mark.parametrize("bad", BAD)
async def test_a_claimed_run_whose_arguments_do_not_fit_is_parked_alone(bad: str) -> None:
    name, arguments = BAD[bad]
    async with world(works, adds, adds_all, slow) as env:
        await env.worker.stop()
        unfit = await env.start(name, *arguments)
        fit = await env.start("adds", 1)
        await env.deploy()
        waiting = await neighbour(env)
        assert await fit.result() == 3
        assert "does not fit" in await parked(env, unfit)
        await assert_unharmed(env, waiting)
        assert session_is_empty(env)


def session_is_empty(env: Environment) -> bool:
    return env.worker.session is not None and not env.worker.session.runs


# -- errors that cannot be written down


class Mute(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


ERRORS: dict[str, Callable[[], Exception]] = {
    "lone surrogate": lambda: ValueError("file \udcff"),
    "broken str": Mute,
    "surrogate key": lambda: KeyError("\ud800"),
}


@activity
async def breaks(kind: str) -> None:
    executed[kind] += 1
    error = ERRORS[kind]()
    raise error from ValueError("because \udfff")


@activity
def breaks_in_a_thread(kind: str) -> None:
    error = ERRORS[kind]()
    raise error


@workflow
async def meets(kind: str, attempts: int, in_thread: bool = False) -> str:
    called = breaks_in_a_thread if in_thread else breaks
    try:
        await called.with_options(retry=Retry(attempts=attempts))(kind)
    except Exception:  # noqa: BLE001 - which of them is not the question
        return "caught"
    return "not raised"


@workflow
async def raises(kind: str, first: bool) -> None:
    if not first:
        await asyncio.sleep(1)
    error = ERRORS[kind]()
    raise error


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("attempts", [1, 2])
async def test_an_error_that_cannot_be_written_as_it_is_reaches_the_workflow(kind: str, attempts: int) -> None:
    async with world(works, meets, slow, breaks, breaks_in_a_thread) as env:
        waiting = await neighbour(env)
        handles = [await env.start(meets, kind, attempts), await env.start(meets, kind, attempts, True)]
        assert [await handle.result() for handle in handles] == ["caught", "caught"]
        assert executed[kind] == attempts
        await assert_unharmed(env, waiting)


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("first", [True, False], ids=["first-turn", "later-turn"])
async def test_a_run_that_ends_with_such_an_error_fails_alone(kind: str, first: bool) -> None:
    async with world(works, raises, slow) as env:
        waiting = await neighbour(env)
        bad, good = await asyncio.gather(env.start(raises, kind, first), env.start(works, "good"))
        with pytest.raises(RunFailed):
            await bad.result()
        assert (await bad.describe()).state is RunState.FAILED
        assert await good.result() == "good"
        await assert_unharmed(env, waiting)


# -- log lines


class Refuses(logging.Filter):
    """Somebody's filter with a bug."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise RuntimeError("a bug in a filter")


@workflow
async def logs_badly() -> str:
    logger.info("a reserved name", extra={"name": "x"})
    await asyncio.sleep(0.1)
    logger.info("%d is no number", "x")
    await asyncio.sleep(0.1)
    logger.info("no such option", colour="red")
    return "done"


async def test_log_calls_that_cannot_work_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with world(works, logs_badly, slow) as env:
        waiting = await neighbour(env)
        assert await env.run(logs_badly) == "done"
        await assert_unharmed(env, waiting)
    assert sum("could not be made" in line for line in caplog.messages) == 3


async def test_a_log_filter_that_fails_costs_log_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def logs() -> str:
        logger.info("hello")
        await asyncio.sleep(0.1)
        return "done"

    caplog.set_level(logging.INFO)
    refuses = Refuses()
    logger.logger.addFilter(refuses)
    try:
        async with world(works, logs, slow) as env:
            waiting = await neighbour(env)
            assert await env.run(logs) == "done"
            await assert_unharmed(env, waiting)
    finally:
        logger.logger.removeFilter(refuses)


async def test_a_logged_exception_has_its_traceback_and_its_place(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def logs() -> None:
        try:
            raise ValueError("caught here")
        except ValueError:
            logger.exception("it happened")

    async with world(logs) as env:
        await env.run(logs)
    (record,) = [record for record in caplog.records if record.getMessage() == "it happened"]
    assert record.filename == "test_isolation.py"
    assert 'raise ValueError("caught here")' in caplog.text


# -- context variables

tenant = contextvars.ContextVar("tenant", default="nobody")
seen: list[tuple[str, str]] = []


@activity(retry=Retry(attempts=3, first=0.01))
async def secretive(name: str) -> None:
    attempt = activity_info().attempt
    seen.append((f"{name} {attempt}", tenant.get()))
    tenant.set(f"set by {name} {attempt}")
    await asyncio.sleep(0.05)
    if attempt < 3:
        raise ValueError(name)


@activity(retry=Retry(attempts=2, first=0.01))
def secretive_in_a_thread(name: str) -> None:
    attempt = activity_info().attempt
    seen.append((f"{name} {attempt}", tenant.get()))
    tenant.set(f"set by {name} {attempt}")
    if attempt < 2:
        raise ValueError(name)


@workflow
async def many() -> None:
    in_tasks = [secretive(f"task {n}") for n in range(3)]
    in_threads = [secretive_in_a_thread(f"thread {n}") for n in range(3)]
    await asyncio.gather(*in_tasks, *in_threads)


@pytest.mark.parametrize("places", [1, 100])
async def test_what_an_activity_sets_in_its_context_no_other_and_no_later_attempt_sees(places: int) -> None:
    seen.clear()
    async with world(many, secretive, secretive_in_a_thread, max_activities=places, threads=places) as env:
        await asyncio.gather(env.run(many), env.run(many))
    assert len(seen) == 2 * (3 * 3 + 3 * 2)
    assert {what for _, what in seen} == {"nobody"}


# -- places


async def test_an_activity_that_is_cancelled_while_it_waits_for_permission_gives_its_place_back() -> None:
    @workflow
    async def gives_up(name: str) -> str:
        try:
            return await slow.with_options(timeout=0.2, retry=Retry(attempts=1))(name)
        except ActivityTimeout:
            return "gave up"

    async with world(works, gives_up, slow, max_activities=3) as env:
        session = env.worker.session
        assert session is not None
        with pytest.MonkeyPatch.context() as patch:
            in_doubt = SimpleNamespace(monotonic=time.monotonic, valid_until=0.0)
            patch.setattr(session.executor._runner, "_lease", in_doubt)
            patch.setattr(session.executor._runner, "_permission", asyncio.Event().wait)
            handles = [await env.start(gives_up, str(n)) for n in range(5)]
            assert [await handle.result() for handle in handles] == ["gave up"] * 5
        assert not executed
        assert [await handle.result() for handle in [await env.start(works, "now") for _ in range(4)]] == ["now"] * 4


# -- the store


@pytest.mark.parametrize("error", [ValueError("a row that cannot be read"), KeyError("x"), OSError("driver")])
async def test_an_unexpected_error_of_a_claim_does_not_end_claiming(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(works, slow) as env:
        claim, errors = env.store.claim, [error, error]

        async def fails_first(*asked: Any) -> Claim:
            if errors:
                raise errors.pop()
            return await claim(*asked)

        monkeypatch.setattr(env.store, "claim", fails_first)
        waiting = await neighbour(env)
        delayed = await env.start(works, "delayed", delay=60)
        assert await delayed.result() == "delayed"
        assert not errors
        await assert_unharmed(env, waiting)


async def test_an_unexpected_error_while_looking_for_results_does_not_end_looking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(works, slow) as env:
        closed_among, errors = env.store.closed_among, [ValueError("unreadable")]

        async def fails_first(run_ids: Any) -> Any:
            if errors:
                raise errors.pop()
            return await closed_among(run_ids)

        monkeypatch.setattr(env.store, "closed_among", fails_first)
        first, second = [await env.start(works, name, id=name, delay=60) for name in ("first", "second")]
        assert [await first.result(), await second.result()] == ["first", "second"]
        assert not errors


async def test_a_run_whose_journal_is_incomplete_is_parked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Environment(workflows=[works], activities=[slow]) as env:
        broken = await env.start(works, "broken")
        whole = await env.start(works, "whole")
        await env.settle()
        claim = env.store.claim

        async def loses_entries(*asked: Any) -> Claim:
            found = await claim(*asked)
            for stored in found.stored_runs:
                if stored.run.run_id == broken.run_id:
                    stored.entries.clear()
            return found

        monkeypatch.setattr(env.store, "claim", loses_entries)
        await env.crash()
        assert "its journal has 0 entries, and its row says 1" in await parked(env, broken)
        assert await whole.result() == "whole"


async def test_a_retry_policy_that_grows_beyond_all_numbers_is_followed() -> None:
    @activity(retry=Retry(attempts=0, first=1, factor=1e300, longest=5, jitter=0))
    async def at_last() -> int:
        if activity_info().attempt < 20:
            raise ValueError("not yet")
        return activity_info().attempt

    @workflow
    async def persists() -> int:
        return await at_last()

    async with world(persists, at_last) as env:
        assert await env.run(persists) == 20
