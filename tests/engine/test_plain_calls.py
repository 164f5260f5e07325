"""The call of a plain transactional function in its thread: its answer, and what becomes of it when nobody waits."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batuta.engine.transactions import _Plain


def plain_call(fn: Callable[[], Any]) -> _Plain:
    call = SimpleNamespace(activity=SimpleNamespace(fn=fn), pending=SimpleNamespace(name="act"))
    return _Plain(asyncio.get_running_loop(), cast(Any, call), (), {})


async def test_its_answer_is_what_the_function_returns() -> None:
    with ThreadPoolExecutor(1) as threads:
        plain = plain_call(threading.get_ident)
        plain.begin(threads, contextvars.copy_context())
        assert await plain.answer != threading.get_ident()
        assert not plain.is_at_work()


@pytest.mark.parametrize(
    ("raised", "heard"), [(ValueError, ValueError), (StopIteration, RuntimeError), (SystemExit, SystemExit)]
)
async def test_whatever_it_raises_is_its_answer(raised: type[BaseException], heard: type[BaseException]) -> None:
    def act() -> None:
        raise raised

    with ThreadPoolExecutor(1) as threads:
        plain = plain_call(act)
        plain.begin(threads, contextvars.copy_context())
        await asyncio.wait([plain.answer])
        assert type(plain.answer.exception()) is heard


async def test_one_that_nobody_waits_for_any_more_is_not_begun() -> None:
    begun, go_on = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(go_on.wait)
        plain = plain_call(begun.set)
        plain.begin(threads, contextvars.copy_context())
        plain.cancel()
        go_on.set()
    assert plain.ended.cancelled()
    assert not begun.is_set()
    assert not plain.is_at_work()


async def test_an_answer_that_comes_too_late_harms_nobody() -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        plain = plain_call(go_on.wait)
        plain.begin(threads, contextvars.copy_context())
        plain.answer.cancel()
        go_on.set()
    await asyncio.sleep(0)
    assert plain.over
    assert plain.ended.done()


async def test_one_that_a_thread_has_taken_is_at_work_before_its_first_line() -> None:
    class Slow:
        """Has a thread for it, which does not come to its code yet."""

        def submit(self, *_: Any) -> Future[None]:
            taken: Future[None] = Future()
            taken.set_running_or_notify_cancel()
            return taken

    plain = plain_call(list)
    assert not plain.is_at_work()
    plain.begin(cast(Any, Slow()), contextvars.copy_context())
    plain.cancel()
    assert plain.is_at_work()
    plain()
    assert not plain.is_at_work()
    assert await plain.answer == []
