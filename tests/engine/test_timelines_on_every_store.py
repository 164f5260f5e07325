"""What a timeline is made of is kept by every store."""

import pytest

from batuta import Retry, activity, activity_info, connect, workflow
from batuta.authoring.history.steps import SegmentKind, StepKind
from batuta.codecs import Encryption, Keys
from batuta.errors import PayloadSealed
from tests.engine.arena import Arena


@activity(retry=Retry(attempts=3, first=0.01, jitter=0))
async def flaky(name: str) -> int:
    if activity_info().attempt < 3:
        raise ConnectionError(f"{name} is busy")
    return activity_info().attempt


@workflow
async def calls(name: str) -> list[int]:
    return [await flaky(name), await flaky(name)]


async def test_failed_attempts_stay_when_the_run_is_closed(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, calls, flaky)
    handle = await client.start(calls, "bank")
    assert await handle.result() == [3, 3]
    found = await handle.timeline()
    for step in (one for one in found.steps if one.kind is StepKind.ACTIVITY):
        assert (step.input, step.output) == (["bank"], 3)
        assert ["bank is busy" in (one.error or "") for one in step.attempts] == [True, True, False]
        assert SegmentKind.BACKOFF in {one.kind for one in step.segments}
    assert not found.sealed
    copy = await handle.fork("copy", at=1)
    await copy.result()
    assert len((await copy.timeline()).steps[1].attempts) == 3
    assert (await copy.diff()).is_same


@pytest.mark.usefixtures("real_time")
async def test_without_the_key_there_is_what_the_row_says(sqlite_url: str) -> None:
    codec = Encryption(Keys.new("k1"))
    async with connect(sqlite_url, codec=codec) as client, client.worker(workflows=[calls], activities=[flaky]):
        handle = await client.start(calls, "bank", id="c-1")
        await handle.result()
    for others in ((), (Encryption(Keys.new("k2")),)):
        async with connect(sqlite_url, codec=others) as client:
            handle = await client.get("c-1")
            found = await handle.timeline()
            assert "k1" in found.sealed
            assert (found.state, found.segments, found.steps) == ("completed", [], [])
            assert [one.number for one in await handle.attempts()] == [1, 2, 1, 2]
            with pytest.raises(PayloadSealed):
                await handle.diff(await client.get_run(handle.run_id))
