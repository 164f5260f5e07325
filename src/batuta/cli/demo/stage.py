"""The demo's place: a folder with a database and a ledger, and worker processes that come and go."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from pathlib import Path

from batuta.authoring.backend import JournalLine
from batuta.cli.demo.ledger import Event, read_ledger
from batuta.cli.demo.orders import LEDGER, Order
from batuta.client import Batuta
from batuta.connect import connect
from batuta.errors import RunNotCompleted
from batuta.journal.states import CLOSED

NAMESPACE = "demo"
ORDERS = {
    "order-1001": Order("lamp", 2, 9_900, "4000 1234"),
    "order-1002": Order("chair", 1, 25_000, "4000 0000"),
}
"""One order that succeeds, and one whose card is declined."""


class Stage:
    """Where the demo plays."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'demo.db'}"
        self.ledger = folder / "ledger.jsonl"
        self._folder = folder
        self._workers: list[Process] = []

    def client(self) -> Batuta:
        return connect(self.url, namespace=NAMESPACE)

    async def hire(self) -> Process:
        """Start a worker process like any other: `batuta worker --app MODULE:ATTR`."""
        log = self._folder / f"worker-{len(self._workers) + 1}.log"
        command = [
            "-m",
            "batuta",
            "worker",
            "--app",
            "batuta.cli.demo.orders:app",
            "--url",
            self.url,
            "--namespace",
            NAMESPACE,
        ]
        with log.open("wb") as stderr:
            worker = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                stderr=stderr,
                stdout=stderr,
                env={**os.environ, LEDGER: str(self.ledger)},
                start_new_session=True,  # Ctrl-C is for the demo, which then ends its workers itself
            )
        self._workers.append(worker)
        return worker

    async def dismiss(self) -> None:
        """End what still runs, in order."""
        for worker in self._workers:
            if worker.returncode is None:
                worker.send_signal(signal.SIGTERM)
        await asyncio.gather(*(worker.wait() for worker in self._workers))

    def crashed(self) -> str:
        """The log of a worker that ended unexpectedly; empty when none did."""
        for number, worker in enumerate(self._workers, start=1):
            if worker.returncode not in (None, 0, -signal.SIGKILL):
                return (self._folder / f"worker-{number}.log").read_text()
        return ""

    def events(self) -> list[Event]:
        return read_ledger(self.ledger)

    async def journals(self, client: Batuta) -> dict[str, list[JournalLine]]:
        return {id: await (await client.get(id)).journal() for id in ORDERS}

    async def closed(self, client: Batuta) -> bool:
        """Whether all orders have ended."""
        states = [(await (await client.get(id)).describe()).state for id in ORDERS]
        return all(state in CLOSED for state in states)

    async def endings(self, client: Batuta) -> dict[str, str]:
        """The outcome of each order."""
        found = {}
        for id in ORDERS:
            try:
                found[id] = "completed: " + await (await client.get(id)).result(5)
            except RunNotCompleted as error:
                found[id] = f"{error.state}: {error.__cause__ or error}"
        return found
