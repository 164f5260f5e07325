"""When everything in a test waits: what for, and where."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from types import FrameType
from typing import Any, Protocol, TypeVar

import batuta
from batuta.authoring.definitions import Workflow
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.replay import Replay
from batuta.errors import BatutaError
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import Page, Run, RunFilter
from batuta.journal.states import OPEN, PARKED

T = TypeVar("T")

_SHOWN = 5
_NOT_THE_TESTS = (os.path.dirname(batuta.__file__), os.path.dirname(asyncio.__file__))


def where_tasks_wait(loop: asyncio.AbstractEventLoop) -> list[str]:
    """The lines of the test's own tasks that wait."""
    found = []
    for task in asyncio.all_tasks(loop):
        frame = _own_frame(task.get_coro())
        if frame is not None:
            found.append(f"{frame.f_code.co_qualname} waits at {_place(frame)}")
    return sorted(found)[:_SHOWN]


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _own_frame(coro: Any) -> FrameType | None:
    """The innermost frame that is neither ours nor asyncio's; None when the outermost is."""
    found: FrameType | None = None
    while coro is not None:
        frame = getattr(coro, "cr_frame", None)
        if frame is not None:
            if not frame.f_code.co_filename.startswith(_NOT_THE_TESTS):
                found = frame
            elif found is None:
                return None
        coro = getattr(coro, "cr_await", None)
    return found


class Readable(Protocol):
    """Facts read from a store."""

    namespace: str

    def list_runs(self, where: RunFilter, cursor: str | None, limit: int) -> Coroutine[Any, Any, Page]: ...
    def journal(self, run_id: RunId) -> Coroutine[Any, Any, list[Entry]]: ...


def what_runs_wait_for(store: Readable, code: Mapping[str, Workflow[..., Any]]) -> list[str]:
    """A sentence about each open run that no time will wake, as far as the store can be read without waiting."""
    try:
        page = _at_once(store.list_runs(RunFilter(states=tuple(OPEN)), None, _SHOWN))
        return [_sentence(store, run, code) for run in page.runs]
    except (BatutaError, _Waits):
        return []


def _sentence(store: Readable, run: Run, code: Mapping[str, Workflow[..., Any]]) -> str:
    what = f"run {run.id!r} of {run.name!r} is {run.state}"
    if run.reason:
        return f"{what}: {run.reason}"
    if run.state in PARKED or run.head < 0:
        return f"{what}: no worker here has taken it from queue {run.queue!r}" if run.head < 0 else what
    workflow = code.get(run.code or run.name)
    return what if workflow is None else f"{what}{_waits(store, run, workflow)}"


def _waits(store: Readable, run: Run, workflow: Workflow[..., Any]) -> str:
    """The calls that its code waits for, found by replay."""
    machine = Machine(workflow, RunIdentity(run.run_id, run.id, run.queue, store.namespace))
    try:
        Replay(machine, _at_once(store.journal(run.run_id))).run()
        awaited = [f"activity {one.name!r}" for one in machine.activities.values()]
        boxes = machine.message_handlers._boxes if machine.message_handlers is not None else {}
        awaited += [f"signal {name!r}" for name, box in boxes.items() if box.getters]
        frames = [_own_frame(task.get_coro()) for task in machine.loop._tasks if not task.done()]
        places = [_place(frame) for frame in frames if frame is not None]
        what = f", waits for {', '.join(awaited[:_SHOWN])}" if awaited else ""
        return f"{what} at {', '.join(places[:_SHOWN])}" if places else what
    except Exception:  # noqa: BLE001 - this is an explanation of another error, and must not replace it
        return ""
    finally:
        machine.tear_down()


class _Waits(Exception):
    """The coroutine did not come to its end at once."""


def _at_once(coro: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never really waits."""
    try:
        coro.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coro.close()
    raise _Waits
