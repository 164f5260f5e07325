"""A run that waits to hear whether the store took what it sent: no way of leaving memory may make it wait for ever."""

import asyncio
from typing import Any

import pytest

from batuta import Signal, failpoints, send, start_child, workflow
from batuta.testing import Environment
from tests.engine.kit import world

news = Signal("news", int)


@workflow
async def hears() -> list[int]:
    return [await news.wait(), await news.wait()]


@workflow
async def tells(id: str) -> str:
    await send(id, news, 1)
    child = await start_child(tells_more, id)
    return await child.result()


@workflow
async def tells_more(id: str) -> str:
    await send(id, news, 2)
    return "told"


async def _told(env: Environment) -> tuple[str, list[int]]:
    listener = await env.start(hears, id="listener")
    teller = await env.start(tells, "listener")
    return await teller.result(), await listener.result()


async def test_a_run_that_never_stays_in_memory_hears_the_word() -> None:
    async with world(hears, tells, tells_more, keep_in_memory=1e-7) as env:
        assert await _told(env) == ("told", [1, 2])


class Hurried:
    """Has every run leave right after a commit, if it can."""

    def __init__(self, env: Environment, verb: str) -> None:
        self._env, self._verb = env, verb
        self._handed_back: set[Any] = set()

    def pass_by(self, name: str) -> None:
        session = self._env.worker.session
        if name == "commit.effects" and session is not None:
            for run in session.runs.values():
                asyncio.get_running_loop().call_soon(self._hurry, run, context=session.context)

    def _hurry(self, run: Any) -> None:
        if run.leaving or not run.ready:
            return
        if self._verb == "wake":
            run.wake(self._env.worker.session.clock.now())  # type: ignore[union-attr]  # it is there
        elif run.run_id not in self._handed_back:  # once: who hands back takes nothing any more
            run.hand_back()
            if run.leaving:
                self._handed_back.add(run.run_id)


@pytest.mark.parametrize("verb", ["wake", "hand back"])
async def test_a_run_that_leaves_between_the_word_and_its_turn_hears_it_later(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    async with world(hears, tells, tells_more) as env:
        monkeypatch.setattr(failpoints, "armed", Hurried(env, verb))
        assert await _told(env) == ("told", [1, 2])
