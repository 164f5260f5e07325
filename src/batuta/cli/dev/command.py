"""`batuta dev`: a worker, the API and the dashboard in one process."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from socket import socket
from typing import Any

import click

from batuta.app import App
from batuta.cli.common.app_loading import load_app
from batuta.cli.common.event_loop import run
from batuta.cli.common.listening import listen
from batuta.cli.common.logs import log_to_stderr
from batuta.cli.common.options import CommonOptions, app_option, with_common_options
from batuta.cli.common.redaction import say
from batuta.cli.dev import reload
from batuta.errors import MissingExtra

TOUR = "batuta.cli.dev.tour:APP"


@click.command()
@click.argument("module", required=False, metavar="[MODULE[:ATTR]]")
@app_option("The code to run: the same as the argument MODULE[:ATTR].")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8288, show_default=True, metavar="N", help="0: any that is free."
)
@click.option("--no-reload", is_flag=True, help="Do not begin again when the code changes.")
@with_common_options
def dev(common: CommonOptions, module: str | None, app: str | None, port: int, no_reload: bool) -> None:
    """Run the code of a module, or of an App in it, with an API and a dashboard at http://127.0.0.1:8288/.

    It is one process, and begins again when a file of the code changes. Without code: a tour with sample workflows, on
    a database of its own that is gone at the end. It listens to this machine alone.
    """
    if module and app:
        raise click.UsageError(f"{module} and --app {app} both name the code: give one of them")
    log_to_stderr("warning")
    with suppress(KeyboardInterrupt):  # uvicorn raises it once more when it has ended in order
        _until_it_ends(common, module or app, port, no_reload)


def _until_it_ends(common: CommonOptions, app: str | None, port: int, no_reload: bool) -> None:
    if app is None and common.url is None:
        with tempfile.TemporaryDirectory(prefix="batuta-tour-") as folder:
            tour = CommonOptions(f"sqlite:///{folder}/tour.db", common.namespace, common.as_json)
            run(_serve(tour, TOUR, port, None))
        return
    watch = None if no_reload or app is None else Path.cwd()
    if run(_serve(common, app or TOUR, port, watch)):
        reload.begin_again()


async def _serve(common: CommonOptions, target: str, port: int, watch: Path | None) -> bool:
    """Whether it is to begin again, because the code changed."""
    try:
        import uvicorn

        from batuta.metrics import Metrics
        from batuta.server import Server
        from batuta.server.http.connections import Connection
    except ImportError as error:
        raise MissingExtra("batuta dev", "server") from error
    async with AsyncExitStack() as stack:
        sockets = listen("127.0.0.1", port)
        for one in sockets:
            stack.callback(one.close)
        app = await load_app(target, stack)
        metrics = Metrics()
        client = await stack.enter_async_context(common.client(migrate=True, middleware=[metrics]))
        await stack.enter_async_context(_worker(client, app))

        def connect(name: str) -> Any:
            return CommonOptions(common.url, name, False).client(middleware=[metrics])

        made = Server(client, connect=connect, metrics=metrics)
        stack.push_async_callback(made.close)
        config = uvicorn.Config(
            made.serve,
            interface="asgi3",
            lifespan="off",
            http=Connection,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=2,
        )
        if target == TOUR:
            from batuta.cli.dev.tour import begin

            await begin(client)
        return await _run(uvicorn.Server(config), sockets, made, app, watch)


def _worker(client: Any, app: App) -> Any:
    return client.worker(
        workflows=app.workflows,
        activities=app.activities,
        jobs=app.jobs,
        queues=app.queues,
        schedules=app.schedules,
        on_dead_letter=app.on_dead_letter,
        retention=app.retention,
        middleware=app.middleware,
        subscriptions=app.subscriptions,
        webhooks=find_spec("httpcore2") is not None,  # of the extra webhooks
        flows=app.flows,
        grace=2.0,
    )


async def _run(running: Any, sockets: list[socket], made: Any, app: App, watch: Path | None) -> bool:
    """Until Ctrl-C, or until the code changes."""
    serving = asyncio.ensure_future(running.serve(sockets))
    watching = asyncio.ensure_future(asyncio.Event().wait() if watch is None else _changed(watch))
    while not running.started and not serving.done():  # uvicorn has no event for it
        await asyncio.wait({serving}, timeout=0.01)
    if running.started:
        host, at = running.servers[0].sockets[0].getsockname()[:2]
        names = sorted(one.name for one in app.workflows) + (["flows"] if app.flows else [])
        say(f"Batuta listens at http://{host}:{at}/ (workflows: {', '.join(names) or 'none'}); Ctrl-C ends it")
    await asyncio.wait({serving, watching}, return_when=asyncio.FIRST_COMPLETED)
    again = watching.done()
    made.drain()
    running.should_exit = True
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    await serving
    return again


async def _changed(folder: Path) -> None:
    path = await reload.changed(reload.sources(folder), folder)
    say(f"{path.name} changed: beginning again", err=True)
