"""`batuta idempotency` against SQLite."""

import asyncio
import json

from batuta import connect
from batuta.resilience.idempotency import Idempotency
from tests.cli.conftest import Cli


def test_keys_are_listed_and_deleted(cli: Cli, sqlite_url: str) -> None:
    async def one() -> None:
        async with connect(sqlite_url) as client:

            async def work() -> tuple[str, bool]:
                return "{}", True

            await Idempotency(client.namespace.requests).once("POST /orders", "k-1", b"", work)

    asyncio.run(one())
    (found,) = json.loads(cli("idempotency", "list", "--prefix", "POST", "--json").stdout)["keys"]
    assert (found["key"], found["state"]) == ("POST /orders k-1", "answered")
    assert "k-1" in cli("idempotency", "list").stdout
    assert "was deleted" in cli("idempotency", "delete", "POST /orders k-1", "--reason", "a test").stdout
    assert "is not kept" in cli("idempotency", "delete", "POST /orders k-1").stdout
    assert "no keys are kept" in cli("idempotency", "list").stderr
    assert "delete idempotency key" in cli("audit", "list").stdout
