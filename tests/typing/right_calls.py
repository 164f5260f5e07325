"""Calls that both type checkers accept, with the types that they find."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

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
from tests.typing.definitions import (
    add_item,
    approve,
    mail,
    order,
    pack,
    rename,
    report,
    resize,
    ship,
    tick,
    total,
    wake,
)


async def starts(client: Batuta, names: tuple[str, ...]) -> None:
    assert_type(await client.start(order, "tea", 2), Handle[float])
    assert_type(await client.start(ship, "Lima"), Handle[str])
    assert_type(await client.start(ship, "Lima", 2, id="s-1", if_exists="reject", delay=5), Handle[str])
    assert_type(await client.start(pack, "tea", "rice", "salt"), Handle[int])
    assert_type(await client.start(pack, *names), Handle[int])
    assert_type(await client.start(tick, timeout=60, retry=Retry(attempts=2), tags={"a": "b"}), Handle[None])
    assert_type(await client.start(report, ["a"], signal=(approve, True)), Handle[str])
    assert_type(await client.start("order", "tea", 2, queue="shop"), Handle[Any])


async def jobs(client: Batuta) -> None:
    assert_type(await client.enqueue(mail, "ann"), Handle[bool])
    assert_type(await client.enqueue(mail, "ann", 2, unique="ann", unique_for=60), Handle[bool])
    assert_type(await client.enqueue(resize, "a.png", at=datetime(2030, 1, 1, tzinfo=UTC)), Handle[bytes])
    assert_type(await client.enqueue(mail.call("ann", copies=2), key="ann"), Handle[bool])
    assert_type(await client.enqueue("mail", "ann", priority=3), Handle[Any])


async def messages(handle: Handle[float]) -> None:
    await handle.signal(approve, True)
    await handle.signal(wake)
    await handle.signal("approve", True, message_id="m-1")
    assert_type(await handle.update(rename, "new", timeout=5), str)
    assert_type(await handle.update(add_item, "tea"), float)
    assert_type(await handle.update(add_item, "tea", 2, update_id="u-1"), float)
    assert_type(await handle.update("add_item", "tea", 2), Any)
    assert_type(await handle.query(total, "BRL"), int)


def blocking(client: sync.Client) -> None:
    handle = client.start(order, "tea", 2)
    assert_type(handle, sync.Handle[float])
    assert_type(client.enqueue(mail, "ann"), sync.Handle[bool])
    assert_type(client.enqueue(mail.call("ann")), sync.Handle[bool])
    handle.signal(approve, True)
    handle.signal(wake)
    assert_type(handle.update(add_item, "tea", 2, timeout=5), float)
    assert_type(handle.update(rename, "new"), str)
    assert_type(handle.update("add_item", "tea", 2), Any)
    assert_type(handle.query(total, "BRL"), int)
    assert_type(handle.query("total", "BRL"), Any)
    assert_type(handle.published(), dict[str, Any])
    assert_type(handle.published("left", int), int)


def transactional(tx: Transaction) -> None:
    assert_type(tx.start(order, "tea", 2, id="o-1"), str)
    assert_type(tx.enqueue(mail, "ann", delay=5), str)
    assert_type(tx.enqueue(mail.call("ann")), str)
    tx.signal("o-1", approve, True)
    tx.signal("o-1", wake)


async def in_workflows(names: tuple[str, ...]) -> None:
    assert_type(await run_child(order, "tea", 2), float)
    assert_type(await run_child(ship, "Lima", id="s-1", delay=timedelta(hours=1), policy="abandon"), str)
    assert_type(await run_child(pack, *names), int)
    assert_type(await run_child("order", "tea", 2, result=float, queue="shop"), Any)
    child = await start_child(order, "tea", 2, timeout=60, retry=Retry(attempts=2))
    assert_type(child, Child[float])
    assert_type(await start_child("order", "tea", 2), Child[Any])
    await child.signal(approve, True)
    await child.signal(wake, message_id="m-1")
    await send("o-1", approve, True, message_id="m-1")
    await send("o-1", wake)
    await send("o-1", "approve", True)


def durations() -> None:
    minute = timedelta(minutes=1)
    assert_type(Retry(first=minute, longest=2 * minute).first, float)
    assert_type(Rate(5, minute).per, float)
    assert_type(ActivityOptions(timeout=minute, heartbeat=5).timeout, float | None)
    assert_type(RetryLater(minute).seconds, float)


async def in_tests(env: Environment) -> None:
    assert_type(await env.start(ship, "Lima"), Handle[str])
    assert_type(await env.enqueue(mail, "ann"), Handle[bool])
