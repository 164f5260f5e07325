"""The shop, after a careless change."""

from batuta import workflow
from tests.cli.shop import add


@workflow
async def total(numbers: list[int]) -> int:
    found = 0
    for number in numbers:
        found = await add(number, found)
    return found
