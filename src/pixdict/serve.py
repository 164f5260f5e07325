"""What `pixdict serve --role ...` does: one part of pixdict as a process of its own."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import click
from cryptography import x509
from msgspec import Struct

from batuta import connect
from batuta.cache import open_cache
from batuta.metrics import expose
from pixdict.bridge import BridgeClient, BridgeSettings, serve
from pixdict.connect.database import open_database
from pixdict.connect.monitor import MonitorTables, metrics
from pixdict.connect.worker import monitor_worker
from pixdict.dict.signatures import Signer


class Options(Struct, frozen=True, kw_only=True):
    """Those of the command."""

    role: str
    store: str
    participant: str
    directory: str
    listen: str
    bridge: str
    database: str
    redis: str | None = None
    metrics_port: int | None = None
    key: str | None = None
    certificate: str | None = None
    directory_certificate: str | None = None


def run(options: Options) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    asyncio.run({"bridge": _bridge, "connect": _connect}[options.role](options))


async def _bridge(options: Options) -> None:
    settings = BridgeSettings(
        directory=options.directory,
        participant=options.participant,
        signer=_signer(options),
        trusted=_certificate(options.directory_certificate),
    )
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(options.store, migrate=True))
        cache = None if options.redis is None else await stack.enter_async_context(await open_cache(options.redis))
        bridge = await stack.enter_async_context(serve(settings, client, address=options.listen, cache=cache))
        await _until_told(f"bridge of {options.participant} listens at {bridge.address}")


async def _connect(options: Options) -> None:
    counted = metrics()
    async with AsyncExitStack() as stack:
        database = await open_database(options.database)
        stack.push_async_callback(database.close)
        client = await stack.enter_async_context(connect(options.store, migrate=True, middleware=[counted]))
        bridge = await stack.enter_async_context(BridgeClient(options.bridge))
        tables = MonitorTables(database)
        await stack.enter_async_context(monitor_worker(client, bridge, tables, counted.registry))
        said = "the monitor runs every five minutes"
        if options.metrics_port is not None:
            port = stack.enter_context(expose(counted, options.metrics_port))
            said += f"; metrics at http://127.0.0.1:{port}/metrics"
        await _until_told(said)


async def _until_told(said: str) -> None:
    ended = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, ended.set)
    click.echo(f"{said}; Ctrl-C ends it")
    await ended.wait()


def _signer(options: Options) -> Signer | None:
    if not options.key and not options.certificate:
        return None
    if not options.key or not options.certificate:
        raise click.UsageError("--key and --certificate belong together: give both, or none and nothing is signed")
    try:
        return Signer.of_pem(Path(options.key).read_bytes(), Path(options.certificate).read_bytes())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--key, --certificate: {error}") from None


def _certificate(path: str | None) -> x509.Certificate | None:
    try:
        return None if path is None else x509.load_pem_x509_certificate(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--directory-certificate: {error}") from None
