"""The call of a plain transactional function in its thread: its answer, and what becomes of it when nobody waits."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batuta.engine.activities.threads import Threads
from batuta.engine.activities.transactional import _Plain

PATIENCE = 30.0
shade = contextvars.ContextVar("shade", default="none")


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads("of-a-test")
    yield made
    made.close()


def plain_call(fn: Callable[[], Any]) -> _Plain:
    call = SimpleNamespace(
        activity=SimpleNamespace(fn=fn), pending=SimpleNamespace(name="act"), check_gates=lambda: None
    )
    return _Plain(asyncio.get_running_loop(), cast(Any, call), (), {})


async def told(plain: _Plain) -> None:
    """Wait until the event loop knows that its thread has left the function."""
    async with asyncio.timeout(PATIENCE):
        while not plain.is_over:
            await asyncio.sleep(0.001)


async def test_its_answer_is_what_the_function_returns(threads: Threads) -> None:
    plain = plain_call(threading.get_ident)
    threads.call(contextvars.copy_context(), plain)
    assert await plain.answer != threading.get_ident()
    assert plain.is_over


@pytest.mark.parametrize(
    ("raised", "heard"), [(ValueError, ValueError), (StopIteration, RuntimeError), (SystemExit, SystemExit)]
)
async def test_any_exception_of_a_plain_call_is_its_answer(
    threads: Threads, raised: type[BaseException], heard: type[BaseException]
) -> None:
    def act() -> None:
        raise raised

    plain = plain_call(act)
    threads.call(contextvars.copy_context(), plain)
    await asyncio.wait([plain.answer])
    assert type(plain.answer.exception()) is heard


async def test_a_call_without_a_waiter_is_not_begun() -> None:
    begun: list[str] = []
    plain = plain_call(lambda: begun.append("it"))
    plain.answer.cancel()
    plain()
    await told(plain)
    assert not begun


async def test_an_answer_that_comes_too_late_ends_its_call_and_changes_nothing_else(threads: Threads) -> None:
    go_on = threading.Event()
    left: list[Any] = []
    plain = plain_call(lambda: go_on.wait(PATIENCE))
    threads.call(contextvars.copy_context(), plain)
    plain.answer.cancel()
    plain.then = left.append
    assert not left
    go_on.set()
    await told(plain)
    assert left == [plain._call]


async def test_each_call_has_a_thread_at_once_and_the_context_that_it_is_given(threads: Threads) -> None:
    meeting = threading.Barrier(3)

    def meet() -> str:
        meeting.wait(PATIENCE)
        return shade.get()

    calls = [plain_call(meet) for _ in range(3)]
    for number, plain in enumerate(calls):
        context = contextvars.copy_context()
        context.run(shade.set, str(number))
        threads.call(context, plain)
    assert [await plain.answer for plain in calls] == ["0", "1", "2"]


async def test_a_thread_that_is_idle_is_used_again_and_all_end_when_they_are_closed(threads: Threads) -> None:
    used: set[threading.Thread] = set()
    for _ in range(20):
        plain = plain_call(threading.current_thread)
        threads.call(contextvars.copy_context(), plain)
        used.add(await plain.answer)
    assert len(used) < 20
    threads.close()
    for thread in used:
        thread.join(PATIENCE)
        assert not thread.is_alive()


async def test_a_plain_call_in_progress_at_close_finishes(threads: Threads) -> None:
    go_on, at_work = threading.Event(), threading.Event()

    def act() -> threading.Thread:
        at_work.set()
        go_on.wait(PATIENCE)
        return threading.current_thread()

    plain = plain_call(act)
    threads.call(contextvars.copy_context(), plain)
    assert await asyncio.to_thread(at_work.wait, PATIENCE)
    threads.close()
    go_on.set()
    thread = await plain.answer
    thread.join(PATIENCE)
    assert not thread.is_alive()
