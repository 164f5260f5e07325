"""A handle on a run: its result, its state, and the ways to end it."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

from msgspec import Raw

from batuta.authoring.backend import Backend, Description, Ending, JournalLine, RunRef
from batuta.authoring.failures import to_exception
from batuta.errors import RunCancelled, RunFailed, RunNotCompleted, RunTerminated, RunTimedOut
from batuta.ids import RunId
from batuta.journal.states import RunState
from batuta.serde import Decoder, decode, decoder_for

R = TypeVar("R")

_ERRORS: dict[RunState, type[RunNotCompleted]] = {
    RunState.FAILED: RunFailed,
    RunState.CANCELLED: RunCancelled,
    RunState.TERMINATED: RunTerminated,
    RunState.TIMED_OUT: RunTimedOut,
}


class Handle(Generic[R]):
    """One run. Made by `start` and `get`; any process may have one."""

    def __init__(self, backend: Backend, ref: RunRef, decoder: Decoder | None = None) -> None:
        self._backend = backend
        self._ref = ref
        self._decoder = decoder

    @property
    def id(self) -> str:
        return self._ref.id

    @property
    def run_id(self) -> RunId:
        return self._ref.run_id

    async def result(self, timeout: float | None = None) -> R:
        """The workflow's result, when it is there. Raises RunFailed (with the workflow's error as its cause),
        RunCancelled, RunTerminated or RunTimedOut; TimeoutError after `timeout` seconds (the run goes on).
        """
        if timeout is None:
            ending = await self._backend.ending(self._ref)
        else:
            async with asyncio.timeout(timeout):
                ending = await self._backend.ending(self._ref)
        if ending.state is not RunState.COMPLETED:
            raise _error(ending)
        value: R = decode(
            ending.value if ending.value is not None else Raw(b"null"),
            self._decoder or decoder_for(Any, "a result"),
            f"the result of run {self.id!r}",
        )
        return value

    async def cancel(self, reason: str = "") -> None:
        """Ask the run to end; its code may clean up first, and may refuse."""
        await self._backend.cancel(self._ref, reason)

    async def terminate(self, reason: str = "") -> None:
        """End the run at once. Its code is not told."""
        await self._backend.terminate(self._ref, reason)

    async def retry(self) -> None:
        """Let a parked run be tried again, by the same code, too: the cause was outside of it, and is mended.

        Raises NotParked when it goes on by itself, RunClosed when it has ended.
        """
        await self._backend.retry(self._ref)

    async def describe(self) -> Description:
        return await self._backend.describe(self._ref)

    async def journal(self) -> list[JournalLine]:
        """Every entry so far."""
        return await self._backend.journal(self._ref)

    def __repr__(self) -> str:
        return f"<run {self.id}>"


def _error(ending: Ending) -> RunNotCompleted:
    cause = to_exception(ending.error) if ending.error is not None else None
    message = f"{ending.error.kind}: {ending.error.message}" if ending.error is not None else ending.reason
    error = _ERRORS[ending.state](ending.id, str(ending.state), message)
    error.__cause__ = cause
    return error
