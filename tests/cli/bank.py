"""Workflows that have personal data in everything that can be shown. A worker process imports this module by name."""

import asyncio
import logging
import os
import sys
from typing import Any

from batuta import (
    App,
    NonRetryable,
    Query,
    Retry,
    Signal,
    Update,
    activity,
    heartbeat,
    job,
    logger,
    progress,
    publish,
    workflow,
)

PERSON = {
    "name": "Ada",
    "document": "529.982.247-25",
    "company": "12ABC34501DE35",
    "contact": ["+5511987654321", "ada.lovelace@example.com"],
    "card": {"pan": "4111 1111 1111 1111"},
    "senha": "hunter2!",
    "note": 'sent {"apiKey": "k3y-0f-ada"} with Bearer abc123.def456 to https://bank:s3cr3t@example.com/52998224725',
}
PIECES = (
    *("529.982", "52998224725", "982.247", "12ABC345", "87654321", "lovelace", "4111 1111", "hunter2"),
    *("k3y-0f-ada", "abc123", "s3cr3t", "B-1234"),
)
"""What must not be seen of her."""

text = f"cannot pay {PERSON}"
log = logging.getLogger("bank")
ask = Signal("senha", str)
change = Update("change", dict[str, Any])
look = Query("look", dict[str, Any])


@activity(retry=Retry(attempts=2, first=0.01))
async def pay(person: dict[str, Any], works: bool) -> dict[str, Any]:
    log.warning("about to pay %s", person, extra={"person": person})
    if not works:
        raise ValueError("x" * 180 + text) from KeyError(person["document"])
    return person


@activity(process=True)
def screen(person: dict[str, Any]) -> None:
    logging.getLogger("screening").warning("screened %s", person)


@workflow(dead_letter=True)
async def payment(person: dict[str, Any], works: bool) -> dict[str, Any]:
    logger.warning("payment of %s", person)
    publish("person", person)
    publish("senha", "hunter2!")
    publish(person["document"], 1)
    await screen(person)
    return await pay(person, works)


@workflow
async def account(person: dict[str, Any]) -> dict[str, Any]:
    log.warning("account of %s", person)  # again in every replay, which a query is

    @change.handle
    def changed(other: dict[str, Any]) -> dict[str, Any]:
        if not other:
            raise ValueError(text)
        return other

    @look.handle
    def looked() -> dict[str, Any]:
        return person

    await ask.wait()
    return person


@job(retry=Retry(attempts=2, first=0.01))
async def notify(person: dict[str, Any]) -> None:
    progress(person)
    raise ValueError(text)


@job
async def refuse(person: dict[str, Any]) -> None:
    raise NonRetryable(text)


@job(retry=Retry(attempts=2, first=3600), heartbeat=60)
async def slow(person: dict[str, Any]) -> None:
    heartbeat(person)
    await asyncio.sleep(0.01)
    raise ValueError(text)


if os.environ.get("BANK_LOGS"):  # as a module that sets up its own logging does
    logging.getLogger("bank").addHandler(logging.FileHandler(os.environ["BANK_LOGS"]))


def made() -> App:
    """One whose function sets up logging, too."""
    log.addHandler(logging.FileHandler(os.environ["BANK_LOGS"] + ".made"))
    return App.of_module(sys.modules[__name__])
