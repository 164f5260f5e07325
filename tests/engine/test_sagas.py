"""Sagas: finished steps are undone in reverse, whatever happens to the worker, and no compensation is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from batuta import (
    CompensationFailed,
    Failed,
    InvalidInput,
    NonRetryable,
    Retry,
    RunCancelled,
    RunFailed,
    RunTimedOut,
    Signal,
    activity,
    activity_info,
    call,
    continue_as_new,
    failpoints,
    saga,
    workflow,
)
from batuta.authoring.history.steps import StepKind, StepState
from batuta.errors import WorkerError
from batuta.journal.records import LetterReason, RunFilter
from batuta.resilience import breaker
from batuta.testing import Environment, crash_sweep
from batuta.verify import verify
from tests.databases import Databases
from tests.engine.arena import Arena
from tests.engine.till import PATIENCE, till_on

QUICK = Retry(attempts=3, first=0.01, jitter=0)


class Partner:
    """The outside world: a ledger that takes each key once. Every second call to undo something fails at first."""

    def __init__(self) -> None:
        self.ledger: list[tuple[str, int]] = []
        self.keys: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.refuses: set[int] = set()

    def note(self, what: str, number: int) -> None:
        key = activity_info().key
        self.calls[key] += 1
        if what == "undo" and number in self.refuses:
            raise NonRetryable(f"{number} cannot be undone")
        if what == "undo" and number % 2 and self.calls[key] == 1:
            raise ConnectionError("the partner is away")
        if key not in self.keys:
            self.keys.add(key)
            self.ledger.append((what, number))

    def activities(self) -> list[Any]:
        @activity(name="undo", retry=QUICK)
        async def undo(number: int) -> None:
            self.note("undo", number)

        @activity(name="do", compensate=undo)
        async def do(number: int) -> int:
            self.note("do", number)
            return number

        @activity(name="fail")
        async def fail(number: int) -> None:
            raise NonRetryable(f"step {number} failed")

        return [do, undo, fail]

    @property
    def is_balanced(self) -> bool:
        done = Counter(number for what, number in self.ledger if what == "do")
        return done == Counter(number for what, number in self.ledger if what == "undo")


def five_steps(partner: Partner) -> tuple[Any, list[Any]]:
    """Five steps, of which the fourth fails."""
    do, undo, fail = partner.activities()

    @workflow(name="five", fails=[NonRetryable], dead_letter=True)
    async def five() -> None:
        async with saga() as later:
            await do(1)
            await asyncio.gather(do(2), do(3))
            later(undo, number=30)
            later(undo.with_options(retry=Retry(attempts=9, first=0.01)), 31)
            await call("do", 30)
            await call("do", 31)
            await fail(4)
            await do(5)

    return five, [do, undo, fail]


# covers D-05, D-06


async def test_a_failed_saga_is_undone_in_reverse_and_the_error_says_so() -> None:
    @activity
    async def release(sku: str, result: int) -> None:
        done.append(f"release {result} {sku}")

    @activity(compensate=release)
    async def reserve(count: int, *, sku: str) -> int:
        return count * 2

    @activity
    async def refund(receipt: str) -> None:
        done.append(f"refund {receipt}")

    @activity(compensate=refund)
    async def charge(order: str) -> str:
        return f"receipt of {order}"

    @workflow(fails=[KeyError])
    async def order() -> None:
        async with saga() as undo:
            await reserve(2, sku="tea")
            async with saga():
                await charge("a")
            undo(release, "cup", result=1)
            raise KeyError("out of boxes")

    @workflow
    async def fine() -> str:
        async with saga():
            return await charge("b")

    done: list[str] = []
    async with Environment(workflows=[order, fine], activities=[release, reserve, refund, charge]) as env:
        handle = await env.start(order)
        with pytest.raises(RunFailed, match=r"undone: release, refund \(of charge\), release \(of reserve\)") as error:
            await handle.result()
        assert done == ["release 1 cup", "refund receipt of a", "release 4 tea"]
        assert isinstance(error.value.__cause__, KeyError)
        found = await handle.timeline()
        undos = [one for one in found.steps if one.kind is StepKind.UNDO]
        assert [(one.name, one.state) for one in undos] == [
            ("release", StepState.DONE),
            ("refund", StepState.DONE),
            ("release", StepState.DONE),
        ]
        assert undos[2].input == ["cup", 1]
        kept = await env.start(fine)
        assert await kept.result() == "receipt of b"
        dropped = [one.state for one in (await kept.timeline()).steps if one.kind is StepKind.UNDO]
        assert dropped == [StepState.DROPPED]
        assert len(done) == 3
        assert not (await verify(env.store, [order, fine])).violations


async def test_a_compensation_waits_at_the_gates_of_its_definition() -> None:
    bank, done = breaker("bank"), []

    @activity(gates=[bank])
    async def refund(order: str) -> None:
        done.append(f"refund {order}")

    @activity(gates=[bank], compensate=refund)
    async def charge(order: str) -> None:
        done.append(f"charge {order}")

    go = Signal("go", None)

    @workflow(fails=[KeyError])
    async def order() -> None:
        async with saga() as undo:
            await charge("a")
            undo(refund.with_options(retry=QUICK), "b")
            await go.wait()
            raise KeyError("out of boxes")

    async with Environment(workflows=[order], activities=[refund, charge]) as env:
        handle = await env.start(order)
        await env.settle()
        await env.client.breakers.open("bank")
        await handle.signal(go)
        await env.advance(600)
        assert done == ["charge a"]
        await env.client.breakers.close("bank")
        with pytest.raises(RunFailed, match="undone: refund, refund"):
            await handle.result(60)
        assert done == ["charge a", "refund b", "refund a"]
        assert not (await verify(env.store, [order])).violations


async def test_a_compensation_that_fails_for_good_is_a_dead_letter_and_the_others_run() -> None:
    partner = Partner()
    partner.refuses = {30}
    five, activities = five_steps(partner)
    async with Environment(workflows=[five], activities=activities) as env:
        handle = await env.start(five)
        with pytest.raises(RunFailed, match=r"not undone: undo .*undone: undo, undo \(of do\)"):
            await handle.result()
        assert len(partner.ledger) == 9
        letters = (await env.client.dead_letters.list()).letters
        letter = next(one for one in letters if one.reason is LetterReason.COMPENSATION_FAILED)
        assert (letter.name, letter.activity, letter.message) == ("batuta.compensate", "undo", "30 cannot be undone")
        partner.refuses = set()
        calls = partner.calls.copy()
        await env.client.dead_letters.reprocess(letter.run_id)
        await (await env.client.get(letter.id)).result()
        assert partner.is_balanced
        again = {key for key in partner.calls if partner.calls[key] != calls[key]}
        assert len(again) == 1  # what was undone is not undone twice


async def test_what_failed_after_its_steps_were_undone_begins_anew() -> None:
    partner = Partner()
    five, activities = five_steps(partner)
    async with Environment(workflows=[five], activities=activities) as env:
        handle = await env.start(five, id="five")
        with pytest.raises(RunFailed):
            await handle.result()
        await env.client.dead_letters.reprocess(handle.run_id)
        with pytest.raises(RunFailed):
            await (await env.client.get("five")).result()
        assert [one for one in partner.ledger if one == ("do", 1)] == [("do", 1)] * 2
        assert partner.is_balanced


async def test_a_cancelled_saga_ends_its_step_and_is_undone() -> None:
    partner, begun, go = Partner(), asyncio.Event(), asyncio.Event()
    do, undo, _ = partner.activities()

    @activity(name="slow")
    async def slow() -> int:
        begun.set()
        await go.wait()
        partner.note("do", 8)
        return 8

    @workflow
    async def cancelled() -> None:
        try:
            async with asyncio.timeout(1000), saga() as later:
                await do(1)
                later(undo, await slow())
                await asyncio.sleep(1)
        finally:
            await do(2)
            await undo(2)

    @workflow
    async def within() -> str:
        async with saga() as later:
            async with asyncio.timeout(5):
                later(undo, await slow())
            await asyncio.sleep(1)  # the late answer counts, and the timeout is over
        return "done"

    async with Environment(workflows=[cancelled, within], activities=[do, undo, slow]) as env:
        for end in ("cancel", "timeout"):
            begun.clear()
            go.clear()
            handle = await env.start(cancelled)
            await begun.wait()
            if end == "cancel":
                await handle.cancel()
            else:
                await env.advance(1001)
            await asyncio.sleep(1)
            assert (await handle.describe()).closed_at is None
            go.set()
            with pytest.raises(RunCancelled if end == "cancel" else RunFailed):
                await handle.result()
            assert partner.is_balanced
        assert [one for one in partner.ledger if one[1] == 8] == [("do", 8), ("undo", 8)] * 2
        begun.clear()
        go.clear()
        late = await env.start(within)
        await begun.wait()
        await env.advance(10)
        go.set()
        assert await late.result() == "done"


async def test_steps_that_gather_leaves_behind_are_undone_too() -> None:
    partner = Partner()
    do, undo, fail = partner.activities()

    @activity(name="late", compensate=undo)
    async def late(number: int) -> int:
        await asyncio.sleep(50)
        partner.note("do", number)
        return number

    @workflow(fails=[NonRetryable])
    async def gathers() -> None:
        async with saga():
            await asyncio.gather(do(1), late(2), fail(3), late(4))

    async with Environment(workflows=[gathers], activities=[do, undo, fail, late]) as env:
        with pytest.raises(RunFailed):
            await (await env.start(gathers)).result()
        assert len(partner.ledger) == 6
        assert partner.is_balanced


async def test_a_run_that_times_out_starts_its_compensations(arena: Arena) -> None:
    """By whoever closes it: its owner, or a worker that has none of its code."""
    partner = Partner()
    do, undo, _ = partner.activities()

    @workflow(name="waits")
    async def waits() -> None:
        async with saga():
            await do(1)
            await do(2)
            async with saga() as inner:
                inner(undo, 9)
            await asyncio.sleep(3600)

    client = await arena.client()
    worker = await arena.worker(client, waits, do, undo)
    here = await client.start(waits, timeout=0.5)
    there = await client.start(waits, timeout=3)
    while len(partner.ledger) < 4:
        await asyncio.sleep(0.01)
    with pytest.raises(RunTimedOut):
        await here.result()
    await asyncio.sleep(0.1)
    await worker.stop()
    await arena.worker(await arena.client(), undo)
    with pytest.raises(RunTimedOut):
        await there.result()
    async with asyncio.timeout(PATIENCE):
        while Counter(one for one in partner.ledger if one[0] == "undo") != {
            ("undo", 1): 2,
            ("undo", 2): 2,
            ("undo", 9): 2,
        }:
            await asyncio.sleep(0.01)
    undone = [one for one in partner.ledger if one[0] == "undo"]
    assert undone[:3] == undone[3:] == [("undo", 9), ("undo", 2), ("undo", 1)]
    for parent in (here, there):
        children = (await arena.store(client).list_runs(RunFilter(parent=parent.run_id))).runs
        assert [one.name for one in children] == ["batuta.compensate"]


async def test_compensations_come_to_a_worker_that_has_their_activities(arena: Arena) -> None:
    """Though workers of other code are there, which look first."""
    partner = Partner()
    do, undo, _ = partner.activities()

    @activity
    async def other() -> None: ...

    @workflow(name="fails")
    async def fails() -> None:
        async with saga():
            await do(1)
            raise NonRetryable("no")

    client = await arena.client()
    for _ in range(2):
        await arena.worker(client, other)
    await arena.worker(client, fails, do, undo)
    runs = [await client.start(fails) for _ in range(3)]
    async with asyncio.timeout(60):
        for run in runs:
            with pytest.raises(RunFailed, match="undone: undo"):
                await run.result()
    assert partner.is_balanced


async def test_a_compensation_that_no_worker_can_run_keeps_no_start_waiting() -> None:
    """Its worker leaves it to others. It still begins other runs at once, without a look for what waits."""
    partner = Partner()
    do, _, _ = partner.activities()

    @workflow(name="fails")
    async def fails() -> None:
        async with saga():
            await do(1)
            raise NonRetryable("no")

    async with Environment(workflows=[fails], activities=[do]) as env:
        await env.start(fails)
        session = env.worker.session
        assert session is not None
        for _ in range(1_000):
            if session.admission.willing(session.info, session.clock.now()) is not session.info:
                break  # the compensation is left to others
            await env.advance(0.1)
        else:
            pytest.fail("the compensation is never left to others")
        assert session.takes("default", "fails")


# -- kills


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_ledger_is_balanced_wherever_a_worker_dies(store: Any) -> None:
    partners: list[Partner] = []
    ledger = Partner()

    def activities() -> Sequence[Any]:
        partners.append(Partner())
        ledger.note = partners[-1].note  # type: ignore[method-assign]  # each life has its own world
        return acts

    five, acts = five_steps(ledger)
    swept = crash_sweep(five, activities=activities, store=store, most=60 if store == "sqlite" else None)
    assert isinstance(swept.ending, RunFailed)
    assert len(swept.points) >= 40
    assert all(partner.ledger and partner.is_balanced for partner in partners)
    assert len(partners) > len(swept.points)


class Killed(BaseException):
    """What a dying worker's code sees."""


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("real_time")
async def test_the_ledger_is_balanced_wherever_a_worker_dies_on_postgresql(postgres_databases: Databases) -> None:
    """At the first passage of each failpoint, in one life each."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    tried: set[str] = set()
    worker: Any = None
    killed = True

    def pass_by(site: str) -> None:
        nonlocal killed
        session = None if worker is None else worker.session
        if session is None or session.over or site.startswith(("lease", "stop", "claim", "enqueue", "recover")):
            return
        if not killed and site not in tried:
            killed = True
            tried.add(site)
            session.abandon()
            raise Killed(site)

    while killed:
        partner, url = Partner(), postgres_databases.take()
        five, activities = five_steps(partner)
        async with till_on("postgres", url) as till, asyncio.timeout(PATIENCE):
            handle = await till.client.start(five, id="five")
            killed = False
            failpoints.observe(pass_by)
            try:
                while (await handle.describe()).closed_at is None:
                    async with till.worker(five, *activities, heartbeat=0.05) as worker:
                        session = worker.session
                        while not session.over and (await handle.describe()).closed_at is None:
                            await asyncio.sleep(0.002)
                        await worker.stop(0.0)
                    await till.store.retire(session.info.worker_id)
            finally:
                failpoints.arm()
        postgres_databases.give_back(url)
        assert partner.ledger
        assert partner.is_balanced, (tried, partner.ledger)
    assert tried >= {"turn.before", "turn.after", "commit.queued", "close.durable"}


# -- bad input


async def test_what_goes_on_as_new_within_a_saga_fails_and_is_undone() -> None:
    partner = Partner()
    do, undo, _ = partner.activities()

    @workflow(fails=[InvalidInput])
    async def goes_on() -> None:
        async with saga():
            await do(2)
            async with saga():
                await do(4)
                continue_as_new()

    async with Environment(workflows=[goes_on], activities=[do, undo]) as env:
        with pytest.raises(RunFailed, match=r"call it after the block(; undone: undo .of do.){2}"):
            await (await env.start(goes_on)).result(60)
    assert partner.ledger == [("do", 2), ("do", 4), ("undo", 4), ("undo", 2)]


async def test_misuse_is_refused_by_name() -> None:
    @activity
    async def undo(number: int) -> None: ...

    @workflow
    async def misuses() -> list[str]:
        said = []
        async with saga() as later:
            for bad in (misuses.fn, "undo", None):
                try:
                    later(bad, 1)  # type: ignore[arg-type]
                except InvalidInput as error:
                    said.append(str(error))
            try:
                later(undo, 1, 2, 3)
            except (InvalidInput, TypeError) as error:
                said.append(type(error).__name__)
        try:
            later(undo, 1)
        except InvalidInput as error:
            said.append(str(error))
        try:
            async with later:
                pass
        except InvalidInput as error:
            said.append(str(error))
        return said

    @workflow(fails=[InvalidInput])
    async def goes_on() -> None:
        async with saga() as later:
            later(undo, 1)
            continue_as_new()

    @workflow(fails=[Failed])
    async def fails_empty() -> None:
        async with saga():
            raise Failed("nothing was done")

    with pytest.raises(WorkerError, match=r"saga\(\) was called outside a workflow"):
        async with saga():
            pass
    with pytest.raises(InvalidInput, match="must be an activity"):
        activity(compensate=print)(lambda: None)  # type: ignore[call-overload]

    @activity
    async def two(a: int, b: int) -> None: ...

    with pytest.raises(InvalidInput, match="parameters that nothing gives a value to"):
        activity(compensate=two)(undo.fn)

    async with Environment(workflows=[misuses, goes_on, fails_empty], activities=[undo]) as env:
        said = await (await env.start(misuses)).result()
        assert all("must be given an activity" in one for one in said[:3])
        assert "outside its saga" in said[4]
        assert "has begun already" in said[5]
        with pytest.raises(RunFailed, match="after the block"):
            await (await env.start(goes_on)).result()
        with pytest.raises(RunFailed, match="nothing was done"):
            await (await env.start(fails_empty)).result()
    assert CompensationFailed("x").undone == []
