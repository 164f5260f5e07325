"""Whatever the disk does: what was acknowledged is durable, and what failed left nothing behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from batuta.errors import BadData, StoreError, StoreFailed, StoreFull, StoreUnavailable, UnknownRun
from batuta.failpoints import InjectedFault, arm
from batuta.journal.entries import Body, Entry, EntryKind, encode_entry
from batuta.journal.records import Attempt, Change, Message, MessageKind, Move, RunFilter, WorkerInfo
from batuta.journal.states import RunState
from batuta.stores.sqlite.database import writer
from batuta.stores.sqlite.fast import commit_closes
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import Pen, beat, claimed, live_worker, new_run, start_owned, worker_info
from batuta.testing.conformance.runs.close import last_word

ERRORS = {
    "EIO": (sqlite3.SQLITE_IOERR_WRITE, StoreFailed),
    "fsync": (sqlite3.SQLITE_IOERR_FSYNC, StoreFailed),
    "ENOSPC": (sqlite3.SQLITE_FULL, StoreFull),
    "BUSY": (sqlite3.SQLITE_BUSY, StoreUnavailable),
    "LOCKED": (sqlite3.SQLITE_LOCKED, StoreUnavailable),
    "corrupt": (sqlite3.SQLITE_CORRUPT, StoreFailed),
}


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("injected")
    error.sqlite_errorcode = code
    return error


class Faulty:
    """Raises at one step, as often as asked for."""

    def __init__(self, step: str, error: Exception, times: int = 1_000_000) -> None:
        self.step, self.error, self.times = step, error, times
        self.raised = 0

    def __call__(self, step: str) -> None:
        if step == self.step and self.raised < self.times:
            self.raised += 1
            raise self.error


class World:
    """A store with something in it, and a verb of each kind to try."""

    def __init__(self, store: SqliteStore, worker: WorkerInfo, pen: Pen) -> None:
        self.store, self.worker, self.pen = store, worker, pen
        self.new = new_run("new")
        self.recruit = worker_info()
        self.verbs: dict[str, Callable[[], Awaitable[Any]]] = {
            "start": lambda: store.start(self.new),
            "send": lambda: store.send(pen.run_id, Message(message_id="m", kind=MessageKind.SIGNAL)),
            "register": lambda: store.register(self.recruit),
            "retire": lambda: store.retire(worker.worker_id),
            "claim": lambda: claimed(store, worker, 5),
            "claim of many": self.claim_many,
            "commit": lambda: store.commit(worker.worker_id, [self.change()]),
            "commit of many": lambda: store.commit(worker.worker_id, [self.change(), *self.starts()]),
            "ends of many": self.end_many,
            "close_run": lambda: store.close_run(pen.run_id, 0, last_word(pen), RunState.TERMINATED, "x"),
            "beat": lambda: beat(store, worker, reap=True),
        }

    def change(self) -> Change:
        return self.pen.change(2, attempts=[Attempt(seq=1, number=1, started_at=1)], move=Move(RunState.COMPLETED))

    def starts(self) -> list[Change]:
        return [Pen(new.run_id, epoch=1).change(1, start=new) for new in [self.new, new_run()]]

    async def claim_many(self) -> Any:
        self.store._many_due = True  # as after a claim of many
        return await claimed(self.store, self.worker, 5)

    async def end_many(self) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commit_closes, "_MANY", 0)
            return await self.store.commit(self.worker.worker_id, [self.pen.change(move=Move(RunState.COMPLETED))])

    async def picture(self) -> Any:
        """All that can be read."""
        page = await self.store.list_runs(RunFilter())
        stored_runs = [await self.store.load(run.run_id) for run in page.runs]
        connection = sqlite3.connect(self.store.path)
        try:
            return stored_runs, connection.execute("SELECT * FROM workers").fetchall()
        finally:
            connection.close()


VERBS = [
    "start",
    "send",
    "register",
    "retire",
    "claim",
    "claim of many",
    "commit",
    "commit of many",
    "ends of many",
    "close_run",
    "beat",
]


@pytest.fixture
async def world(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(writer, "PATIENCE_SECONDS", 0.02)
    worker = await live_worker(store)
    await store.start(new_run("due"))
    return World(store, worker, await start_owned(store, worker, "owned"))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("step", ["begin", "work", "commit"])
async def test_a_verb_that_fails_leaves_nothing_and_can_be_tried_again(world: World, verb: str, step: str) -> None:
    before = await world.picture()
    for code, expected in ERRORS.values():
        world.store.faults = Faulty(step, sqlite_error(code))
        with pytest.raises(expected):
            await world.verbs[verb]()
        world.store.faults = None
        assert await world.picture() == before
    await world.verbs[verb]()
    assert await world.picture() != before


@pytest.mark.parametrize("verb", VERBS)
async def test_a_failure_after_the_commit_is_told_and_what_was_written_stays(world: World, verb: str) -> None:
    before = await world.picture()
    world.store.faults = Faulty("committed", sqlite_error(sqlite3.SQLITE_IOERR_FSYNC), times=1)
    with pytest.raises(StoreFailed):
        await world.verbs[verb]()
    world.store.faults = None
    after = await world.picture()
    assert after != before
    if verb.startswith("commit"):
        assert await world.verbs["commit"]() == {}  # written again: it was us


async def test_a_file_that_may_not_grow_is_full_until_there_is_room(world: World) -> None:
    """The real error of the real library, not an injected one."""
    connection = world.store._writer._connection
    assert connection is not None
    connection.execute("PRAGMA max_page_count = 1").fetchall()  # means: no more than there are now
    before = await world.picture()
    large = world.pen.change(1, text="x" * 1_000_000)
    with pytest.raises(StoreFull, match="free some space"):
        await world.store.commit(world.worker.worker_id, [large])
    assert await world.picture() == before
    connection.execute("PRAGMA max_page_count = 1000000").fetchall()
    assert await world.store.commit(world.worker.worker_id, [large]) == {}


async def test_a_lock_that_is_let_go_in_time_is_not_noticed(world: World) -> None:
    world.store.faults = Faulty("begin", sqlite_error(sqlite3.SQLITE_BUSY), times=1)
    assert await world.verbs["commit"]() == {}


@pytest.mark.parametrize("fault", list(ERRORS))
async def test_reading_fails_by_name_and_goes_on(world: World, fault: str) -> None:
    code, expected = ERRORS[fault]
    for read in (
        lambda: world.store.get("owned"),
        lambda: world.store.load(world.pen.run_id),
        lambda: world.store.list_runs(RunFilter()),
        lambda: world.store.due_at(world.worker),
    ):
        world.store.faults = Faulty("read", sqlite_error(code))
        with pytest.raises(expected):
            await read()
        world.store.faults = None
        await read()


@pytest.mark.parametrize("site", ["commit.inside", "commit.after"])
async def test_failpoints_lie_on_both_sides_of_the_commit(world: World, site: str) -> None:
    before = await world.picture()
    arm(f"{site}:1:raise")
    try:
        with pytest.raises(InjectedFault):
            await world.verbs["commit"]()
    finally:
        arm()
    assert (await world.picture() == before) is (site == "commit.inside")
    assert await world.verbs["commit"]() == {}


@pytest.mark.parametrize(
    "entry",
    [
        encode_entry(1, EntryKind.SIGNAL, 2**63, Body(), 0),
        Entry(1, EntryKind.SIGNAL, 5, 5, "half a pair: \ud800"),
        Entry(1, EntryKind.SIGNAL, 5, 5, None),  # type: ignore[arg-type]  # what must never come
        Entry(0, EntryKind.SIGNAL, 5, 5, "an ord that is taken"),
    ],
    ids=["beyond 64 bits", "half a surrogate pair", "no text", "ord taken"],
)
async def test_a_value_that_cannot_be_held_is_bad_data_and_nothing_is_written(world: World, entry: Entry) -> None:
    before = await world.picture()
    bad = Change(run_id=world.pen.run_id, epoch=1, head=0, entries=[entry])
    with pytest.raises(BadData):
        await world.store.commit(world.worker.worker_id, [*world.starts(), bad])
    assert await world.picture() == before
    assert await world.verbs["commit"]() == {}


async def test_a_start_that_cannot_be_held_does_not_harm_those_it_came_with(world: World) -> None:
    before = await world.store.count_runs(RunFilter())
    news = [new_run(f"new-{number}") for number in range(6)]
    news[1].priority = 2**70
    news[2].start = "\ud800"  # refused when its row is in already
    news[4].id = None  # type: ignore[assignment]  # what must never come
    outcomes = await world.store.start_many(news)
    assert [index for index, outcome in enumerate(outcomes) if isinstance(outcome, BadData)] == [1, 2, 4]
    assert await world.store.count_runs(RunFilter()) == before + 3
    with pytest.raises(UnknownRun):
        await world.store.get("new-2")


async def test_two_changes_of_one_run_in_a_batch_are_bad_data(world: World) -> None:
    before = await world.picture()
    with pytest.raises(BadData):
        await world.store.commit(world.worker.worker_id, [world.pen.change(1), world.pen.change(1)])
    assert await world.picture() == before


async def test_a_closed_store_says_so(make_store: MakeStore) -> None:
    store = await make_store()
    await store.close()
    for call in (store.start(new_run()), store.get("x"), store.count_runs(RunFilter())):
        with pytest.raises(StoreError, match="closed"):
            await call
    await store.close()
