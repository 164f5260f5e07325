"""Everything at once: clients start, cancel and terminate; workers are killed, stopped, drained and delayed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from batuta.authoring.client.handle import Handle
from batuta.errors import BatutaError
from batuta.failpoints import SITES
from chaos.case import LEASE_S, Case
from chaos.errands import LIMITED, errands, made_by
from chaos.flows import THERE
from chaos.places import StoreKind
from chaos.process import WorkerProcess
from chaos.report import Tally
from chaos.stage import Stage, finish, poisoned

WORKERS = 3
ERRANDS = "errands"
"""No workflow: all the reference jobs."""
PATIENCE_S = 90.0
KINDS: list[tuple[str, Callable[[str], list[Any]]]] = [
    ("order", lambda id: [id]),
    ("steps", lambda id: [id, 6, 0.05]),
    ("waits", lambda id: [id, 0.7]),
    ("ticks", lambda id: [id]),
    ("hold", lambda id: [id]),
    ("patience", lambda id: [id]),
    ("trade", lambda id: [id]),
    ("trade", lambda id: [id]),
    (ERRANDS, lambda id: [id]),
]


async def storm(stage: Stage, kind: StoreKind, number: int, seconds: float, tally: Tally) -> None:
    """Faults and clients for some seconds; then calm, in which everything must end."""
    case = Case(f"{kind}-storm-{number}", await stage.places.fresh(kind), stage.crew)
    async with case:
        weather = _Weather(case, stage, tally)
        clients = _Clients(case, stage)
        until = time.monotonic() + seconds
        await asyncio.gather(weather.blow(until), clients.call(until))
        weather.calm()
        keepers = [case.worker(), case.worker()]
        talking = asyncio.create_task(clients.talk_to_all())
        await case.settled(clients.started, clients.held, seconds=PATIENCE_S)
        await talking
        for keeper in keepers:
            if (code := await keeper.stop()) != 0:
                tally.violate(case.name, f"a worker ended with {code} after the storm:\n{keeper.log()}")
        await finish(case, tally, parked=await poisoned(case, tally), exact=False)


class _Weather:
    """What happens to the workers."""

    def __init__(self, case: Case, stage: Stage, tally: Tally) -> None:
        self._case, self._chance, self._tally = case, stage.chance, tally
        self._workers: list[WorkerProcess] = []
        self._waking: list[tuple[float, WorkerProcess]] = []

    async def blow(self, until: float) -> None:
        while time.monotonic() < until:
            self._bury()
            while len(self._workers) < WORKERS:
                all_of_them = ["default", THERE, LIMITED]
                queues = self._chance.choice([all_of_them, all_of_them, ["default", LIMITED], [THERE]])
                self._workers.append(self._case.worker(self._trap(), queues=queues))
            self._strike(self._chance.choice(self._workers))
            await asyncio.sleep(self._chance.uniform(0.1, 0.6))
            self._wake()

    def _trap(self) -> dict[str, str]:
        """A failpoint for a new worker: to die, to stand still past its lease, or to be slow."""
        action = self._chance.choice(["kill", "sleep=0.4", f"sleep={LEASE_S * 1.5}", ""])
        site, nth = self._chance.choice(sorted(SITES)), self._chance.randint(1, 8)
        return {"BATUTA_FAILPOINT": f"{site}:{nth}:{action}"} if action else {}

    def _bury(self) -> None:
        for worker in [worker for worker in self._workers if worker.code is not None]:
            self._workers.remove(worker)
            self._tally.kills += worker.code == -9
            if worker.code not in (0, -9, -15):  # -15: told to stop before it could listen
                self._tally.violate(self._case.name, f"a worker ended with {worker.code}:\n{worker.log()}")

    def _strike(self, worker: WorkerProcess) -> None:
        match self._chance.choice(["kill", "stop", "stop", "drain", "spare", "spare"]):
            case "kill":
                worker.kill()
            case "stop":
                worker.pause()
                self._waking.append((time.monotonic() + self._chance.uniform(0.0, LEASE_S * 2), worker))
            case "drain":
                worker.terminate()

    def _wake(self) -> None:
        for due, worker in list(self._waking):
            if time.monotonic() >= due:
                self._waking.remove((due, worker))
                if worker.code is None:
                    worker.go_on()
                    self._tally.zombies += 1

    def calm(self) -> None:
        """Half of them live on; none stays stopped."""
        for number, worker in enumerate(self._workers):
            if worker.code is None:
                worker.go_on()
                if number % 2:
                    worker.kill()
                else:
                    worker.terminate()


class _Clients:
    """What is asked of the store, with every call in the history."""

    def __init__(self, case: Case, stage: Stage) -> None:
        self._case, self._chance = case, stage.chance
        self.started: list[str] = []
        """Acknowledged."""
        self.held: list[str] = []
        self._known: list[str] = []
        self._traded: list[str] = []
        self._talks: list[asyncio.Task[None]] = []

    async def call(self, until: float) -> None:
        while time.monotonic() < until:
            await self._start()
            if self._known and self._chance.random() < 0.1:
                await self._end(self._chance.choice(self._known))
            await asyncio.sleep(self._chance.uniform(0.0, 0.15))

    async def _start(self) -> None:
        name, arguments = self._chance.choice(KINDS)
        id = f"{name}-{len(self._known)}"
        if name == ERRANDS:
            await self._enqueue(id)
            return
        self._known.append(id)
        if name == "trade":
            self._traded.append(id)
        client = self._case.client
        if await self._recorded("start", id, lambda: client.start(name, *arguments(id), id=id)):
            self.started.append(id)
            if name == "hold":
                self.held.append(id)
            if name == "trade":
                self._talks.append(asyncio.create_task(self._case.caller.talk(id)))

    async def _enqueue(self, name: str) -> None:
        client = self._case.client
        for id, enqueue in errands(name):
            self._known.append(id)
            if await self._recorded("enqueue", id, partial(enqueue, client)):
                self.started += made_by(name, id)

    async def talk_to_all(self) -> None:
        """Say everything again, as a client would that has forgotten what it said."""
        await asyncio.gather(*self._talks, *(self._case.caller.talk(id) for id in self._traded))

    async def _end(self, id: str) -> None:
        async def terminate() -> None:
            handle: Handle[Any] = await self._case.client.get(id)
            await handle.terminate("storm")

        await self._recorded("terminate", id, terminate)

    async def _recorded(self, op: str, id: str, call: Callable[[], Awaitable[Any]]) -> bool:
        try:
            await self._case.caller.recorded(op, id, call, tries=1)
        except (BatutaError, TimeoutError):
            return False
        return True
