"""Forty faults, each marked with the rule that must find it. Read by the tests, never imported."""

# mypy: ignore-errors

import asyncio
import logging
import os
import random
import secrets
import sqlite3
import subprocess
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from time import monotonic as ticks
from urllib.request import urlopen

import httpx
import requests

from batuta import activity, call, run_child, transaction, workflow
from tests.check.planted_helpers import stamp

log = logging.getLogger(__name__)
session = requests.Session()
REGION = os.environ["REGION"]
SHOPS = {"near", "far", "online"}
prices: dict[str, int] = {}
seen: list[str] = []
count = 0


@activity
async def quote(shop: str) -> int:
    prices[shop] = len(shop)
    return len(shop)


@activity
async def nap() -> None:
    time.sleep(1)  # expect: W501


@activity(transactional=True)
async def pays(cents: int) -> None:
    connection = transaction().connection
    await connection.execute("INSERT INTO payments VALUES ($1)", cents)
    await httpx.AsyncClient().post("https://bank.test", json={"cents": cents})  # expect: W502
    await connection.execute("COMMIT")  # expect: W503


@activity(transactional=True)
def books(cents: int) -> None:
    transaction().connection.execute("INSERT INTO books VALUES (?)", (cents,))
    transaction().connection.commit()  # expect: W503
    open("books.txt", "w").close()  # expect: W502


@activity
async def charges(cents: int) -> None:
    import stripe
    from bank.errors import Declined

    if cents > 100:
        raise Declined(cents)  # expect: W504
    raise stripe.error.CardError  # expect: W504


@workflow
async def asks_the_machine(order: str) -> str:
    began = time.time()  # expect: W101
    today = datetime.now().date()  # expect: W101
    due = date.today()  # expect: W101
    elapsed = ticks() - began  # expect: W101
    discount = random.randint(1, 6)  # expect: W102
    token = secrets.token_hex()  # expect: W102
    key = uuid.uuid4()  # expect: W103
    debug = os.environ.get("DEBUG")  # expect: W104
    process = os.getpid()  # expect: W104
    bucket = hash(order) % 16  # expect: W105
    return f"{today} {due} {elapsed} {discount} {token} {key} {debug} {process} {bucket}"


@workflow
async def touches_the_world(path: Path) -> str:
    with open("rates.csv") as file:  # expect: W201
        rates = file.read()
    text = path.read_text()  # expect: W201
    answer = requests.get("http://partner")  # expect: W202
    other = session.post("http://partner")  # expect: W202
    page = urlopen("http://partner")  # expect: W202
    async with httpx.AsyncClient() as client:  # expect: W202
        await quote(str(client))
    rows = sqlite3.connect("shop.db")  # expect: W202
    log.info("read %s", rates)  # expect: W203
    print(text, answer, other, page, rows)  # expect: W204
    time.sleep(1)  # expect: W107
    return REGION  # expect: W106


@workflow
async def runs_elsewhere(shops: list[str]) -> None:
    threading.Thread(target=len).start()  # expect: W301
    await asyncio.to_thread(len, shops)  # expect: W301
    with ThreadPoolExecutor() as pool:  # expect: W301
        await asyncio.get_running_loop().run_in_executor(pool, len, shops)  # expect: W301
    subprocess.run(["true"])  # expect: W302
    for done in asyncio.as_completed([quote(shop) for shop in shops]):  # expect: W303
        await done
    asyncio.create_task(quote("near"))  # expect: W304
    ready: asyncio.Future[None] = asyncio.Future()  # expect: W305
    ready.set_result(None)


@workflow
async def cleans_up(shop: str) -> None:
    try:
        await quote(shop)
    except BaseException:  # expect: W402
        await quote("other")
    finally:
        print("done")  # expect: W401
    with suppress(BaseException):  # expect: W402
        await quote(shop)


@workflow
async def forgets(shop: str) -> int:
    quote(shop)  # expect: W403
    run_child("other", shop)  # expect: W403
    return call("quote", shop)  # expect: W403


@workflow
async def goes_by_chance(shops: frozenset[str]) -> None:
    global count
    for shop in SHOPS:  # expect: W404
        await quote(shop)
    await asyncio.gather(*(quote(shop) for shop in shops))  # expect: W404
    seen.append("done")  # expect: W405
    count += 1  # expect: W405
    await quote(str(prices))  # expect: W406
    await quote(helper())
    await quote(stamp())


def helper(at: datetime = datetime.now()) -> str:  # expect: W106
    return f"{at} {id(at)}"  # expect: W105
