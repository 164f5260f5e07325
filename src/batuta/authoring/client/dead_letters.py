"""Dead letters for people: `client.dead_letters`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from batuta.authoring.client.start import check_id
from batuta.authoring.definitions import Activity, Workflow
from batuta.clock import SECOND
from batuta.errors import InvalidInput, MatchesEverything, UnknownLetter, UnknownRun
from batuta.ids import RunId
from batuta.journal.dead_letters import DeadLetter, DeadLetterGroups, DeadLetterPage, LetterFilter, LetterState
from batuta.journal.paging import all_pages
from batuta.journal.records import LetterReason, RunKind
from batuta.names import LARGEST_PAGE, check_choice, check_filter, check_page_size, check_reason
from batuta.serde import MAX_PAYLOAD, encode

if TYPE_CHECKING:  # `import batuta` is everybody's, and it has no store
    from batuta.journal.store import Store


class Reprocessed(Struct, kw_only=True):
    """How many dead letters were reprocessed."""

    matched: int = 0
    """Open dead letters that were selected."""
    reprocessed: int = 0
    """Each by a new run. Of a dry run: 0."""
    resolved: int = 0
    """Reprocessed or discarded meanwhile by another client."""
    refused: dict[str, int] = {}
    """Dead letters that were refused, by the name of the error; they stay open."""
    runs: list[RunId] = []
    """The new runs, the first 1,000 of them."""


class Mode(StrEnum):
    """Where a reprocessed run begins."""

    FAILED_STEP = "failed_step"
    """Keep finished steps; the failed activity has the same key as before, and all of its attempts."""
    START = "start"
    """At the beginning."""


class Reprocess(Struct, kw_only=True, frozen=True):
    """How to reprocess."""

    mode: Mode = Mode.FAILED_STEP
    input: bytes | None = None
    """JSON of new arguments, of the failed activity or of the run; None keeps the old ones."""
    rate: float | None = None
    """How many a second."""
    reason: str = ""
    code: Any = None
    """The definition that the input must fit; None: that of a worker in this process."""


Named = Sequence[RunId] | LetterFilter
"""Which dead letters: these, or all that match."""


class DeadLetterService(Protocol):
    """Resolves dead letters."""

    async def reprocess(self, which: Named, how: Reprocess, *, dry_run: bool) -> Reprocessed:
        """For a single dead letter, raises why it cannot be reprocessed."""
        ...

    async def discard(self, which: Named, reason: str, *, dry_run: bool) -> int:
        """How many were discarded. For a single dead letter, raises LetterResolved."""
        ...


Which = str | RunId | DeadLetter
"""A dead letter: the run's id or run id, or the letter itself."""


class DeadLetters:
    """The dead letters of a namespace: `client.dead_letters`.

    Filters: state or states ("open" by default; "reprocessed", "discarded", "any"), fingerprint, reason, name (or a
    definition), kind, queue, key, error, activity, id_prefix, after and before (datetimes: when it failed).
    """

    def __init__(self, store: Store, backend: DeadLetterService) -> None:
        self._store, self._backend = store, backend

    async def list(self, /, *, cursor: str | None = None, limit: int = 50, **where: Any) -> DeadLetterPage:
        """Newest first."""
        return await self._store.letters(letter_filter(**where), cursor, check_page_size(limit))

    async def groups(self, /, *, cursor: str | None = None, limit: int = 50, **where: Any) -> DeadLetterGroups:
        """Groups of dead letters with the same error ("312 runs, same error"), the group with the newest one first."""
        return await self._store.letter_groups(letter_filter(**where), cursor, check_page_size(limit))

    async def count(self, /, **where: Any) -> int:
        """How many match."""
        return await self._store.count_letters(letter_filter(**where))

    async def get(self, id: Which) -> DeadLetter:
        """The newest one of the id, or that of the run id. Raises UnknownLetter."""
        return await self._find(_name_of(id))

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
        """Start failed work again: one dead letter (by its id), several, or all that match the filters.

        `mode`: "failed_step" keeps finished steps and tries the failed activity again, with the same key; "start"
        begins at the start. `input`: new arguments, as a list: of the failed activity, or of the start. They must fit
        `code`, the job or workflow, or that of a worker in this process. `rate`: how many per second. `dry_run`: only
        count.

        Each is reprocessed once, even if others do the same and however often you interrupt and repeat the call. For a
        single dead letter, raises UnknownLetter, LetterResolved, InvalidFork; MatchesEverything without ids and
        filters.
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
        """Resolve dead letters without a new run: one, several, or all that match. Returns how many were open.

        For a single dead letter, raises UnknownLetter and LetterResolved.
        """
        if not check_reason(reason).strip():
            raise InvalidInput("reason must say why: it is kept with the dead letter and in the audit log")
        named = await self._named(which, where, everything)
        return await self._backend.discard(named, reason, dry_run=_flag("dry_run", dry_run))

    async def _named(self, which: Which | Iterable[Which] | None, where: dict[str, Any], everything: bool) -> Named:
        if which is None:
            if not everything and not any(value not in (None, "", (), []) for value in where.values()):
                raise MatchesEverything(
                    "no dead letters are selected: give ids, or filters, or everything=True for all open ones"
                )
            if where.keys() & {"state", "states"}:
                raise InvalidInput("only open dead letters can be reprocessed or discarded: leave the state out")
            return letter_filter(**where)
        if where or everything:
            raise InvalidInput("give ids or filters, not both")
        several = [which] if isinstance(which, str | RunId | DeadLetter) else which
        return [(await self._find(_name_of(one))).run_id for one in several]

    async def _find(self, id: str | RunId) -> DeadLetter:
        """That of a run id, or the newest one of an id; a text may be either. Raises UnknownLetter."""
        if isinstance(id, RunId):
            return await self._store.letter(id)
        with suppress(UnknownRun, UnknownLetter):
            return await self._store.letter((await self._store.get(id)).run_id)
        with suppress(ValueError, UnknownLetter):
            return await self._store.letter(RunId(id))
        where = LetterFilter(states=(), id_prefix=id)  # the id may have another run by now
        async for page in all_pages(lambda cursor: self._store.letters(where, cursor, LARGEST_PAGE)):
            for letter in page.letters:
                if letter.id == id:
                    return letter
        raise UnknownLetter(id)


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
            f"{', '.join(sorted(unknown))} is not a filter of dead letters: there are {', '.join(_FILTERS)}"
        )
    return LetterFilter(
        states=_states(where.get("states"), where.get("state")),
        fingerprint=check_filter("fingerprint", where.get("fingerprint")),
        reason=None if where.get("reason") is None else check_choice(LetterReason, "reason", where["reason"]),
        name=check_filter("name", getattr(where.get("name"), "name", where.get("name"))),
        kind=None if where.get("kind") is None else check_choice(RunKind, "kind", where["kind"]),
        queue=check_filter("queue", where.get("queue")),
        flow_key=check_filter("key", where.get("key")),
        error=_error(where.get("error")),
        activity=check_filter("activity", getattr(where.get("activity"), "name", where.get("activity"))),
        id_prefix=check_filter("id_prefix", where.get("id_prefix")),
        after=None if where.get("after") is None else _moment("after", where["after"]),
        before=None if where.get("before") is None else _moment("before", where["before"]),
    )


def _states(several: Any, one: Any) -> tuple[LetterState, ...]:
    if "any" in (several, one):
        return ()
    wanted = [several] if isinstance(several, str) else [*(several or ())]
    found = (check_choice(LetterState, "state", each) for each in [*wanted, one] if each is not None)
    return tuple(found) or (LetterState.OPEN,)


def _error(value: object) -> str | None:
    """A class, or its bare name, which is what a dead letter keeps."""
    if isinstance(value, type) and issubclass(value, BaseException):
        return value.__name__
    if isinstance(value, str) and ("." in value or ":" in value):
        bare = value.replace(":", ".").rpartition(".")[2]
        raise InvalidInput(
            f"error={value!r} matches no dead letter, which keeps the bare name of the class: give {bare!r}, and name= "
            f"or activity= where several classes have that name"
        )
    return check_filter("error", value)


def _moment(name: str, value: object) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{name}={value!r} must be a datetime with a zone, such as datetime(2020, 1, 1, tzinfo=UTC)")
    return round(value.timestamp() * SECOND)


def _name_of(which: Which) -> str | RunId:
    if isinstance(which, DeadLetter):
        return which.run_id
    return which if isinstance(which, RunId) else check_id(which)


def _how(mode: object, arguments: Any, rate: Any, reason: str, code: Any) -> Reprocess:
    chosen = Mode.FAILED_STEP if mode is None else check_choice(Mode, "mode", mode)
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
