"""Making a run from another: tried again from where it failed, reset to a point, or forked with edits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from batuta.authoring.backend import Code, RunRef
from batuta.authoring.client.forks import NO_EDITS, Edits
from batuta.engine.backend.actor import Actor
from batuta.engine.backend.batching import until_known
from batuta.engine.backend.follow_chain import last_of_chain
from batuta.engine.forks.dry_run import CodeHere, code_of_run, dry_run
from batuta.engine.forks.plan import journal_of, plan, plan_retry
from batuta.engine.forks.split import edited_at
from batuta.engine.run.dead_letters import find_letter, is_open
from batuta.engine.worker.outside_closes import OutsideCloses
from batuta.errors import InvalidFork, RunMoved
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.audit import Act, Verb
from batuta.journal.entries import Entry
from batuta.journal.forks import Fork
from batuta.journal.records import Run
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store

_TRIES = 100
"""How often an open run is looked at again that moved on while its fork was planned."""
_SWIFT = 5
"""From then on it is held."""
_PAUSE = 0.05


class ForkOperations:
    """Retries, resets and forks. `code_here` has the code of workers in this process."""

    def __init__(
        self,
        store: Store,
        actor: Actor,
        code_here: CodeHere,
        closes: OutsideCloses,
    ) -> None:
        self._store, self._actor, self._code_here, self._closes = store, actor, code_here, closes

    async def retry(self, run: Run, reason: str, detail: dict[str, Any] | None = None) -> Run:
        """Try a run again that did not come to a good end, from where it failed. Raises RunClosed, RunMoved."""
        letter = await find_letter(self._store, run.run_id)
        fork = await plan_retry(self._store, run, letter=letter, reason=reason, code=self._code_here)
        await self._check_code(run, fork, await journal_of(self._store, run), None, NO_EDITS)
        act = self._actor.act(Verb.RETRY, reason, detail={"at": fork.keep} | (detail or {}))
        return await self._carry_out(fork, act)

    async def reset(
        self, run_id: RunId, to: int, edits: Edits, code: Code | None, reason: str, detail: dict[str, Any] | None = None
    ) -> Run:
        """Let the chain go on from after entry `to` of its last run, which is closed if it is open. One that moves on
        meanwhile, again and again, is held for it."""
        held = False
        try:
            for tried in range(_TRIES):
                run = await last_of_chain(self._store, run_id)
                fork = await self._plan_reset(run, to, edits, code, reason, check=not tried)
                try:
                    act = self._actor.act(Verb.RESET, reason, detail=_said(to, edits) | (detail or {}))
                    return await self._carry_out(fork, act)
                except RunMoved:
                    if tried == _SWIFT:
                        held = run.state is not RunState.PAUSED  # also if it is never known whether that worked
                        act = self._actor.act(Verb.PAUSE, "to be reset", detail={})
                        held = bool(await self._store.pause_runs([run.run_id], act))
                    await asyncio.sleep(0 if tried < _SWIFT else _PAUSE)
            raise RunMoved(str(run_id), "moves on faster than it can be reset")
        except BaseException:
            if held:
                await self._let_go(run_id)
            raise

    async def _plan_reset(
        self, run: Run, to: int, edits: Edits, code: Code | None, reason: str, *, check: bool
    ) -> Fork:
        entries = await journal_of(self._store, run)
        letter = run.state in CLOSED and is_open(await find_letter(self._store, run.run_id))
        fork = await plan(
            self._store, run, entries, to, edits=edits, letter=letter, reason=reason, code=self._code_here
        )
        if check:
            await self._check_code(run, fork, entries, code, edits)
        return fork

    async def _let_go(self, run_id: RunId) -> None:
        """Only this call knows that it is held. By now another run of its chain may be the one."""
        run = await last_of_chain(self._store, run_id)
        act = self._actor.act(Verb.RESUME, "it could not be reset", detail={})
        await self._store.resume_runs([run.run_id], act)

    async def fork(
        self,
        ref: RunRef,
        id: str,
        at: int | None,
        edits: Edits,
        code: Code | None,
        reason: str,
        detail: dict[str, Any] | None = None,
    ) -> Run:
        """Begin a chain under `id` with what the run has done up to entry `at`; None: where the edits are."""
        run = await self._store.get_run(ref.run_id)
        entries = await journal_of(self._store, run)
        point = edited_at(run, entries, edits) if at is None else at
        fork = await plan(self._store, run, entries, point, id=id, edits=edits, reason=reason)
        await self._check_code(run, fork, entries, code, edits)
        act = self._actor.act(Verb.FORK, reason, detail=_said(point, edits) | (detail or {}))
        return await self._carry_out(fork, act)

    async def _carry_out(self, fork: Fork, act: Act) -> Run:
        """Write it, and again when it is not known whether that worked. Raises what stands in the way."""
        failpoint("fork.before")
        [outcome] = await until_known(lambda: self._store.fork([fork], act))
        failpoint("fork.after")
        if isinstance(outcome, Exception):
            raise outcome
        if fork.close is not None:
            await self._closes.tell([fork.source])
        return outcome

    async def _check_code(
        self, run: Run, fork: Fork, entries: Sequence[Entry], given: Code | None, edits: Edits
    ) -> None:
        """Replay the kept entries with the code, if it is here; edits need it. Raises InvalidFork."""
        workflow = code_of_run(run, given, self._code_here)
        if workflow is not None:
            await dry_run(
                workflow, run, fork, entries[: fork.keep + 1], edits.outputs, edits.start, self._store.namespace
            )
        elif edits.any:
            raise InvalidFork(
                f"the code of run {run.id!r} ({run.name}) is not here, so the edits cannot be checked: get the run "
                f"with its workflow, or edit it where a worker has it"
            )


def _said(at: int, edits: Edits) -> dict[str, Any]:
    """For the audit log: what was edited, and not how. Values may be secret."""
    said: dict[str, Any] = {"at": at}
    said |= {"input": sorted(edits.inputs)} if edits.inputs else {}
    said |= {"output": sorted(edits.outputs)} if edits.outputs else {}
    return said | ({"args": True} if edits.start is not None else {})
