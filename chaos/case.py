"""One case: a place, its ledger, the processes on it, and the tester's own hand on the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from batuta.authoring.client.handle import Handle
from batuta.client import Batuta
from batuta.clock import SECOND
from batuta.connect import store_for
from batuta.engine.backend.native import NativeBackend
from batuta.errors import RunClosed, StoreError
from batuta.ids import new_worker_id
from batuta.journal.entries import EntryKind
from batuta.journal.records import MessageKind, Run, RunFilter, WorkerInfo
from batuta.journal.states import OPEN, PARKED, RunState
from batuta.testing.conformance.kit import ended_process
from chaos import flows
from chaos.calls import Begin, Caller
from chaos.ledger import Account
from chaos.places import Place
from chaos.process import Crew, TooSlow, WorkerProcess, until
from chaos.worker import Job

LEASE_S, HEARTBEAT_S, GRACE_S = 1.5, 0.3, 0.2
SETTINGS = {
    "BATUTA_LEASE": str(LEASE_S),
    "BATUTA_HEARTBEAT": str(HEARTBEAT_S),
    "BATUTA_DETECTION_GRACE": str(GRACE_S),
    "BATUTA_KEEP_IN_MEMORY": str(flows.KEEP_IN_MEMORY_S),
    "BATUTA_GRACE": "20",
}
"""Everything happens within seconds, so that thousands of cases fit into minutes."""
LOOK_EVERY_S = 0.05
PATIENCE_S = 100.0
UNFINISHED = tuple(sorted(OPEN - PARKED))
"""What is neither closed nor parked."""


class Case:
    """An async context manager. `name` names the ledger's file and the logs."""

    def __init__(self, name: str, place: Place, crew: Crew, *, answers: bool = True) -> None:
        """`answers`: complete activities that wait for an answer from outside."""
        self._answers = answers
        self.name, self.place, self.crew = name, place, crew
        self.store = store_for(place.url, namespace=place.namespace)
        self.client = Batuta(NativeBackend(self.store), self.store.open, self.store.close)
        self.ledger = crew.client(name)
        self.caller = Caller(self.client, self.ledger)
        self.processes: list[WorkerProcess] = []
        self._account = Account([])
        self._answering: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        if self._answers:
            self._answering = asyncio.create_task(self._answer())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait({self._answering})
        self.ledger.close()
        await self.client.__aexit__(None, None, None)

    @property
    def account(self) -> Account:
        """What the ledger has by now."""
        self._account = self._account.refreshed(self.crew.books, self.name)
        return self._account

    # -- before

    async def start(self, workflow: str, id: str, *args: Any) -> None:
        """Start a run from outside: it waits in the queue."""
        await self.caller.start(Begin(workflow, id, list(args)), tries=1)

    async def leave_orphan(self, id: str, workflow: str = "order") -> None:
        """A run whose owner is gone: registered, claimed, never heard of again."""
        await self.start(workflow, id, id)
        ghost = WorkerInfo(
            worker_id=new_worker_id(),
            queues=["default"],
            code={workflow: "unknown"},
            process=ended_process(),
            lease=round(LEASE_S * SECOND),
        )
        await self.store.register(ghost)
        async with self.store.heartbeat(ghost.worker_id):
            pass  # its lock is free again, as the system frees that of a process which died
        await self.store.claim(ghost, 1)

    # -- meanwhile

    def worker(self, env: Mapping[str, str] | None = None, *, under: Sequence[str] = (), **job: Any) -> WorkerProcess:
        """A worker process on this place, `under` another program if need be."""
        place = self.place
        task = Job(url=place.url, namespace=place.namespace, case=self.name, ledger=self.crew.port, **job)
        process = self.crew.worker(task, SETTINGS | dict(env or {}), under)
        self.processes.append(process)
        return process

    async def _answer(self) -> None:
        """Complete the activities that wait for an answer from outside, as a person would: once each."""
        answered: set[str] = set()
        while True:
            for asked in self.account.effects("token"):
                if asked.text not in answered:
                    self.ledger.write("end", key=asked.key, name=asked.name, run=asked.run, attempt=asked.attempt)
                    if await self.caller.complete(asked):
                        answered.add(asked.text)
            await asyncio.sleep(LOOK_EVERY_S)

    async def runs(self, where: RunFilter | None = None) -> list[Run]:
        """All runs, newest first."""
        found: list[Run] = []
        cursor: str | None = None
        while True:
            page = await self.store.list_runs(where or RunFilter(), cursor, 500)
            found += page.runs
            cursor = page.cursor
            if cursor is None:
                return found

    async def until_recorded(self, what: str, count: int, seconds: float = PATIENCE_S) -> None:
        """Wait until the ledger has so many effects."""
        await until(lambda: len(self.account.effects(what)) >= count, seconds, f"{count} times {what}")

    async def settled(
        self,
        ids: Sequence[str],
        cancel: Sequence[str] = (),
        seconds: float = PATIENCE_S,
        states: Sequence[RunState] = UNFINISHED,
    ) -> None:
        """Wait until all these runs are there and none is in one of `states`. Cancels what nobody has cancelled.

        Raises TooSlow, which names what is still open.
        """
        deadline = time.monotonic() + seconds
        waiting = set(cancel)
        while True:
            began = time.monotonic()
            unfinished, missing = await self._unfinished(ids, states)
            if not unfinished and not missing:
                return
            waiting -= {id for id in waiting if await self._cancelled(id)}
            if time.monotonic() > deadline:
                open_runs = await self.runs(RunFilter(states=tuple(states)))
                raise TooSlow(f"after {seconds:g} s: missing {missing}, open {[_told(run) for run in open_runs]}")
            self._complain_about_the_dead()
            # Those who look must not take the time of those who work.
            await asyncio.sleep(max(LOOK_EVERY_S, 3 * (time.monotonic() - began)))

    async def ended(self, process: WorkerProcess, cancel: Sequence[str] = (), seconds: float = PATIENCE_S) -> int:
        """Wait for the end of a worker; meanwhile cancel what it failed to cancel."""
        deadline = time.monotonic() + seconds
        waiting = set(cancel)
        while process.code is None:
            waiting -= {id for id in waiting if await self._cancelled(id)}
            if time.monotonic() > deadline:
                raise TooSlow(f"worker {process.pid} did not end within {seconds:g} s:\n{process.log()}")
            await asyncio.sleep(LOOK_EVERY_S)
        return process.code

    def _complain_about_the_dead(self) -> None:
        """A worker that ended by an error of its own will not finish anything."""
        for process in self.processes:
            if process.code is not None and process.code > 0:
                raise TooSlow(f"worker {process.pid} ended with {process.code}:\n{process.log()}")

    async def _unfinished(self, ids: Sequence[str], states: Sequence[RunState]) -> tuple[int, list[str]]:
        """How many are, counted and not read: there may be thousands. If none is, which are not there."""
        try:
            if unfinished := await self.store.count_runs(RunFilter(states=tuple(states))):
                return unfinished, []
            there = {run.id for run in await self.runs()}
            missing = [id for id in ids if id not in there]
            # Once more: what was enqueued between those two looks is there, and was not counted.
            return 0 if missing else await self.store.count_runs(RunFilter(states=tuple(states))), missing
        except StoreError as error:
            return 0, [str(error)]

    async def _cancelled(self, id: str) -> bool:
        """Cancel the run unless a cancel has reached it; True when nothing is left to do."""
        if self._others_will_cancel(id):
            return False
        if any(record.key == id for record in self.account.calls("cancel", "ok")):
            return True
        try:
            run = await self.store.get(id)
            stored = await self.store.load(run.run_id)
            if run.closed_at is not None or any(e.kind is EntryKind.CANCEL_REQUESTED for e in stored.entries):
                return True
            if any(message.kind is MessageKind.CANCEL for message in stored.messages):
                return False
            if len(stored.entries) < 2:
                return False
            handle: Handle[Any] = await self.client.get(id)
            self.ledger.write("invoke", op="cancel", key=id)
            await handle.cancel("chaos")
            self.ledger.write("ok", op="cancel", key=id)
        except (StoreError, LookupError, RunClosed):
            return False
        return True

    def _others_will_cancel(self, id: str) -> bool:
        """Whether a worker has the duty and has not tried yet."""
        if any(
            record.op == "cancel" and record.key == id and record.what != "invoke" for record in self.account.records
        ):
            return False
        return any(
            id in process.job.cancel and process.code is None and not process.is_stopped() for process in self.processes
        )


def _told(run: Run) -> str:
    return f"{run.id}={run.state} head {run.head} epoch {run.epoch} owner {run.owner} wake_at {run.wake_at}"


def reference_begin() -> list[Begin]:
    """What the victim of a sweep starts itself."""
    begun = [("order", "begun"), ("hold", "held"), ("trade", "traded")]
    return [Begin(workflow, id, [id]) for workflow, id in begun]


def reference_tail() -> list[Begin]:
    """What is under way when it stops."""
    return [Begin("steps", "tail-steps", ["tail-steps", 3, 0.05]), Begin("waits", "tail-waits", ["tail-waits", 0.2])]
