"""What cannot be enqueued is refused by name, and nothing is written."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from batuta import (
    InvalidInput,
    job,
)
from tests.engine.kit import jobs


@job
async def send(to: str, fails: int = 0, seconds: float = 0) -> str:
    return to


BAD: list[tuple[dict[str, Any], str]] = [
    ({"delay": -1}, "delay"),
    ({"delay": "soon"}, "delay"),
    ({"at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is what is tested
    ({"at": 5}, "datetime"),
    ({"at": datetime.max.replace(tzinfo=UTC)}, "too far away"),
    ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1}, "together"),
    ({"debounce": 5}, "needs unique"),
    ({"unique_for": 5}, "needs unique"),
    ({"debounce_limit": 5, "unique": "a"}, "needs debounce"),
    ({"unique": "a", "debounce": 5, "debounce_limit": 1}, "must not be less"),
    ({"unique": "a", "debounce": 5, "delay": 1}, "together"),
    ({"unique": "a", "debounce": 5, "unique_for": 1}, "together"),
    ({"unique": "a", "id": "b"}, "together"),
    ({"unique": ""}, "unique"),
    ({"unique": 5}, "unique"),
    ({"key": "\n"}, "key"),
    ({"expires": 0}, "expires"),
    ({"expires": -1}, "expires"),
    ({"priority": "high"}, "priority"),
    ({"priority": 1 << 20}, "priority"),
    ({"queue": ""}, "queue"),
    ({"retry": 3}, "retry"),
    ({"timeout": -1}, "timeout"),
    ({"tags": {"a": 1}}, "tags"),
    ({"memo": object()}, "memo"),
    ({"id": ""}, "id"),
    ({"colour": "blue"}, "unknown enqueue options colour"),
]


@pytest.mark.parametrize(("options", "said"), BAD)
async def test_bad_options_are_refused_and_nothing_is_written(options: dict[str, Any], said: str) -> None:
    async with jobs(send) as env:
        with pytest.raises(InvalidInput, match=said):
            await env.client.enqueue(send, "ana", **options)
        with pytest.raises(InvalidInput, match=said):
            await env.client.enqueue_many([send.call("bo"), send.call("ana").with_options(**options)])
        assert await env.client.count(kind="job") == 0


async def test_arguments_that_do_not_fit_the_annotations_of_a_job_are_refused() -> None:
    async with jobs() as env:  # no worker has the job: the definition that was given tells
        wrong: list[Callable[[], Any]] = [
            lambda: env.client.enqueue(send, 5),  # type: ignore[arg-type]  # that is what is tested
            lambda: env.client.enqueue(send.call("ana", fails="no")),  # type: ignore[arg-type]  # the same
            lambda: env.client.enqueue_many([send.call(5)]),  # type: ignore[arg-type]  # the same
        ]
        for each in wrong:
            with pytest.raises(InvalidInput, match="the input of job 'send' does not fit its annotation"):
                await each()
        assert await env.client.count(kind="job") == 0


async def test_an_object_that_is_no_job_is_refused() -> None:
    async with jobs(send) as env:
        wrong: list[Callable[[], Any]] = [
            lambda: env.client.enqueue(5),  # type: ignore[call-overload]  # that is what is tested
            lambda: env.client.enqueue(""),
            lambda: env.client.enqueue(send.call("ana"), "more"),  # type: ignore[call-overload]  # the same
            lambda: env.client.enqueue_many(["send"]),  # type: ignore[list-item]  # that is what is tested
            lambda: env.client.enqueue_many([send.call("ana")], on_done=send.call("bo").with_options(delay=5)),
            lambda: env.client.enqueue_many([send.call("ana")], on_done=send.call("bo").with_options(expires=5)),
            lambda: env.client.enqueue_many([send.call("ana")], on_done=send),  # type: ignore[arg-type]  # the same
        ]
        for each in wrong:
            with pytest.raises(InvalidInput):
                await each()
        with pytest.raises(TypeError, match="too many"):
            await env.client.enqueue(send, "ana", 1, 2, 3, 4)  # type: ignore[call-arg, arg-type]  # the same
        with pytest.raises(TypeError, match="call 1 of the batch"):
            await env.client.enqueue_many([send.call("ana"), send.call()])  # type: ignore[call-arg]  # the same
        assert await env.client.count(kind="job") == 0
