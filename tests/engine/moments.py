"""A message at one moment of a run's life, at which its worker lives on, fails or dies."""

import asyncio
from collections.abc import Callable
from typing import Any

from batuta import Handle, Job, RunClosed, UnknownRun, failpoints
from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.ids import RunId
from batuta.journal.records import Message
from batuta.testing import Environment

PARKS = "turn.after"
"""An error there is taken for one of the workflow's code: the run is parked, and waits for other code."""


class Killed(BaseException):
    """What a dying worker's code sees."""


class Moment:
    """Sends a message at one passage of a failpoint, counted over all sites, then lets the worker live, fail or die."""

    def __init__(self, env: Environment, at: int, action: str, message: Callable[[RunId], Message]) -> None:
        self._env, self._at, self._action, self._message = env, at, action, message
        self.run_id: RunId | None = None
        self.sites: list[str] = []
        """Those that were passed, in their order."""
        self.where = ""
        self.acknowledged = False
        self._recovering: asyncio.Task[None] | None = None

    def pass_by(self, name: str) -> None:
        session = self._env.worker.session
        if session is None or self._recovering is not None or name == "claim.before" or name.startswith("stop"):
            return
        self.sites.append(name)
        if len(self.sites) == self._at:
            self.where = name
            self.send()
            self._act(session)

    def send(self) -> None:
        """The memory store never really waits: its verbs can be called from anywhere."""
        try:
            if self.run_id is not None:
                self._env.store.send(self.run_id, self._message(self.run_id)).send(None)
        except StopIteration as sent:
            self.acknowledged = bool(sent.value)
        except (RunClosed, UnknownRun):
            pass

    def _act(self, session: Any) -> None:
        if self._action == "live" or (self._action == "fail" and self.where == PARKS):
            return
        if self._action == "kill":
            session.abandon()
        self._recovering = asyncio.get_running_loop().create_task(self._recover())
        raise Killed(self.where) if self._action == "kill" else failpoints.InjectedFault(self.where)

    async def _recover(self) -> None:
        if self._action == "fail":  # let it do what it does about an error first
            await asyncio.sleep(1000)
        await self._env.crash()
        self._recovering = None

    async def recovered(self) -> None:
        while self._recovering is not None:
            await asyncio.gather(self._recovering)


async def begin(env: Environment, workflow: Any, moment: Moment, **options: Any) -> Handle[Any]:
    while True:
        try:
            begins = env.client.enqueue if isinstance(workflow, Job) else env.start
            return await begins(workflow, id="one", **options)
        except (OutcomeUnknown, StoreUnavailable, failpoints.InjectedFault):
            await moment.recovered()
