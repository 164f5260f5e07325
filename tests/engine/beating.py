"""A store in memory whose workers have heartbeats and a watchdog, as those of real databases."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from batuta.errors import StoreUnavailable
from batuta.journal.records import Pulse, WorkerInfo
from batuta.journal.store import Heartbeat
from batuta.stores.memory import MemoryDatabase, MemoryStore
from tests.engine.arena import until


class WatchedHeart:
    """Counts beats, and fails while its store is away."""

    def __init__(self, heartbeat: Heartbeat, store: "BeatingStore") -> None:
        self._heartbeat, self._store = heartbeat, store

    async def beat(self, worker: WorkerInfo, *, reap: bool) -> Pulse:
        if self._store.away:
            raise StoreUnavailable("the network is still asleep")
        if self._store.broken:
            raise RuntimeError("a bug in the driver")
        pulse = await self._heartbeat.beat(worker, reap=reap)
        if self._store.unreadable:
            raise RuntimeError("a bug in the driver")
        self._store.beats += 1
        return pulse

    async def reap(self, worker_ids: Sequence[str]) -> int:
        return await self._heartbeat.reap(worker_ids)


class BeatingStore(MemoryStore):
    poll_seconds: float | None = 0.02

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        self.database = database or MemoryDatabase()
        super().__init__(self.database)
        self.beats = 0
        self.away = self.broken = self.unreadable = False

    @asynccontextmanager
    async def heartbeat(self, worker_id: str) -> AsyncIterator[Heartbeat]:
        async with super().heartbeat(worker_id) as heartbeat:
            yield WatchedHeart(heartbeat, self)

    async def after_beats(self, count: int) -> None:
        """Wait for so many more heartbeats."""
        wanted = self.beats + count

        async def reached() -> bool:
            return self.beats >= wanted

        await until(reached)
