"""What the suite's tests are made of: workers, runs and an owner's pen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from batuta.clock import SECOND
from batuta.ids import RunId, new_run_id, new_worker_id
from batuta.journal.entries import Body, Entry, EntryKind, encode_entry
from batuta.journal.process_identity import this_process
from batuta.journal.records import (
    Attempt,
    Change,
    Effects,
    Message,
    MessageKind,
    Move,
    NewRun,
    Pulse,
    Refusal,
    StoredRun,
    Verdict,
    WorkerInfo,
)
from batuta.journal.states import RunState
from batuta.journal.store import Store

LEASE_SECONDS = 10

Answer = Verdict | list[Refusal]
"""What a commit says to a change that is not durable as asked."""


class MakeStore(Protocol):
    """Gives a new store object, opened, on the database of this test."""

    async def __call__(self, namespace: str = "default") -> Store: ...


@asynccontextmanager
async def making(new: Callable[[str], Store], *, migrate: bool = False) -> AsyncIterator[MakeStore]:
    """For the fixture `make_store`: `new` gives a store object for a namespace. All that were opened are closed."""
    opened: list[Store] = []

    async def make(namespace: str = "default") -> Store:
        store = new(namespace)
        if migrate:
            await store.migrate()
        await store.open()
        opened.append(store)
        return store

    yield make
    for store in opened:
        await store.close()


def new_run(id: str | None = None, **options: Any) -> NewRun:
    """A run to start, of workflow "flow" unless `name` says otherwise."""
    run_id = new_run_id()
    settings: dict[str, Any] = {"name": "flow", "start": '{"value":["first"]}'} | options
    return NewRun(run_id=run_id, id=id or f"run-{run_id}", **settings)


def worker_info(**options: Any) -> WorkerInfo:
    """A worker for "flow" on the default queue, unless `options` say otherwise."""
    settings: dict[str, Any] = {"queues": ["default"], "code": {"flow": "v1"}, "lease": LEASE_SECONDS * SECOND}
    return WorkerInfo(worker_id=new_worker_id(), **(settings | options))


def ended_process() -> str:
    """A process of this machine that has ended: its number is another's by now."""
    return f"{this_process().rpartition(' ')[0]} 0"


def signal(message_id: str, body: str = "null", name: str = "go") -> Message:
    return Message(message_id=message_id, kind=MessageKind.SIGNAL, name=name, body=body)


async def live_worker(store: Store, **options: Any) -> WorkerInfo:
    """A registered worker."""
    worker = worker_info(**options)
    await store.register(worker)
    return worker


async def dead_worker(store: Store, **options: Any) -> WorkerInfo:
    """A registered worker that has let go of its lock without a word."""
    worker = await live_worker(store, **options)
    await let_go(store, worker)
    return worker


async def let_go(store: Store, worker: WorkerInfo) -> None:
    """As the system does for one that died."""
    async with store.heartbeat(worker.worker_id):
        pass


async def beat(store: Store, worker: WorkerInfo, *, reap: bool = False) -> Pulse:
    """One heartbeat in a session of its own."""
    async with store.heartbeat(worker.worker_id) as heartbeat:
        return await heartbeat.beat(worker, reap=reap)


async def outlive_lease(*stores: Store) -> None:
    """Let every lease be over: move the clocks of these stores past it."""
    for store in stores:
        store.shift_clock(LEASE_SECONDS + 1)


class Pen:
    """Writes a run's tape as its owner does, and remembers where it stands."""

    def __init__(self, run_id: RunId, epoch: int, head: int = -1, last: Entry | None = None) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self.head = head
        self.last = last

    @classmethod
    def of(cls, stored: StoredRun) -> Pen:
        return cls(stored.run.run_id, stored.run.epoch, stored.run.head, stored.entries[-1] if stored.entries else None)

    def entries(self, count: int, kind: EntryKind = EntryKind.ACTIVITY_DONE, text: str = "x") -> list[Entry]:
        """The next entries of the tape, not yet written."""
        made: list[Entry] = []
        crc, at = (self.last.crc, self.last.at) if self.last else (0, 1_000)
        for number in range(self.head + 1, self.head + 1 + count):
            entry = encode_entry(number, kind, at + 1, Body(seq=number, name=text), crc)
            made.append(entry)
            crc, at = entry.crc, entry.at
        return made

    def change(
        self,
        count: int = 1,
        *,
        start: NewRun | None = None,
        move: Move | None = None,
        consumed: Sequence[str] = (),
        attempts: Sequence[Attempt] = (),
        effects: Effects | None = None,
        text: str = "x",
    ) -> Change:
        """The owner's next change, not yet committed."""
        return Change(
            run_id=self.run_id,
            epoch=self.epoch,
            head=self.head,
            entries=self.entries(count, EntryKind.STARTED if start else EntryKind.ACTIVITY_DONE, text),
            start=start,
            consumed=tuple(consumed),
            attempts=tuple(attempts),
            move=move,
            effects=effects,
        )

    def wrote(self, change: Change) -> None:
        """The change is durable: go on behind it."""
        self.head = change.new_head
        self.last = change.entries[-1] if change.entries else self.last

    async def write(self, store: Store, worker: WorkerInfo, count: int = 1, **parts: Any) -> Answer | None:
        """Commit the next change alone; what the store says to it, None when it is durable as asked."""
        change = self.change(count, **parts)
        answer = (await store.commit(worker.worker_id, [change])).get(0)
        if not isinstance(answer, Verdict):
            self.wrote(change)
        return answer

    async def release(self, store: Store, worker: WorkerInfo, wake_at: int | None = None, count: int = 0) -> None:
        """Hand the run back."""
        assert await self.write(store, worker, count, move=Move(RunState.WAITING, wake_at=wake_at)) is None


async def start_owned(store: Store, worker: WorkerInfo, id: str | None = None, **options: Any) -> Pen:
    """A run that its worker began itself, with one entry."""
    run = new_run(id, **options)
    pen = Pen(run.run_id, epoch=1)
    assert await pen.write(store, worker, start=run) is None
    return pen


async def claimed(
    store: Store, worker: WorkerInfo, limit: int = 100, room: Mapping[str, int] | None = None
) -> list[StoredRun]:
    """What a claim brings."""
    return (await store.claim(worker, limit, room)).stored_runs


async def claim_one(store: Store, worker: WorkerInfo) -> StoredRun:
    """The one run that is due."""
    stored_runs = await claimed(store, worker, 10)
    assert len(stored_runs) == 1
    return stored_runs[0]


async def inbox(store: Store, pen: Pen) -> list[str]:
    """Ids of the unread messages of a run's chain."""
    return [message.message_id for message in (await store.load(pen.run_id)).messages]
