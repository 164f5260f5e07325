"""I7: today's code replays the journal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.definitions import Workflow
from batuta.authoring.jobs import Job
from batuta.engine.forks.dry_run import in_callbacks
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.replay import Replay, last_fork
from batuta.engine.machine.routing import RoutedCall
from batuta.engine.run.jobs import JobWorkflow
from batuta.journal.entries import Entry
from batuta.journal.paging import journal_pages
from batuta.journal.records import Run, RunKind
from batuta.journal.store import Store

T = TypeVar("T")


@functools.cache
def call_workflow(kind: RunKind, name: str) -> Workflow[..., Any]:
    """The code of a run that is one call, of a job or of a routed activity. It needs no user code."""

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
        """A forked run replays the source's entries first, then its own."""
        if self._run.forked_at < 0:
            return
        async for entries in journal_pages(store, self._run.run_id, self._run.forked_at):
            if (last := last_fork(entries)) is not None:
                self._machine.descend(last)
                return

    async def feed(self, entries: Sequence[Entry]) -> None:
        if self.failed:
            return
        try:
            await outside_task(Replay(self._machine, entries).run)
        except Exception as error:  # noqa: BLE001 - any error of a replay is the finding
            self.failed = True
            self._tell("I7", str(error) or type(error).__name__)

    def next_timer(self) -> int | None:
        """When the earliest timer is due that the code waits for."""
        timer = self._machine.next_timer()
        return None if timer is None else timer[0]

    def awaits_word(self) -> bool:
        """Whether the code waits for the store's answer to a message or a child."""
        related = self._machine.related
        return related is not None and related.awaits_word()

    async def close(self) -> None:
        await outside_task(self._machine.tear_down)


async def outside_task(call: Callable[[], T]) -> T:
    """Call it from a callback of the loop: a turn takes the place of the running loop, which a task may not do."""

    def steps() -> Iterator[list[T]]:
        yield [call()]

    [answer] = await in_callbacks(steps())
    return answer
