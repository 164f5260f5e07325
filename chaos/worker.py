"""A worker process that the tester may kill, stop and starve: `python -m chaos.worker JOB`, the job as JSON.

It prints `ready` when its worker is registered and `done` when all that it was to start has ended. SIGTERM is a
graceful stop. It ends with its parent, however that one ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from batuta import Workflow
from batuta.authoring.client.handle import Handle
from batuta.client import Batuta
from batuta.clock import SECOND, SystemClock
from batuta.connect import store_for
from batuta.engine.backend.native import NativeBackend
from batuta.errors import BatutaError, OutcomeUnknown, StoreError, StoreUnavailable
from chaos import errands, faults, flows, flows_changed, talks
from chaos.calls import PAUSE_S, TRIES, Begin, Caller, ended
from chaos.ledger import LedgerClient

log = logging.getLogger("chaos")

HOUR_S = 3_600.0
"""What the store's clock is set by, as this process sees it: forward at SIGUSR1, back at SIGUSR2."""

CODE: dict[str, Sequence[Workflow[..., Any]]] = {"first": talks.ALL, "changed": flows_changed.ALL}


class Job(Struct, kw_only=True):
    """What a worker process is to do."""

    url: str
    namespace: str
    case: str
    ledger: int
    """The ledger's port."""
    begin: list[Begin] = []
    cancel: list[str] = []
    """Runs among `begin` to be cancelled once they work."""
    found: list[str] = []
    """Runs that others started: it waits for their ends, too."""
    tail: list[Begin] = []
    """Started when the others have ended, and left to the graceful stop."""
    errands: str = ""
    """The name under which it enqueues the reference jobs; empty: it enqueues none."""
    queues: list[str] = field(default_factory=lambda: ["default", flows.THERE, errands.LIMITED])
    leave: bool = False
    """Stop when all of `begin` has ended, instead of waiting for SIGTERM."""
    code: str = "first"
    skew: float = 0.0
    """Seconds that this process's wall clock is wrong."""
    faults: str = ""
    """See `chaos.faults`."""
    verbs: str = ""
    """A file for the names of the verbs that it asks the store for; `ready` stands where it was."""


class SkewedClock(SystemClock):
    """A wall clock that is wrong."""

    def __init__(self, seconds: float) -> None:
        self._micros = round(seconds * SECOND)

    def now(self) -> int:
        return super().now() + self._micros


class Chores:
    """What the process does beside its worker: starts, talks, cancels and waits."""

    def __init__(self, job: Job, caller: Caller) -> None:
        self._job, self._caller = job, caller

    async def do(self) -> None:
        handles = await asyncio.gather(*(self._caller.start(begin) for begin in self._job.begin))
        await self._errands()
        talks = [self._caller.talk(begin.id) for begin in self._job.begin if begin.workflow == "trade"]
        await asyncio.gather(*talks, *(self._cancel(handle) for handle in handles if handle.id in self._job.cancel))
        found = (self._caller.ended(id) for id in self._job.found)
        await asyncio.gather(*(ended(handle) for handle in handles), *found)
        await asyncio.gather(*(self._caller.start(begin) for begin in self._job.tail))

    async def _errands(self) -> None:
        """Enqueue, and wait for the end of all of them."""
        name = self._job.errands
        if name:
            await asyncio.gather(*(self._caller.enqueue(id, enqueue) for id, enqueue in errands.errands(name)))
            await asyncio.gather(*(self._caller.ended(id) for id in errands.ids_of(name)))

    async def _cancel(self, handle: Handle[Any]) -> None:
        await _until_working(handle)

        async def attempt() -> None:
            await handle.cancel("chaos")

        try:
            await self._caller.recorded("cancel", handle.id, attempt, tries=1)
        except (BatutaError, TimeoutError):
            pass  # a second cancel would cancel the cleaning up: the tester looks whether the first one arrived


async def _until_working(handle: Handle[Any]) -> None:
    while True:
        try:
            described = await handle.describe()
            if described.entries >= 2 or described.closed_at is not None:
                return
        except StoreError:
            pass
        await asyncio.sleep(0.02)


async def main(job: Job) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    ledger = LedgerClient(job.ledger, job.case)
    store = store_for(job.url, namespace=job.namespace)
    if job.faults:
        faults.arm(store, job.faults)
    if job.verbs:
        faults.count(store, Path(job.verbs))
    loop.add_signal_handler(signal.SIGUSR1, store.shift_clock, HOUR_S)
    loop.add_signal_handler(signal.SIGUSR2, store.shift_clock, -HOUR_S)
    client = Batuta(NativeBackend(store, SkewedClock(job.skew)), store.open, store.close)
    async with AsyncExitStack() as stack:
        await _enter(stack, lambda: client)
        effects, jobs = flows.Effects(ledger), errands.Errands(ledger)
        queues = [errands.LIMITS if name == errands.LIMITED else name for name in job.queues]
        await _enter(
            stack,
            lambda: client.worker(workflows=CODE[job.code], activities=[effects], jobs=[jobs], queues=queues),
        )
        _say("ready")
        if job.verbs:
            with Path(job.verbs).open("a") as file:
                file.write("ready\n")
        await _work(job, Chores(job, Caller(client, ledger)), stop)


async def _work(job: Job, chores: Chores, stop: asyncio.Event) -> None:
    """Do the chores, then wait to be told to stop, if that is the job."""
    doing = asyncio.create_task(chores.do())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if doing.done():
        doing.result()
        _say("done")
        if not job.leave:
            await stopped
    doing.cancel()
    stopped.cancel()


async def _enter(stack: AsyncExitStack, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
    """Enter a context; as a supervisor would, again when the database is away."""
    for _ in range(TRIES):
        try:
            await stack.enter_async_context(make())
            return
        except (StoreUnavailable, OutcomeUnknown) as error:
            log.warning("cannot begin: %s", error)
            await asyncio.sleep(PAUSE_S)
    raise StoreUnavailable("the database stayed away")


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    _end_with_parent()
    logging.basicConfig(
        level=os.environ.get("BATUTA_LOG_LEVEL", "INFO"), format="%(relativeCreated)d %(name)s %(message)s"
    )
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Job)))
