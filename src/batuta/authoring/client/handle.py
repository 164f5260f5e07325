"""A handle on a run: its result, its state, and the ways to end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, TypeVarTuple, overload

from msgspec import Raw

from batuta.authoring.backend import (
    AttemptView,
    Code,
    Description,
    Ending,
    JournalLine,
    RunBackend,
    RunRef,
)
from batuta.authoring.call_options import check_wait
from batuta.authoring.client.caller_transaction import within
from batuta.authoring.client.forks import check_entry, edits_of
from batuta.authoring.client.requests import decoder_of, query_input, signal_message, update_message
from batuta.authoring.client.start import check_id
from batuta.authoring.definitions import Workflow
from batuta.authoring.failures.conversion import to_exception
from batuta.authoring.workflow.context import refuse_in_workflow
from batuta.authoring.workflow.messages import Signal
from batuta.durations import Duration, human_duration
from batuta.errors import (
    BatutaError,
    ClientError,
    NotPublished,
    RunCancelled,
    RunClosed,
    RunFailed,
    RunNotCompleted,
    RunTerminated,
    RunTimedOut,
)
from batuta.ids import RunId
from batuta.journal.states import PARKED, RunState
from batuta.journal.tracebacks import traceback_of
from batuta.names import check_reason
from batuta.serde import MAX_PAYLOAD, UNFIT, Decoder, decode, decode_stored, decoder_for, unfit

if TYPE_CHECKING:  # they are read by few programs, and `import batuta` is everybody's
    from batuta.authoring.history.diff import Diff
    from batuta.authoring.history.timeline import Timeline

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

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
_LOOK = 1.0
"""Seconds for a look at the run that makes an error's message better."""


class Handle(Generic[R]):
    """One run. Made by `start` and `get`; any process may have one."""

    def __init__(
        self,
        backend: RunBackend,
        ref: RunRef,
        code: Code | None = None,
        limit: int = MAX_PAYLOAD,
    ) -> None:
        self._own_backend = backend
        self._ref = ref
        self._code, self._limit = code, limit
        self._decoder: Decoder = _ANYTHING if code is None else code.codec.result_decoder

    @property
    def _backend(self) -> RunBackend:
        refuse_in_workflow()
        return self._own_backend

    @property
    def id(self) -> str:
        return self._ref.id

    @property
    def run_id(self) -> RunId:
        return self._ref.run_id

    @property
    def is_new(self) -> bool | None:
        """Whether the call that gave this handle began the run. False: its id was taken, and this is the run that has
        it. None: the handle was asked for with `get`."""
        return self._ref.is_new

    async def result(self, timeout: Duration | None = None) -> R:
        """The workflow's result, when it is there. Raises RunFailed (with the workflow's error as its cause),
        RunCancelled, RunTerminated or RunTimedOut; TimeoutError after `timeout` seconds, which says whether the run is
        parked or goes on. With 0 that is at once, unless it is there. UnknownRun when it was deleted.
        """
        self._check_home()
        seconds = None if timeout is None else check_wait("timeout", timeout)
        if seconds is None or await self._is_there(seconds):
            ending = await self._backend.runs.ending(self._ref)
        else:
            async with self._within(seconds, "has not ended"):
                ending = await self._backend.runs.ending(self._ref)
        if ending.state is not _COMPLETED:
            raise _error(ending)
        try:
            value: R = self._decoder.decode(ending.value if ending.value is not None else _NULL)
        except UNFIT as error:
            raise unfit(f"the result of run {self._ref.id!r}", error) from error
        return value

    @asynccontextmanager
    async def _within(self, seconds: float, missing: str) -> AsyncIterator[None]:
        """Wait with a time limit. TimeoutError says what is missing, and what holds the run up."""
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired() or error.args:
                raise
            why = await self._why_not_yet()
            raise TimeoutError(f"run {self._ref.id!r} {missing} within {human_duration(seconds)}: {why}") from None

    async def _why_not_yet(self) -> str:
        try:
            async with asyncio.timeout(_LOOK):
                run = await self.describe()
        except (TimeoutError, BatutaError):  # the caller gets the timeout of the wait, not that of the database
            return "it goes on"
        said = f": {run.reason}" if run.reason else ""
        if run.state in PARKED:
            return f"it is parked as {run.state} and not lost{said}"
        if run.state is RunState.PAUSED:
            return f"it is paused{said}"
        return f"it is {run.state}{said}" if said else "it goes on"

    async def _or_how(self, doing: Awaitable[T]) -> T:
        """Refuse a closed run. RunClosed says how it ended."""
        try:
            return await doing
        except RunClosed as error:
            if error.how or asyncio.get_running_loop() is not (self._backend.home or asyncio.get_running_loop()):
                raise
            try:
                async with asyncio.timeout(_LOOK):
                    ending = await self._backend.runs.ending(self._ref)
            except (TimeoutError, BatutaError):  # it was deleted, or the database is away: it is closed all the same
                raise error from None
            # Of the last run of the chain: this one may have continued as it.
            raise RunClosed(error.id, str(ending.state), error.why, _how(ending)) from None

    async def _is_there(self, timeout: float) -> bool:
        """For who would not wait at all: no database answers within no time."""
        return timeout == 0 and (await self.describe()).state in _ENDED

    def _check_home(self) -> None:
        """Raise in another event loop than the client's, where the waiter would never be woken."""
        home = self._backend.home
        if home is not None and asyncio.get_running_loop() is not home:
            raise ClientError(
                f"run {self._ref.id!r} was waited for in another event loop than its client's: await it there "
                f"(asyncio.run_coroutine_threadsafe), connect a client of its own here, or use batuta.sync"
            )

    @overload
    async def signal(
        self, signal: Signal[T], value: T, *, message_id: str | None = None, transaction: Any = None
    ) -> None: ...
    @overload
    async def signal(self, signal: Signal[None], *, message_id: str | None = None, transaction: Any = None) -> None: ...
    @overload
    async def signal(
        self, signal: str, value: Any = None, *, message_id: str | None = None, transaction: Any = None
    ) -> None: ...
    async def signal(
        self, signal: Any, value: Any = None, *, message_id: str | None = None, transaction: Any = None
    ) -> None:
        """Send a signal, given by its definition or its name; it is durable when this returns. Raises RunClosed.

        `message_id` is the sender's own name for it: a second signal with the same name and id is not delivered.
        `transaction`: your own connection or session on the same database; the signal is delivered if, and only if, its
        transaction commits. As for `client.enqueue`.
        """
        message = signal_message(signal, value, message_id, self._limit)
        if transaction is None:
            await self._or_how(self._backend.messages.signal(self._ref, message))
        else:
            messages = self._backend.messages
            await within(transaction, lambda given: messages.enter_signal(given, self._ref, message), lambda _: None)

    @overload
    async def update(
        self, update: Callable[[*Ts], T], *args: *Ts, update_id: str | None = None, timeout: Duration | None = None
    ) -> T: ...
    @overload
    async def update(
        self, update: str, *args: Any, update_id: str | None = None, timeout: Duration | None = None
    ) -> Any: ...
    async def update(  # type: ignore[misc]  # mypy does not see that *Any takes *Ts
        self, update: Any, *args: Any, update_id: str | None = None, timeout: Duration | None = None
    ) -> Any:
        """Ask the run to do something, and wait for its answer. The request is durable once it is sent.

        Raises UpdateRejected, UpdateFailed (with the handler's error as its cause), UpdateInterrupted when the run
        continued as new before it answered, RunClosed when no answer will come, and TimeoutError after `timeout`
        seconds: the request stays, and asking again with the same `update_id` waits for the same answer.
        """
        self._check_home()
        message = update_message(update, args, update_id, self._limit)
        if timeout is None:
            answer = await self._or_how(self._backend.messages.update(self._ref, message))
        else:
            async with self._within(check_wait("timeout", timeout), f"has not answered update {message.name!r}"):
                answer = await self._or_how(self._backend.messages.update(self._ref, message))
        if answer.error is not None:
            raise to_exception(answer.error)
        return decode(answer.value or _NULL, decoder_of(update), f"the answer to update {message.name!r}")

    @overload
    async def query(self, query: Callable[[*Ts], T], *args: *Ts) -> T: ...
    @overload
    async def query(self, query: str, *args: Any) -> Any: ...
    async def query(self, query: Any, *args: Any) -> Any:  # type: ignore[misc]  # as above
        """Ask about the run's state, as of its last durable turn; also when it is parked or closed. It does not notice.

        The workflow's code must be here: in a worker of this client, or given to `get` with the run's id.
        Raises UnknownQuery, QueryFailed.
        """
        name, data = query_input(query, args, self._limit)
        workflow = self._code if isinstance(self._code, Workflow) else None
        answer = await self._backend.messages.query(self._ref, name, data, workflow)
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
        type: Any = Any,
        default: Any = ...,
    ) -> Any:
        """The published value of that name, decoded to `type`; all values without a name.

        Raises NotPublished when there is nothing and no `default` is given.
        """
        values = await self._backend.messages.published(self._ref)
        if name is None:
            return {each: decode_stored(value, f"the published value {each!r}") for each, value in values.items()}
        if name not in values:
            if default is not ...:
                return default
            raise NotPublished(name, self.id, values)
        what = f"the published value {name!r}"
        return decode(values[name], decoder_for(type, what), what)

    async def cancel(self, reason: str = "", *, again: bool = False) -> bool:
        """Ask the run to end; its code may clean up first, and may refuse. A run that has not begun does not run.

        Returns False, and changes nothing, if it was already cancelled: a run gets one cancel, so that a second one
        does not interrupt its clean-up. `again` cancels once more a run that went on, or whose clean-up takes too long.
        Raises RunClosed.
        """
        return await self._or_how(self._backend.runs.cancel(self._ref, check_reason(reason), again=again))

    async def terminate(self, reason: str = "") -> None:
        """End the run at once. Its code is not told."""
        await self._or_how(self._backend.runs.terminate(self._ref, check_reason(reason)))

    async def pause(self, reason: str = "") -> bool:
        """Pause the run: calls in flight finish and are recorded, nothing new begins.

        It loses nothing: messages wait for it, and its deadline moves by the length of the pause. Returns True also
        while its worker has not released it yet, and False when it is already paused. Raises RunClosed.
        """
        return await self._or_how(self._backend.runs.pause(self._ref, check_reason(reason)))

    async def resume(self, reason: str = "") -> bool:
        """Resume a paused run; a parked run is tried again. Returns False when it is not paused."""
        return await self._or_how(self._backend.runs.resume(self._ref, check_reason(reason)))

    async def delete(self, reason: str = "") -> int:
        """Delete a closed run with its chain and its children. Returns the number of deleted runs.

        Raises RunOpen when one of them, or its parent, is open; UnknownRun.
        """
        return await self._backend.runs.delete(self._ref, check_reason(reason))

    async def retry(self, reason: str = "") -> None:
        """Let a parked run be tried again, also by the same code, when the cause was outside and is fixed.

        In a run whose failed attempts wait for their next try, have that begin now.

        A run that failed, was cancelled, terminated or timed out goes on from where it stopped, as a new run under the
        same id: finished steps stay, and repeated calls have the same keys. Raises NotParked when nothing of it waits,
        RunClosed when it has completed, InvalidFork when it cannot go on.
        """
        self._ref = await self._backend.runs.retry(self._ref, check_reason(reason))

    async def reset(
        self,
        to: int,
        *,
        args: Sequence[Any] | None = None,
        input: Mapping[int, Sequence[Any]] | None = None,  # noqa: A002 - its own word
        output: Mapping[int, Any] | None = None,
        reason: str = "",
    ) -> None:
        """Let the run go on from after entry `to` of its journal, as a new run under the same id. An open run is
        terminated.

        -1 means from the beginning. Answered calls before that entry keep their answers, and the keys of calls stay the
        same, unless something is edited: see `fork`. Raises InvalidFork, RunMoved.
        """
        edits = edits_of(args, input, output, self._limit)
        self._ref = await self._backend.runs.reset(self._ref, check_entry(to), edits, self._code, check_reason(reason))

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
        """Begin another run under `id` from the journal of this one, up to entry `at`. This run does not change.

        Edits: `input` gives pending calls new arguments, by the number of their command: `{3: ["eur", 10]}`; `output`
        gives them results, without executing them; `args` are new arguments of the run itself, which then begins anew.
        Without `at`, the fork begins where the edited calls are pending. From there on, calls have new keys. Edits need
        the workflow's code: in a worker of this client, or given to `get`. Raises InvalidFork when point or edits do
        not fit, AlreadyStarted.
        """
        edits, point = edits_of(args, input, output, self._limit), None if at is None else check_entry(at)
        ref = await self._backend.runs.fork(self._ref, check_id(id), point, edits, self._code, check_reason(reason))
        return Handle(self._backend, ref, self._code, self._limit)

    async def describe(self) -> Description:
        return await self._backend.runs.describe(self._ref)

    async def progress(self, type: Any = Any, default: Any = None) -> Any:
        """The last value of a job's `progress()`; `default` when there is none."""
        return await self.published("progress", type, default)

    async def attempts(self) -> list[AttemptView]:
        """Every recorded attempt of its activities, or of the job: failed ones with their errors, and those that
        gave an answer. `timeline()` has them by step, with their input."""
        return await self._backend.runs.attempts(self._ref)

    async def journal(self, *, after: int = -1, limit: int | None = None) -> list[JournalLine]:
        """Every entry so far, of this run alone; or those after an entry, so many at most. Raises UnknownRun."""
        return await self._backend.runs.journal(self._ref, after, limit)

    async def timeline(self) -> Timeline:
        """What this run waited for and what it did, step by step, and where the time of each went."""
        found: Timeline = await self._backend.runs.timeline(self._ref)
        return found

    async def diff(self, other: Handle[Any] | None = None) -> Diff:
        """This run (right) against another one of the same workflow (left), step by step; without one, against the run
        that it was made from, by a retry, reset or fork. Raises InvalidInput when they cannot be compared."""
        found: Diff = await self._backend.runs.diff(None if other is None else other._ref, self._ref)
        return found

    def __repr__(self) -> str:
        return f"<run {self.id}>"


class Batch(list[Handle[Any]]):
    """The handles of jobs that were enqueued together, in the order of their calls."""

    done: Handle[Any] | None = None
    """Of the job that is called when all of them have ended, if there is one."""


def _how(ending: Ending) -> str:
    return ending.error.words if ending.error is not None else ending.reason


def _error(ending: Ending) -> RunNotCompleted:
    cause = to_exception(ending.error) if ending.error is not None else None
    error = _ERRORS[ending.state](ending.id, str(ending.state), _how(ending))
    error.__cause__ = cause
    if isinstance(error, RunFailed) and ending.error is not None:
        error.traceback = traceback_of(ending.error)
    return error
