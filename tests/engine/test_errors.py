"""Errors cross the journal: type, message, details and cause are kept, and they are raised again as the same class."""

import asyncio
from typing import Any

import pytest

from batuta import ActivityFailed, ActivityTimeout, NonRetryable, Retry, RunFailed, activity, job, workflow
from batuta.errors import ActivityError
from tests.engine.kit import jobs, journal_of, replay, world

ONE = Retry(attempts=1)


class OutOfStock(Exception):
    """An error with fields, as business errors have."""

    def __init__(self, sku: str, missing: int) -> None:
        super().__init__(f"{missing} of {sku} are missing")
        self.sku, self.missing = sku, missing


class Refused(NonRetryable):
    """Not to be tried again, and with a field."""

    def __init__(self, code: str) -> None:
        super().__init__(f"refused with {code}")
        self.code = code


class KeywordOnly(Exception):
    """Its constructor cannot be called with `args`."""

    def __init__(self, *, code: int) -> None:
        super().__init__("keyword only")
        self.code = code


class Silent:
    """Has no JSON form."""

    def __repr__(self) -> str:
        return "<silent>"


def make(kind: str) -> BaseException:
    errors: dict[str, Any] = {
        "fields": lambda: OutOfStock("tea", 3),
        "builtin": lambda: LookupError("no", "such", 7),
        "key": lambda: KeyError("k"),
        "os": lambda: FileNotFoundError(2, "No such file", "x.txt"),
        "refused": lambda: Refused("E17"),
        "keyword": lambda: KeywordOnly(code=4),
        "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        "unserialisable": lambda: ValueError(Silent()),
        "empty": ValueError,
        "exit": lambda: SystemExit(3),
        "group": lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    }
    error: BaseException = errors[kind]()
    return error


@activity(retry=ONE)
async def raises(kind: str) -> None:
    raise make(kind)


@activity(retry=ONE)
def raises_in_thread(kind: str) -> None:
    raise make(kind)


def show(error: BaseException) -> list[str]:
    fields = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    members = [line for one in error.exceptions for line in show(one)] if isinstance(error, ExceptionGroup) else []
    return [type(error).__name__, str(error), repr(sorted(fields.items())), *members]


@workflow
async def catches(kind: str, in_thread: bool = False) -> list[str]:
    try:
        await (raises_in_thread(kind) if in_thread else raises(kind))
    except Exception as error:  # noqa: BLE001 - to look at it
        await asyncio.sleep(1)
        return show(error)
    return []


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
@pytest.mark.parametrize("kind", ["fields", "builtin", "key", "os", "refused", "keyword", "empty", "group"])
async def test_an_error_is_raised_again_as_itself(kind: str, in_thread: bool) -> None:  # covers B-03
    async with world(catches, raises, raises_in_thread) as env:
        handle = await env.start(catches, kind, in_thread)
        assert await handle.result() == show(make(kind))
        machine = replay(catches, await journal_of(env, handle))
        assert machine.outcome is not None


@pytest.mark.parametrize("kind", ["unicode", "unserialisable", "exit"])
async def test_an_error_that_cannot_be_made_again_keeps_its_name_and_words(kind: str) -> None:
    async with world(catches, raises, raises_in_thread) as env:
        name, message, fields = await env.run(catches, kind)
        original = make(kind)
        assert message == str(original) or str(original) in message
        assert name == type(original).__name__ or type(original).__name__ in fields


@workflow
async def fails_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raises("fields"))
        group.create_task(raises("group"))


async def test_a_run_that_fails_with_a_group_gives_its_members_to_waiters() -> None:
    async with world(fails_in_a_group, raises) as env:
        handle = await env.start(fails_in_a_group)
        with pytest.raises(RunFailed) as caught:
            await handle.result()
        cause = caught.value.__cause__
        assert isinstance(cause, ExceptionGroup)
        assert show(cause.exceptions[0]) == show(make("fields"))


@activity(retry=Retry(attempts=5, never=["OutOfStock"]))
async def fails_in_a_group_inside() -> None:
    tries.append("tried")
    raise ExceptionGroup("two", [ValueError("a"), OutOfStock("tea", 1)])


tries: list[str] = []


@workflow
async def tells_members_apart() -> list[str]:
    found = []
    try:
        await fails_in_a_group_inside()
    except* OutOfStock as group:
        found += [str(one) for one in group.exceptions]
    except* ValueError as group:
        found += [repr(one) for one in group.exceptions]
    return sorted(found)


async def test_members_of_a_group_are_told_apart_and_named_in_never() -> None:
    tries.clear()
    async with world(tells_members_apart, fails_in_a_group_inside) as env:
        assert await env.run(tells_members_apart) == sorted([str(OutOfStock("tea", 1)), "ValueError('a')"])
    assert tries == ["tried"]


@activity(retry=ONE)
async def raises_what_only_it_knows() -> None:
    class Local(Exception):
        pass

    raise Local("secret")


async def test_an_error_of_an_unknown_class_is_an_activity_failed() -> None:
    @workflow
    async def catches_it() -> list[str]:
        try:
            await raises_what_only_it_knows()
        except ActivityFailed as error:
            return [error.type.rpartition(".")[2], error.message, str(isinstance(error, ActivityError))]
        return []

    async with world(catches_it, raises_what_only_it_knows) as env:
        assert await env.run(catches_it) == ["Local", "secret", "True"]


@activity(retry=ONE)
async def raises_from_another() -> None:
    try:
        raise OutOfStock("tea", 2)
    except OutOfStock as error:
        raise ConnectionError("the shop said no") from error


async def test_the_cause_is_kept() -> None:
    @workflow
    async def looks_at_the_cause() -> list[list[str]]:
        try:
            await raises_from_another()
        except ConnectionError as error:
            return [show(error), show(error.__cause__ or KeyError("no cause"))]
        return []

    async with world(looks_at_the_cause, raises_from_another) as env:
        assert await env.run(looks_at_the_cause) == [
            show(ConnectionError("the shop said no")),
            show(OutOfStock("tea", 2)),
        ]


async def test_the_error_of_a_run_reaches_its_starter_with_type_fields_and_cause() -> None:
    @workflow
    async def lets_it_through() -> None:
        await raises_from_another()

    async with world(lets_it_through, raises_from_another) as env:
        with pytest.raises(RunFailed) as caught:
            await env.run(lets_it_through)
        cause = caught.value.__cause__
        assert isinstance(cause, ConnectionError)
        assert isinstance(cause.__cause__, OutOfStock)
        assert cause.__cause__.missing == 2


async def test_the_traceback_is_kept_in_the_journal() -> None:
    async with world(catches, raises, raises_in_thread) as env:
        handle = await env.start(catches, "fields")
        await handle.result()
        failure: Any = (await handle.journal())[1].body.error
        assert "test_errors.py" in failure.traceback
        assert "in raises" in failure.traceback


async def test_a_job_that_fails_is_told_with_the_traceback_of_its_function() -> None:
    @job(retry=Retry(attempts=1))
    async def stumbles() -> None:
        raise OutOfStock("pencils", 3)

    async with jobs(stumbles) as env:
        handle = await env.enqueue(stumbles)
        with pytest.raises(RunFailed):
            await handle.result()
        last: Any = (await handle.journal())[-1].body
    assert "in stumbles" in last.error.traceback
    assert last.commands[-1].error.traceback == last.error.traceback


async def test_a_recorded_error_is_raised_again_and_not_executed_again() -> None:  # covers B-03
    count: list[int] = []

    @activity(retry=ONE)
    async def fails() -> None:
        count.append(1)
        raise OutOfStock("tea", len(count))

    @workflow
    async def goes_on() -> str:
        try:
            await fails()
        except OutOfStock as error:
            await asyncio.sleep(3600)
            return str(error)
        return "fine"

    async with world(goes_on, fails) as env:
        handle = await env.start(goes_on)
        await env.settle()
        await env.crash()
        assert await handle.result() == "1 of tea are missing"
        assert count == [1]


async def test_a_timeout_is_told_apart_from_an_activitys_own_timeout_error() -> None:
    @activity(retry=ONE, timeout=5)
    async def slow(own: bool) -> None:
        if own:
            raise TimeoutError("the partner took too long")
        await asyncio.sleep(60)

    @workflow
    async def tells_apart() -> list[str]:
        said = []
        for own in (True, False):
            try:
                await slow(own)
            except ActivityTimeout:
                said.append("ours")
            except TimeoutError as error:
                said.append(str(error))
        return said

    async with world(tells_apart, slow) as env:
        assert await env.run(tells_apart) == ["the partner took too long", "ours"]


async def test_an_activity_that_is_cancelled_from_within_fails_like_any_other() -> None:
    @activity(retry=ONE)
    async def gives_up() -> None:
        raise asyncio.CancelledError("by itself")

    @workflow
    async def asks() -> str:
        try:
            await gives_up()
        except Exception as error:  # noqa: BLE001 - not a cancellation of the workflow
            return type(error).__name__
        return "fine"

    async with world(asks, gives_up) as env:
        assert await env.run(asks) == "ActivityFailed"
