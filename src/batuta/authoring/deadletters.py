"""Dead letters for people: `client.letters`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from batuta.authoring.backend import as_datetime
from batuta.authoring.definitions import Activity, Workflow
from batuta.authoring.names import check_reason
from batuta.authoring.starting import check_id
from batuta.clock import SECOND
from batuta.errors import InvalidInput, MatchesEverything
from batuta.ids import RunId
from batuta.journal import letters as rows
from batuta.journal.letters import LetterFilter, LetterReason, LetterState
from batuta.journal.records import RunKind
from batuta.serde import MAX_PAYLOAD, encode

E = TypeVar("E", bound=StrEnum)


class DeadLetter(Struct, kw_only=True):
    """A run that was given up, and what became of that."""

    id: str
    run_id: RunId
    kind: RunKind
    name: str
    """Of the job or workflow."""
    queue: str
    key: str = ""
    state: LetterState
    at: datetime
    """When it was given up."""
    reason: LetterReason
    error: str
    """The class of the error."""
    message: str
    fingerprint: str
    """The same for errors of the same origin."""
    activity: str = ""
    """What failed; empty: the workflow's own code."""
    attempts: int = 0
    trace: str = ""
    """The trace id, when somebody traced it."""
    resolved_at: datetime | None = None
    note: str = ""
    """Why it was discarded."""
    successor: RunId | None = None
    """The run that it was reprocessed by."""


class DeadLetterPage(Struct):
    """Some dead letters, newest first. `cursor` gets the next page; None: that was the last."""

    letters: list[DeadLetter]
    cursor: str | None


class DeadLetterGroup(Struct, kw_only=True):
    """Dead letters of one origin."""

    fingerprint: str
    count: int
    first_at: datetime
    last_at: datetime
    example: DeadLetter
    """The newest."""


class DeadLetterGroupPage(Struct):
    """Some groups, those with the newest letters first. `cursor` gets the next page; None: that was the last."""

    groups: list[DeadLetterGroup]
    cursor: str | None


def as_dead_letter(row: rows.DeadLetter) -> DeadLetter:
    return DeadLetter(
        id=row.id,
        run_id=row.run_id,
        kind=RunKind(row.kind),
        name=row.name,
        queue=row.queue,
        key=row.flow_key,
        state=row.state,
        at=as_datetime(row.at),
        reason=row.reason,
        error=row.error,
        message=row.message,
        fingerprint=row.fingerprint,
        activity=row.activity,
        attempts=row.attempts,
        trace=row.trace,
        resolved_at=as_datetime(row.resolved_at),
        note=row.note,
        successor=row.successor,
    )


class Reprocessed(Struct, kw_only=True):
    """What became of dead letters that were to be reprocessed."""

    matched: int = 0
    """Open ones that were asked for."""
    reprocessed: int = 0
    """Each by a new run. Of a dry run: 0."""
    resolved: int = 0
    """Reprocessed or discarded by somebody else meanwhile."""
    refused: dict[str, int] = {}
    """Those that could not be, by the name of the error; they stay open."""
    runs: list[RunId] = []
    """The new runs, the first 1,000 of them."""


class Mode(StrEnum):
    """Where a reprocessed run begins."""

    FAILED_STEP = "failed_step"
    """With what was done before; the failed activity has the same key as before, and all of its attempts."""
    START = "start"
    """At the beginning."""


class Reprocess(Struct, kw_only=True, frozen=True):
    """How to reprocess."""

    mode: Mode = Mode.FAILED_STEP
    input: bytes | None = None
    """JSON of the arguments, of the failed activity or of the run, in place of those that it had; None: the same."""
    rate: float | None = None
    """How many a second."""
    reason: str = ""
    code: Any = None
    """The definition that the input must fit; None: that of a worker in this process."""


Named = Sequence[RunId] | LetterFilter
"""Which dead letters: these, or all that match."""


class LetterBackend(Protocol):
    """Keeps dead letters."""

    async def find(self, id: str | RunId) -> rows.DeadLetter:
        """That of a run id, or the newest one of an id; a text may be either. Raises UnknownLetter."""
        ...

    async def list(self, where: LetterFilter, cursor: str | None, limit: int) -> rows.LetterPage: ...
    async def groups(self, where: LetterFilter, cursor: str | None, limit: int) -> rows.GroupPage: ...
    async def count(self, where: LetterFilter) -> int: ...

    async def reprocess(self, which: Named, how: Reprocess, *, dry_run: bool) -> Reprocessed:
        """Of one that is named alone, raises why it cannot be."""
        ...

    async def discard(self, which: Named, reason: str, *, dry_run: bool) -> int:
        """How many were. Of one that is named alone, raises LetterResolved."""
        ...


Which = str | RunId | DeadLetter
"""A dead letter: the run's id or run id, or the letter itself."""


class Letters:
    """The dead letters of a namespace: `client.letters`.

    Filters: state or states ("open" unless told; "reprocessed", "discarded", "any"), fingerprint, reason, name (or a
    definition), kind, queue, key, error, activity, id_prefix, after and before (datetimes: when it was given up).
    """

    def __init__(self, backend: LetterBackend) -> None:
        self._backend = backend

    async def list(self, /, *, cursor: str | None = None, limit: int = 50, **where: Any) -> DeadLetterPage:
        """Newest first."""
        page = await self._backend.list(letter_filter(**where), cursor, _page_size(limit))
        return DeadLetterPage([as_dead_letter(row) for row in page.letters], page.cursor)

    async def groups(self, /, *, cursor: str | None = None, limit: int = 50, **where: Any) -> DeadLetterGroupPage:
        """By what their errors have in common ("312 runs, same error"), those with the newest letters first."""
        page = await self._backend.groups(letter_filter(**where), cursor, _page_size(limit))
        return DeadLetterGroupPage([_as_group(row) for row in page.groups], page.cursor)

    async def count(self, /, **where: Any) -> int:
        """How many match."""
        return await self._backend.count(letter_filter(**where))

    async def get(self, id: Which) -> DeadLetter:
        """The newest one of the id, or that of the run id. Raises UnknownLetter."""
        return as_dead_letter(await self._backend.find(_name_of(id)))

    async def reprocess(
        self,
        which: Which | Iterable[Which] | None = None,
        /,
        *,
        mode: str = Mode.FAILED_STEP,
        input: Sequence[Any] | None = None,  # noqa: A002 - its own word
        rate: float | None = None,
        dry_run: bool = False,
        reason: str = "",
        code: Any = None,
        everything: bool = False,
        **where: Any,
    ) -> Reprocessed:
        """Begin anew what was given up: one (by its id), several, or all that match the filters.

        `mode`: "failed_step" keeps what was done before and tries the failed activity again, with the same key; "start"
        begins at the start. `input`: other arguments, as a list: of the failed activity, or of the start. They must fit
        `code`, the job or workflow, or that of a worker in this process. `rate`: how many a second. `dry_run`: only
        count. Each is reprocessed once, whoever else tries to, and however often this is interrupted and called again.
        Of one that is named alone, raises UnknownLetter, LetterResolved, InvalidFork; MatchesEverything when nothing
        says which are meant.
        """
        how = _how(mode, input, rate, reason, code)
        named = await self._named(which, where, everything)
        return await self._backend.reprocess(named, how, dry_run=_flag("dry_run", dry_run))

    async def discard(
        self,
        which: Which | Iterable[Which] | None = None,
        /,
        *,
        reason: str,
        dry_run: bool = False,
        everything: bool = False,
        **where: Any,
    ) -> int:
        """Close the matter without doing anything: one, several, or all that match. Returns how many were open.

        Of one that is named alone, raises UnknownLetter and LetterResolved.
        """
        if not check_reason(reason).strip():
            raise InvalidInput("reason must say why: it is kept with the dead letter and in the audit log")
        named = await self._named(which, where, everything)
        return await self._backend.discard(named, reason, dry_run=_flag("dry_run", dry_run))

    async def _named(self, which: Which | Iterable[Which] | None, where: dict[str, Any], everything: bool) -> Named:
        if which is None:
            if not everything and not any(value not in (None, "", (), []) for value in where.values()):
                raise MatchesEverything(
                    "nothing says which dead letters: give ids, or filters, or everything=True for all that are open"
                )
            if where.keys() & {"state", "states"}:
                raise InvalidInput("only open dead letters can be reprocessed or discarded: leave the state out")
            return letter_filter(**where)
        if where or everything:
            raise InvalidInput("give ids or filters, not both")
        several = [which] if isinstance(which, str | RunId | DeadLetter) else which
        return [(await self._backend.find(_name_of(one))).run_id for one in several]


def _as_group(row: rows.LetterGroup) -> DeadLetterGroup:
    return DeadLetterGroup(
        fingerprint=row.fingerprint,
        count=row.count,
        first_at=as_datetime(row.first_at),
        last_at=as_datetime(row.last_at),
        example=as_dead_letter(row.example),
    )


# -- what callers give

_FILTERS = (
    "state",
    "states",
    "fingerprint",
    "reason",
    "name",
    "kind",
    "queue",
    "key",
    "error",
    "activity",
    "id_prefix",
    "after",
    "before",
)


def letter_filter(**where: Any) -> LetterFilter:
    """Which dead letters, in the words of `list`. Raises InvalidInput."""
    if unknown := where.keys() - set(_FILTERS):
        raise InvalidInput(
            f"{', '.join(sorted(unknown))} is no filter of dead letters: there are {', '.join(_FILTERS)}"
        )
    return LetterFilter(
        states=_states(where.get("states"), where.get("state")),
        fingerprint=_text("fingerprint", where.get("fingerprint")),
        reason=_one_of(LetterReason, "reason", where.get("reason")),
        name=_text("name", getattr(where.get("name"), "name", where.get("name"))),
        kind=_one_of(RunKind, "kind", where.get("kind")),
        queue=_text("queue", where.get("queue")),
        flow_key=_text("key", where.get("key")),
        error=_text("error", where.get("error")),
        activity=_text("activity", getattr(where.get("activity"), "name", where.get("activity"))),
        id_prefix=_text("id_prefix", where.get("id_prefix")),
        after=None if where.get("after") is None else _moment("after", where["after"]),
        before=None if where.get("before") is None else _moment("before", where["before"]),
    )


def _states(several: Any, one: Any) -> tuple[LetterState, ...]:
    if "any" in (several, one):
        return ()
    wanted = [several] if isinstance(several, str) else [*(several or ())]
    wanted += [one] if one is not None else []
    found = tuple(_one_of(LetterState, "state", each) for each in wanted)
    return tuple(each for each in found if each is not None) or (LetterState.OPEN,)


def _one_of(kind: type[E], name: str, value: Any) -> E | None:
    try:
        return None if value is None else kind(value)
    except ValueError:
        raise InvalidInput(f"{name}={value!r} must be one of {', '.join(kind)}") from None


def _text(name: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidInput(f"{name}={value!r} must be a string")


def _moment(name: str, value: object) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{name}={value!r} must be a datetime with a zone, such as datetime(2020, 1, 1, tzinfo=UTC)")
    return round(value.timestamp() * SECOND)


def _page_size(limit: object) -> int:
    if type(limit) is not int or not 1 <= limit <= 1_000:
        raise InvalidInput(f"limit={limit!r} must be a whole number from 1 to 1000: use the cursor for more")
    return limit


def _name_of(which: Which) -> str | RunId:
    if isinstance(which, DeadLetter):
        return which.run_id
    return which if isinstance(which, RunId) else check_id(which)


def _how(mode: object, arguments: Any, rate: Any, reason: str, code: Any) -> Reprocess:
    chosen = _one_of(Mode, "mode", mode) or Mode.FAILED_STEP
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1e6):
        raise InvalidInput(f"rate={rate!r} must be a number a second, more than 0")
    if code is not None and not isinstance(code, Workflow | Activity):
        raise InvalidInput(f"code={code!r} must be a job or a workflow")
    data = None
    if arguments is not None:
        if not isinstance(arguments, list | tuple):
            raise InvalidInput(f"input={arguments!r} must be a list of arguments")
        data = encode(list(arguments), "the input", MAX_PAYLOAD)
    return Reprocess(mode=chosen, input=data, rate=rate, reason=check_reason(reason), code=code)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name}={value!r} must be True or False")
    return value
