"""What operators do: to one run or many, and the log of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import json
from msgspec.structs import asdict

from batuta.authoring.backend import RunRef, as_datetime
from batuta.authoring.forks import of_version
from batuta.authoring.operating import AuditPage, AuditReport, AuditRow, Counts, Remake
from batuta.authoring.starting import check_id
from batuta.engine.acting import Actor
from batuta.engine.following import last_of_chain
from batuta.engine.forking import Forking
from batuta.errors import BatutaError, InvalidInput, OutcomeUnknown, RunClosed, RunOpen, StoreError
from batuta.ids import RunId
from batuta.journal.acts import Act, ActFilter, Recorded, Verb, first_break
from batuta.journal.records import Run, RunFilter
from batuta.journal.states import CLOSED
from batuta.journal.store import Store

BATCH = 500
"""Runs that one transaction changes."""
_AT_ONCE = 8
_TRIES = 3
_PAGE = 1_000


class Operating:
    """Implements `authoring.operating.OperatingBackend` on a store."""

    def __init__(
        self,
        store: Store,
        actor: Actor,
        forking: Forking,
        retry: Callable[[RunRef, str, dict[str, Any]], Awaitable[object]],
    ) -> None:
        self._store, self._actor, self._forking, self._retry = store, actor, forking, retry

    # -- one run

    async def pause(self, ref: RunRef, reason: str) -> bool:
        return await self._one(ref, lambda ids: self._store.pause_runs(ids, self._actor.act(Verb.PAUSE, reason)))

    async def resume(self, ref: RunRef, reason: str) -> bool:
        return await self._one(ref, lambda ids: self._store.resume_runs(ids, self._actor.act(Verb.RESUME, reason)))

    async def _one(self, ref: RunRef, verb: Callable[[list[RunId]], Awaitable[list[RunId]]]) -> bool:
        """Whether it changed anything. It may have continued as another run, also just now."""
        while True:
            run = await last_of_chain(self._store, ref.run_id)
            if run.state in CLOSED:
                raise RunClosed(run.id, str(run.state), "only open runs can be paused or resumed")
            if await verb([run.run_id]):
                return True
            if (await self._store.get_run(run.run_id)).state not in CLOSED:
                return False

    async def delete(self, ref: RunRef, reason: str) -> int:
        run = await self._store.get_run(ref.run_id)
        gone = await self._store.delete_runs([run.run_id], self._actor.act(Verb.DELETE, reason))
        if not gone:
            raise RunOpen(run.id)
        return len(gone)

    # -- many

    async def count(self, where: RunFilter) -> int:
        return await self._store.count_runs(where)

    async def apply(self, verb: Verb, where: RunFilter, reason: str, how: Remake | None = None) -> Counts:
        act = self._actor.act(verb, reason, detail={"filter": _said(where)})
        counts, refused = Counts(), Counter[str]()
        cursor: str | None = None
        while True:
            # From the newest to the oldest: what is started meanwhile is not among them.
            page = await self._store.list_runs(where, cursor, BATCH)
            counts.matched += len(page.runs)
            counts.done += await self._do(verb, page.runs, act, refused, how) if page.runs else 0
            cursor = page.cursor
            if cursor is None:
                counts.refused = dict(refused)
                return counts

    async def _do(
        self, verb: Verb, runs: Sequence[Run], act: Act, refused: Counter[str], how: Remake | None = None
    ) -> int:
        store, run_ids = self._store, [run.run_id for run in runs]
        match verb:
            case Verb.PAUSE:
                return len(await _known(lambda: store.pause_runs(run_ids, act)))
            case Verb.RESUME:
                return len(await _known(lambda: store.resume_runs(run_ids, act)))
            case Verb.CANCEL:
                asked = len(await _known(lambda: store.cancel_runs(run_ids, act.reason, act)))
                await _known(lambda: store.end_unbegun(run_ids, act.reason))
                return asked
            case Verb.TERMINATE:
                return len(await _known(lambda: store.terminate_runs(run_ids, act.reason, act)))
            case Verb.DELETE:
                gone = set(await _known(lambda: store.delete_runs(run_ids, act)))
                return sum(run_id in gone for run_id in run_ids)
            case _:
                return await self._remake_all(runs, act, refused, how)

    async def _remake_all(self, runs: Sequence[Run], act: Act, refused: Counter[str], how: Remake | None) -> int:
        """Each by itself: how depends on its journal."""
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
        except BaseExceptionGroup as errors:  # the others are given up: who asks again must not meet them
            raise errors.exceptions[0] from None
        return sum(task.result() for task in tasks)

    async def _remake(self, run: Run, act: Act, how: Remake | None) -> bool:
        """False: it had ended, and another run has its id, to which it is done if that matches. Not one that was open
        when it was found: what it has gone on as since is not among those that were found."""
        ref, reason, detail = RunRef(run.id, run.run_id), act.reason, json.decode(act.detail)
        if how is None:
            await self._retry(ref, reason, detail)
            return True
        if run.state in CLOSED and (await self._store.get(run.id)).run_id != run.run_id:
            return False
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
        end = await self._store.audit_head()  # before the rows: what is added meanwhile is beyond it
        last, problem = (0, ""), ""
        while not problem and (rows := await self._store.audit(last[0], _PAGE)):
            problem = first_break(self._store.namespace, last, rows) or _other_row(rows, end, kept)
            if problem:
                break
            last = (rows[-1].number, rows[-1].hash)
        problem = problem or _end_problem(last, end, kept)
        return AuditReport(rows=last[0], head=f"{last[0]}:{last[1]}", problem=problem)


def _other_row(rows: Sequence[Recorded], end: tuple[int, str], kept: tuple[int, str] | None) -> str:
    """What is wrong when one of these rows, which follow each other, has another hash than is known of it."""
    hashes = {row.number: row.hash for row in rows}
    if kept is not None and hashes.get(kept[0], kept[1]) != kept[1]:
        return f"row {kept[0]} is another one than when its hash was taken down: the log was written anew"
    if hashes.get(end[0], end[1]) != end[1]:
        return f"row {end[0]} is another one than where the log ends: its last rows were written anew"
    return ""


def _end_problem(last: tuple[int, str], end: tuple[int, str], kept: tuple[int, str] | None) -> str:
    if last[0] < end[0] or (kept is not None and last[0] < kept[0]):
        return f"row {last[0] + 1} is missing, and all after it: there were {max(end[0], kept[0] if kept else 0)}"
    if end == (0, "") and last[0]:
        return "where the log ends is not known any more: its last rows may be missing, or it was written by hand"
    return ""


async def _known(write: Callable[[], Awaitable[list[RunId]]]) -> list[RunId]:
    """What a verb did, that may be repeated when its answer was lost: then it does the rest."""
    for tried in range(1, _TRIES + 1):
        try:
            return await write()
        except OutcomeUnknown:
            if tried == _TRIES:
                raise
    raise AssertionError  # not reached


def _said(where: RunFilter) -> dict[str, object]:
    return {name: value for name, value in asdict(where).items() if value not in (None, ())}


def _row(row: Recorded) -> AuditRow:
    fields = asdict(row) | {name: _value(getattr(row, name)) for name in ("detail", "before", "after")}
    return AuditRow(**(fields | {"at": as_datetime(row.at)}))


def _value(text: str) -> object:
    """As it stands there, also when somebody has changed it by hand."""
    try:
        return json.decode(text)
    except ValueError:
        return text


def _number(cursor: str | None) -> int | None:
    try:
        return None if cursor is None else int(cursor)
    except ValueError:
        raise InvalidInput(f"{cursor!r} is no cursor: pass the one that the page before came with") from None


def _head(text: str) -> tuple[int, str]:
    number, _, digest = text.partition(":")
    if not number.isdigit() or not digest:
        raise InvalidInput(f"{text!r} is not the end of a log, such as `batuta audit verify` prints: number:hash")
    return int(number), digest
