"""Workflows of the runs in `runs.sql`."""

from __future__ import annotations

from batuta import Signal, activity, job, workflow

go = Signal("go", int)


@activity
async def add(a: int, b: int) -> int:
    return a + b


@activity
async def triple(number: int) -> int:
    """The worker that wrote `runs.sql` died here."""
    return 3 * number


@workflow
async def wait_for_go() -> int:
    return await add(await add(1, 2), await go.wait())


@workflow
async def die_in_triple() -> int:
    return await triple(await add(1, 2))


@job
async def double(number: int) -> int:
    return 2 * number
