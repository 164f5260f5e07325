"""All of pixdict in one event loop: directory, Bridge, connect, core, server and dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import uvicorn
from msgspec import Struct, structs

from batuta import Batuta, connect
from batuta.cache import Cache, open_cache
from batuta.server import Page, Server
from batuta.server.http.connections import Connection
from pixdict.bridge import Bridge, BridgeClient, BridgeSettings, serve
from pixdict.caches import Lookups, open_caches
from pixdict.connect.database import Database, open_database
from pixdict.connect.keys import KeyTables, ReplicaTables, keys_worker
from pixdict.connect.monitor import MonitorTables, metrics
from pixdict.connect.pages import connect_pages
from pixdict.connect.reconciliation import reconciliation_worker
from pixdict.connect.worker import monitor_worker
from pixdict.core import Core, CoreSettings, core_server, core_worker
from pixdict.dev.other_institution import actions_of
from pixdict.dev.parts import Primary, Stoppable, SwitchedDatabase, copy_file
from pixdict.dev.simulator_page import simulator_page
from pixdict.dev.valkey import own_valkey
from pixdict.dev.wire import Wire, place_of, through
from pixdict.directory import Directory, DirectorySettings, Participant

ISPB = "12345678"
OTHER = "87654321"
POSTGRES, REDIS = 5432, 6379


class Options(Struct, frozen=True, kw_only=True):
    """What `pixdict dev` may be told. Times are seconds."""

    port: int = 8290
    """Of the dashboard; 0: any that is free."""
    category: str = "A"
    store: str | None = None
    bus: str | None = None
    redis: str | None = None
    replica: str | None = None
    wait: float = 3.0
    """For so long a request waits for its outcome."""
    open_for: float = 15.0
    """The breaker."""


class Stand:
    """What runs, and where."""

    folder: Path
    options: Options
    directory: Directory
    bridge: Bridge
    speaks: BridgeClient
    other: BridgeClient
    """To the Bridge of the other institution."""
    client: Batuta
    store: str
    """The address of the store, as every part uses it."""
    database: str
    """The address of the tables of monitor and reconciliation."""
    tables: KeyTables
    core: Core
    cache: Cache
    redis: Wire | None
    """The wire to Redis; None: there is none that could be cut."""
    redis_url: str
    """Over that wire; empty: the cache is in memory."""
    primary: Primary
    keys: Stoppable
    """The worker of keys and claims."""
    copy_replica: Callable[[], Awaitable[None]] | None
    """Brings the replica up to date; None: there is no replica."""
    url: str
    """Of the dashboard."""


@asynccontextmanager
async def stand(
    folder: Path, options: Options = Options(), *, more: Callable[[Stand], Sequence[Page]] = lambda _: ()
) -> AsyncIterator[Stand]:
    """Everything, with its files in `folder`. `more`: further pages."""
    made, counted = Stand(), metrics()
    made.folder, made.options, told = folder, options, f"sqlite:///{folder / 'batuta.db'}"
    async with AsyncExitStack() as stack:
        settings = DirectorySettings(participants=dict.fromkeys((ISPB, OTHER), Participant(category=options.category)))
        made.directory = await stack.enter_async_context(Directory.serve(settings, path=folder / "directory.db"))
        await _open_redis(made, stack)
        address = made.redis_url or "memory://"
        made.cache = await stack.enter_async_context(await open_cache(address, observer=counted.observe_cache))
        wire, made.store = await _wired(stack, options.store or told, ("postgresql", "postgres"), POSTGRES)
        caches = open_caches(made.cache)
        around = [counted, caches.workflows]
        client = connect(made.store, migrate=True, middleware=around, bus=options.bus)
        made.client = await stack.enter_async_context(client)
        await _open_bridges(made, stack)
        switch = SwitchedDatabase(await open_database(made.store, made.client))
        stack.push_async_callback(switch.close)
        made.tables, made.primary = KeyTables(switch), Primary(wire, switch)
        made.tables.watch = caches.rows(made.tables)
        replica = await _open_replica(made, stack)
        made.database = f"sqlite:///{folder / 'pixdict.db'}"
        database = await open_database(made.database)
        stack.push_async_callback(database.close)
        await _begin_workers(made, stack, database, counted.registry)
        told_core = CoreSettings(participant=ISPB, wait=options.wait, poll=0.1)
        caches = structs.replace(caches, lookups=Lookups(made.cache, made.speaks))
        made.core = Core(made.client, made.tables, told_core, replica=replica, caches=caches)
        stack.push_async_callback(made.core.close)
        await stack.enter_async_context(core_worker(made.core, grace=1.0))
        server = core_server(made.core, metrics=counted, pages=[*_pages(made, database), *more(made)])
        made.url = await stack.enter_async_context(_dashboard(server, options.port))
        yield made


async def _open_redis(made: Stand, stack: AsyncExitStack) -> None:
    url = made.options.redis or await stack.enter_async_context(own_valkey(made.folder))
    made.redis, made.redis_url = None, ""
    if url is not None:
        made.redis, made.redis_url = await _wired(stack, url, ("redis",), REDIS)


async def _wired(stack: AsyncExitStack, url: str, schemes: tuple[str, ...], port: int) -> tuple[Wire | None, str]:
    """A wire to a server, and its address over it. A URL of another scheme stays as it is."""
    place = place_of(url, port) if url.partition(":")[0] in schemes else None
    if place is None:
        return None, url
    wire = await stack.enter_async_context(Wire.to(*place))
    return wire, through(url, wire)


async def _open_bridges(made: Stand, stack: AsyncExitStack) -> None:
    """Ours, and that of the other institution. Connect makes the attempts."""
    told = BridgeSettings(directory=made.directory.url, participant=ISPB, attempts=1, open_for=made.options.open_for)
    made.bridge = await stack.enter_async_context(serve(told, made.client, cache=made.cache, grace=0.5))
    made.speaks = await stack.enter_async_context(BridgeClient(made.bridge.address))
    others = await stack.enter_async_context(serve(structs.replace(told, participant=OTHER), made.client, grace=0.5))
    made.other = await stack.enter_async_context(BridgeClient(others.address))


async def _open_replica(made: Stand, stack: AsyncExitStack) -> KeyTables | None:
    """SQLite: a copy of the file. PostgreSQL: the one that was given."""
    url, made.copy_replica = made.options.replica, None
    if made.store.startswith("sqlite:///"):
        path = made.folder / "replica.db"
        source = Path(made.store.removeprefix("sqlite:///"))

        async def copy() -> None:
            await made.tables.prepare()
            await copy_file(source, path)

        url, made.copy_replica = f"sqlite:///{path}", copy
    elif url is not None:

        async def replicated() -> None:  # by PostgreSQL itself
            await asyncio.sleep(0)

        made.copy_replica = replicated
    if url is None:
        return None
    other = await open_database(url)
    stack.push_async_callback(other.close)
    return ReplicaTables(other)


async def _begin_workers(made: Stand, stack: AsyncExitStack, database: Database, registry: Any) -> None:
    """Those of connect. That of keys can be stopped, so that a process of its own takes its place."""
    client, bridge, tables = made.client, made.speaks, made.tables
    await stack.enter_async_context(monitor_worker(client, bridge, MonitorTables(database), registry, grace=1.0))
    reconciling = reconciliation_worker(client, bridge, tables, database, registry, grace=1.0)
    await stack.enter_async_context(reconciling)
    made.keys = Stoppable(lambda: keys_worker(client, bridge, tables, participant=ISPB, grace=1.0))
    await stack.enter_async_context(made.keys)


def _pages(made: Stand, database: Database) -> list[Page]:
    return [
        *connect_pages(made.tables, database),
        simulator_page(made.directory, made.speaks, made.bridge, ISPB, actions_of(made.directory, made.other, OTHER)),
    ]


@asynccontextmanager
async def _dashboard(made: Server, port: int) -> AsyncIterator[str]:
    config = uvicorn.Config(
        made.serve,
        host="127.0.0.1",
        port=port,
        interface="asgi3",
        lifespan="off",
        http=Connection,
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
