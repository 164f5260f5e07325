"""A module with a schedule at its top, for `batuta worker`."""

from batuta import Schedule, every, workflow


@workflow
async def tick() -> str:
    return "tock"


often = Schedule("often", every(1), tick)
