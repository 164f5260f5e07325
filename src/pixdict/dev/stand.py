"""Directory, Bridge, monitor, server and dashboard in one event loop, on SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from batuta import Batuta, connect
from batuta.server import Server
from pixdict.bridge import Bridge, BridgeClient, BridgeSettings, serve
from pixdict.connect.database import open_database
from pixdict.connect.monitor import MonitorTables, metrics
from pixdict.connect.monitor.page import dict_page
from pixdict.connect.worker import monitor_worker
from pixdict.dev.simulator_page import simulator_page
from pixdict.directory import Directory, DirectorySettings, Participant

ISPB = "12345678"
OTHER = "87654321"


class Stand(NamedTuple):
    """What runs, and where."""

    directory: Directory
    bridge: Bridge
    client: Batuta
    url: str
    """Of the dashboard."""


@asynccontextmanager
async def stand(folder: Path, *, port: int = 8290, category: str = "A", fast: bool = False) -> AsyncIterator[Stand]:
    """Everything, with its files in `folder`. Port 0: any that is free. `fast`: short waits, for tests."""
    counted = metrics()
    participants = {ISPB: Participant(category=category), OTHER: Participant(category=category)}
    settings = DirectorySettings(participants=participants)
    store = f"sqlite:///{folder / 'batuta.db'}"
    database = await open_database(f"sqlite:///{folder / 'pixdict.db'}")
    tables = MonitorTables(database)
    try:
        async with (
            Directory.serve(settings, path=folder / "directory.db") as directory,
            connect(store, migrate=True, middleware=[counted]) as client,
            serve(_settings(directory, fast=fast), client, grace=0.5) as bridge,
            BridgeClient(bridge.address) as speaks,
            monitor_worker(client, speaks, tables, counted.registry, grace=1.0),
        ):
            pages = [dict_page(tables), simulator_page(directory, speaks, bridge, ISPB)]
            async with _dashboard(Server(client, metrics=counted, pages=pages), port) as url:
                yield Stand(directory, bridge, client, url)
    finally:
        await database.close()


def _settings(directory: Directory, *, fast: bool) -> BridgeSettings:
    return BridgeSettings(
        directory=directory.url, participant=ISPB, first_wait=0.01 if fast else 1.0, open_for=1.0 if fast else 15.0
    )


@asynccontextmanager
async def _dashboard(made: Server, port: int) -> AsyncIterator[str]:
    config = uvicorn.Config(
        made.serve,
        host="127.0.0.1",
        port=port,
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    running = _Embedded(config)
    serving = asyncio.ensure_future(running.serve())
    try:
        while not running.started and not serving.done():  # uvicorn has no event for it
            await asyncio.wait({serving}, timeout=0.01)
        if not running.started:
            raise OSError(f"the dashboard cannot listen at port {port}: choose another one with --port")
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    finally:
        made.drain()
        running.should_exit = True
        await asyncio.wait({serving})
        await made.close()


class _Embedded(uvicorn.Server):
    """Without handlers of signals: the command has its own."""

    def capture_signals(self) -> Any:
        return nullcontext()
