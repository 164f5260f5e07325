"""Operators' actions on one run or many, and the audit log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import json
from msgspec.structs import asdict

from batuta.authoring.backend import RunRef
from batuta.authoring.client.bulk_operations import AuditPage, AuditReport, AuditRow, Counts, Course, Remake
from batuta.authoring.client.forks import of_version
from batuta.authoring.client.start import check_id
from batuta.clock import as_datetime, as_micros
from batuta.engine.backend.actor import Actor
from batuta.engine.backend.batching import until_known
from batuta.engine.forks.fork import ForkOperations
from batuta.engine.worker.outside_closes import OutsideCloses
from batuta.errors import BatutaError, InvalidInput, StoreError
from batuta.journal.audit import Act, ActFilter, Recorded, Verb, first_break
from batuta.journal.paging import all_pages
from batuta.journal.records import Run, RunFilter
from batuta.journal.states import CLOSED
from batuta.journal.store import Store

BATCH = 500
"""Runs that one transaction changes."""
_AT_ONCE = 8
_PAGE = 1_000


class BulkOperations:
    """Implements `authoring.client.bulk_operations.BulkService` on a store."""

    def __init__(
        self,
        store: Store,
        actor: Actor,
        forking: ForkOperations,
        retry: Callable[[RunRef, str, dict[str, Any]], Awaitable[object]],
        closes: OutsideCloses,
    ) -> None:
        self._store, self._actor, self._forking, self._retry, self._closes = store, actor, forking, retry, closes
        self.count = store.count_runs

    # -- many

    async def apply(
        self, verb: Verb, where: RunFilter, reason: str, how: Remake | None = None, course: Course | None = None
    ) -> Counts:
        named = {} if course is None else {"operation": course.operation}
        act = self._actor.act(verb, reason, detail={"filter": _said(where)} | named)
        before = set[str]() if course is None else await self._done_before(verb, course)
        counts, refused = Counts(matched=len(before), done=len(before)), Counter[str]()
        # From the newest to the oldest: runs that start meanwhile are not included.
        async for page in all_pages(lambda cursor: self._store.list_runs(where, cursor, BATCH)):
            runs = [run for run in page.runs if str(run.run_id) not in before]
            counts.matched += len(runs)
            counts.done += await self._do(verb, runs, act, refused, how) if runs else 0
            counts.refused = dict(refused)
            if course is not None:
                course.tell(counts)
        return counts

    async def _done_before(self, verb: Verb, course: Course) -> set[str]:
        """Runs that an operation was done to before: its acts are written with the changes."""
        found: set[str] = set()
        if course.began is None:
            return found
        where, last = ActFilter(verb=verb, since=as_micros(course.began)), None
        while rows := await self._store.acts(where, last, _PAGE):
            found.update(row.run_id for row in rows if _operation(row.detail) == course.operation)
            last = rows[-1].number
        return found

    async def _do(
        self, verb: Verb, runs: Sequence[Run], act: Act, refused: Counter[str], how: Remake | None = None
    ) -> int:
        """Repeated when its answer was lost: then it does the rest."""
        store, run_ids = self._store, [run.run_id for run in runs]
        match verb:
            case Verb.PAUSE:
                return len(await until_known(lambda: store.pause_runs(run_ids, act)))
            case Verb.RESUME:
                return len(await until_known(lambda: store.resume_runs(run_ids, act)))
            case Verb.CANCEL:
                asked = len(await until_known(lambda: store.cancel_runs(run_ids, act.reason, act)))
                await self._closes.tell(await until_known(lambda: store.end_unbegun(run_ids, act.reason)))
                return asked
            case Verb.TERMINATE:
                closed = await until_known(lambda: store.terminate_runs(run_ids, act.reason, act))
                await self._closes.tell(closed)
                return len(closed)
            case Verb.DELETE:
                gone = set(await until_known(lambda: store.delete_runs(run_ids, act)))
                return sum(run_id in gone for run_id in run_ids)
            case _:
                return await self._remake_all(runs, act, refused, how)

    async def _remake_all(self, runs: Sequence[Run], act: Act, refused: Counter[str], how: Remake | None) -> int:
        """Each separately: how depends on its journal."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def remake(run: Run) -> bool:
            async with places:
                try:
                    return await self._remake(run, act, how)
                except StoreError:
                    raise
                except BatutaError as error:
                    refused[type(error).__name__] += 1
                    return False

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(remake(run)) for run in runs]
        except BaseExceptionGroup as errors:  # the others are dropped: a second call must not meet them
            raise errors.exceptions[0] from None
        return sum(task.result() for task in tasks)

    async def _remake(self, run: Run, act: Act, how: Remake | None) -> bool:
        """False: it had ended, and another run has its id, which gets it if it matches.

        Not for a run that was open when it was found: its successor was not among the found runs.
        """
        ref, reason, detail = RunRef(run.id, run.run_id), act.reason, json.decode(act.detail)
        if run.state in CLOSED and (await self._store.get(run.id)).run_id != run.run_id:
            return False
        if how is None:
            await self._retry(ref, reason, detail)
            return True
        code = of_version(how.code, run.version)
        if how.id:
            id = check_id(how.id.replace("{id}", run.id))
            await self._forking.fork(ref, id, how.at, how.edits, code, reason, detail)
        elif how.at is not None:
            await self._forking.reset(run.run_id, how.at, how.edits, code, reason, detail)
        return True

    # -- the audit log

    async def audit(self, where: ActFilter, cursor: str | None, limit: int) -> AuditPage:
        rows = await self._store.acts(where, _number(cursor), limit + 1)
        more = str(rows[limit - 1].number) if len(rows) > limit else None
        return AuditPage([_row(row) for row in rows[:limit]], more)

    async def verify_audit(self, expected: str | None) -> AuditReport:
        kept = None if expected is None else _head(expected)
        last, salt, keyed, problem, end = (0, ""), "", 0, "", None
        while not problem:
            rows = await self._store.audit(last[0], _PAGE)
            if not rows and end is not None and end[0] <= last[0]:
                break
            end = await self._store.audit_head()  # after the rows: none of them can be behind it
            problem = (
                first_break(self._store.namespace, last, rows, self._actor.keys.secret_of, salt)
                or _other_row(rows, end, kept)
                or _end_problem(rows[-1].number if rows else last[0], end, kept, more=bool(rows))
            )
            if rows and not problem:
                last, salt = (rows[-1].number, rows[-1].hash), rows[-1].salt
                keyed += sum(bool(row.salt) for row in rows)
        return AuditReport(rows=last[0], keyed=keyed, head=f"{last[0]}:{last[1]}", problem=problem)


def _other_row(rows: Sequence[Recorded], end: tuple[int, str], kept: tuple[int, str] | None) -> str:
    """The problem when one of these consecutive rows has another hash than the known one."""
    hashes = {row.number: row.hash for row in rows}
    if kept is not None and hashes.get(kept[0], kept[1]) != kept[1]:
        return f"row {kept[0]} differs from the row with that hash: the log was rewritten"
    if hashes.get(end[0], end[1]) != end[1]:
        return f"row {end[0]} differs from the recorded end of the log: its last rows were rewritten"
    return ""


def _end_problem(last: int, end: tuple[int, str], kept: tuple[int, str] | None, more: bool) -> str:
    """The problem with the end of the rows that were read. `more`: some may follow them."""
    if last > end[0] and not end[0]:
        return "the recorded end of the log is missing: its last rows may be missing, or it was edited by hand"
    if last > end[0]:
        return f"row {end[0] + 1} follows the end of the log: it was inserted by hand"
    known = max(end[0], kept[0] if kept else 0)
    if not more and last < known:
        return f"row {last + 1} is missing, and all after it: there were {known}"
    return ""


def _said(where: RunFilter) -> dict[str, object]:
    return {name: value for name, value in asdict(where).items() if value not in (None, (), 0)}


def _operation(detail: str) -> str:
    """The operation that an act belongs to; empty: to none."""
    said = _value(detail)
    return str(said.get("operation", "")) if isinstance(said, dict) else ""


def _row(row: Recorded) -> AuditRow:
    fields = asdict(row) | {name: _value(getattr(row, name)) for name in ("detail", "before", "after")}
    return AuditRow(**(fields | {"at": as_datetime(row.at)}))


def _value(text: str) -> object:
    """The stored text, also when it was changed by hand."""
    try:
        return json.decode(text)
    except ValueError:
        return text


def _number(cursor: str | None) -> int | None:
    try:
        number = None if cursor is None else int(cursor)
        if number is None or 0 <= number < 2**63:
            return number
        raise ValueError(cursor)
    except ValueError:
        raise InvalidInput(f"{cursor!r} is not a cursor: pass the cursor of the previous page") from None


def _head(text: str) -> tuple[int, str]:
    number, _, digest = text.partition(":")
    if not number.isdigit() or not digest:
        raise InvalidInput(f"{text!r} is not a row and its hash, NUMBER:HASH, as `batuta audit verify` prints it")
    return int(number), digest
