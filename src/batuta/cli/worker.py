"""`batuta worker`: a process that executes the runs of a module's code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import click

from batuta.authoring.definitions import activities_of
from batuta.authoring.middleware import Middleware
from batuta.authoring.queues import Queue
from batuta.cli.common.app_loading import load_app
from batuta.cli.common.event_loop import run
from batuta.cli.common.logs import LEVELS, log_to_stderr
from batuta.cli.common.options import CommonOptions, app_option, duration_option, print_json, with_common_options

log = logging.getLogger("batuta.worker")


@click.command()
@app_option("A module, or a batuta.App in it.", required=True)
@click.option("--queue", "-q", "queues", multiple=True, metavar="NAME", help="Serve only this queue; repeatable.")
@duration_option("--grace", "How long a stop waits for activities.  [default: 30s]")
@click.option("--no-migrate", is_flag=True, help="Do not create or change tables.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    envvar="BATUTA_METRICS_PORT",
    show_envvar=True,
    metavar="N",
    help="Serve metrics for Prometheus at this port; 0: any that is free.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    envvar="BATUTA_METRICS_HOST",
    show_envvar=True,
    show_default=True,
    metavar="ADDRESS",
    help="Where they are served.",
)
@click.option("--log-level", type=click.Choice(LEVELS), help="[env: BATUTA_LOG_LEVEL; default: info]")
@with_common_options
def worker(
    common: CommonOptions,
    app: str,
    queues: tuple[str, ...],
    grace: float | None,
    no_migrate: bool,
    metrics_port: int | None,
    metrics_host: str,
    log_level: str | None,
) -> None:
    """Run a worker for the workflows, jobs and activities of MODULE until you stop it.

    MODULE alone takes everything decorated at its top level. ATTR is a batuta.App, or a function that returns one (it
    may be async, or an async context manager).

    SIGTERM or SIGINT stops the worker: it releases idle runs, waits for activities in flight, and ends. A second signal
    ends it at once; interrupted activities run again elsewhere. Settings come from BATUTA_ variables.
    """
    log_to_stderr(log_level)
    with _metrics(metrics_port, metrics_host) as middleware:
        document = run(_work(common, app, queues, grace, middleware, migrate=not no_migrate))
    if common.as_json:
        print_json(document)
    _leave_threads_behind()


@contextmanager
def _metrics(port: int | None, host: str) -> Iterator[list[Middleware]]:
    """Serves metrics, and gives the middleware that makes them; without a port none."""
    if port is None:
        yield []
        return
    from batuta.metrics import Metrics, expose

    metrics = Metrics()
    with expose(metrics, port, host=host):
        yield [metrics]


async def _work(
    common: CommonOptions,
    target: str,
    queues: Sequence[str],
    grace: float | None,
    middleware: Sequence[Middleware],
    *,
    migrate: bool,
) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        app = await load_app(target, stack)
        client = await stack.enter_async_context(common.client(migrate=migrate, middleware=middleware))
        declared = {one.name if isinstance(one, Queue) else one: one for one in app.queues}
        chosen = {name: declared.get(name, name) for name in queues or declared}
        worker: Any = client.worker(
            workflows=app.workflows,
            activities=app.activities,
            jobs=app.jobs,
            queues=[*chosen.values()],
            schedules=app.schedules,
            on_dead_letter=app.on_dead_letter,
            retention=app.retention,
            middleware=app.middleware,
            subscriptions=app.subscriptions,
            webhooks=app.webhooks,
            flows=app.flows,
        )
        names = sorted(one.name for one in app.workflows)
        asked = _stop_signals()
        await worker.start()
        jobs = sorted(one.name for thing in app.jobs for one in activities_of(thing))
        log.info("serving %s: %s", _listed("queue", chosen), _work_of(names, jobs, ["flows"] if app.flows else []))
        await asked[0].wait()
        drained = await _stop(worker, grace, asked[1])
        log.info("left %s", "in order" if drained else "at once; interrupted activities will run elsewhere")
        return {"queues": [*chosen], "workflows": names, "jobs": jobs, "drained": drained}


def _work_of(workflows: Sequence[str], jobs: Sequence[str], more: Sequence[str]) -> str:
    """`workflow order; jobs bill, mail; flows`."""
    said = [_listed(kind, names) for kind, names in (("workflow", workflows), ("job", jobs)) if names]
    return "; ".join([*said, *more]) or "activities alone"


def _listed(what: str, names: Iterable[str]) -> str:
    found = list(names)
    return f"{what}{'' if len(found) == 1 else 's'} {', '.join(found)}"


def _stop_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Set by the first and by the second signal to stop."""
    events = asyncio.Event(), asyncio.Event()

    def on_signal(name: str) -> None:
        if events[0].is_set():
            log.warning("%s again: stopping at once", name)
            events[1].set()
        else:
            log.info("%s: stopping; signal again to stop at once", name)
            events[0].set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    return events


async def _stop(worker: Any, grace: float | None, now: asyncio.Event) -> bool:
    """Drain; when `now` is set, no longer. Returns whether it was drained in peace."""
    stopping = asyncio.ensure_future(worker.stop(grace))
    impatient = asyncio.ensure_future(now.wait())
    await asyncio.wait({stopping, impatient}, return_when=asyncio.FIRST_COMPLETED)
    impatient.cancel()
    drained: bool = stopping.done()
    if not drained:
        await worker.stop()  # once more: no longer
    await stopping
    return drained


def _leave_threads_behind() -> None:
    """Python would wait at exit for activities that run in threads, however long: the stop has waited enough."""
    busy = [t for t in threading.enumerate() if t is not threading.current_thread() and not t.daemon]
    for thread in busy:
        thread.join(0.5)
    if any(thread.is_alive() for thread in busy):
        log.warning("activities in threads were interrupted; they will run again elsewhere")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)
