"""A worker takes no more of a kind than it can begin soon."""

import asyncio
import threading

from batuta import job
from tests.engine.arena import Arena, until


async def test_a_worker_with_jobs_of_several_kinds_leaves_to_others_what_it_cannot_begin(arena: Arena) -> None:
    gate = threading.Event()

    @job
    def block(n: int) -> None:
        gate.wait(60)

    @job
    async def quick() -> None: ...

    first, second = await arena.client(), await arena.client()
    one = await arena.worker(first, block, quick, threads=2)
    batch = await first.enqueue_many([block.call(n) for n in range(100)])
    other = await arena.worker(second, block, quick, threads=2)

    async def both_have_some() -> bool:
        assert one.session is not None
        assert other.session is not None
        return min(len(one.session.runs), len(other.session.runs)) >= 2

    try:
        await until(both_have_some)
        assert one.session is not None
        assert len(one.session.runs) <= 8
        await (await first.enqueue(quick)).result(60)  # places of another kind are free
    finally:
        gate.set()
        await asyncio.gather(*(handle.result(60) for handle in batch))
