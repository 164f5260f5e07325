"""All of one institution over real sockets: HTTP to core, the bus, gRPC to the Bridge, HTTP to the directory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpcore2
from msgspec.structs import replace

from batuta import Batuta, connect
from batuta.cache import RedisOptions, open_cache
from pixdict.bridge import Bridge, BridgeClient, BridgeSettings, serve
from pixdict.caches import Caches, open_caches
from pixdict.connect.database import open_database
from pixdict.connect.keys import KeyTables, ReplicaTables, keys_worker
from pixdict.core import Core, CoreSettings, core_worker, serve_core
from pixdict.directory import Directory
from tests.pixdict.directory.kit import CPF, PHONE, A, B, Bank

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
QUICK = RedisOptions(pool_size=20, min_idle=1)
SETTINGS = CoreSettings(participant=A, limits={}, poll=0.05)


class Said:
    """An answer."""

    def __init__(self, answer: httpcore2.Response) -> None:
        self.status = answer.status
        self.headers = {name.decode().lower(): value.decode() for name, value in answer.headers}
        self.body: Any = json.loads(answer.content) if answer.content else None

    def __repr__(self) -> str:
        return f"{self.status} {self.body}"


class Stand:
    """Institution A with everything that it runs; institution B acts by hand."""

    directory: Directory
    client: Batuta
    bridge: Bridge
    speaks: BridgeClient
    tables: KeyTables
    core: Core
    caches: Caches | None = None
    redis: str = ""
    url: str

    def __init__(self, pool: httpcore2.AsyncConnectionPool) -> None:
        self._pool = pool

    @property
    def b(self) -> Bank:
        return Bank(self.directory.service, B)

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Said:
        """`headers`: with underscores for hyphens. A body that is bytes is sent as it is."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json"} if content is not None else {}
        sent |= {"x-csrf-token": self.token} if method not in ("GET", "HEAD") else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self._pool.request(
            method, self.url + path, headers=list(sent.items()), content=content, extensions={"timeout": {"read": 60.0}}
        )
        return Said(answer)

    async def create(self, body: Any = None, **headers: str) -> Said:
        return await self.ask("POST", "/api/v1/keys", key() if body is None else body, **headers)

    async def claim(self, body: Any, **headers: str) -> Said:
        return await self.ask("POST", "/api/v1/claims", body, **headers)

    async def sign_in(self) -> None:
        self.token = (await self.ask("GET", "/api/v1/session")).body["csrf_token"]

    async def breaker(self) -> str:
        return (await self.client.breakers.get("bacen")).state

    def asked(self, operation: str = "createEntry") -> list[int]:
        """The statuses of the calls that the directory got."""
        return [one.status for one in self.directory.service.seen if one.operation == operation]

    def writes(self) -> list[str]:
        """The operations that the directory was asked for, but for what is read in the background."""
        return [one.operation for one in self.directory.service.seen if not one.operation.startswith(("list", "get"))]


def account(ispb: str = A, number: str = "0007654321", **changes: Any) -> dict[str, Any]:
    found = {"participant": ispb, "branch": "0001", "account_number": number, "account_type": "CACC"}
    return found | {"opening_date": "2010-01-10T03:00:00Z"} | changes


def person(tax_id: str = CPF, name: str = "João Silva") -> dict[str, Any]:
    kind = "NATURAL_PERSON" if len(tax_id) == 11 else "LEGAL_PERSON"
    return {"type": kind, "tax_id_number": tax_id, "name": name}


def key(value: str | None = PHONE, key_type: str = "PHONE", **changes: Any) -> dict[str, Any]:
    found = {"key_type": key_type, "key_value": value, "account": account(), "owner": person()}
    return found | changes


def claim(kind: str = "PORTABILITY", value: str = PHONE, key_type: str = "PHONE", **changes: Any) -> dict[str, Any]:
    claimer = person() if kind == "PORTABILITY" else person("99988877766", "Maria Souza")
    found = {"type": kind, "key_type": key_type, "key_value": value, "account": account(), "claimer": claimer}
    return found | changes


async def eventually(found: Callable[[], Awaitable[Any]]) -> Any:
    """What is found once it is there."""
    async with asyncio.timeout(40):
        while not (value := await found()):
            await asyncio.sleep(0.02)
    return value


@asynccontextmanager
async def stand(
    url: str,
    path: Path,
    *,
    settings: CoreSettings = SETTINGS,
    bridge: dict[str, Any] | None = None,
    call_timeout: float = 20.0,
    wrap: Callable[[KeyTables], KeyTables] = lambda tables: tables,
    replica: str = "",
    redis: str = "",
    worker: bool = True,
    **keys: Any,
) -> AsyncIterator[Stand]:
    """`bridge`: settings of the Bridge. `keys`: of the worker of connect. `wrap`: its tables, with faults.
    `redis`: with it, everything has caches."""
    told = {"attempts": 1, "participant": A, **(bridge or {})}
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(httpcore2.AsyncConnectionPool())
        made = Stand(pool)
        made.redis = redis
        made.directory = await stack.enter_async_context(Directory.serve(path=path / "directory.db"))
        cache = await stack.enter_async_context(await open_cache(redis, options=QUICK)) if redis else None
        states = [] if cache is None else [open_caches(cache).workflows]
        made.client = await stack.enter_async_context(connect(url, migrate=True, middleware=states))
        database = await open_database(url, made.client)
        stack.push_async_callback(database.close)
        made.tables = KeyTables(database)
        given = BridgeSettings(directory=made.directory.url, **told)
        made.bridge = await stack.enter_async_context(serve(given, made.client, grace=0.5, cache=cache))
        made.speaks = await stack.enter_async_context(BridgeClient(made.bridge.address, timeout=call_timeout))
        if cache is not None:
            made.caches = open_caches(cache, made.speaks)
            made.tables.watch = made.caches.rows(made.tables)
        if worker:
            wrapped = wrap(made.tables)
            working = keys_worker(made.client, made.speaks, wrapped, participant=A, grace=0.5, **keys)
            await stack.enter_async_context(working)
        second = None
        if replica:
            other = await open_database(replica)
            stack.push_async_callback(other.close)
            second = ReplicaTables(other)
        made.core = Core(made.client, made.tables, settings, replica=second, caches=made.caches)
        await stack.enter_async_context(core_worker(made.core, grace=0.5))
        made.url = await stack.enter_async_context(serve_core(made.core))
        await made.sign_in()
        yield made


def settings(**changes: Any) -> CoreSettings:
    return replace(SETTINGS, **changes)
