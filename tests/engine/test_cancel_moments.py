"""Another client cancels a run at the first passage of each failpoint, on each database: acknowledged means delivered
once, or closed by it before the run began."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from typing import Any

import pytest

import batuta.sync
from batuta import (
    Batuta,
    CompleteLater,
    Handle,
    InvalidToken,
    LostAttempt,
    Retry,
    RunCancelled,
    RunClosed,
    RunFailed,
    RunMoved,
    Signal,
    UnknownRun,
    Workflow,
    activity,
    activity_info,
    checkpoint,
    connect,
    continue_as_new,
    failpoints,
    job,
    workflow,
)
from batuta.clock import SystemClock
from batuta.connect import store_for
from batuta.engine.backend.middleware import backend_for
from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.journal.entries import EntryKind
from batuta.journal.records import RunFilter
from batuta.journal.states import CLOSED
from batuta.journal.store import Store
from batuta.verify import verify
from tests.engine.arena import PATIENCE
from tests.long import LONG

HELD_UP = 0.3
"""Seconds that the worker gives the cancel before it goes on: it may itself hold the lock that the cancel waits for."""

OURS = ("turn.after", "enqueue.before", "enqueue.after", "fork.before", "fork.after", "start.before_commit")
"""Passages where an error is one of the workflow's code, which parks the run, or of the caller, who tries again."""

go = Signal("go")
tokens: asyncio.Queue[str] = asyncio.Queue()


@activity
async def act(number: int) -> int:
    await asyncio.sleep(0)
    return number


@activity(retry=Retry(attempts=2, first=0.001))
async def fails_once() -> int:
    if activity_info().attempt == 1:
        raise ValueError("again")
    return 2


@activity(transactional=True)
async def books() -> int:
    return 3


@activity(name="books", transactional=True)
def books_on_sqlite() -> int:
    return 3


@activity
async def asks() -> int:
    tokens.put_nowait(activity_info().token)
    raise CompleteLater


@workflow
async def acts(left: int = 1) -> int:
    try:
        await fails_once()
        await books()
        await asyncio.sleep(0.001)
    finally:
        await act(left)
    if left:
        continue_as_new(left - 1)
    return left


@workflow(fails=[ValueError])
async def is_tried_again() -> None:
    await act(1)
    raise ValueError("again")


@workflow
async def asks_outside() -> int:
    return await asks()


@workflow
async def waits() -> str:
    await go.wait()
    return "done"


@job
async def saves() -> None:
    await checkpoint(1)
    await checkpoint(2)


WORKFLOWS: list[Workflow[..., Any]] = [acts, is_tried_again, asks_outside, waits]


class Moments:
    """The passages of one life, at one of which another client cancels the run."""

    def __init__(self, url: str) -> None:
        self._client = batuta.sync.connect(url)
        self._thread = ThreadPoolExecutor(1)
        self.id = ""
        self.passed: list[str] = []
        self.where = ""
        self._tried: set[tuple[str, int]] = set()
        self._cancel: Future[bool | None] | None = None

    def begin(self, id: str, *, fails: bool = False) -> None:
        """`fails`: the worker meets an error right after the cancel."""
        self.passed, self._cancel, self._fails = [], None, fails
        self.id, self.where = id, ""

    def pass_by(self, name: str) -> None:
        self.passed.append(name)
        passage = name, self.passed.count(name)
        if not self.where and passage not in self._tried and (LONG or passage[1] == 1):
            self._tried.add(passage)
            self.where = name
            self._cancel = self._thread.submit(self._ask)
            wait([self._cancel], HELD_UP)
            if self._fails and name not in OURS:
                raise failpoints.InjectedFault(name)

    def _ask(self) -> bool | None:
        """Whether the run was cancelled. None: there is none yet."""
        try:
            return self._client.get(self.id).cancel("enough")
        except UnknownRun:
            return None
        except RunClosed:
            return False

    async def acknowledged(self) -> bool | None:
        return None if self._cancel is None else await asyncio.wrap_future(self._cancel)

    def close(self) -> None:
        self._thread.shutdown()
        self._client.close()


@pytest.fixture
def moments(url: str) -> Iterator[Moments]:
    made = Moments(url)
    yield made
    made.close()


class Stage:
    """A worker, which a life may stop and begin again."""

    def __init__(self, client: Batuta, store: Store, url: str) -> None:
        self.client, self._store, self._url = client, store, url
        self._working: Any = None

    async def begin(self) -> None:
        books_here = books_on_sqlite if self._url.startswith("sqlite") else books
        activities = [act, fails_once, books_here, asks]
        self._working = self.client.worker(workflows=WORKFLOWS, activities=activities, jobs=[saves], heartbeat=0.05)
        await self._working.__aenter__()

    async def end(self) -> None:
        await self._working.__aexit__(None, None, None)

    async def heard(self, id: str) -> int:
        """How many cancels are in the journals of the runs of this id."""
        runs = (await self._store.list_runs(RunFilter(id_prefix=id), None, 100)).runs
        entries = [entry for run in runs if run.id == id for entry in await self._store.journal(run.run_id)]
        return sum(entry.kind in (EntryKind.CANCEL_REQUESTED, EntryKind.CANCELLED) for entry in entries)

    async def check(self) -> None:
        report = await verify(self._store, WORKFLOWS)
        assert not report.violations, report


@asynccontextmanager
async def staged(url: str) -> AsyncIterator[Stage]:
    store = store_for(url)
    await store.migrate()
    async with connect(url) as client, Batuta(backend_for(store, SystemClock()), store.open, store.close):
        stage = Stage(client, store, url)
        await stage.begin()
        try:
            yield stage
        finally:
            failpoints.arm()
            await stage.end()


Life = Callable[[Stage, str], Awaitable[Handle[Any]]]


async def works(stage: Stage, id: str) -> Handle[Any]:
    return await stage.client.start(acts, id=id)


async def is_retried(stage: Stage, id: str) -> Handle[Any]:
    return await stage.client.start(is_tried_again, id=id, retry=Retry(attempts=2, first=0.01))


async def is_answered(stage: Stage, id: str) -> Handle[Any]:
    handle = await stage.client.start(asks_outside, id=id)
    async with asyncio.timeout(PATIENCE):
        token = await tokens.get()
        while True:
            try:
                await stage.client.complete(token, 1)
                return handle
            except (RunClosed, LostAttempt):
                return handle  # it was cancelled
            except InvalidToken:  # not kept yet, or cancelled before it could be
                if (await handle.describe()).state in CLOSED:
                    return handle


async def is_enqueued(stage: Stage, id: str) -> Handle[Any]:
    return (await stage.client.enqueue_many([saves.call().with_options(id=id)]))[0]


async def is_reset(stage: Stage, id: str) -> Handle[Any]:
    handle = await stage.client.start(waits, id=id)
    try:
        await handle.reset(-1)
    except (RunClosed, RunMoved):
        return handle
    return await _went(await stage.client.get(id))


async def changes_hands(stage: Stage, id: str) -> Handle[Any]:
    handle = await stage.client.start(waits, id=id)
    await stage.end()
    await stage.begin()
    return await _went(handle)


async def _went(handle: Handle[Any]) -> Handle[Any]:
    try:
        await handle.signal(go)
    except RunClosed:
        pass  # it was cancelled
    return handle


async def ended(handle: Handle[Any]) -> bool:
    """Wait for its end. Whether it was cancelled."""
    try:
        async with asyncio.timeout(PATIENCE):
            await handle.result()
    except RunCancelled:
        return True
    except RunFailed:
        return False
    return False


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("life", "passes"),
    [
        (works, "turn.after commit.after activity.failed activity.retry timer.fired transaction.begun close.durable"),
        (is_retried, "claim.after claim.loaded message.read"),
        (is_answered, "outside.begin outside.answer"),
        (is_enqueued, "enqueue.before enqueue.after checkpoint.before checkpoint.after"),
        (is_reset, "fork.before fork.after"),
        (changes_hands, "stop.begin stop.released replay.before replay.after"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_a_cancel_of_another_client_at_any_passage_is_delivered_if_it_was_acknowledged(
    life: Life, passes: str, url: str, moments: Moments, real_time: None
) -> None:
    seen, acknowledged, at = set[str](), 0, 0
    async with staged(url) as stage:
        while moments.where or not at:
            at += 1
            id = f"{life.__name__} {at}."
            moments.begin(id)
            failpoints.observe(moments.pass_by)
            was_cancelled = await ended(await life(stage, id))
            failpoints.arm()
            seen.update(moments.passed)
            was_told = bool(await moments.acknowledged())
            where = moments.where
            assert await stage.heard(id) == was_told, where
            if life is not is_reset:  # which may begin a run anew that has heard it
                assert was_cancelled == was_told, where
            acknowledged += was_told
        await stage.check()
    assert set(passes.split()) <= seen, set(passes.split()) - seen
    assert acknowledged > 3


async def begun(life: Life, stage: Stage, id: str) -> Handle[Any]:
    """As a caller would: when nobody knows whether it was started, it is started again."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await life(stage, id)
            except (OutcomeUnknown, StoreUnavailable):
                await asyncio.sleep(0.01)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("life", [works, is_retried] if LONG else [is_retried], ids=lambda each: each.__name__)
async def test_a_cancel_at_a_passage_that_fails_is_delivered_if_it_was_acknowledged(
    life: Life, url: str, moments: Moments, real_time: None
) -> None:
    acknowledged, at = 0, 0
    async with staged(url) as stage:
        while moments.where or not at:
            at += 1
            id = f"{life.__name__} {at}."
            moments.begin(id, fails=True)
            failpoints.observe(moments.pass_by)
            handle = await begun(life, stage, id)
            while moments.where == "" and (await handle.describe()).state not in CLOSED:
                await asyncio.sleep(0.005)
            failpoints.arm()
            was_told = bool(await moments.acknowledged())
            await stage.end()  # whatever the error has left behind, another worker goes on
            await stage.begin()
            where = moments.where
            assert await ended(handle) == was_told, where
            assert await stage.heard(id) == was_told, where
            acknowledged += was_told
        await stage.check()
    assert acknowledged > 3
