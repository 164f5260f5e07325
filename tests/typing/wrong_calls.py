"""Calls that both type checkers refuse: each line with the mark, and no other."""

from __future__ import annotations

from batuta import (
    ActivityOptions,
    Batuta,
    Child,
    Handle,
    Rate,
    Retry,
    RetryLater,
    Transaction,
    run_child,
    send,
    start_child,
    sync,
)
from batuta.testing import Environment
from tests.typing.definitions import add_item, approve, mail, order, pack, rename, ship, tick, total, wake


async def starts(client: Batuta) -> None:
    await client.start(order, "tea")  # refused: an argument is missing
    await client.start(order, 2, "tea")  # refused: the types are swapped
    await client.start(order, "tea", 2, 3)  # refused: an argument too many
    await client.start(ship, 1)  # refused: not a str
    await client.start(ship, "Lima", "soon")  # refused: not an int
    await client.start(pack, "tea", 1)  # refused: not a str
    await client.start(tick, 1)  # refused: it has no parameters
    await client.start(tick, dealy=3)  # refused: no such option
    await client.start(tick, delay="soon")  # refused: not a time
    await client.start(tick, if_exists="maybe")  # refused: no such policy
    await client.start("order", "tea", 2, unique="k")  # refused: an option of jobs


async def jobs(client: Batuta) -> None:
    await client.enqueue(mail)  # refused: an argument is missing
    await client.enqueue(mail, 5)  # refused: not a str
    await client.enqueue(mail, "ann", 1, 2)  # refused: an argument too many
    await client.enqueue(mail, "ann", uniqe="k")  # refused: no such option
    await client.enqueue(mail, "ann", at=5)  # refused: not a datetime
    await client.enqueue(mail.call("ann"), "more")  # refused: the call has its arguments
    await client.enqueue(mail.call(5))  # refused: not a str


async def messages(handle: Handle[float]) -> None:
    await handle.signal(approve, "yes")  # refused: not a bool
    await handle.signal(approve)  # refused: the value is missing
    await handle.signal(wake, 1)  # refused: it carries no value
    await handle.update(add_item)  # refused: an argument is missing
    await handle.update(add_item, 5)  # refused: not a str
    await handle.update(add_item, "tea", "two")  # refused: not an int
    await handle.update(add_item, "tea", 2, 3)  # refused: an argument too many
    await handle.update(add_item, "tea", timeout="soon")  # refused: not a time
    await handle.update(rename, "new", dealy=3)  # refused: no such option
    await handle.query(total, 5)  # refused: not a str


def blocking(client: sync.Client, handle: sync.Handle[float]) -> None:
    client.start(order, "tea")  # refused: an argument is missing
    client.enqueue(mail, 5)  # refused: not a str
    client.enqueue(mail, "ann", uniqe="k")  # refused: no such option
    handle.signal(approve, "yes")  # refused: not a bool
    handle.update(add_item, 5)  # refused: not a str
    handle.query(total)  # refused: an argument is missing


def transactional(tx: Transaction) -> None:
    tx.start(order, "tea")  # refused: an argument is missing
    tx.enqueue(mail, 5)  # refused: not a str
    tx.signal("o-1", approve, "yes")  # refused: not a bool


async def in_workflows(child: Child[float]) -> None:
    await run_child(order, "tea")  # refused: an argument is missing
    await run_child(order, 2, "tea")  # refused: the types are swapped
    await run_child(order, "tea", 2, dealy=3)  # refused: no such option
    await run_child(order, "tea", 2, delay="soon")  # refused: not a time
    await run_child(order, "tea", 2, policy="forget")  # refused: no such policy
    await start_child(tick, 1)  # refused: it has no parameters
    await start_child(ship, "Lima", "soon")  # refused: not an int
    await start_child("order", "tea", 2, unique="k")  # refused: an option of jobs
    await send("o-1", approve, "yes")  # refused: not a bool
    await send("o-1", approve)  # refused: the value is missing
    await send("o-1", wake, 1)  # refused: it carries no value
    await child.signal(approve, "yes")  # refused: not a bool
    await child.signal(wake, 1)  # refused: it carries no value


async def policies(handle: Handle[str]) -> None:
    Retry(first="soon")  # refused: not a time
    Rate(5, "soon")  # refused: not a time
    ActivityOptions(timeout="soon")  # refused: not a time
    RetryLater("soon")  # refused: not a time
    await handle.result(timeout="soon")  # refused: not a time


async def in_tests(env: Environment) -> None:
    await env.start(order, "tea")  # refused: an argument is missing
    await env.enqueue(mail, 5)  # refused: not a str
