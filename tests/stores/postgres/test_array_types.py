"""Connections of the store know the arrays that its statements use, without asking the server."""

from uuid import UUID

import asyncpg
import pytest

from batuta import activity, connect, workflow
from batuta.stores.postgres.fast.array_types import ARRAYS, declare_arrays
from tests.stores.postgres.raw import connection

VALUES = {
    "bool": [True, None, False],
    "int8": [2**62, None, -1],
    "int4": [2**31 - 1, None, -1],
    "uuid": [UUID(int=1), None, UUID(int=2**128 - 1)],
}


async def test_declared_arrays_have_the_numbers_of_the_server(postgres_url: str) -> None:
    async with connection(postgres_url) as raw:
        rows = await raw.fetch(
            "SELECT typname::text, oid, typarray FROM pg_type WHERE typname = ANY ($1::text[])", list(ARRAYS)
        )
    assert {row["typname"]: (row["oid"], row["typarray"]) for row in rows} == ARRAYS


async def test_declared_arrays_go_to_the_server_and_back(postgres_url: str) -> None:
    for declared in (False, True):
        async with connection(postgres_url) as raw:
            if declared:
                declare_arrays(raw)
            for name, values in VALUES.items():
                assert await raw.fetchval(f"SELECT $1::{name}[]", values) == values


@workflow
async def double(number: int) -> int:
    return await times_two(number)


@activity
async def times_two(number: int) -> int:
    return number * 2


async def test_a_worker_never_asks_the_server_for_a_type(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    ask = vars(asyncpg.Connection)["_introspect_types"]

    async def noted(self: asyncpg.Connection, numbers: object, timeout: float) -> object:
        asked.append(numbers)
        return await ask(self, numbers, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", noted)
    async with connect(postgres_url) as client, client.worker(workflows=[double], activities=[times_two]):
        runs = [await client.start(double, number) for number in range(3)]
        assert [await run.result() for run in runs] == [0, 2, 4]
    assert asked == []
