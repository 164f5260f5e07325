"""What a live run needs of its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from batuta.engine.alerts import Alerts
from batuta.engine.completion import Completion
from batuta.engine.dbclock import DatabaseClock
from batuta.engine.generators import Turns
from batuta.engine.waiters import Waiters
from batuta.ids import RunId
from batuta.journal.entries import Command, StartInfo
from batuta.journal.records import Message
from batuta.journal.store import Store
from batuta.settings import Settings

if TYPE_CHECKING:
    from batuta.engine.executor import Executor
    from batuta.engine.jobs import EarlyRun
    from batuta.engine.live import LiveRun
    from batuta.engine.routes import Route


class Host(Protocol):
    """What a live run needs of its worker."""

    settings: Settings
    clock: DatabaseClock
    executor: Executor
    draining: bool
    listens: bool
    """Somebody is told of activities: what is told of an entry is made with it, and waits until it is durable."""
    turns: Turns
    turn: LiveRun | None
    """Whose code is running now, for the watchdog."""

    waiters: Waiters
    store: Store
    letters: Alerts

    @property
    def begins(self) -> Callable[[LiveRun, StartInfo], None] | None:
        """Middleware that wants to know of a run's first turn before it is made."""
        ...

    def submit(self, run: LiveRun) -> None:
        """The run's change is to be written."""
        ...

    @property
    def submit_end(self) -> Callable[[EarlyRun], None]:
        """The same for the end of a job, which is all that is to be written of it."""
        ...

    def is_writing(self, run: LiveRun) -> bool:
        """Whether a change of the run is on its way to the store."""
        ...

    def started(self, starter: asyncio.Future[Completion], completion: Completion) -> None:
        """The run's start is durable, and who waits for that may know."""
        ...

    def arm(self, run: LiveRun, when: int) -> None:
        """Call `run.wake` at that database time or soon after, never before."""
        ...

    def disarm(self, run: LiveRun) -> None: ...

    def may_linger(self, run: LiveRun) -> bool:
        """Whether there is room to keep the run in memory though nothing of it is going on here."""
        ...

    def caught_up(self, run: LiveRun) -> None:
        """The run has no inputs left that wait: its inbox may be read again."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def tell(self, run_id: RunId, message: Message) -> None:
        """The store has put a message into that run's inbox: if it is here, it need not be read."""
        ...

    def go_back(self, run: LiveRun) -> None:
        """Bring the run to what is durable of it, and then `resume` it."""
        ...

    def look_after(self, run: LiveRun, route: Route) -> None:
        """An activity of the run that is elsewhere may be over its time."""
        ...

    def finished(self, run: LiveRun, outcome: Command) -> None:
        """A job is completed and has left memory, with nothing in it to be cleaned up."""
        ...

    def forget(self, run: LiveRun, wake_at: int | None) -> None:
        """The run has left memory; it is due again at `wake_at`."""
        ...
