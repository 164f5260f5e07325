"""What `pixdict serve --role ...` does: one part of pixdict as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click
from cryptography import x509
from msgspec import Struct, structs

from batuta import Batuta, Rate, connect
from batuta.cache import open_cache
from batuta.errors import InvalidInput
from batuta.metrics import Metrics, expose
from pixdict.bridge import BridgeClient, BridgeSettings, serve
from pixdict.bridge.client import TIMEOUT
from pixdict.caches import LIMITS, Caches, Lookups, open_caches
from pixdict.connect.database import open_database
from pixdict.connect.keys import KeyTables, ReplicaTables
from pixdict.connect.monitor import metrics
from pixdict.connect.pages import connect_pages
from pixdict.connect.worker import connect_workers
from pixdict.core import Core, CoreSettings, core_worker, serve_core
from pixdict.dict.signatures import Signer
from pixdict.dict.tls import Tls
from pixdict.redaction import guard_logs

LISTEN = {"bridge": "127.0.0.1:50051", "core": "127.0.0.1:8290", "directory": "127.0.0.1:16522"}
"""Where each role listens unless told."""
SECRET = "BATUTA_SERVER_SECRET"  # noqa: S105 - its name
_SHORTEST = 32


class Options(Struct, frozen=True, kw_only=True):
    """Those of the command."""

    role: str
    store: str
    participant: str
    directory: str
    bridge: str
    database: str
    listen: str | None = None
    bus: str | None = None
    bridges: int = 1
    redis: str | None = None
    replica: str | None = None
    wait: float = 25.0
    limits: tuple[str, ...] = ()
    open_for: float = 60.0
    attempts: int | None = None
    timeout: float | None = None
    path: str = "directory.db"
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    key: str | None = None
    certificate: str | None = None
    directory_certificate: str | None = None
    tls_key: str | None = None
    tls_certificate: str | None = None
    tls_trusted: str | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens. Raises UsageError."""
        host, mark, port = (self.listen or LISTEN[self.role]).rpartition(":")
        if not mark or not port.isdecimal() or int(port) > 65_535:
            raise click.UsageError(f"--listen {self.listen!r}: give HOST:PORT, such as {LISTEN[self.role]}")
        return host.strip("[]"), int(port)


def run(options: Options) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    if options.role == "directory":
        from pixdict.directory.command import run as simulate

        host, port = options.address
        return simulate(host, port, options.path, (), "off", (), "stepped", check_digits=False, tls=_tls(options))
    role = {"bridge": _bridge, "connect": _connect, "core": _core}[options.role]
    with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        return runner.run(role(options))


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's when it is installed (`batuta[fast]`), as with `batuta worker`; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def bridge_settings(options: Options) -> BridgeSettings:
    """What a Bridge is told. Raises UsageError."""
    return BridgeSettings(
        directory=options.directory,
        participant=options.participant,
        attempts=options.attempts or 1,
        timeout=options.timeout or 5.0,
        call_timeout=max(20.0, options.timeout or 0.0),
        bridges=options.bridges,
        open_for=options.open_for,
        signer=_signer(options),
        trusted=_certificate(options.directory_certificate),
        tls=_tls(options),
    )


async def _bridge(options: Options) -> None:
    settings = bridge_settings(options)
    host, port = options.address
    async with AsyncExitStack() as stack:
        client, caches, _ = await _opened(stack, options)
        cache = None if caches is None else caches.cache
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        bridge = await stack.enter_async_context(serve(settings, client, address=address, cache=cache))
        await _until_told(f"bridge of {options.participant} listens at {bridge.address}")


async def _connect(options: Options) -> None:
    async with AsyncExitStack() as stack:
        client, caches, counted = await _opened(stack, options)
        database = await open_database(options.database)
        stack.push_async_callback(database.close)
        bridge = await stack.enter_async_context(BridgeClient(options.bridge, timeout=options.timeout or TIMEOUT))
        tables = await _tables(stack, options, client, caches)
        working = connect_workers(
            client,
            bridge,
            tables,
            database,
            counted.registry,
            participant=options.participant,
            attempts=options.attempts or 3,
        )
        await stack.enter_async_context(working)
        said = f"connect of {options.participant} works on keys, claims, reconciliation and the monitor"
        if options.metrics_port is not None:
            port = stack.enter_context(expose(counted, options.metrics_port, host=options.metrics_host))
            said += f"; metrics at http://{options.metrics_host}:{port}/metrics"
        await _until_told(said)


async def _core(options: Options) -> None:
    host, port = options.address
    settings = CoreSettings(participant=options.participant, wait=options.wait, limits=limits_of(options.limits))
    async with AsyncExitStack() as stack:
        client, caches, counted = await _opened(stack, options)
        if not _is_loopback(host) and not await client.api_keys.any():
            raise click.ClickException(
                f"--listen {host}:{port} would let others in, and there is no API key: make one with "
                f"`batuta api-keys create NAME --scope operator`"
            )
        replica = None
        if options.replica is not None:
            other = await open_database(options.replica)
            stack.push_async_callback(other.close)
            replica = ReplicaTables(other)
        if caches is not None:
            bridge = await stack.enter_async_context(BridgeClient(options.bridge))
            caches = structs.replace(caches, lookups=Lookups(caches.cache, bridge))
        tables = await _tables(stack, options, client, caches)
        core = Core(client, tables, settings, replica=replica, caches=caches)
        await stack.enter_async_context(core_worker(core))
        database = await open_database(options.database)
        stack.push_async_callback(database.close)
        try:
            pages = connect_pages(tables, database)
            serving = serve_core(core, host=host, port=port, secret=_secret(), metrics=counted, pages=pages)
            url = await stack.enter_async_context(serving)
        except OSError as error:
            raise click.ClickException(f"core cannot listen at {host}:{port}: {error.strerror or error}") from None
        await _until_told(f"core of {options.participant} listens at {url}/api/v1/keys")


async def _opened(stack: AsyncExitStack, options: Options) -> tuple[Batuta, Caches | None, Metrics]:
    """The client, the caches if there is a Redis, and what both are counted by. Personal data stays out of the log."""
    guard_logs()
    counted = metrics()
    around: list[Any] = [counted]
    caches = None
    if options.redis is not None:
        cache = await stack.enter_async_context(await open_cache(options.redis, observer=counted.observe_cache))
        caches = open_caches(cache)
        around.append(caches.workflows)
    client = connect(options.store, migrate=True, middleware=around, bus=options.bus)
    return await stack.enter_async_context(client), caches, counted


async def _tables(stack: AsyncExitStack, options: Options, client: Batuta, caches: Caches | None) -> KeyTables:
    """Our entries and claims: beside the store, so that a row and its message are durable together. What changes in
    them changes in the caches."""
    database = await open_database(options.store, client)
    stack.push_async_callback(database.close)
    tables = KeyTables(database)
    tables.watch = None if caches is None else caches.rows(tables)
    return tables


def limits_of(given: tuple[str, ...]) -> dict[str, Sequence[str]]:
    """Those of document C, and in place of some `CreateEntry=1000/min`: more than once for more than one rate. Raises
    UsageError."""
    found: dict[str, tuple[str, ...]] = {}
    for one in given:
        operation, mark, rate = one.partition("=")
        if operation not in LIMITS or not mark:
            known = ", ".join(LIMITS)
            raise click.UsageError(
                f"--limit {one!r}: give OPERATION=RATE, such as CreateEntry=1000/min; one of {known}"
            )
        try:
            Rate.parse(rate)
        except InvalidInput as error:
            raise click.UsageError(f"--limit {one!r}: {error}") from None
        found[operation] = (*found.get(operation, ()), rate)
    return {**LIMITS, **found}


async def _until_told(said: str) -> None:
    ended = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, ended.set)
    click.echo(f"{said}; Ctrl-C ends it")
    await ended.wait()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _secret() -> bytes | None:
    """Signs sessions; None: they end with the process. Raises UsageError."""
    text = os.environ.get(SECRET, "")
    if text and len(text) < _SHORTEST:
        raise click.UsageError(f"{SECRET} must have {_SHORTEST} characters or more: anybody could guess it")
    return text.encode() or None


def _signer(options: Options) -> Signer | None:
    if not options.key and not options.certificate:
        return None
    if not options.key or not options.certificate:
        raise click.UsageError("--key and --certificate belong together: give both, or none and nothing is signed")
    try:
        return Signer.of_pem(Path(options.key).read_bytes(), Path(options.certificate).read_bytes())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--key, --certificate: {error}") from None


def _tls(options: Options) -> Tls | None:
    from pixdict.directory.command import tls_of

    return tls_of(options.tls_key, options.tls_certificate, options.tls_trusted)


def _certificate(path: str | None) -> x509.Certificate | None:
    try:
        return None if path is None else x509.load_pem_x509_certificate(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--directory-certificate: {error}") from None
