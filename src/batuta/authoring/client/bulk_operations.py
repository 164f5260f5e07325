"""Operators' actions on many runs, and the audit log of all actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from batuta.authoring.backend import Code
from batuta.authoring.client.forks import Edits, check_entry, edits_of
from batuta.errors import InvalidInput
from batuta.journal.audit import ActFilter, Verb
from batuta.journal.records import RunFilter
from batuta.journal.states import CLOSED, OPEN, PARKED, RunState
from batuta.names import check_reason
from batuta.serde import MAX_PAYLOAD

APPLIES_TO: dict[Verb, frozenset[RunState]] = {
    Verb.PAUSE: OPEN - {RunState.PAUSED},
    Verb.RESUME: OPEN,
    Verb.CANCEL: OPEN,
    Verb.TERMINATE: OPEN,
    Verb.RETRY: PARKED | {RunState.FAILED, RunState.TIMED_OUT, RunState.CANCELLED, RunState.TERMINATED},
    Verb.DELETE: CLOSED,
    Verb.RESET: frozenset(RunState) - {RunState.CONTINUED},
    Verb.FORK: frozenset(RunState) - {RunState.CONTINUED},
}
"""The states of runs that an operation applies to. A run that is about to be paused can be resumed, too."""

_UNASKED: dict[Verb, frozenset[RunState]] = {Verb.RETRY: PARKED | {RunState.FAILED, RunState.TIMED_OUT}}
"""The same if the filter names no state: runs that were ended on purpose need an explicit state."""


class Counts(Struct, kw_only=True):
    """How many runs an operation changed, and how many it refused."""

    matched: int = 0
    """Runs that matched the filter."""
    done: int = 0
    """Runs that changed. The others were in that state already, or have moved on."""
    refused: dict[str, int] = {}
    """Runs that were refused, by the name of the error."""


class Course(Struct, kw_only=True):
    """A call on many runs that another process can go on with."""

    operation: str
    """Its id, which the audit log has beside all that it does."""
    began: datetime | None = None
    """Go on with it; it began then. Runs it was done to, as the audit log says, count, and are left alone."""
    tell: Callable[[Counts], None]
    """Called after each batch with the counts so far."""


class AuditRow(Struct, kw_only=True):
    """An operator's action on one run, queue, schedule or dead letter."""

    number: int
    """From 1 without gaps."""
    at: datetime
    actor: str
    verb: str
    target: str
    """The id of the run, or the name of something else."""
    run_id: str
    reason: str
    detail: Any
    before: Any
    after: Any
    hash: str
    """Of this row and the hash before."""
    salt: str
    """Names the key of the hash; empty when it has none."""


class AuditPage(Struct):
    """Some rows, newest first; `cursor` gives the next page, None after the last."""

    rows: list[AuditRow]
    cursor: str | None


class AuditReport(Struct, kw_only=True):
    """Whether the log is unchanged."""

    rows: int
    """How many rows are sound."""
    keyed: int = 0
    """How many of them were written with a key. Anybody who can write to the database could have forged the others."""
    head: str
    """Number and hash of the last sound row: "12:5f1e". Kept elsewhere, it reveals a rewritten log."""
    problem: str = ""
    """The first problem; empty when there is none."""


class Remake(Struct, kw_only=True):
    """How runs are made from others: all in the same way."""

    at: int | None
    """The last entry to keep; None: where the edits are."""
    edits: Edits
    code: Sequence[Code]
    """Theirs, where it is given: several when there are several versions of it."""
    id: str = ""
    """For a fork: its id, with `{id}` in place of the id of its run."""


class BulkService(Protocol):
    """Backend calls for operators."""

    async def count(self, where: RunFilter) -> int: ...

    async def apply(
        self, verb: Verb, where: RunFilter, reason: str, how: Remake | None = None, course: Course | None = None
    ) -> Counts:
        """In batches. Each is done as a whole or not at all, and is in the audit log. Retries, resets and forks, which
        need `how`, are done run by run."""
        ...

    async def audit(self, where: ActFilter, cursor: str | None, limit: int) -> AuditPage: ...
    async def verify_audit(self, expected: str | None) -> AuditReport: ...


class Selection:
    """Runs that match a filter: `client.select(...)`. Each method evaluates the filter again."""

    def __init__(self, backend: BulkService, where: RunFilter, course: Course | None = None) -> None:
        self._backend, self._where, self._course = backend, where, course

    def on(self, course: Course) -> Selection:
        """The same runs, for a call that another process may have to go on with."""
        return Selection(self._backend, self._where, course)

    async def count(self, verb: str | None = None) -> int:
        """How many there are; with a verb, such as "pause": how many it may do something to."""
        where = self._where if verb is None else applicable(_verb(verb), self._where)
        return await self._backend.count(where)

    async def pause(self, reason: str = "") -> Counts:
        """Pause them: calls in flight finish, nothing new begins, nothing is lost."""
        return await self._apply(Verb.PAUSE, reason)

    async def resume(self, reason: str = "") -> Counts:
        """Let paused ones go on."""
        return await self._apply(Verb.RESUME, reason)

    async def cancel(self, reason: str = "") -> Counts:
        """Cancel them; their code may clean up first. Paused runs get the cancel when they go on."""
        return await self._apply(Verb.CANCEL, reason)

    async def terminate(self, reason: str = "") -> Counts:
        """End them at once. Their code is not told."""
        return await self._apply(Verb.TERMINATE, reason)

    async def retry(self, reason: str = "") -> Counts:
        """Let parked, failed and timed out runs go on from where they stopped.

        Cancelled and terminated runs only if the filter names their state.
        """
        return await self._apply(Verb.RETRY, reason)

    async def delete(self, reason: str = "") -> Counts:
        """Delete closed ones, with all that belongs to them. Those with an open child or parent stay."""
        return await self._apply(Verb.DELETE, reason)

    async def reset(
        self,
        to: int,
        *,
        args: Sequence[Any] | None = None,
        input: Mapping[int, Sequence[Any]] | None = None,  # noqa: A002 - as of a handle
        output: Mapping[int, Any] | None = None,
        code: Code | Sequence[Code] | None = None,
        reason: str = "",
    ) -> Counts:
        """Let each go on from after entry `to` of its journal, as `handle.reset` does. Edits are the same for all, and
        need their code: in a worker of this client, or given, of several versions as a list. Of runs with the same id,
        the last one."""
        edits = edits_of(args, input, output, MAX_PAYLOAD)
        return await self._apply(Verb.RESET, reason, Remake(at=check_entry(to), edits=edits, code=_all(code)))

    async def fork(
        self,
        id: str,
        *,
        at: int | None = None,
        args: Sequence[Any] | None = None,
        input: Mapping[int, Sequence[Any]] | None = None,  # noqa: A002 - as of a handle
        output: Mapping[int, Any] | None = None,
        code: Code | Sequence[Code] | None = None,
        reason: str = "",
    ) -> Counts:
        """Fork each, as `handle.fork` does, under an id made from its own: `fork("{id}-again", at=3)`.

        A fork whose id is taken is refused. Of runs with the same id, only the last is forked.
        """
        if "{id}" not in str(id):
            raise InvalidInput(f'id={id!r} must have {{id}} in it, such as "{{id}}-again": each fork needs its own')
        point, edits = None if at is None else check_entry(at), edits_of(args, input, output, MAX_PAYLOAD)
        return await self._apply(Verb.FORK, reason, Remake(at=point, edits=edits, code=_all(code), id=id))

    async def apply(self, verb: str, reason: str = "") -> Counts:
        """The method of that name, if it needs only a reason."""
        if verb in (Verb.RESET, Verb.FORK):
            raise InvalidInput(f"{verb} needs a point: call {verb}(...) itself")
        return await self._apply(_verb(verb), reason)

    async def _apply(self, verb: Verb, reason: str, how: Remake | None = None) -> Counts:
        where = applicable(verb, self._where)
        return await self._backend.apply(verb, where, check_reason(reason), how, self._course)


def _all(code: Code | Sequence[Code] | None) -> Sequence[Code]:
    if code is None:
        return ()
    return code if isinstance(code, Sequence) else (code,)


def applicable(verb: Verb, where: RunFilter) -> RunFilter:
    """The filter, narrowed to states that the verb applies to. Raises InvalidInput when none is left."""
    states = APPLIES_TO[verb].intersection(where.states) if where.states else _UNASKED.get(verb, APPLIES_TO[verb])
    if not states:
        asked, known = ", ".join(where.states), ", ".join(state for state in RunState if state in APPLIES_TO[verb])
        raise InvalidInput(f"{verb} applies to runs that are {known}, not to runs that are {asked}")
    return replace(where, states=tuple(state for state in RunState if state in states))


def _verb(name: str) -> Verb:
    if name not in APPLIES_TO:
        raise InvalidInput(f"{name!r} is not an operation on many runs: use one of {', '.join(APPLIES_TO)}")
    return Verb(name)
