"""Many runs that are due at once."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from batuta import RunState, Signal, job, now, workflow
from batuta.engine.run.owned_run import OwnedRun
from batuta.journal.records import Pulse
from tests.engine.kit import jobs, world

BATCH = 10
woken: list[int] = []


@workflow
async def nap(number: int) -> int:
    await asyncio.sleep(3600)
    woken.append(number)
    return number


async def test_the_next_claim_is_asked_for_before_the_last_ones_runs_are_in_memory_and_few_wait_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken.clear()
    async with world(nap, claim_batch=BATCH) as env:
        claim = env.store.claim
        handed: list[Any] = []
        waiting: list[int] = []

        async def watched(*asked: Any) -> Any:
            waiting.append(len(handed) - len(woken))
            found = await claim(*asked)
            handed.extend(found.stored_runs)
            return found

        handles = await asyncio.gather(*(env.start(nap, number) for number in range(10 * BATCH)))
        monkeypatch.setattr(env.store, "claim", watched)
        assert [await handle.result() for handle in handles] == list(range(10 * BATCH))
        assert sorted(woken) == list(range(10 * BATCH))
        assert BATCH <= max(waiting) <= 2 * BATCH


async def test_a_claim_is_always_under_way_while_there_is_more_and_runs_are_brought_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken.clear()
    runs, batch = 1_000, 100
    async with world(nap, claim_batch=batch) as env:
        claim = env.store.claim
        handed: list[Any] = []
        idle: list[int] = []

        async def watched(*asked: Any) -> Any:
            before = len(handed)
            if 0 < before < runs and before == len(woken):
                idle.append(before)
            found = await claim(*asked)
            handed.extend(found.stored_runs)
            return found

        handles = await asyncio.gather(*(env.start(nap, number) for number in range(runs)))
        monkeypatch.setattr(env.store, "claim", watched)
        for handle in handles:
            await handle.result()
        assert len(woken) == runs
        assert idle == []


async def test_a_claim_is_under_way_until_its_runs_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    woken.clear()
    async with world(nap, claim_batch=100) as env:
        session = env.worker.session
        assert session is not None
        poller, adopt = session._poller, session.adopt_claimed
        under_way: list[bool] = []

        def watched(stored_runs: Any) -> None:
            under_way.append(poller.claiming)
            adopt(stored_runs)

        handles = await asyncio.gather(*(env.start(nap, number) for number in range(250)))
        monkeypatch.setattr(session, "adopt_claimed", watched)
        for handle in handles:
            await handle.result()
        assert len(under_way) >= 250 / 32
        assert all(under_way)
        assert poller.claims_begun - poller.claims_ended <= 1


async def test_runs_go_on_in_the_order_of_their_claim_and_the_latest_word_on_each_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken.clear()
    async with world(nap) as env:
        claim = env.store.claim
        order: list[str] = []

        async def doubled(*asked: Any) -> Any:
            found = await claim(*asked)
            order.extend(journal_of.run.id for journal_of in found.stored_runs)
            stale = [
                replace(journal_of, run=replace(journal_of.run, epoch=journal_of.run.epoch - 1))
                for journal_of in found.stored_runs
            ]
            found.stored_runs = [*stale, *found.stored_runs, *found.stored_runs]
            return found

        handles = await asyncio.gather(*(env.start(nap, number, id=str(number)) for number in range(10)))
        monkeypatch.setattr(env.store, "claim", doubled)
        assert [await handle.result() for handle in handles] == list(range(10))
        assert list(map(str, woken)) == order


async def test_a_run_that_cannot_go_on_does_not_hold_up_those_that_were_claimed_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken.clear()
    async with world(nap) as env:
        claim, wake = env.store.claim, OwnedRun.wake
        refused: list[str] = []

        async def overdue(*asked: Any) -> Any:
            found = await claim(*asked)
            if len(found.stored_runs) > 1 and not refused:
                found.stored_runs[0] = replace(found.stored_runs[0], run=replace(found.stored_runs[0].run, deadline=1))
            return found

        def refuses(run: OwnedRun, now: int) -> None:
            if run.deadline == 1:
                refused.append(run.identity.id)
                raise ValueError("not this one")
            wake(run, now)

        monkeypatch.setattr(OwnedRun, "wake", refuses)
        handles = await asyncio.gather(*(env.start(nap, number, id=str(number)) for number in range(10)))
        monkeypatch.setattr(env.store, "claim", overdue)
        await env.advance(3600)
        assert len(refused) == 1
        others = [handle for handle in handles if handle.id != refused[0]]
        assert [str(await handle.result()) for handle in others] == [handle.id for handle in others]


async def test_a_claim_whose_runs_are_lost_on_their_way_is_over_and_a_heartbeat_brings_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken.clear()
    async with world(nap) as env:
        session = env.worker.session
        assert session is not None
        poller, expect = session._poller, session.admission.expect
        lost: list[Any] = []

        def loses(stored_runs: Any, **options: Any) -> None:
            if stored_runs and not lost:
                lost.extend(stored_runs)
                raise RuntimeError("lost")
            expect(stored_runs, **options)

        handle = await env.start(nap, 1)
        monkeypatch.setattr(session.admission, "expect", loses)
        await env.advance(3601)
        [journal_of] = lost
        pulse = Pulse(now=session.clock.now(), alive=True, owned={handle.run_id: journal_of.run.epoch})
        for _ in range(3):
            session._reconciler.reconcile(pulse, session.clock.monotonic())
            await env.advance(3)
        assert woken == [1]
        assert await handle.result() == 1
        assert poller.claims_begun - poller.claims_ended <= 1


async def test_a_message_that_comes_between_claim_and_memory_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    word = Signal("word", str)

    @workflow
    async def listens() -> str:
        await asyncio.sleep(3600)
        begun = now()
        try:
            return f"{await word.wait(timeout=10)} after {(now() - begun).total_seconds():.0f} s"
        except TimeoutError:
            return "nobody spoke"

    async with world(listens, claim_batch=100) as env:
        session = env.worker.session
        assert session is not None
        adopt, poller = session.adopt_claimed, session._poller
        handles = {handle.run_id: handle for handle in [await env.start(listens) for _ in range(100)]}
        told: list[Any] = []

        def watched(stored_runs: Any) -> None:
            if not told:
                last = next(some for some in reversed(poller._slices) if some)[-1]
                told.append(handles[last.run.run_id])
                told.append(asyncio.get_running_loop().create_task(told[0].signal(word, "hello")))
            adopt(stored_runs)

        monkeypatch.setattr(session, "adopt_claimed", watched)
        await env.advance(3700)
        assert await told[0].result() == "hello after 0 s"
        assert not poller._missed


async def test_a_cancel_that_comes_between_claim_and_memory_is_heard_by_a_job_that_begins_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @job
    async def lasts() -> None:
        await asyncio.sleep(1_000)

    async with jobs(lasts, claim_batch=100) as env:
        session = env.worker.session
        assert session is not None
        adopt, poller = session.adopt_claimed, session._poller
        await env.client.pause_queue("default")
        handles = {handle.run_id: handle for handle in [await env.client.enqueue(lasts) for _ in range(100)]}
        told: list[Any] = []

        def watched(stored_runs: Any) -> None:
            if not told:
                last = next(some for some in reversed(poller._slices) if some)[-1]
                told.append(handles[last.run.run_id])
                told.append(asyncio.get_running_loop().create_task(told[0].cancel()))
            adopt(stored_runs)

        monkeypatch.setattr(session, "adopt_claimed", watched)
        await env.client.resume_queue("default")
        await env.advance(20)
        assert (await told[0].describe()).state is RunState.CANCELLED
