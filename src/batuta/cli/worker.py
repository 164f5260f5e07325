"""`batuta worker`: a process that runs what a module defines."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import click

from batuta.authoring.queues import Queue
from batuta.cli.fastloop import run
from batuta.cli.loading import load_app
from batuta.cli.logs import LEVELS, log_to_stderr
from batuta.cli.place import Place, placed, print_json

log = logging.getLogger("batuta.worker")


@click.command()
@click.argument("target", metavar="MODULE[:ATTR]")
@click.option("--queue", "-q", "queues", multiple=True, metavar="NAME", help="Work on this queue alone; repeatable.")
@click.option("--grace", type=click.FloatRange(min=0), metavar="SECONDS", help="How long a stop waits.  [default: 30]")
@click.option("--no-migrate", is_flag=True, help="Leave the tables as they are.")
@click.option("--log-level", type=click.Choice(LEVELS), help="[env: BATUTA_LOG_LEVEL; default: info]")
@placed
def worker(
    place: Place, target: str, queues: tuple[str, ...], grace: float | None, no_migrate: bool, log_level: str | None
) -> None:
    """Run the workflows and activities of MODULE until told to stop.

    MODULE alone gives all that is decorated at its top. ATTR is a batuta.App, or a function that returns one (it may
    be async, or an async context manager).

    SIGTERM or SIGINT: hand back what is idle, wait for activities in flight, leave. Once more: leave now; what was in
    flight runs elsewhere. Settings come from BATUTA_ variables.
    """
    log_to_stderr(log_level)
    document = run(_work(place, target, queues, grace, migrate=not no_migrate))
    if place.as_json:
        print_json(document)
    _leave_threads_behind()


async def _work(
    place: Place, target: str, queues: Sequence[str], grace: float | None, *, migrate: bool
) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        app = await load_app(target, stack)
        client = await stack.enter_async_context(place.client(migrate=migrate))
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
        )
        asked = _stop_signals()
        await worker.start()
        log.info("working on %s: %s", ", ".join(chosen), ", ".join(sorted(w.name for w in app.workflows)) or "nothing")
        await asked[0].wait()
        drained = await _stop(worker, grace, asked[1])
        log.info("left %s", "in order" if drained else "at once; what was in flight will run elsewhere")
        return {"queues": [*chosen], "workflows": sorted(w.name for w in app.workflows), "drained": drained}


def _stop_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Set by the first and by the second signal to stop."""
    events = asyncio.Event(), asyncio.Event()

    def on_signal(name: str) -> None:
        if events[0].is_set():
            log.warning("%s again: leaving now", name)
            events[1].set()
        else:
            log.info("%s: stopping", name)
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
        log.warning("activities in threads were cut off; they will run again elsewhere")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)
