"""What cannot work is refused by name before anything is half written, and the rest of the worker goes on."""

import asyncio
import enum
import math
import sys
import threading
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from batuta import (
    InvalidInput,
    Queue,
    Retry,
    RunFailed,
    RunState,
    RunTerminated,
    activity,
    call,
    connect,
    job,
    run_child,
    workflow,
)
from batuta.errors import (
    ClientError,
    DuplicateDefinition,
    InvalidURL,
    MissingExtra,
    NotSerialisable,
    StoreError,
    TooLarge,
    WorkerError,
)
from batuta.journal.records import MessageKind
from batuta.settings import Settings
from batuta.testing import Environment
from batuta.testing.stores import AnyStoreName
from tests.engine.kit import commands, parked, world


@activity
async def echo(value: Any) -> Any:
    return value


@workflow
async def relays(value: Any) -> Any:
    return await echo(value)


class Opaque:
    """Has no JSON form."""


def loop_in_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


UNSERIALISABLE: dict[str, Any] = {
    "an object": Opaque(),
    "a function": len,
    "a lock": threading.Lock(),
    "NaN": math.nan,
    "infinity": {"deep": [1, {"er": -math.inf}]},
    "a lone surrogate": "\ud800",
    "a set of objects": {Opaque()},
    "a circle": loop_in_itself(),
    "complex": 1j,
    "an exception": ValueError("x"),
    "keys that are no strings": {(1, 2): "x"},
}


@pytest.mark.parametrize("what", UNSERIALISABLE)
async def test_an_argument_without_a_json_form_is_refused_before_anything_is_written(what: str) -> None:
    async with world(relays, echo) as env:
        with pytest.raises(NotSerialisable, match="the input of workflow 'relays'"):
            await env.start(relays, UNSERIALISABLE[what], id="x")
        assert await env.client.count() == 0


@pytest.mark.parametrize("what", UNSERIALISABLE)
async def test_an_activity_argument_without_a_json_form_is_raised_in_the_workflow(what: str) -> None:
    @workflow
    async def tries() -> str:
        try:
            await echo(UNSERIALISABLE[what])
        except NotSerialisable as error:
            return await echo(str(error))
        return "fine"

    async with world(tries, echo) as env:
        handle = await env.start(tries)
        assert "the input of activity 'echo'" in await handle.result()
        assert await commands(handle) == ["activity echo", "complete"]


@pytest.mark.parametrize("what", UNSERIALISABLE)
async def test_an_activity_result_without_a_json_form_fails_the_activity_at_once(what: str) -> None:
    count: list[int] = []

    @activity(retry=Retry(attempts=5))
    async def gives() -> Any:
        count.append(1)
        return UNSERIALISABLE[what]

    @workflow
    async def asks() -> str:
        try:
            await gives()
        except InvalidInput as error:
            return str(error)
        return "fine"

    async with world(asks, gives) as env:
        assert "the result of activity 'gives'" in await env.run(asks)
        assert len(count) == 1


@pytest.mark.parametrize("what", ["an object", "NaN"])
async def test_a_workflow_result_without_a_json_form_fails_the_run(what: str) -> None:
    @workflow
    async def gives() -> Any:
        return UNSERIALISABLE[what]

    async with world(gives) as env:
        with pytest.raises(RunFailed, match="the result of workflow 'gives'"):
            await env.run(gives)


async def test_nul_in_a_value_is_kept() -> None:
    async with world(relays, echo) as env:
        assert await env.run(relays, "a\0b") == "a\0b"


# -- too large


async def test_an_argument_over_the_limit_is_refused_with_the_limit() -> None:
    async with world(relays, echo) as env:
        with pytest.raises(TooLarge, match="over the limit of 2,097,152") as caught:
            await env.start(relays, "x" * 2_097_149)
        assert caught.value.size == 2_097_153
        handle = await env.start(relays, "x" * 2_097_148)
        assert len(await handle.result()) == 2_097_148


async def test_an_activitys_argument_and_result_over_the_limit_are_errors_of_the_workflow() -> None:
    @activity
    async def makes(size: int) -> str:
        return "x" * size

    @workflow
    async def tries() -> list[str]:
        said = []
        for attempt in (lambda: echo("x" * 2000), lambda: makes(2000)):
            try:
                await attempt()
            except TooLarge as error:
                said.append(error.what)
        return said

    async with world(tries, echo, makes, max_payload=1000) as env:
        assert await env.run(tries) == ["the input of activity 'echo'", "the result of activity 'makes'"]


async def test_a_limit_raised_later_does_not_change_what_happened() -> None:
    @workflow
    async def tries() -> str:
        try:
            await echo("x" * 2000)
        except TooLarge as error:
            await asyncio.sleep(3600)
            return error.what
        return "fine"

    async with world(tries, echo, max_payload=1000) as env:
        handle = await env.start(tries)
        await env.settle()
        await env.deploy(max_payload=10_000)
        assert await handle.result() == "the input of activity 'echo'"


async def test_a_result_of_a_run_over_the_limit_fails_it() -> None:
    @workflow
    async def gives() -> str:
        return "x" * 2000

    async with world(gives, max_payload=1000) as env:
        with pytest.raises(RunFailed, match="over the limit of 1,000"):
            await env.run(gives)


async def test_tags_and_memo_have_a_limit_too() -> None:
    async with world(relays, echo) as env:
        with pytest.raises(TooLarge, match="memo"):
            await env.start(relays, 1, memo="x" * 20_000)
        with pytest.raises(TooLarge, match="tags"):
            await env.start(relays, 1, tags={f"a{n}": "x" * 1_000 for n in range(20)})


# -- names and options


@pytest.mark.parametrize("id", ["", "a\0b", "x" * 501, "line\nbreak", 7, b"bytes"])
async def test_a_bad_id_is_refused(id: Any) -> None:
    async with world(relays, echo) as env:
        with pytest.raises(InvalidInput, match="run id"):
            await env.start(relays, 1, id=id)


class Odd(str):
    """A text whose own methods fail."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("it cannot be compared")

    def __hash__(self) -> int:
        raise RuntimeError("it cannot be hashed")


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
async def test_a_text_of_a_class_of_its_own_is_taken_as_plain_text(store: AnyStoreName) -> None:
    @workflow
    async def asks() -> Any:
        return await echo.with_options(queue=Odd("default"))(await run_child(relays, 1, id=Odd("child"), queue=None))

    @job
    async def sends() -> str:
        return "sent"

    queues: list[str | Queue] = ["default", Queue("narrow", concurrency=1)]
    async with Environment(
        workflows=[asks, relays], activities=[echo], jobs=[sends], queues=queues, store=store
    ) as env:
        handle = await env.start(asks, id=Odd("o-1"), queue=Odd("default"), key=Odd("k"))
        assert await handle.result() == 1
        assert (await env.get(Odd("o-1"))).run_id == handle.run_id
        for key in (Odd("k"), "k"):  # one that cannot be compared once ended all claims of the queue in memory
            assert await env.run(sends, queue="narrow", key=key) == "sent"
        waits = await env.start(relays, 1, delay=60, version=Odd("7"))
        assert await waits.cancel(Odd("no more"))
        assert (await waits.describe()).reason == "no more"


@pytest.mark.parametrize("name", ["queue", "key", "tags", "delay", "priority", "if_exists", "version"])
async def test_an_option_that_is_none_is_not_given(name: str) -> None:
    async with world(relays, echo) as env:
        assert await env.run(relays, 1, **{name: None}) == 1


@pytest.mark.parametrize("name", ["a\0b", "x" * 201, "line\nbreak"])
def test_a_bad_name_is_refused_at_definition(name: str) -> None:
    with pytest.raises(InvalidInput, match="workflow name"):
        workflow(name=name)(relays.fn)
    with pytest.raises(InvalidInput, match="activity name"):
        activity(name=name)(echo.fn)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timeout": -1}, "timeout=-1 must be more than 0"),
        ({"timeout": 0}, "timeout=0 must be more than 0"),
        ({"execution_timeout": -0.5}, "execution_timeout=-0.5 must be more than 0"),
        ({"timeout": math.nan}, "timeout=nan must be more than 0"),
        ({"delay": -1}, "delay=-1 must be a number of seconds, or a timedelta, from 0 to 1e10"),
        ({"delay": 1e300}, "must be a number of seconds"),
        ({"delay": "1h"}, "delay='1h' must be a number of seconds, or a timedelta"),
        ({"tags": {"bank": "b\x001"}}, "NUL"),
        ({"queue": ""}, "queue"),
        ({"queue": "a\0"}, "queue"),
        ({"key": 0}, "key 0 must be"),
        ({"tags": []}, "must map strings to strings"),
        ({"headers": 0}, "must map strings to strings"),
        ({"if_exists": "maybe"}, "must be one of return, reject, restart"),
        ({"tags": {"a": 1}}, "must map strings to strings"),
        ({"memo": Opaque()}, "option 'memo' has no JSON form"),
        ({"tiemout": 5}, "unknown start options tiemout"),
        ({"input": b""}, "unknown start options input"),
    ],
    ids=lambda v: str(v)[:40],
)
async def test_a_bad_start_option_is_refused_by_name(options: dict[str, Any], says: str) -> None:
    async with world(relays, echo) as env:
        with pytest.raises(InvalidInput, match=says.replace("(", r"\(")):
            await env.start(relays, 1, **options)
        assert await env.client.count() == 0


@pytest.mark.parametrize("reason", ["nul \0", "half \ud800", 7, None], ids=repr)
async def test_a_bad_reason_is_refused_and_nothing_ends(reason: Any) -> None:
    async with world(relays, echo) as env:
        handle = await env.start(relays, 1, delay=60)
        for end in (handle.cancel, handle.terminate):
            with pytest.raises(InvalidInput, match="reason="):
                await end(reason)
        assert (await handle.describe()).state == "pending"


@pytest.mark.parametrize("name", ["timeout", "start_timeout", "total_timeout"])
@pytest.mark.parametrize("seconds", [-1, 0, math.nan])
def test_a_bad_activity_timeout_is_refused_by_name(name: str, seconds: float) -> None:
    options: dict[str, Any] = {name: seconds}
    with pytest.raises(InvalidInput, match=f"{name}={seconds} must be more than 0"):
        activity(**options)
    with pytest.raises(InvalidInput, match=f"{name}={seconds} must be more than 0"):
        echo.with_options(**options)


def test_an_unknown_activity_option_is_refused() -> None:
    with pytest.raises(InvalidInput, match="unknown activity options tiemout"):
        activity(tiemout=5)


@pytest.mark.parametrize(
    "policy",
    [
        {"attempts": -1},
        {"first": -1},
        {"factor": 0.5},
        {"longest": -1},
        {"longest": 1e11},
        {"jitter": 2},
        {"never": "ValueError"},
    ],
    ids=str,
)
def test_a_retry_policy_that_cannot_be_followed_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Retry(**policy)


def test_a_retry_that_is_no_policy_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be a Retry"):
        activity(retry=3)


async def test_wrong_arguments_are_refused_as_a_call_would() -> None:
    @workflow
    async def adds(a: int, b: int = 2) -> int:
        return a + b

    async with world(adds) as env:
        with pytest.raises(TypeError, match="missing a required argument: 'a'"):
            await env.start(adds)  # type: ignore[call-arg, arg-type]  # that is what is tested
        with pytest.raises(TypeError, match="too many positional arguments"):
            await env.start(adds, 1, 2, 3)  # type: ignore[call-arg, arg-type]  # that is what is tested


@workflow
async def takes(number: int) -> int:
    return number


async def test_an_argument_that_does_not_fit_its_annotation_is_refused() -> None:
    async with world(takes, relays, echo) as env:
        with pytest.raises(InvalidInput, match="the input of workflow 'takes' does not fit"):
            await env.start(takes, "seven")  # type: ignore[arg-type]  # that is what is tested
        assert await env.client.count() == 0
        assert await env.run(relays, "the rest goes on") == "the rest goes on"


async def test_an_argument_that_does_not_fit_is_refused_where_no_worker_has_the_code() -> None:
    async with world(relays, echo) as env:
        with pytest.raises(InvalidInput, match="the input of workflow 'takes' does not fit"):
            await env.start(takes, "seven")  # type: ignore[arg-type]  # that is what is tested
        assert await env.client.count() == 0


async def test_an_argument_that_does_not_fit_the_worker_that_claims_it_parks_the_run() -> None:
    async with world(relays, echo) as env:
        handle = await env.client.start("takes", "seven")
        await env.deploy(workflows=[takes, relays])
        assert "the input of workflow 'takes' does not fit" in await parked(env, handle)
        assert await env.run(relays, "the rest goes on") == "the rest goes on"


# -- definitions


def test_a_workflow_must_be_async() -> None:
    def plain() -> None: ...

    with pytest.raises(InvalidInput, match="must be defined with `async def`"):
        workflow(plain)  # type: ignore[arg-type]  # this is the point
    with pytest.raises(InvalidInput, match="is a class: a workflow is a function"):
        workflow(Path)  # type: ignore[arg-type]  # this is the point


async def test_a_function_that_was_called_instead_of_given_is_named() -> None:
    async with world(relays, echo) as env:
        with pytest.raises(InvalidInput, match=r"relays was called here: .* as in start\(relays, \.\.\.\)"):
            await env.client.start(relays(1))  # type: ignore[call-overload]  # that is what is tested
        with pytest.raises(InvalidInput, match=r"as in enqueue\("):
            await env.client.enqueue(job(relays.fn)(1))  # type: ignore[call-overload]  # that is what is tested


class Mixed(enum.Enum):
    """Neither all text nor all numbers."""

    ONE = 1
    TWO = "two"


@pytest.mark.parametrize("kind", [Opaque, Mixed, list[Opaque], dict[str, threading.Lock]], ids=str)
def test_an_annotation_without_a_json_form_is_refused_at_definition(kind: Any) -> None:
    async def takes(value: Any) -> None: ...

    takes.__annotations__["value"] = kind
    with pytest.raises(NotSerialisable, match="has no JSON form"):
        activity(takes)
    with pytest.raises(NotSerialisable, match="has no JSON form"):
        workflow(takes)


async def test_two_definitions_of_one_name_are_refused() -> None:
    other = workflow(name="relays")(relays.fn)
    double = activity(name="echo")(echo.fn)
    async with world(relays, echo) as env:
        with pytest.raises(DuplicateDefinition, match="two workflows are named 'relays'"):
            env.client.worker(workflows=[relays, other])
        with pytest.raises(DuplicateDefinition, match="two activities are named 'echo'"):
            env.client.worker(activities=[echo, double])


@pytest.mark.parametrize("thing", [len, "echo", Opaque(), relays], ids=lambda v: type(v).__name__)
async def test_an_object_that_is_no_activity_is_refused(thing: Any) -> None:
    async with world(relays, echo) as env:
        with pytest.raises(InvalidInput, match="decorate it"):
            env.client.worker(activities=[thing])


@pytest.mark.parametrize("thing", [len, "relays", echo, relays.fn], ids=lambda v: type(v).__name__)
async def test_an_object_that_is_no_workflow_is_refused(thing: Any) -> None:
    async with world(relays, echo) as env:
        with pytest.raises(InvalidInput, match="is not a workflow"):
            env.client.worker(workflows=[thing])
        if not isinstance(thing, str):
            with pytest.raises(InvalidInput, match="is not a workflow"):
                await env.start(thing)


@pytest.mark.parametrize("queues", ["default", [], ["a\0"]], ids=str)
async def test_bad_queues_are_refused(queues: Any) -> None:
    async with world(relays, echo) as env:
        with pytest.raises(InvalidInput, match="queue"):
            env.client.worker(workflows=[relays], queues=queues)


async def test_a_worker_cannot_be_started_twice() -> None:
    async with world(relays, echo) as env:
        with pytest.raises(WorkerError, match="started already"):
            await env.worker.start()


# -- unknown code


async def test_a_workflow_that_no_worker_has_waits_for_one() -> None:
    async with world(relays, echo) as env:
        handle = await env.client.start("not_yet_deployed", 1)
        await env.settle()
        assert (await handle.describe()).state is RunState.PENDING
        assert await env.run(relays, "fine") == "fine"


async def test_an_unknown_activity_hands_the_run_back_with_a_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:  # covers B-01
    @workflow
    async def calls() -> str:
        return str(await call("not_here", 1))

    @activity
    async def not_here(n: int) -> str:
        return "found"

    async with world(calls, relays, echo) as env:
        handle = await env.start(calls)
        await env.settle()
        found = await handle.describe()
        assert found.state is RunState.WAITING
        assert "activity 'not_here' is not known here (known: echo)" in found.reason
        assert "not_here" in caplog.text
        assert await env.run(relays, "the rest goes on") == "the rest goes on"
        await env.deploy(activities=[echo, not_here])
        assert await handle.result() == "found"


# -- results that do not fit


async def test_an_activity_result_that_does_not_fit_its_annotation_fails_the_activity() -> None:
    count: list[int] = []

    @activity
    async def lies() -> int:
        count.append(1)
        return "seven"  # type: ignore[return-value]  # this is the point

    @workflow
    async def asks() -> str:
        try:
            await lies()
        except InvalidInput as error:
            await asyncio.sleep(100)
            return str(error)
        return "fine"

    async with world(asks, lies) as env:
        assert "the result of activity 'lies' does not fit its annotation" in await env.run(asks)
        assert len(count) == 1


@dataclass
class Person:
    name: str


async def test_a_result_called_by_name_that_does_not_fit_is_an_error_of_the_call() -> None:
    @workflow
    async def asks() -> str:
        try:
            await call("echo", 7, result=Person)
        except InvalidInput as error:
            return str(error)
        return "fine"

    async with world(asks, echo) as env:
        assert "the result of activity 'echo' does not fit" in await env.run(asks)


@pytest.mark.parametrize("seconds", [-1, math.nan, "5", True])
async def test_a_wait_that_cannot_be_is_refused_before_anything_is_sent(seconds: Any) -> None:
    async with world(relays) as env:
        handle = await env.start("nobody has it")
        with pytest.raises(InvalidInput, match="timeout="):
            await handle.result(seconds)
        with pytest.raises(InvalidInput, match="timeout="):
            await handle.update("change", 1, timeout=seconds)
        assert not [m for m in (await env.store.load(handle.run_id)).messages if m.kind is MessageKind.UPDATE]


async def test_a_wait_that_is_over_says_for_what(real_time: None) -> None:
    async with connect("memory://") as client:
        handle = await client.start("nobody has it", id="it")
        with pytest.raises(TimeoutError, match=r"run 'it' has not ended within 0\.01 s"):
            await handle.result(0.01)
        with pytest.raises(TimeoutError, match=r"run 'it' has not answered update 'change' within 0\.01 s"):
            await handle.update("change", 1, timeout=0.01)


async def test_without_waiting_the_current_value_is_returned(real_time: None, url: str) -> None:
    async with connect(url) as client, connect(url) as elsewhere:
        handle = await client.start("nobody has it", id="it")
        with pytest.raises(TimeoutError, match=r"run 'it' has not ended within 0 s"):
            await (await elsewhere.get("it")).result(0)
        await handle.terminate()
        with pytest.raises(RunTerminated):
            await (await elsewhere.get("it")).result(0)


# -- addresses and settings


@pytest.mark.parametrize("url", ["mysql://localhost/x", "batuta.db", "://", "http://localhost"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidURL, match="names no store"):
        connect(url)


@pytest.mark.parametrize("url", ["sqlite:///a.db?timeout=5", "sqlite:///a#b.db", "memory://shared", "memory://?a=b"])
def test_what_a_store_has_no_use_for_in_its_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidURL, match="has something after"):
        connect(url)


@pytest.mark.parametrize("url", [5, b"memory://", Path("batuta.db"), ""])
def test_a_url_that_is_no_string_is_refused(url: Any) -> None:
    with pytest.raises(InvalidURL, match="is not a URL"):
        connect(url)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///shop.db", "postgresql://nobody@127.0.0.1:1/none"])
async def test_a_client_that_was_not_entered_says_so(url: str) -> None:
    client = connect(url)
    for ask in (lambda: client.start(relays, 1), lambda: client.get("one"), client.list, client.count):
        with pytest.raises(ClientError, match=r"is not open: use it inside `async with connect\("):
            await ask()


@pytest.mark.parametrize("url", ["sqlite:///no/such/folder/batuta.db", "postgresql://nobody@127.0.0.1:1/none"])
async def test_a_database_that_is_away_is_a_named_error(url: str, real_time: None) -> None:
    with pytest.raises((StoreError, InvalidInput)):
        async with connect(url):
            pass


def test_a_missing_extra_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("batuta.stores.postgres", "asyncpg"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'batuta\[postgres\]'"):
        connect("postgresql://localhost/x")


def test_a_bad_namespace_is_refused() -> None:
    with pytest.raises(InvalidInput, match="namespace"):
        connect("memory://", namespace="a\0b")


async def test_unknown_settings_are_refused_with_the_nearest_name() -> None:
    async with world(relays, echo) as env:
        with pytest.raises(InvalidInput, match="did you mean 'max_runs'"):
            env.client.worker(workflows=[relays], max_rums=5)


@pytest.mark.parametrize("setting", [{"max_runs": 0}, {"lease": -1}, {"heartbeat": 6}])
def test_settings_that_cannot_work_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Settings(**setting)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"stat": "failed"}, "stat is not a filter of runs: there are state, states, workflow"),
        ({"created_after": "2020"}, "created_after='2020' must be a datetime"),
        ({"created_before": 2020}, "created_before=2020 must be a datetime"),
        ({"created_after": datetime.min}, "is too far away for this machine's zone"),  # noqa: DTZ901
        ({"state": "lost"}, "the states are pending, running"),
        ({"states": 5}, "the states are pending, running"),
        ({"workflow": len}, "workflow=<built-in function len> must be a string"),
        ({"queue": 5}, "queue=5 must be a string"),
        ({"id_prefix": b"a"}, "id_prefix=b'a' must be a string"),
        ({"tags": ["a"]}, r"tags=\['a'\] must map strings to strings"),
        ({"tags": {"a": 1}}, "must map strings to strings"),
    ],
)
async def test_a_filter_that_cannot_be_is_refused_by_name(where: dict[str, Any], says: str) -> None:
    async with connect("memory://") as client:
        for verb in (client.list, client.count):
            with pytest.raises(InvalidInput, match=says):
                await verb(**where)


@pytest.mark.parametrize("limit", [0, 1001, "5", 2.5, True])
async def test_a_limit_that_cannot_be_is_refused(limit: Any) -> None:
    async with connect("memory://") as client:
        with pytest.raises(InvalidInput, match="must be a whole number from 1 to 1000"):
            await client.list(limit=limit)


async def test_advice_on_tags_and_memo_that_are_too_large_is_of_use() -> None:
    async with connect("memory://") as client:
        options: list[tuple[str, Any]] = [("memo", "x" * 20_000), ("tags", {f"a{n}": "x" * 995 for n in range(20)})]
        for option, value in options:
            with pytest.raises(TooLarge, match=f"option '{option}' is 20,0.*16,384: .*as arguments") as caught:
                await client.start(relays, 1, **{option: value})
            assert "MAX_PAYLOAD" not in str(caught.value)
