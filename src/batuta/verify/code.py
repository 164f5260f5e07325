"""I7: today's code, fed the journal, does what it did."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from batuta.authoring.definitions import Workflow
from batuta.authoring.jobs import Job
from batuta.authoring.options import ActivityOptions
from batuta.engine.identity import RunIdentity
from batuta.engine.jobs import JobWorkflow
from batuta.engine.machine import Machine
from batuta.engine.past import Past
from batuta.engine.replay import Replay, last_fork
from batuta.engine.routes import RoutedCall
from batuta.journal.entries import Entry
from batuta.journal.records import Run, RunKind
from batuta.journal.store import Store

T = TypeVar("T")

_PAGE = 100


@functools.cache
def call_workflow(kind: RunKind, name: str) -> Workflow[..., Any]:
    """What a run does that is one call, of a job or of an activity from elsewhere. It needs no code of the author's."""

    async def nothing() -> None:
        raise NotImplementedError  # a replay calls nothing

    return (JobWorkflow if kind is RunKind.JOB else RoutedCall)(Job(nothing, name, ActivityOptions()))


class CodeCheck:
    """Replays one run, a page of its journal at a time."""

    def __init__(
        self, workflow: Workflow[..., Any], run: Run, namespace: str, tell: Callable[[str, str], None]
    ) -> None:
        self._machine = Machine(workflow, RunIdentity(run.run_id, run.id, run.queue, namespace))
        self._run, self._tell = run, tell
        self.failed = False

    async def begin(self, store: Store) -> None:
        """One that was made from another was that one first: what it says of that comes after what that one did."""
        after = self._run.forked_at
        while after >= 0 and (entries := await store.journal(self._run.run_id, after, _PAGE)):
            after = entries[-1].ord
            if (last := last_fork(entries)) is not None:
                self._machine.past = Past(self._machine.identity, last)
                return

    async def feed(self, entries: Sequence[Entry]) -> None:
        if self.failed:
            return
        try:
            await outside_task(Replay(self._machine, entries).run)
        except Exception as error:  # noqa: BLE001 - whatever replaying raises is the finding
            self.failed = True
            self._tell("I7", str(error) or type(error).__name__)

    def next_timer(self) -> int | None:
        """When the earliest timer is due that the code waits for."""
        timer = self._machine.next_timer()
        return None if timer is None else timer[0]

    def awaits_word(self) -> bool:
        """Whether the code waits for the store to say that it took a message or a child."""
        kin = self._machine.kin
        return kin is not None and kin.awaits_word()

    async def close(self) -> None:
        await outside_task(self._machine.tear_down)


async def outside_task(call: Callable[[], T]) -> T:
    """Call it from a callback of the loop: a turn takes the place of the running loop, which a task may not do."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            answer.set_exception(error)

    loop.call_soon(run)
    return await answer
