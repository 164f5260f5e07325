"""Operators' actions on dead letters: reprocess, discard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from msgspec import Raw
from msgspec.structs import asdict

from batuta.authoring.client.dead_letters import Mode, Named, Reprocess, Reprocessed
from batuta.authoring.client.forks import Edits
from batuta.authoring.definitions import Workflow
from batuta.engine.backend.actor import Actor
from batuta.engine.backend.batching import until_known
from batuta.engine.forks.dry_run import CodeHere, code_of_run, dry_run
from batuta.engine.forks.plan import journal_of, plan, plan_restart, plan_retry
from batuta.engine.forks.split import failed_before
from batuta.errors import BatutaError, InvalidFork, LetterResolved, StoreError
from batuta.failpoints import failpoint
from batuta.journal.audit import Act, Verb
from batuta.journal.dead_letters import DeadLetter, LetterFilter, LetterState
from batuta.journal.entries import Entry
from batuta.journal.forks import Fork
from batuta.journal.paging import all_pages
from batuta.journal.records import Run
from batuta.journal.store import Store

_BATCH = 500
"""Letters of one transaction."""
_SHARE = 0.1
"""Seconds' worth of letters that are reprocessed at once, where there is a rate."""
_CATCH_UP = 1.0
"""Seconds that a rate may lag behind and still be made good."""
_LISTED = 1_000


class NativeDeadLetters:
    """Implements `authoring.client.dead_letters.DeadLetterService` on a store. `code_here` has the code of workers in
    this process."""

    def __init__(
        self,
        store: Store,
        actor: Actor,
        code_here: CodeHere,
    ) -> None:
        self._store, self._actor, self._code_here = store, actor, code_here

    async def _batches(self, which: Named, size: int) -> AsyncIterator[list[DeadLetter]]:
        """Open dead letters among the selected ones, from the newest on: those that arrive meanwhile are not included.

        Raises LetterResolved for a single one.
        """
        if not isinstance(which, LetterFilter):
            for first in range(0, len(which), size):
                found = [await self._store.letter(run_id) for run_id in which[first : first + size]]
                letters = [letter for letter in found if letter.state is LetterState.OPEN]
                if _is_one(which) and not letters:
                    raise LetterResolved(found[0].id, found[0].state)
                yield letters
            return
        async for page in all_pages(lambda cursor: self._store.letters(which, cursor, size)):
            yield page.letters

    # -- discarding

    async def discard(self, which: Named, reason: str, *, dry_run: bool) -> int:
        act = self._actor.act(Verb.DISCARD, reason, detail=_said(which))
        count = 0
        async for letters in self._batches(which, _BATCH):
            if dry_run or not letters:
                count += len(letters)
                continue
            run_ids = [letter.run_id for letter in letters]
            discarded = await until_known(partial(self._store.discard_letters, run_ids, act))
            count += len(discarded)
        return count

    # -- reprocessing

    async def reprocess(self, which: Named, how: Reprocess, *, dry_run: bool) -> Reprocessed:
        done, pace = Reprocessed(), ReprocessRate(how.rate)
        if dry_run and isinstance(which, LetterFilter):
            done.matched = await self._store.count_letters(which)
            return done
        detail = {"mode": how.mode.value, "input": how.input is not None}
        act = self._actor.act(Verb.REPROCESS, how.reason, detail=detail | _said(which))
        async for letters in self._batches(which, pace.batch):
            if not dry_run and letters:
                await pace.wait(done.matched)
                await self._reprocess(letters, how, act, done, alone=_is_one(which))
            done.matched += len(letters)
        return done

    async def _reprocess(
        self, letters: Sequence[DeadLetter], how: Reprocess, act: Act, done: Reprocessed, *, alone: bool
    ) -> None:
        plans = await asyncio.gather(*(self._plan(letter, how) for letter in letters), return_exceptions=True)
        forks = [one for one in plans if isinstance(one, Fork)]
        failpoint("reprocess.before")
        outcomes = await until_known(lambda: self._store.fork(forks, act)) if forks else []
        failpoint("reprocess.after")
        for outcome in [one for one in plans if not isinstance(one, Fork)] + [*outcomes]:
            if isinstance(outcome, BaseException):
                if alone or isinstance(outcome, StoreError) or not isinstance(outcome, BatutaError):
                    raise outcome
                _refuse(done, outcome)
            else:
                done.reprocessed += 1
                if len(done.runs) < _LISTED:
                    done.runs.append(outcome.run_id)

    async def _plan(self, letter: DeadLetter, how: Reprocess) -> Fork:
        run = await self._store.get_run(letter.run_id)
        if how.input is not None:
            return await self._edited(run, letter, how, Raw(how.input))
        if how.mode is Mode.START:
            return await plan_restart(self._store, run, letter=True, reason=how.reason)
        code = self._code_here if how.code is None else lambda _: self._code_of(run, how)
        return await plan_retry(self._store, run, letter=letter, reason=how.reason, code=code)

    async def _edited(self, run: Run, letter: DeadLetter, how: Reprocess, arguments: Raw) -> Fork:
        """With other arguments of the run, or of the call that failed. Raises InvalidFork when they do not fit."""
        workflow, kept = self._code_of(run, how), list[Entry]()
        if how.mode is Mode.START:
            fork = await plan_restart(self._store, run, start=arguments, letter=True, reason=how.reason)
        elif not letter.seq:
            raise InvalidFork(
                f"run {run.id!r} failed in its own code, so no call can get other arguments: leave out input="
            )
        else:
            entries, edits = await journal_of(self._store, run), Edits(inputs={letter.seq: arguments})
            point = failed_before(entries, letter)
            fork = await plan(self._store, run, entries, point, edits=edits, letter=True, reason=how.reason)
            kept = entries[: fork.keep + 1]
        await dry_run(workflow, run, fork, kept, {}, arguments if not kept else None, self._store.namespace)
        return fork

    def _code_of(self, run: Run, how: Reprocess) -> Workflow[..., Any]:
        workflow = code_of_run(run, how.code, self._code_here)
        if workflow is None:
            raise InvalidFork(
                f"the code of run {run.id!r} ({run.name}) is not in this process, so the input cannot be checked: give "
                f"the job or workflow as code=, or reprocess it where a worker has it"
            )
        return workflow


class ReprocessRate:
    """Lets this many through per second. Delays are made up within bounds, so that nothing is flooded."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self.batch = _BATCH if rate is None else max(1, min(_BATCH, int(rate * _SHARE)))
        self._began: float | None = None

    async def wait(self, done: int) -> None:
        """How long until the next may begin, after this many."""
        if self._rate is None:
            return
        now = asyncio.get_running_loop().time()
        if self._began is None:
            self._began = now
        due = self._began + done / self._rate
        if now < due:
            await asyncio.sleep(due - now)
        elif now - due > _CATCH_UP:
            self._began += now - due - _CATCH_UP


def _refuse(done: Reprocessed, error: BatutaError) -> None:
    if isinstance(error, LetterResolved):
        done.resolved += 1
    else:
        name = type(error).__name__
        done.refused[name] = done.refused.get(name, 0) + 1


def _said(which: Named) -> dict[str, Any]:
    """The selection for the audit log: their filter, as for actions on many runs."""
    if not isinstance(which, LetterFilter):
        return {}
    return {"filter": {name: value for name, value in asdict(which).items() if value not in (None, ())}}


def _is_one(which: Named) -> bool:
    return not isinstance(which, LetterFilter) and len(which) == 1
