"""Workflows and jobs that hang, for `batuta worker --app tests.cli.stuck`."""

import asyncio

from batuta import App, Retry, activity, job, publish, workflow


@activity(retry=Retry(first=3600, longest=3600, jitter=0))
async def charge(order: str) -> None:
    raise LookupError(f"the bank is away for {order}")


@activity
async def pack(order: str) -> None:
    await asyncio.sleep(3600)


@job(retry=Retry(attempts=1))
async def mail(to: str) -> None:
    raise LookupError(to)


@job
async def slow() -> None:
    await asyncio.sleep(3600)


@workflow
async def order(number: str, note: str) -> None:
    publish("step", "paying")
    await asyncio.gather(charge(number), pack(number))


jobs_only = App(jobs=[slow])
flows_only = App(flows=True)
