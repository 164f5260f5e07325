"""An application of a user that the dashboard is mounted in, with a page of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from batuta import Batuta, connect
from batuta.server import Page, Table, dashboard

client = connect(os.environ["BATUTA_DATABASE_URL"], migrate=True)


async def partners(found: Batuta) -> list[Table]:
    runs = (await found.list(limit=20)).runs
    rows = [[run.tags.get("partner"), {"run": run.id}, run.entries, run.created_at] for run in runs]
    columns = ["Partner", "Run", "Entries", "Started"]
    return [
        Table(title="Payments", columns=columns, rows=rows, note="newest first"),
        Table(title="Disputes", columns=["Partner"], rows=[], note="A partner opens one by mail."),
    ]


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with client:
        yield


app = Starlette(lifespan=lifespan)
app.mount("/tools/batuta", dashboard(client, pages=[Page("Suppliers", "/suppliers", partners)]))
