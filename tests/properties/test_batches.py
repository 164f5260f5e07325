"""Random batches, of few and of many runs: every store gives the same verdicts and holds the same rows then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from batuta.clock import SECOND
from batuta.journal.entries import EntryKind
from batuta.journal.records import Attempt, Change, Move, NewRun, RunKind, WorkerInfo
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import Pen, making, new_run, signal, worker_info
from tests.databases import Databases
from tests.long import examples
from tests.stores.postgres.stores import long_up

NAMESPACE = 'it\'s, "mine" \\ null'
TEXTS = ("", "x", "null", "it's", 'a "word"', "a, b", "\\", "\\x1f", "{}", "NULL", "ü🎻", "%s ? :a $1")
QUEUES = ("default", "a, 'b'", "null", "paused")
SIZES = (1, 2, 3, 7, 8, 9, 33, 140)
FUTURE = 10**18
MOVES = (
    Move(RunState.COMPLETED),
    Move(RunState.FAILED),
    Move(RunState.CANCELLED),
    Move(RunState.TIMED_OUT),
    Move(RunState.TERMINATED),
    Move(RunState.WAITING),
    Move(RunState.WAITING, wake_at=FUTURE),
    Move(RunState.PENDING, wake_at=FUTURE),
    Move(RunState.NEEDS_CODE, fingerprint="v1"),
)
FAULTS = ("epoch", "head", "behind", "again", "gone")


class Player:
    """Makes changes of runs up, and remembers how far these are by the verdicts of the first store."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.pens: list[Pen] = []
        self.over: set[Any] = set()
        self.last: dict[Any, Change] = {}
        self.ids: list[str] = []

    def started(self, count: int) -> list[Change]:
        """New runs that are alike, but for some."""
        chance = self.chance
        common = self._said() if chance.random() < 0.5 else {}
        move = self._move() if chance.random() < 0.2 else None
        entries = chance.choice((1, 1, 1, 2, 3))
        changes = []
        for _ in range(count):
            said = common if chance.random() < 0.9 else self._said()
            run = self._named(new_run(**said))
            pen = Pen(run.run_id, epoch=chance.choice((1, 1, 1, 4)))
            self.pens.append(pen)
            changes.append(pen.change(entries, start=run, move=deepcopy(move), text=chance.choice(TEXTS)))
        return changes

    def _said(self) -> dict[str, Any]:
        pick = self.chance.choice
        return {
            "queue": pick(QUEUES) if self.chance.random() < 0.3 else "default",
            "priority": pick((0, 0, 5, -(2**31))),
            "version": pick(TEXTS),
            "name": pick(TEXTS[1:]),
            "code": pick(TEXTS),
            "tags": pick(("{}", '{"a":"null"}')),
            "memo": pick(("null", '"null"', '""', "{}")),
            "flow_key": pick(("", "", "key")),
            "timeout": pick((0, 0, 100 * SECOND)),
            "execution_timeout": pick((0, 0, 200 * SECOND)),
            "kind": pick((RunKind.WORKFLOW, RunKind.WORKFLOW, RunKind.JOB)),
        }

    def _named(self, run: NewRun) -> NewRun:
        match self.chance.randrange(20):
            case 0 if self.ids and run.queue != "paused":
                run.id = self.chance.choice(self.ids)  # somebody's
            case 1:
                run.id = f"{self.chance.choice(TEXTS)} {run.run_id}"
            case 2 | 3 | 4:
                run.id, run.own_id = str(run.run_id), True
                return run  # nobody knows it before it is there
        if run.queue != "paused":
            self.ids.append(run.id)
        return run

    def _move(self) -> Move:
        move = deepcopy(self.chance.choice(MOVES))
        move.reason = self.chance.choice(TEXTS)
        return move

    def went_on(self, pens: list[Pen]) -> list[Change]:
        """Runs that do the same, but for some that are elsewhere."""
        chance = self.chance
        count = chance.choice((1, 1, 1, 1, 2, 3, 0))
        move = self._move() if chance.random() < 0.35 or not count else None
        trouble = chance.random() < 0.4
        return [self._next(pen, count, move, trouble and chance.random() < 0.1) for pen in pens]

    def _next(self, pen: Pen, count: int, move: Move | None, trouble: bool) -> Change:
        chance = self.chance
        text, rare = chance.choice(TEXTS), chance.random() < 0.05
        attempts = [Attempt(seq=1, number=2, started_at=3, error=chance.choice((None, "null", '""')))] if rare else ()
        move = deepcopy(move)
        if move is not None and chance.random() < 0.1:
            move.reason = chance.choice(TEXTS)
        change = pen.change(count + rare, move=move, attempts=attempts, text=text)
        if not trouble:
            return change
        match chance.choice(FAULTS):
            case "epoch":
                change.epoch += chance.choice((1, -1))
            case "head":
                ahead = Pen(pen.run_id, pen.epoch, pen.head + 3, pen.last)
                return ahead.change(max(1, count), move=move)
            case "behind" if pen.head >= 1:
                return Pen(pen.run_id, pen.epoch, pen.head - 2, pen.last).change(1, move=move)
            case "again" if pen.run_id in self.last:
                return deepcopy(self.last[pen.run_id])
            case "gone":
                return Pen(new_run().run_id, 1, pen.head, pen.last).change(1, move=move)
        return change

    def claimed(self, runs: list[NewRun]) -> list[Change]:
        """First changes of runs that were claimed: jobs as a rule, which end with it."""
        chance = self.chance
        as_jobs, changes = chance.random() < 0.7, []
        for run in runs:
            pen = Pen(run.run_id, epoch=1)
            self.pens.append(pen)
            is_job = as_jobs if chance.random() < 0.9 else not as_jobs
            change = pen.change(2 if is_job else chance.choice((1, 1, 3)), consumed=[f"start:{run.run_id}"])
            change.entries[0].kind = EntryKind.STARTED
            if is_job:
                change.move = Move(RunState.COMPLETED if chance.random() < 0.95 else RunState.FAILED)
            if chance.random() < 0.02:
                change.epoch += 1
            changes.append(change)
        return changes

    def judged(self, changes: list[Change], verdicts: dict[int, Any]) -> None:
        pens = {pen.run_id: pen for pen in self.pens}
        for index, change in enumerate(changes):
            pen = pens.get(change.run_id)
            if pen is None:
                continue
            if index not in verdicts:
                if change.new_head > pen.head:
                    pen.wrote(change)
                self.last[pen.run_id] = change
                if change.move is not None:
                    self.over.add(pen.run_id)
            elif pen.head < 0:
                self.pens.remove(pen)

    def batch(self) -> list[Change]:
        changes: list[Change] = []
        free = list(self.pens)
        self.chance.shuffle(free)
        for _ in range(self.chance.randrange(1, 5)):
            size = self.chance.choice(SIZES)
            if self.chance.random() < 0.3 or not free:
                changes += self.started(size)
                continue
            if self.chance.random() < 0.8:  # as a rule what is at one place
                at = free[0].head
                taken = [pen for pen in free if pen.head == at][:size]
            else:
                taken = free[:size]
            named = {pen.run_id for pen in taken}
            free = [pen for pen in free if pen.run_id not in named]
            ended = [pen for pen in taken if pen.run_id in self.over]
            again = [deepcopy(self.last[pen.run_id]) for pen in ended if self.chance.random() < 0.2]
            changes += self.went_on([pen for pen in taken if pen.run_id not in self.over]) + again
        if self.chance.random() < 0.5:
            self.chance.shuffle(changes)
        return changes


async def rows_of(store: Store, pen: Pen) -> tuple[Any, ...]:
    run = await store.get_run(pen.run_id)
    times = run.wake_at and run.wake_at == FUTURE, run.closed_at is None, run.deadline and run.deadline - run.created_at
    run.wake_at = run.closed_at = run.deadline = None
    run.created_at = 0
    messages = [message.message_id for message in (await store.load(pen.run_id)).messages]
    return run, times, await store.journal(pen.run_id), await store.attempts(pen.run_id), messages


async def play(seed: int, stores: list[Store], worker: WorkerInfo) -> None:
    chance = random.Random(seed)
    player = Player(chance)
    ears = [Ear(store) for store in stores]
    clerk = worker_info(queues=["jobs"], lease=10_000 * SECOND)
    for store in stores:
        await store.register(clerk)
    closed: set[Any] = set()
    for _ in range(chance.randrange(2, 7)):
        changes = player.batch() if chance.random() < 0.8 else []
        if not changes or chance.random() < 0.3:
            jobs = [new_run(queue="jobs", kind=RunKind.JOB) for _ in range(chance.choice(SIZES))]
            for store in stores:
                await store.start_many(deepcopy(jobs))
                missing = {run.run_id for run in jobs}
                while stored_runs := (await store.claim(clerk, 1_000, None)).stored_runs:
                    missing -= {stored.run.run_id for stored in stored_runs}
                assert not missing
            changes += player.claimed(jobs)
        if player.pens and chance.random() < 0.4:
            for pen in chance.sample(player.pens, min(3, len(player.pens))):
                if pen.head >= 0 and pen.run_id not in player.over:
                    for store in stores:
                        await store.send(pen.run_id, signal(f"s{pen.head}"))
        said: list[Any] = []
        for _ in range(chance.choice((1, 1, 2))):  # the reply was lost: it is sent again
            said = [await store.commit(worker.worker_id, deepcopy(changes)) for store in stores]
            assert said[1:] == said[:-1]
        player.judged(changes, said[0])
        closed |= {
            change.run_id
            for index, change in enumerate(changes)
            if index not in said[0] and change.move is not None and change.move.state in CLOSED
        }
    for pen in player.pens:
        rows = [await rows_of(store, pen) for store in stores]
        assert rows[1:] == rows[:-1]
    for ear in ears:
        for run_id in closed:
            await ear.hears(lambda hint, run_id=run_id: hint.closed is None or run_id in hint.closed)  # type: ignore[misc]
        ear.undo()


@settings(
    max_examples=examples(8),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**32))
def test_all_stores_give_the_same_verdicts_and_rows(tmp_path: Path, postgres_databases: Databases, seed: int) -> None:
    async def example(url: str) -> None:
        async with AsyncExitStack() as stack:
            database = MemoryDatabase()
            makers: list[Callable[[str], Store]] = [
                lambda namespace: MemoryStore(database, namespace),
                lambda namespace: SqliteStore(tmp_path / f"{seed}.db", namespace),
                long_up(url),
            ]
            stores = []
            for maker in makers:
                make = await stack.enter_async_context(making(maker, migrate=True))
                stores.append(await make(NAMESPACE))
            worker = worker_info(lease=10_000 * SECOND)
            for store in stores:
                await store.register(worker)
                await store.pause_queue("paused", True)
            await play(seed, stores, worker)

    url = postgres_databases.take()
    asyncio.run(example(url))
    postgres_databases.give_back(url)
