"""The web application of the shop: it starts orders, and shows the dashboard to the staff. Workers are other processes.

uvicorn app:app
"""

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from workflows import Order, order, paid

from batuta import asgi, connect
from batuta.server import Principal, Scope, dashboard

STAFF = os.environ.get("SHOP_STAFF_TOKEN", "")
client = connect()  # BATUTA_DATABASE_URL; opened by the lifespan


@asynccontextmanager
async def life(_: FastAPI) -> AsyncIterator[None]:
    async with client:
        yield


async def who(request: Request) -> Principal | None:
    """The shop's own sign-in: here a token, in yours a session or what the proxy says."""
    given = request.headers.get("x-staff-token", "")
    if not STAFF or not secrets.compare_digest(given, STAFF):
        return None
    return Principal(name="staff", kind="app", scope=Scope.OPERATOR, namespace=client.namespace.name)


app = FastAPI(lifespan=life)
app.add_middleware(asgi.Problems)  # errors of Batuta are problem details: 404, 409, 429, 503


@app.put("/orders/{number}", status_code=202)
async def create(number: str, wanted: Order) -> dict[str, str]:
    """The number is the run's id: sent twice, it is one order."""
    handle = await client.start(order, wanted, id=f"order-{number}", if_exists="reject")
    return {"id": handle.id}


@app.post("/orders/{number}/payment", status_code=202)
async def pay(number: str, receipt: str) -> dict[str, str]:
    handle = await client.get(f"order-{number}")
    await handle.signal(paid, receipt, message_id=f"payment-{receipt}")
    return {"id": handle.id}


@app.get("/orders/{number}")
async def show(number: str) -> dict[str, Any]:
    handle = await client.get(f"order-{number}")
    run = await handle.describe()
    result = await handle.result(timeout=1) if run.state == "completed" else None
    return {"id": run.id, "state": run.state, "result": result}


@app.get("/healthz")
async def alive() -> dict[str, str]:
    return {"status": "ok"}


@app.get("/readyz")
async def ready() -> Response:
    await client.namespace.check()  # a database that is away is 503, with Retry-After
    return Response(status_code=204)


app.mount("/batuta", dashboard(client, authenticate=who))
