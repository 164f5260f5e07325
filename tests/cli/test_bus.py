"""`batuta bus` against SQLite."""

import asyncio
import json

import pytest

from batuta import connect, job
from batuta.bus import Message, subscribe
from tests.cli.conftest import Cli, Spawn, wait_for


@job
async def book(message: Message) -> None: ...


def test_messages_are_published_listed_and_pruned(cli: Cli, sqlite_url: str) -> None:
    async def one() -> None:
        async with connect(sqlite_url) as client, client.worker(subscriptions=[subscribe("orders", book)]):
            pass

    asyncio.run(one())
    assert "is published" in cli("bus", "publish", "orders", '{"n": 1}', "--key", "k", "--id", "17").stdout
    (message,) = json.loads(cli("bus", "messages", "orders", "--json").stdout)["messages"]
    assert (message["id"], message["key"], message["payload"]) == ("17", "k", {"n": 1})
    assert "17" in cli("bus", "messages", "orders").stdout
    (topic,) = json.loads(cli("bus", "topics", "--json").stdout)["topics"]
    assert (topic["name"], topic["messages"], topic["unsent"]) == ("orders", 1, 0)
    (found,) = json.loads(cli("bus", "lag", "--json").stdout)["subscriptions"]
    assert (found["name"], found["waiting"], found["running"]) == ("book", 1, 0)
    for command in ("topics", "lag", "subscriptions"):
        assert "orders" in cli("bus", command).stdout
    assert "0 messages were deleted" in cli("bus", "prune", "--keep", "0s").stdout
    assert "was deleted" in cli("bus", "delete", "book", "--reason", "a test").stdout
    assert "is not there" in cli("bus", "delete", "book").stdout
    assert "there are no subscriptions" in cli("bus", "lag").stderr
    assert "drop subscription" in cli("audit", "list").stdout


def test_what_cannot_be_published_is_named(cli: Cli, sqlite_url: str) -> None:
    wrong = cli("bus", "publish", "orders", "{")
    assert wrong.exit_code == 2
    assert "the payload is not JSON" in wrong.stderr
    wrong = cli("bus", "publish", "orders", "1", "--key", "k" * 251)
    assert wrong.exit_code == 2
    assert "250 printable characters" in wrong.stderr
    wrong = cli("bus", "publish", "orders", "[" * 100_000)
    assert wrong.exit_code == 2
    assert "the payload is nested too deeply" in wrong.stderr


@pytest.mark.parametrize("target", ["tests.cli.listening", "tests.cli.listening:APP"])
def test_a_worker_delivers_to_the_subscriptions_of_a_module_or_app(cli: Cli, spawn: Spawn, target: str) -> None:
    spawn("worker", "--app", target)

    def caught_up() -> bool:
        result = cli("bus", "lag", "--json")
        found = json.loads(result.stdout)["subscriptions"] if result.exit_code == 0 else []
        return [(one["name"], one["waiting"] + one["running"]) for one in found] == [("greet", 0)]

    wait_for(caught_up, "the subscription")
    cli("bus", "publish", "people", '"Ann"', "--id", "17")

    def delivered() -> bool:
        result = cli("runs", "show", "bus:greet:17", "--json")
        return result.exit_code == 0 and json.loads(result.stdout)["state"] == "completed"

    wait_for(delivered, "the delivery")
