"""An application of a user that the dashboard is mounted in, with a page of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct
from starlette.applications import Starlette

from batuta import Batuta, connect
from batuta.server import Action, Gauge, Gauges, Page, Table, dashboard

client = connect(os.environ["BATUTA_DATABASE_URL"], migrate=True)


async def partners(found: Batuta) -> list[Table]:
    runs = (await found.list(limit=20)).runs
    rows = [[run.tags.get("partner"), {"run": run.id}, run.entries, run.created_at] for run in runs]
    columns = ["Partner", "Run", "Entries", "Started"]
    return [
        Table(title="Payments", columns=columns, rows=rows, note="newest first"),
        Table(title="Disputes", columns=["Partner"], rows=[], note="A partner opens one by mail."),
    ]


level = [40.0, 20.0]
"""What the float had before, and has."""


class TopUp(Struct):
    cents: int = 10


async def money(_: Batuta) -> list[Gauges]:
    gauge = Gauge(
        name="<b>Float", value=level[-1], most=100, tone="retry", label="LOW", note="dry soon", history=[*level]
    )
    return [Gauges(title="Accounts", gauges=[gauge], note="as of now")]


async def top_up(_: Batuta, given: TopUp) -> str:
    level.append(level[-1] + given.cents)
    return f"{given.cents} cents are there."


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with client:
        yield


app = Starlette(lifespan=lifespan)
pages = [
    Page("Suppliers", "/suppliers", partners),
    Page("Money", "/money", money, actions=[Action(title="Top up", form=TopUp, act=top_up, about="By hand.")]),
]
app.mount("/tools/batuta", dashboard(client, pages=pages))
