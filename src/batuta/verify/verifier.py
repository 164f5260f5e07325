"""Goes through all runs of a store and checks each. Uses the store's reading verbs alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from batuta.authoring.call_options import check_wait
from batuta.authoring.definitions import Workflow, by_code
from batuta.durations import Duration
from batuta.engine.backend.follow_chain import find_current, find_run
from batuta.errors import PayloadDamaged, PayloadSealed
from batuta.journal.entries import CommandKind, Entry
from batuta.journal.paging import all_pages, journal_pages, unread_pages
from batuta.journal.records import MessageKind, Run, RunFilter, RunKind
from batuta.journal.states import CLOSED, OPEN, RunState
from batuta.journal.store import Store
from batuta.verify.code_replay import CodeCheck, call_workflow
from batuta.verify.dead_letters import check_letters
from batuta.verify.journal import JournalCheck, Tell, check_end, check_epochs, check_liveness
from batuta.verify.messages import Messages
from batuta.verify.report import Report, Violation
from batuta.verify.unattended import Unattended

PATIENCE = 30.0
"""Seconds that recovery may take: two leases of 10 s, a heartbeat, and some more."""

_RUNS = 100
_AT_ONCE = 8


async def verify(
    store: Store, workflows: Sequence[Workflow[..., Any]] = (), *, patience: Duration = PATIENCE
) -> Report:
    """Check every run of an open store. With `workflows`, also replay their runs.

    If runs belong to dead workers and live ones exist, it waits up to `patience` seconds for their recovery. Runs that
    begin meanwhile may be left out. A run with a worker is read as of one moment: the journal up to the head of the
    row, so that ongoing work causes no false alarm.
    """
    longest = check_wait("patience", patience)
    audit = _Audit(store, by_code(workflows))
    await audit.unattended.look()
    async for page in all_pages(lambda cursor: store.list_runs(RunFilter(), cursor, _RUNS)):
        for start in range(0, len(page.runs), _AT_ONCE):
            await asyncio.gather(*map(audit.check, page.runs[start : start + _AT_ONCE]))
            audit.messages.look_back()
    await audit.messages.settle()
    await check_letters(store, audit.report)
    await audit.unattended.settle(longest, lambda run, what: audit.teller(run)("I12", what))
    audit.report.stranded = await audit.unattended.stranded()
    return audit.report


class _Audit:
    def __init__(self, store: Store, workflows: dict[str, Workflow[..., Any]]) -> None:
        self._store, self._workflows = store, workflows
        self.report = Report()
        self.unattended = Unattended(store)
        self.messages = Messages(store, lambda run, what: self.teller(run)("I10", what))

    async def check(self, run: Run) -> None:
        """All invariants of one run. A run that is deleted meanwhile breaks none."""
        found: list[tuple[str, str]] = []
        await self._check(run, lambda invariant, what: found.append((invariant, what)))
        if found and await find_run(self._store, run.run_id) is not None:
            for invariant, what in found:
                self.teller(run)(invariant, what)

    async def _check(self, run: Run, tell: Tell) -> None:
        self.report.runs += 1
        for name in ("I1", "I2", "I3", "I4", "I5", "I6", "I10", "I12"):
            self.report.checked[name] += 1
        journal, code = JournalCheck(tell), self._code(run, tell)
        inbox: list[MessageKind] = []
        try:
            if await self._is_readable(run, journal, inbox, code, tell):
                check_end(run, journal, tell)
                check_epochs(run, await self._store.epochs(run.run_id), tell)
                self.report.checked["I9"] += journal.fired
                await self._check_current(run, tell)
                await self._check_kin(run, tell)
                await self.messages.check(run, journal, tell)
                await self._check_open(run, journal, inbox, code, tell)
            self.unattended.see(run)
        finally:
            if code is not None:
                await code.close()

    def teller(self, run: Run) -> Tell:
        return lambda invariant, what: self.report.add(Violation(invariant, run.id, run.run_id, what))

    def _code(self, run: Run, tell: Tell) -> CodeCheck | None:
        """A replay, if there is code for the run. A run that is parked as needs_code is known not to replay."""
        workflow = self._workflows.get(run.code or run.name)
        if run.kind is not RunKind.WORKFLOW:
            workflow = call_workflow(run.kind, run.name)
        if workflow is None or run.state is RunState.NEEDS_CODE:
            return None
        self.report.checked["I7"] += 1
        return CodeCheck(workflow, run, self._store.namespace, tell)

    async def _is_readable(
        self,
        run: Run,
        journal: JournalCheck,
        inbox: list[MessageKind],
        code: CodeCheck | None,
        tell: Tell,
    ) -> bool:
        """Read its journal, and its inbox if it is open. A missing key is no fault; a changed payload is."""
        try:
            await self._read_journal(run, journal, code)
            if run.state not in CLOSED:
                async for unread in unread_pages(self._store, run.run_id):
                    inbox += [message.kind for message in unread]
        except PayloadDamaged as error:
            tell("I3", str(error))
        except PayloadSealed:
            self.report.sealed += 1
        else:
            return True
        return False

    async def _read_journal(self, run: Run, journal: JournalCheck, code: CodeCheck | None) -> None:
        if code is not None:
            await code.begin(self._store)
        async for page in journal_pages(self._store, run.run_id):
            known: list[Entry] = [entry for entry in page if run.state in CLOSED or entry.ord <= run.head]
            for entry in known:
                journal.feed(entry)
            if code is not None:
                await code.feed(known)
            if len(known) < len(page):
                return

    async def _check_current(self, run: Run, tell: Tell) -> None:
        """I2."""
        current = await find_current(self._store, run.id)
        if current is None:
            tell("I2", "its id has no current run")
            return
        if current.run_id == run.run_id:
            if run.state is RunState.CONTINUED:
                tell("I2", "another run should follow it, but none does")
            return
        if run.state not in CLOSED and await self._unmoved(run):
            tell("I2", f"it is open, and run {current.run_id} is current under its id")
        elif current.created_at < run.created_at and current.chain_id != run.chain_id:  # clocks are set back
            tell("I2", f"the older run {current.run_id} is current under its id")

    async def _check_kin(self, run: Run, tell: Tell) -> None:
        """I1: the run that began its chain exists, and its parent."""
        if run.chain_id != run.run_id:
            first = await find_run(self._store, run.chain_id)
            if first is None:
                tell("I1", f"run {run.chain_id}, which began its chain, does not exist")
            elif (first.id, first.chain_id) != (run.id, run.chain_id):
                tell("I1", f"run {run.chain_id} ({first.id}) did not begin its chain")
        if run.parent_run_id is not None and await find_run(self._store, run.parent_run_id) is None:
            tell("I1", f"its parent, run {run.parent_run_id}, does not exist")

    async def _check_open(
        self,
        run: Run,
        journal: JournalCheck,
        inbox: list[MessageKind],
        code: CodeCheck | None,
        tell: Tell,
    ) -> None:
        """I12, and I1 for a run that has not begun: its start message must be in its inbox."""
        found: list[tuple[str, str]] = []
        waits_for_activity = await self._waits_for_activity(run, journal)
        check_liveness(run, waits_for_activity, len(inbox), lambda *finding: found.append(finding))
        if run.head < 0 and run.state not in CLOSED and MessageKind.START not in inbox:
            found.append(("I1", "the run has not begun, and its start message is not in its inbox"))
        if run.state is RunState.PENDING and run.wake_at is None and run.awaits:
            members = await self._store.count_runs(RunFilter(parent=run.run_id, states=tuple(OPEN)))
            if members < run.awaits:
                found.append(("I12", f"the run waits for {run.awaits} others, and {members} of them are open"))
        timer = None if code is None or code.failed else code.next_timer()
        if run.state is RunState.WAITING and timer is not None and (run.wake_at is None or run.wake_at > timer):
            found.append(("I12", f"the run has a timer for {timer}, and is due at {run.wake_at or 'no time'}"))
        if run.state is RunState.WAITING and run.wake_at is None and code is not None and code.awaits_word():
            found.append(("I12", "the run waits for the store's answer to a message or child, and is never due"))
        if found and await self._unmoved(run):  # else row and inbox are of two moments
            for finding in found:
                tell(*finding)

    async def _waits_for_activity(self, run: Run, journal: JournalCheck) -> bool:
        """Whether it waits for an activity that its owner executes: not on another queue, and not from outside."""
        waiting = {seq for seq, kind in journal.waiting.items() if kind is CommandKind.ACTIVITY} - journal.routed
        if waiting and run.state is RunState.WAITING and run.wake_at is None:
            attempts = await self._store.attempts(run.run_id)
            waiting -= {attempt.seq for attempt in attempts if attempt.outside and attempt.ended_at is None}
        return bool(waiting)

    async def _unmoved(self, run: Run) -> bool:
        """Whether the row is unchanged."""
        now = await find_run(self._store, run.run_id)
        return now is not None and (now.state, now.epoch, now.head, now.wake_at) == (
            run.state,
            run.epoch,
            run.head,
            run.wake_at,
        )
