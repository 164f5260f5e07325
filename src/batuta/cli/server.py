"""`batuta server`: the REST API and the dashboard."""

from __future__ import annotations

import asyncio
import gc
import os
from socket import socket
from typing import Any

import click

from batuta.cli.common.lazy import FAILED
from batuta.cli.common.listening import listen
from batuta.cli.common.logs import log_to_stderr
from batuta.cli.common.options import CommonOptions, duration_option, with_common_options
from batuta.cli.common.redaction import say
from batuta.clock import SystemClock
from batuta.errors import InvalidInput, MissingExtra
from batuta.journal.queues import Rate

SECRET = "BATUTA_SERVER_SECRET"  # noqa: S105 - its name
RATE = "BATUTA_SERVER_RATE"
_SHORTEST = 32
_OBJECTS = 20_000
"""That are made before the collector looks for cycles among them."""


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    envvar="BATUTA_HOST",
    show_envvar=True,
    show_default=True,
    metavar="ADDRESS",
    help="Where to listen; others than this machine need an API key.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8288,
    envvar="BATUTA_PORT",
    show_envvar=True,
    show_default=True,
    metavar="N",
    help="0: any that is free.",
)
@duration_option("--grace", "How long requests may go on after SIGTERM.  [default: 10s]")
@with_common_options
def server(common: CommonOptions, host: str, port: int, grace: float | None) -> None:
    """Serve the REST API and the dashboard, until SIGTERM or Ctrl-C. It needs no code of workflows.

    Without any API key it listens to this machine alone: `batuta api-keys create` makes one. Put a proxy that speaks
    HTTPS in front of it. BATUTA_SERVER_SECRET signs sessions: set it to the same text, 32 characters or more, for every
    server process; without it sessions end with the process.
    """
    try:
        import uvicorn

        from batuta.metrics import Metrics
        from batuta.server import Server
        from batuta.server.access.check import is_loopback
        from batuta.server.http.connections import Connection
    except ImportError as error:
        raise MissingExtra("batuta server", "server") from error
    log_to_stderr()
    metrics = Metrics()
    client = common.client(migrate=True, middleware=[metrics])

    def connect(namespace: str) -> Any:
        return CommonOptions(common.url, namespace, common.as_json).client(middleware=[metrics])

    made = Server(client, connect=connect, secret=server_secret(), metrics=metrics, costly_rate=server_rate())
    has_key = common.ask(lambda client: client.api_keys.any(), migrate=True)  # says so when the database is away
    if not is_loopback(host) and not has_key:
        raise InvalidInput(
            f"--host {host} would let others in, and there is no API key: make one with `batuta api-keys create NAME "
            f"--scope admin`, or leave --host out"
        )
    config = uvicorn.Config(
        made.application,
        log_config=None,
        access_log=False,
        server_header=False,
        http=Connection,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10 if grace is None else round(grace),
        h11_max_incomplete_event_size=64 * 1024,
    )
    _run(uvicorn.Server(config), listen(host, port), made)


def _run(running: Any, sockets: list[socket], made: Any) -> None:
    """Say where it listens once it does; tell it as soon as it is to end."""
    begin, end = running.startup, running.shutdown

    async def startup(sockets: Any = None) -> None:
        await begin(sockets)
        if running.started:
            _tune_collector()
            await _announce(running, made)

    async def shutdown(sockets: Any = None) -> None:
        made.drain()
        await _let_requests_end(running)
        await end(sockets)

    running.startup, running.shutdown = startup, shutdown
    running.run(sockets)
    if not running.started:
        raise SystemExit(FAILED)


async def _let_requests_end(running: Any) -> None:
    """While requests are under way others are let in, too: health checks hear that the server is about to end."""
    clock = SystemClock()
    ends = clock.monotonic() + running.config.timeout_graceful_shutdown
    while (tasks := running.server_state.tasks) and not running.force_exit and clock.monotonic() < ends:
        await asyncio.wait(tasks, timeout=0.05)
    running.config.timeout_graceful_shutdown = max(1, round(ends - clock.monotonic()))


def _tune_collector() -> None:
    """A page of runs is hundreds of objects and no cycle: by default the collector would look for one every third
    request, and at all modules every few hundred."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(_OBJECTS, gc.get_threshold()[0]))


async def _announce(running: Any, made: Any) -> None:
    host, port = running.servers[0].sockets[0].getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    say(f"Batuta listens at http://{shown}:{port}/ (namespace {made.namespace})")
    if await made.sign_in() == "none":
        say(
            "there is no API key: this machine alone may ask, and may do everything (`batuta api-keys create`)",
            err=True,
        )


def server_secret() -> bytes | None:
    """What BATUTA_SERVER_SECRET says; None: sessions end with the process. Raises InvalidInput."""
    text = os.environ.get(SECRET, "")
    if text and len(text) < _SHORTEST:
        raise InvalidInput(f"{SECRET} must have {_SHORTEST} characters or more: a shorter one can be guessed")
    return text.encode() or None


def server_rate() -> Rate | None:
    """BATUTA_SERVER_RATE: costly requests with one key; None: the server's own rate. Raises InvalidInput."""
    text = os.environ.get(RATE, "")
    try:
        return Rate.parse(text) if text else None
    except InvalidInput as error:
        raise InvalidInput(f"{RATE}: {error}") from error
