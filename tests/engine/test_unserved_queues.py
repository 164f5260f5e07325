"""A worker that starts says which queues its code sends work to that no live worker serves."""

from __future__ import annotations

import logging

import pytest

from batuta import Schedule, activity, every, job, workflow
from batuta.testing import Environment, in_virtual_time


@activity(queue="gpu")
async def render() -> str:
    return "done"


@job(queue="mail")
async def send() -> None:
    return None


@activity
async def count() -> int:
    return 1


@workflow
async def report() -> str:
    return await render()


nightly = Schedule("nightly", every(86_400), report, queue="reports")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@in_virtual_time
async def test_a_worker_warns_once_of_each_queue_that_no_live_worker_serves(caplog: pytest.LogCaptureFixture) -> None:
    async with Environment(workflows=[report], activities=[render, count], jobs=[send], schedules=[nightly]):
        assert warnings(caplog) == [
            f"no live worker serves queue {queue!r}: {what} goes there and waits. Start a worker with `--queue "
            f"{queue}`, or add {queue!r} to queues= of one that runs"
            for queue, what in (("gpu", "activity render"), ("mail", "job send"), ("reports", "schedule nightly"))
        ]


@in_virtual_time
async def test_a_worker_warns_of_code_that_the_workers_of_its_queue_lack(caplog: pytest.LogCaptureFixture) -> None:
    async with Environment(activities=[count], queues=["gpu"]) as env:
        async with env.client.worker(workflows=[report], activities=[render]):
            (said,) = warnings(caplog)
    assert said.startswith("no live worker of queue 'gpu' has activity render, which goes there and waits: give it")


@in_virtual_time
async def test_a_worker_says_nothing_of_queues_that_it_or_another_one_serves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Environment(activities=[render], jobs=[send], queues=["gpu", "mail"]) as env:
        async with env.client.worker(workflows=[report], activities=[render], jobs=[send]):
            assert not warnings(caplog)
