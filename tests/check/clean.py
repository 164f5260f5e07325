"""What looks like a fault and is none. Read by the tests, never imported."""

# mypy: ignore-errors

import asyncio
import logging
import os
import random as chance
import time
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path

import batuta
from batuta import Signal, activity, as_completed, logger, now, random, side_effect, transaction, uuid, workflow

RATES = {"BRL": 5, "EUR": 1}
NAMES = frozenset({"a", "b"})
trace = ContextVar("trace", default="")
approve = Signal("approve", bool)


@activity
def fetch(path: str) -> str:
    time.sleep(0.1)
    logging.info("any activity may do this")
    return Path(path).read_text() + os.environ["HOME"]


@activity
async def book(what: str, at: datetime) -> str:
    await asyncio.sleep(1)
    return f"{what} {at} {time.time()} {chance.random()}"


@activity(transactional=True)
def stays_within(number: int) -> str:
    connection = transaction().connection
    connection.execute("SAVEPOINT a")
    connection.execute("INSERT INTO orders VALUES (?)", (number,))
    connection.execute("ROLLBACK TO a")
    logging.info("a line in a log is no harm")
    return os.environ["HOME"]


@activity(raises=[ValueError])
async def declares(number: int) -> None:
    import stripe

    raise stripe.CardError(number)


@activity
async def raises_what_is_known(number: int) -> None:
    import stripe
    from batuta import NonRetryable

    try:
        stripe.charge(number)
    except Exception as error:
        raise NonRetryable("no") from error
    raise ValueError(number)


class Cart:
    def __init__(self) -> None:
        self.items: list[str] = []

    def add(self, item: str) -> None:
        self.items.append(item)


def day(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()


@workflow
async def order(time: float, open: list[str], id: str, hash: str) -> str:
    """Parameters may have the names of modules and builtins."""
    cart = Cart()
    cart.add(id)
    logger.info("at %s", now())
    region = await side_effect(lambda: os.environ["REGION"], str)

    def flag() -> str:
        return os.environ["FLAG"]

    value = await side_effect(flag)
    trace.set("x")
    rng = chance.Random(7)
    due = now() + timedelta(days=random().randint(1, 6), seconds=time + rng.random())
    names = sorted(NAMES)
    known = [name for name in sorted(set(open)) if name in NAMES]
    most = max(len(name) for name in NAMES)
    mixed = set(open)
    (only,) = {"one"}
    mixed = sorted(mixed)
    for name in mixed:
        await book(name, due)
    tasks = {asyncio.create_task(book(name, due)) for name in names}
    done, pending = await asyncio.wait(tasks)
    for task in done | pending:
        task.cancel()
    for next_one in as_completed([book(name, due) for name in known]):
        await next_one
    return f"{uuid()} {region} {value} {day(due)} {most} {hash} {RATES['BRL']}"


@workflow
async def cleans_up(what: str) -> None:
    begun: list[str] = []
    try:
        await book(what, now())
        await approve.wait(timeout=60)
    except asyncio.CancelledError:
        await book("something else", now())
        raise
    except BaseException:
        begun.clear()
        raise
    finally:
        begun.append("local")
        await book("in finally", now())


@batuta.workflow(name="later", version="2")
async def gathers(paths: list[str]) -> list[str]:
    first = fetch("first")
    group = [fetch(path) for path in paths]
    return [await first, *await asyncio.gather(*group)]


def started_outside() -> float:
    return time.time()
