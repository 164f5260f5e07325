"""Code of the user that runs inside ours: whatever it raises has one effect, and the worker goes on."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, computed_field

from batuta import (
    ActivityCall,
    DeadLetter,
    InvalidInput,
    Middleware,
    Query,
    QueryFailed,
    Retry,
    RunFailed,
    RunState,
    Signal,
    Start,
    Update,
    UpdateFailed,
    UpdateRejected,
    Workflow,
    activity,
    connect,
    job,
    logger,
    publish,
    side_effect,
    workflow,
)
from batuta.authoring.middleware import Proceed
from batuta.codecs import Bound, PayloadCodec
from batuta.errors import BadData, NotSerialisable
from batuta.testing import Environment
from tests.engine.arena import until
from tests.engine.kit import world


class OfItsOwn(BaseException):
    """Neither an Exception nor one of Python's."""


ERRORS = [
    KeyError("x"),
    MemoryError(),
    RecursionError("deep"),
    SystemExit(3),
    OfItsOwn("odd"),
    asyncio.CancelledError(),
]
every_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
raising: list[BaseException] = []


@pytest.fixture(autouse=True)
def _calm() -> None:
    raising.clear()


def stumble() -> None:
    if raising:
        raise raising[0]


class Receipt(BaseModel):
    number: int

    @computed_field  # type: ignore[prop-decorator]  # as pydantic's own documentation has it
    @property
    def total(self) -> int:
        stumble()
        return self.number


@dataclass
class Picky:
    number: int

    def __post_init__(self) -> None:
        stumble()


@activity(retry=Retry(attempts=3, first=0.01))
async def bills(number: int) -> Receipt:
    done.append(number)
    return Receipt(number=number)


@activity(retry=Retry(attempts=3, first=0.01))
def bills_in_thread(number: int) -> Receipt:
    done.append(number)
    return Receipt(number=number)


@activity
async def counts(number: int) -> int:
    return number


@activity
async def weighs(what: Picky) -> int:
    return what.number


@activity
async def gives(number: int) -> Picky:
    return Picky(number)


done: list[int] = []


@workflow
async def bill(number: int, in_thread: bool) -> int:
    return (await (bills_in_thread if in_thread else bills)(number)).number


@workflow
async def receipt(number: int) -> Receipt:
    await counts(number)
    return Receipt(number=number)


@workflow
async def count(number: int) -> int:
    return await counts(number)


ALL: list[Workflow[..., Any]] = [bill, receipt, count]
EVERYTHING = [*ALL, bills, bills_in_thread, counts]


async def still_works(env: Environment) -> None:
    raising.clear()
    assert await env.run(count, 7) == 7


# -- values


@every_error
@pytest.mark.parametrize("in_thread", [False, True], ids=["loop", "thread"])
async def test_a_result_whose_encoding_raises_fails_its_activity_once(error: BaseException, in_thread: bool) -> None:
    done.clear()
    async with world(*EVERYTHING, max_activities=1, threads=1) as env:
        raising.append(error)
        with pytest.raises(RunFailed) as caught:
            await env.run(bill, 1, in_thread)
        assert isinstance(caught.value.__cause__, NotSerialisable)
        assert type(caught.value.__cause__.__cause__) is type(error) or not isinstance(error, Exception)
        raising.clear()
        assert await env.run(bill, 2, in_thread) == 2, "its place is free"
    assert done == [1, 2], "what was done is not done again"


HUGE = 10**5000
"""An integer with more digits than Python converts."""


@activity
async def counts_far(number: int) -> int:
    return HUGE


@activity
def counts_far_in_thread(number: int) -> int:
    return HUGE


@job
async def job_that_counts_far() -> int:
    return HUGE


async def test_a_number_with_too_many_digits_fails_what_returns_it() -> None:
    @workflow
    async def far(way: str) -> int:
        if way == "result":
            return HUGE
        if way == "input":
            return await counts(HUGE)
        return await (counts_far if way == "loop" else counts_far_in_thread)(1)

    async with Environment(
        workflows=[far, count], activities=[counts, counts_far, counts_far_in_thread], jobs=[job_that_counts_far]
    ) as env:
        for way in ("loop", "thread", "result", "input"):
            with pytest.raises(RunFailed, match="no JSON form"):
                await env.run(far, way)
        with pytest.raises(RunFailed, match="no JSON form"):
            await env.run(job_that_counts_far)
        with pytest.raises(NotSerialisable):
            await env.start(count, HUGE)
        await still_works(env)


@every_error
async def test_a_job_whose_result_cannot_be_encoded_fails(error: BaseException) -> None:
    @job
    async def bills_later(number: int) -> Receipt:
        return Receipt(number=number)

    async with Environment(jobs=[bills_later]) as env:
        raising.append(error)
        with pytest.raises(RunFailed):
            await (await env.enqueue(bills_later, 1)).result()
        raising.clear()
        assert (await (await env.enqueue(bills_later, 2)).result()).number == 2


@every_error
async def test_a_workflow_whose_result_cannot_be_encoded_fails(error: BaseException) -> None:
    async with Environment(workflows=ALL, activities=[bills, bills_in_thread, counts]) as env:
        raising.append(error)
        with pytest.raises(RunFailed) as caught:
            await env.run(receipt, 1)
        assert isinstance(caught.value.__cause__, NotSerialisable)
        assert [letter.reason for letter in (await env.dead_letters.list()).letters] == ["workflow_error"]
        await still_works(env)


@every_error
async def test_an_argument_that_cannot_be_decoded_fails_its_activity(error: BaseException) -> None:
    @workflow
    async def asks(number: int) -> str:
        raising.append(error)
        try:
            await weighs({"number": number})  # type: ignore[arg-type]  # JSON is what crosses
        except InvalidInput as misfit:
            return str(misfit)
        return "fits"

    async with world(asks, count, weighs, counts) as env:
        assert type(error).__name__ in await env.run(asks, 1)
        await still_works(env)


@every_error
async def test_a_result_that_cannot_be_decoded_is_the_failure_of_its_activity(error: BaseException) -> None:
    @activity
    async def gives_one(number: int) -> Any:
        raising.append(error)
        return {"number": number}

    @workflow
    async def asks(number: int) -> str:
        try:
            await gives_one.with_options()(number)
        except InvalidInput as misfit:
            return str(misfit)
        return "fits"

    gives_one.codec.result_decoder = gives.codec.result_decoder
    async with Environment(workflows=[asks, count], activities=[gives_one, counts]) as env:
        assert type(error).__name__ in await env.run(asks, 1)
        await still_works(env)


@every_error
async def test_a_signal_that_cannot_be_decoded_is_passed_over(error: BaseException) -> None:
    picked = Signal("picked", Picky)

    @workflow
    async def waits() -> int:
        return (await picked.wait()).number

    async with Environment(
        workflows=[waits], always_replay=False
    ) as env:  # its code raises for a while only: no replay of it can be the same
        handle = await env.start(waits)
        await env.settle()
        raising.append(error)
        await handle.signal("picked", {"number": 1})
        await env.settle()
        raising.clear()
        await handle.signal("picked", {"number": 2})
        assert await handle.result() == 2


async def test_a_class_that_cannot_be_hashed_fails_its_activity() -> None:
    class Unhashable(type):
        __hash__ = None  # type: ignore[assignment]

    class Odd(metaclass=Unhashable): ...

    @activity
    async def odd() -> Any:
        return Odd()

    @workflow
    async def asks() -> str:
        try:
            await odd()
        except InvalidInput as misfit:
            return type(misfit).__name__
        return "fits"

    async with world(asks, count, odd, counts) as env:
        assert await env.run(asks) == "NotSerialisable"
        await still_works(env)


async def test_a_context_variable_whose_value_cannot_be_compared_is_accepted() -> None:
    class Incomparable:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth value of an array is ambiguous")

        __hash__ = None  # type: ignore[assignment]

    variable: ContextVar[Incomparable] = ContextVar("variable")

    class Sets(Middleware):
        def before(self, trace: str, headers: Any) -> bool:
            variable.set(Incomparable())
            return False

        async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
            return await proceed()

    @activity
    async def sets(number: int) -> int:
        variable.set(Incomparable())
        return number

    @workflow
    async def asks() -> list[int]:
        return list(await asyncio.gather(*(sets(number) for number in range(10))))

    async with Environment(workflows=[asks], activities=[sets], middleware=[Sets()]) as env:
        assert await env.run(asks) == list(range(10))


async def test_arguments_that_cannot_be_compared_in_a_replay_park_the_run_by_name() -> None:
    @dataclass
    class Incomparable:
        items: set[int]

        def __eq__(self, other: object) -> bool:
            raise OfItsOwn("no comparing")

        __hash__ = None  # type: ignore[assignment]

    @activity
    async def takes(what: Incomparable) -> int:
        return len(what.items)

    order = [1, 2]

    @workflow
    async def asks() -> int:
        found = await takes(Incomparable({order[0]}))
        await asyncio.sleep(3600)
        return found

    async with Environment(workflows=[asks], activities=[takes]) as env:
        handle = await env.start(asks)
        await env.settle()
        order.reverse()
        await env.advance(4000)
        assert (await handle.describe()).state is RunState.NEEDS_CODE


# -- handlers


@every_error
async def test_a_validator_that_raises_rejects_the_update(error: BaseException) -> None:
    put, stop = Update("put", int), Signal("stop", int)

    @workflow
    async def basket() -> int:
        def small(number: int) -> None:
            stumble()

        @put.handle(validator=small)
        def append(number: int) -> int:
            return number

        return await stop.wait()

    async with world(basket) as env:
        handle = await env.start(basket)
        await env.settle()
        raising.append(error)
        with pytest.raises(UpdateRejected):
            await handle.update(put, 1)
        raising.clear()
        assert await handle.update(put, 2) == 2
        await handle.signal(stop, 3)
        assert await handle.result() == 3


class Wordless(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")

    __repr__ = __str__


async def test_an_error_that_cannot_be_shown_answers_an_update_and_rejects_one() -> None:
    put, stop = Update("put", int), Signal("stop", int)

    @workflow
    async def basket() -> int:
        def small(number: int) -> None:
            if number > 5:
                raise Wordless

        @put.handle(validator=small)
        def append(number: int) -> int:
            raise Wordless

        return await stop.wait()

    async with world(basket) as env:
        handle = await env.start(basket)
        with pytest.raises(UpdateFailed, match="without a readable message"):
            await handle.update(put, 1)
        with pytest.raises(UpdateRejected, match="without a readable message"):
            await handle.update(put, 6)
        await handle.signal(stop, 3)
        assert await handle.result() == 3


@every_error
async def test_an_answer_that_cannot_be_encoded_fails_its_update(error: BaseException) -> None:
    put, stop = Update("put", Receipt), Signal("stop", int)

    @workflow
    async def basket() -> int:
        @put.handle
        def append(number: int) -> Receipt:
            return Receipt(number=number)

        return await stop.wait()

    async with Environment(
        workflows=[basket], always_replay=False
    ) as env:  # its code raises for a while only: no replay of it can be the same
        handle = await env.start(basket)
        raising.append(error)
        with pytest.raises(UpdateFailed):
            await handle.update(put, 1)
        raising.clear()
        await handle.signal(stop, 3)
        assert await handle.result() == 3


@every_error
async def test_a_query_whose_handler_raises_fails(error: BaseException) -> None:
    size, stop = Query("size", int), Signal("stop", int)

    @workflow
    async def basket() -> int:
        @size.handle
        def answer() -> int:
            stumble()
            return 1

        return await stop.wait()

    async with world(basket) as env:
        handle = await env.start(basket)
        await env.settle()
        raising.append(error)
        with pytest.raises(QueryFailed):
            await handle.query(size)
        raising.clear()
        assert await handle.query(size) == 1
        await handle.signal(stop, 3)
        assert await handle.result() == 3


@every_error
async def test_what_workflow_code_raises_fails_its_run(error: BaseException) -> None:
    @workflow
    async def raises() -> None:
        await counts(1)
        stumble()

    async with Environment(workflows=[raises, count], activities=[counts]) as env:
        raising.append(error)
        handle = await env.start(raises)
        await env.settle()
        assert (await handle.describe()).state is RunState.FAILED
        await still_works(env)


@every_error
async def test_what_an_activity_raises_is_its_answer(error: BaseException) -> None:
    @activity(retry=Retry(attempts=1))
    async def raises() -> None:
        stumble()

    @activity(name="in_thread", retry=Retry(attempts=1))
    def raises_in_thread() -> None:
        stumble()

    @workflow
    async def asks() -> int:
        answers = await asyncio.gather(raises(), raises_in_thread(), return_exceptions=True)
        return sum(isinstance(one, BaseException) for one in answers)

    async with Environment(workflows=[asks, count], activities=[raises, raises_in_thread, counts]) as env:
        raising.append(error)
        assert await env.run(asks) == 2
        await still_works(env)


@every_error
async def test_an_error_that_holds_what_cannot_be_encoded_is_an_answer_all_the_same(error: BaseException) -> None:
    class Told(Exception): ...

    @activity(retry=Retry(attempts=1))
    async def raises() -> None:
        told = Told("no", Receipt(number=1))
        told.receipt = Receipt(number=2)  # type: ignore[attr-defined]  # as errors of libraries have
        raising.append(error)
        raise told

    @workflow
    async def asks() -> str:
        try:
            await raises()
        except Exception as caught:  # noqa: BLE001 - the class is not at module level: it comes back as another
            return str(caught)
        return ""

    async with Environment(workflows=[asks, count], activities=[raises, counts]) as env:
        assert "no" in await env.run(asks)
        await still_works(env)


def secretive(refusals: list[BaseException]) -> Exception:
    """Has one attribute that can't be read while there are refusals."""

    class Secretive(Exception):
        @property
        def args(self) -> Any:  # type: ignore[override]  # that is the point
            if refusals:
                raise refusals[0]
            return ()

    return Secretive("no")


def closed(refusals: list[BaseException]) -> Exception:
    """Refuses every look at it, also the one of `isinstance`."""

    class Closed(Exception):
        def __getattribute__(self, name: str) -> Any:
            if refusals:
                raise refusals[0]
            return super().__getattribute__(name)

    return Closed("no")


class Undecided(Exception):
    """Its truth can't be asked for."""

    def __bool__(self) -> bool:
        raise ValueError("neither")


class Empty(Exception):
    """It is false, as a collection without members."""

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("kind", [Undecided, Empty])
async def test_an_error_is_itself_whatever_its_truth_is(kind: type[Exception]) -> None:
    @activity(retry=Retry(attempts=1), raises=[Undecided, Empty])
    async def raises() -> None:
        raise kind("no")

    @workflow
    async def asks() -> str:
        async def falls() -> None:
            raise kind("in a task")

        def calls_back() -> None:
            raise kind("in a callback")

        forgotten = asyncio.create_task(falls())
        asyncio.get_running_loop().call_soon(calls_back)
        try:
            await raises()
        except kind as caught:
            return f"{type(caught).__name__}, {forgotten.done()}"
        return ""

    async with Environment(workflows=[asks, count], activities=[raises, counts]) as env:
        assert await env.run(asks) == f"{kind.__name__}, True"
        await still_works(env)


@every_error
async def test_a_callback_whose_error_refuses_to_be_looked_at_is_logged(error: BaseException) -> None:
    refusals: list[BaseException] = []

    @workflow
    async def calls_back() -> str:
        def fails() -> None:
            told = closed(refusals)
            refusals.append(error)
            raise told

        asyncio.get_running_loop().call_soon(fails)
        await asyncio.sleep(1)
        return "done"

    async with Environment(workflows=[calls_back, count], activities=[counts]) as env:
        assert await env.run(calls_back) == "done"
        refusals.clear()
        await still_works(env)


refuses_looks = pytest.mark.parametrize("made", [secretive, closed])


@every_error
@refuses_looks
@pytest.mark.parametrize("way", [{}, {"transactional": True}], ids=["plain", "transactional"])
async def test_an_error_that_refuses_to_be_looked_at_is_an_answer_all_the_same(
    made: Callable[[list[BaseException]], Exception], error: BaseException, way: dict[str, Any]
) -> None:
    refusals: list[BaseException] = []

    @activity(retry=Retry(attempts=2, first=0.01), **way)
    async def raises() -> None:
        told = made(refusals)
        refusals.append(error)
        raise told

    @workflow
    async def asks() -> str:
        try:
            await raises()
        except Exception as caught:  # noqa: BLE001 - the class is not at module level: it comes back as another
            return str(caught)
        return ""

    async with Environment(workflows=[asks, count], activities=[raises, counts]) as env:
        assert await env.run(asks) == "no"
        refusals.clear()
        await still_works(env)


@every_error
@refuses_looks
async def test_a_run_whose_code_raises_an_error_that_refuses_to_be_looked_at_fails(
    made: Callable[[list[BaseException]], Exception], error: BaseException
) -> None:
    refusals: list[BaseException] = []

    @workflow
    async def raises() -> None:
        told = made(refusals)
        refusals.append(error)
        raise told

    async with Environment(workflows=[raises, count], activities=[counts]) as env:
        handle = await env.start(raises)
        with pytest.raises(RunFailed, match="no"):
            await handle.result()
        refusals.clear()
        await still_works(env)


@every_error
async def test_what_a_side_effect_or_a_published_value_raises_is_workflow_code(error: BaseException) -> None:
    @workflow
    async def shows() -> list[str]:
        told = []
        try:
            publish("receipt", Receipt(number=1))
        except NotSerialisable as misfit:
            told.append(type(misfit).__name__)
        try:
            await side_effect(lambda: Receipt(number=1))
        except NotSerialisable as misfit:
            told.append(type(misfit).__name__)
        return told

    async with Environment(workflows=[shows]) as env:
        raising.append(error)
        handle = await env.start(shows)
        await env.settle()
        raising.clear()
        assert await handle.result() == ["NotSerialisable"] * 2


@every_error
async def test_a_log_line_that_cannot_be_made_or_sent_is_lost(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class Unprintable:
        def __str__(self) -> str:
            stumble()
            return "fine"

    class Refuses(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            if record.name == "batuta.workflow":
                stumble()
            return True

    @workflow
    async def logs() -> int:
        logger.info("made of %s", Unprintable())
        logger.info("sent")
        return 1

    target, refuses = logging.getLogger("batuta.workflow"), Refuses()
    target.addFilter(refuses)
    target.setLevel(logging.INFO)
    try:
        async with world(logs) as env:
            raising.append(error)
            assert await env.run(logs) == 1
            raising.clear()
    finally:
        target.removeFilter(refuses)
        target.setLevel(logging.NOTSET)
    assert "could not be made" in caplog.text
    assert "was lost" in caplog.text


# -- hooks


@every_error
async def test_errors_of_middleware_that_is_asked_are_contained(error: BaseException) -> None:
    class Raises(Middleware):
        def begin(self, start: Start) -> None:
            stumble()

        def before(self, trace: str, headers: Any) -> bool:
            stumble()
            return False

        async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
            return await proceed()

        def event(self, event: Any) -> None:
            stumble()

    async with Environment(workflows=[count], activities=[counts], middleware=[Raises()]) as env:
        raising.append(error)
        assert await env.run(count, 3) == 3


@every_error
async def test_middleware_that_raises_around_an_attempt_is_that_attempts_answer(error: BaseException) -> None:
    class Raises(Middleware):
        async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
            if call.facts.attempt == 1:
                stumble()
            return await proceed()

    async with Environment(workflows=[count], activities=[counts], middleware=[Raises()]) as env:
        raising.append(error)
        assert await env.run(count, 3) == 3


@every_error
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_on_dead_letter_that_raises_is_logged(
    error: BaseException, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    @job(retry=Retry(attempts=1))
    async def fails() -> None:
        raise ValueError("no")

    def plain(letter: DeadLetter) -> None:
        told.append(letter.id)
        stumble()

    async def hook(letter: DeadLetter) -> None:
        plain(letter)

    chosen: Callable[[DeadLetter], Any] = hook if is_async else plain
    async with connect("memory://") as client:
        async with client.worker(jobs=[fails], on_dead_letter=chosen):
            raising.append(error)
            await client.enqueue(fails, id="a")
            await client.enqueue(fails, id="b")

            async def both() -> bool:
                return len(told) == 2

            await until(both)
    assert caplog.text.count("on_dead_letter raised") == 2


class Stumbling(PayloadCodec):
    """Fails on what it is told to."""

    name = "stumbling"

    def encode(self, data: bytes, bound: Bound) -> bytes | None:
        if b"poison" in data:
            stumble()
        return data[::-1]

    def decode(self, data: bytes, label: str, bound: Bound) -> bytes:
        stumble()
        return data[::-1]


@every_error
async def test_a_payload_codec_that_cannot_encode_refuses_a_start_and_parks_a_run(error: BaseException) -> None:
    @activity
    async def poisons(number: int) -> str:
        raising.append(error)
        return "poison" if number else "fine"

    @workflow
    async def asks(number: int) -> str:
        return await poisons(number)

    @workflow
    async def says(what: str) -> str:
        return what

    async with connect("memory://", codec=[Stumbling()]) as client:
        async with client.worker(workflows=[asks, says], activities=[poisons]):
            raising.append(error)
            with pytest.raises(BadData):
                await client.start(says, "poison")
            raising.clear()
            handle = await client.start(asks, 1)

            async def parked() -> bool:
                return bool(raising) and (await handle.describe()).state is RunState.NEEDS_CODE

            await until(parked)
            raising.clear()
            assert "stumbling" in (await handle.describe()).reason
            assert await (await client.start(says, "fine")).result() == "fine"
