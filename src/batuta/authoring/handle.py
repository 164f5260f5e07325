"""A handle on a run: its result, its state, and the ways to end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from msgspec import Raw, json

from batuta.authoring.backend import AttemptView, Backend, Description, Ending, JournalLine, RunRef
from batuta.authoring.context import current_runtime
from batuta.authoring.definitions import Workflow
from batuta.authoring.failures import to_exception
from batuta.authoring.forks import check_entry, edits_of
from batuta.authoring.jobs import Job
from batuta.authoring.letters import decoder_of, query_input, signal_letter, update_letter
from batuta.authoring.messages import Query, Signal, Update
from batuta.authoring.names import check_reason
from batuta.authoring.starting import check_id
from batuta.errors import (
    ClientError,
    Forbidden,
    InvalidInput,
    NotPublished,
    RunCancelled,
    RunFailed,
    RunNotCompleted,
    RunTerminated,
    RunTimedOut,
)
from batuta.ids import RunId
from batuta.journal.states import RunState
from batuta.serde import MAX_PAYLOAD, UNFIT, Decoder, decode, decoder_for, unfit

if TYPE_CHECKING:  # they are read by few programs, and `import batuta` is everybody's
    from batuta.authoring.diffs import Diff
    from batuta.authoring.timeline import Timeline

R = TypeVar("R")
T = TypeVar("T")

_NULL = Raw(b"null")
_COMPLETED = RunState.COMPLETED
_ANYTHING = decoder_for(Any, "a result")

_ERRORS: dict[RunState, type[RunNotCompleted]] = {
    RunState.FAILED: RunFailed,
    RunState.CANCELLED: RunCancelled,
    RunState.TERMINATED: RunTerminated,
    RunState.TIMED_OUT: RunTimedOut,
}
_ENDED = frozenset({_COMPLETED, *_ERRORS})


class Handle(Generic[R]):
    """One run. Made by `start` and `get`; any process may have one."""

    def __init__(
        self,
        backend: Backend,
        ref: RunRef,
        decoder: Decoder | None = None,
        workflow: Workflow[..., Any] | None = None,
        limit: int = MAX_PAYLOAD,
        job: Job[..., Any] | None = None,
    ) -> None:
        self._backend = backend
        self._ref = ref
        self._decoder = decoder
        self._workflow, self._limit, self._job = workflow, limit, job

    @property
    def id(self) -> str:
        return self._ref.id

    @property
    def run_id(self) -> RunId:
        return self._ref.run_id

    async def result(self, timeout: float | None = None) -> R:
        """The workflow's result, when it is there. Raises RunFailed (with the workflow's error as its cause),
        RunCancelled, RunTerminated or RunTimedOut; TimeoutError after `timeout` seconds (the run goes on). With 0 that
        is at once, unless it is there.
        """
        self._check_home()
        if timeout is None or await self._is_there(timeout):
            ending = await self._backend.ending(self._ref)
        else:
            async with _within(timeout, f"run {self._ref.id!r} has not ended"):
                ending = await self._backend.ending(self._ref)
        if ending.state is not _COMPLETED:
            raise _error(ending)
        try:
            value: R = (self._decoder or _ANYTHING).decode(ending.value if ending.value is not None else _NULL)
        except UNFIT as error:
            raise unfit(f"the result of run {self._ref.id!r}", error) from error
        return value

    async def _is_there(self, timeout: float) -> bool:
        """For who would not wait at all: no database answers within no time."""
        _check_wait(timeout)
        return timeout == 0 and (await self.describe()).state in _ENDED

    def _check_home(self) -> None:
        """Elsewhere nobody would be woken, and those who wait at home would not be, either."""
        home = self._backend.home
        if home is not None and asyncio.get_running_loop() is not home:
            if current_runtime.get() is not None:  # not an error of the run: it would end by it
                raise Forbidden(
                    f"workflow code waited for run {self._ref.id!r} as a client does, which cannot be replayed: "
                    f"start it as a child, or wait for it in an activity"
                )
            raise ClientError(
                f"run {self._ref.id!r} was waited for in another event loop than its client's: await it there "
                f"(asyncio.run_coroutine_threadsafe), connect a client of its own here, or use batuta.sync"
            )

    @overload
    async def signal(self, signal: Signal[T], value: T, *, message_id: str | None = None) -> None: ...
    @overload
    async def signal(self, signal: Signal[None], *, message_id: str | None = None) -> None: ...
    @overload
    async def signal(self, signal: str, value: Any = None, *, message_id: str | None = None) -> None: ...
    async def signal(self, signal: Any, value: Any = None, *, message_id: str | None = None) -> None:
        """Send a signal, given by its definition or its name; it is durable when this returns. Raises RunClosed.

        `message_id` is the sender's own name for it: a second signal of the same id is not delivered (those of other
        names are).
        """
        await self._backend.signal(self._ref, signal_letter(signal, value, message_id, self._limit))

    @overload
    async def update(
        self, update: Update[T], *args: Any, update_id: str | None = None, timeout: float | None = None
    ) -> T: ...
    @overload
    async def update(
        self, update: str, *args: Any, update_id: str | None = None, timeout: float | None = None
    ) -> Any: ...
    async def update(self, update: Any, *args: Any, update_id: str | None = None, timeout: float | None = None) -> Any:
        """Ask the run to do something, and wait for its answer. The request is durable once it is sent.

        Raises UpdateRejected, UpdateFailed (with the handler's error as its cause), UpdateInterrupted when the run
        continued as new before it answered, RunClosed when no answer will come, and TimeoutError after `timeout`
        seconds: the request stays, and asking again with the same `update_id` waits for the same answer.
        """
        self._check_home()
        letter = update_letter(update, args, update_id, self._limit)
        if timeout is None:
            answer = await self._backend.update(self._ref, letter)
        else:
            async with _within(timeout, f"run {self._ref.id!r} has not answered update {letter.name!r}"):
                answer = await self._backend.update(self._ref, letter)
        if answer.error is not None:
            raise to_exception(answer.error)
        return decode(answer.value or _NULL, decoder_of(update), f"the answer to update {letter.name!r}")

    @overload
    async def query(self, query: Query[T], *args: Any) -> T: ...
    @overload
    async def query(self, query: str, *args: Any) -> Any: ...
    async def query(self, query: Any, *args: Any) -> Any:
        """Ask about the run's state, as of its last durable turn; also when it is parked or closed. It does not notice.

        The workflow's code must be here: in a worker of this client, or given to `get` with the run's id.
        Raises UnknownQuery, QueryFailed.
        """
        name, data = query_input(query, args, self._limit)
        answer = await self._backend.query(self._ref, name, data, self._workflow)
        return decode(answer, decoder_of(query), f"the answer to query {name!r}")

    @overload
    async def published(self) -> dict[str, Any]: ...
    @overload
    async def published(self, name: str, type: type[T], default: T | EllipsisType = ...) -> T: ...
    @overload
    async def published(self, name: str, type: Any = Any, default: Any = ...) -> Any: ...
    async def published(
        self,
        name: str | None = None,
        type: Any = Any,  # noqa: A002 - its own word
        default: Any = ...,
    ) -> Any:
        """What the run has published under that name, decoded to `type`; all of it without a name.

        Raises NotPublished when there is nothing and no `default` is given.
        """
        values = await self._backend.published(self._ref)
        if name is None:
            return {each: json.decode(value) for each, value in values.items()}
        if name not in values:
            if default is not ...:
                return default
            raise NotPublished(name, self.id, values)
        what = f"the published value {name!r}"
        return decode(values[name], decoder_for(type, what), what)

    async def cancel(self, reason: str = "", *, again: bool = False) -> bool:
        """Ask the run to end; its code may clean up first, and may refuse.

        False when it was asked before: a run hears one cancel, so that a second does not cut off its clean-up, and
        nothing has changed. `again` asks once more a run that went on, or whose clean-up takes too long: it always
        hears that. Raises RunClosed.
        """
        return await self._backend.cancel(self._ref, check_reason(reason), again=again)

    async def terminate(self, reason: str = "") -> None:
        """End the run at once. Its code is not told."""
        await self._backend.terminate(self._ref, check_reason(reason))

    async def pause(self, reason: str = "") -> bool:
        """Hold the run: what is in flight comes to its end and is kept, nothing new begins. It loses nothing: messages
        wait for it, and its deadline is later by as long as it was paused.

        True also when its worker is still to let go of it. False when it is held already. Raises RunClosed.
        """
        return await self._backend.pause(self._ref, check_reason(reason))

    async def resume(self, reason: str = "") -> bool:
        """Let a paused run go on; one that was parked before is tried again. False when it is not held."""
        return await self._backend.resume(self._ref, check_reason(reason))

    async def delete(self, reason: str = "") -> int:
        """Delete a closed run with all that belongs to it: its chain, and its children. How many runs are gone.

        Raises RunOpen when one of them, or its parent, has not ended; UnknownRun.
        """
        return await self._backend.delete(self._ref, check_reason(reason))

    async def retry(self, reason: str = "") -> None:
        """Let a parked run be tried again, by the same code, too: the cause was outside of it, and is mended. One that
        has failed, was cancelled, terminated or has timed out goes on from where it failed, as another run under the
        same id: what was done stays, and calls that are made again have the same keys.

        Raises NotParked when it goes on by itself, RunClosed when it has completed, InvalidFork when it cannot go on.
        """
        self._ref = await self._backend.retry(self._ref, check_reason(reason))

    async def reset(
        self,
        to: int,
        *,
        args: Sequence[Any] | None = None,
        input: Mapping[int, Sequence[Any]] | None = None,  # noqa: A002 - its own word
        output: Mapping[int, Any] | None = None,
        reason: str = "",
    ) -> None:
        """Let the run go on from after entry `to` of its journal, as another run under the same id; one that is open is
        terminated. -1: from the beginning. What was called before and is answered stays answered, and the keys of calls
        stay the same, unless something is edited: see `fork`. Raises InvalidFork, RunMoved.
        """
        edits = edits_of(args, input, output, self._limit)
        self._ref = await self._backend.reset(self._ref, check_entry(to), edits, self._code, check_reason(reason))

    async def fork(
        self,
        id: str,
        *,
        at: int | None = None,
        args: Sequence[Any] | None = None,
        input: Mapping[int, Sequence[Any]] | None = None,  # noqa: A002 - its own word
        output: Mapping[int, Any] | None = None,
        reason: str = "",
    ) -> Handle[R]:
        """Begin another run under `id` with what this one has done up to entry `at`; this one is left as it is.

        Edits: `input` gives calls that are pending there other arguments, by the number of their command:
        `{3: ["eur", 10]}`; `output` gives them results, without executing them; `args` are other arguments of the
        run itself, which begins anew then. Without `at`, it is where the edited calls are pending. From there on, calls
        have keys of their own. Edits need the workflow's code: in a worker of this client, or given to `get`.
        Raises InvalidFork when point or edits do not fit, AlreadyStarted.
        """
        edits, point = edits_of(args, input, output, self._limit), None if at is None else check_entry(at)
        ref = await self._backend.fork(self._ref, check_id(id), point, edits, self._code, check_reason(reason))
        return Handle(self._backend, ref, self._decoder, self._workflow, self._limit, self._job)

    @property
    def _code(self) -> Workflow[..., Any] | Job[..., Any] | None:
        return self._workflow or self._job

    async def describe(self) -> Description:
        return await self._backend.describe(self._ref)

    async def progress(self, type: Any = Any, default: Any = None) -> Any:  # noqa: A002 - as in `published`
        """What a job has said last with `progress()`; `default` when it has said nothing."""
        return await self.published("progress", type, default)

    async def attempts(self) -> list[AttemptView]:
        """Every attempt of its activities, or of the job, that has begun and was noted: the failed ones with their
        errors, and those that gave an answer. `timeline()` has them by step, with their input."""
        return await self._backend.attempts(self._ref)

    async def journal(self) -> list[JournalLine]:
        """Every entry so far, of this run alone. Raises UnknownRun."""
        return await self._backend.journal(self._ref)

    async def timeline(self) -> Timeline:
        """What it waited for and what it did, step by step, and where the time of each went. Of this run alone."""
        found: Timeline = await self._backend.timeline(self._ref)
        return found

    async def diff(self, other: Handle[Any] | None = None) -> Diff:
        """This run (right) against another one of the same workflow (left), step by step; without one, against the run
        that it was made from, by a retry, reset or fork. Raises InvalidInput when they cannot be compared."""
        found: Diff = await self._backend.diff(None if other is None else other._ref, self._ref)
        return found

    def __repr__(self) -> str:
        return f"<run {self.id}>"


class Batch(list[Handle[Any]]):
    """The handles of jobs that were enqueued together, in the order of their calls."""

    done: Handle[Any] | None = None
    """Of the job that is called when all of them have ended, if there is one."""


def _check_wait(seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidInput(f"timeout={seconds!r} must be a number of seconds, not negative; leave it out for no limit")


@asynccontextmanager
async def _within(seconds: float, missing: str) -> AsyncIterator[None]:
    """How long somebody waits. TimeoutError says what is missing."""
    _check_wait(seconds)
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if limit.expired() and not error.args:
            raise TimeoutError(f"{missing} within {seconds:g} s: it goes on") from None
        raise


def _error(ending: Ending) -> RunNotCompleted:
    cause = to_exception(ending.error) if ending.error is not None else None
    message = f"{ending.error.kind}: {ending.error.message}" if ending.error is not None else ending.reason
    error = _ERRORS[ending.state](ending.id, str(ending.state), message)
    error.__cause__ = cause
    return error
