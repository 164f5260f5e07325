"""Texts are bounded on every store: callers are refused, and what user code says is cut before it is written."""

from datetime import timedelta

import pytest

from batuta import RunFailed, RunState, Schedule, every, job, workflow
from batuta.errors import TooLarge
from tests.engine.arena import PATIENCE, Arena, until, until_state
from tests.engine.test_sizes import HUGE, LONG, REASONS, asks, fails, largest_entry, shouts, tokens, waits


@workflow(on_error="park")
async def is_parked() -> None:
    raise ValueError(HUGE)


@job
async def mails() -> None:
    raise ValueError(HUGE)


async def test_no_verb_writes_a_reason_or_note_that_is_too_long(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, waits, asks)
    tokens.clear()
    handle = await client.start(waits)
    await client.schedules.create(Schedule("often", every(timedelta(days=1)), waits))

    async def asked() -> bool:
        return bool(tokens)

    await until(asked)
    await until_state(handle, RunState.WAITING)
    acts = len((await client.audit()).rows)
    for verb, call in REASONS.items():
        with pytest.raises(TooLarge, match=r"(reason|note) is 5,000 bytes, over the limit of 4,096"):
            await call(client, handle)
        assert (await handle.describe()).state is RunState.WAITING, verb
    with pytest.raises(TooLarge, match="the error of an activity is 3,000,000 bytes"):
        await client.fail(tokens[-1], HUGE)
    assert len((await client.audit()).rows) == acts
    assert LONG not in repr(await handle.journal())
    longest = "y" * 4_096
    await handle.terminate(longest)
    assert (await handle.describe()).reason == longest


async def test_what_user_code_says_is_cut_before_it_is_written(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, fails, is_parked, shouts)
    store = arena.store(client)
    failed, parked = await client.start(fails), await client.start(is_parked)
    with pytest.raises(RunFailed):
        await failed.result(PATIENCE)
    await until_state(parked, RunState.NEEDS_CODE)
    [attempt] = await store.attempts(failed.run_id)
    letters = (await client.dead_letters.list()).letters
    found = [len(attempt.error or ""), *[len((await one.describe()).reason) for one in (failed, parked)]]
    found += [len(letter.message) for letter in letters]
    assert len(found) > 3
    assert max(found) < 50_000
    assert largest_entry(await store.journal(failed.run_id)) < 60_000
    await parked.terminate()


async def test_the_words_of_a_job_are_cut_before_they_are_written(arena: Arena) -> None:
    client = await arena.client()
    async with client.worker(jobs=[mails], heartbeat=0.1):
        handle = await client.enqueue(mails)

        async def failed_once() -> bool:
            return bool(await handle.attempts())

        await until(failed_once)
        [attempt, *_] = await arena.store(client).attempts(handle.run_id)
        assert 0 < len(attempt.error or "") < 50_000
        await handle.terminate()
