"""The scheduler of a worker. Every worker has one and none leads: the store lets one of them have each slot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from itertools import islice

from batuta.authoring.client.calendar import slot_text
from batuta.clock import SECOND
from batuta.durations import human_duration
from batuta.engine.backend.actor import Actor
from batuta.engine.backend.schedule_rules import (
    Decision,
    Plan,
    changed_payloads,
    decide,
    firing_of,
    first_row,
    read_plan,
    read_state,
    replaced_row,
    schedule_terms,
)
from batuta.engine.worker.background import BackgroundTask, woken
from batuta.engine.worker.database_clock import DatabaseClock
from batuta.engine.worker.outage import Outage
from batuta.engine.worker.reporter import Reporter
from batuta.errors import InvalidSchedule, RunClosed, UnknownRun, UnknownSchedule, WrongWorkflow, told
from batuta.failpoints import failpoint
from batuta.ids import jitter
from batuta.journal.audit import Act, Verb
from batuta.journal.records import Message, MessageKind
from batuta.journal.schedules import DueSchedule, Firing, ScheduleRow
from batuta.journal.store import Store

log = logging.getLogger("batuta.schedules")

MOST_LOOKED_AT = 500
"""Schedules that one look reads."""
_MOST_STARTS = 1_000
"""Runs that one transaction begins, unless a single schedule has more."""
_SLICE = 50
"""Schedules that are decided on before others get their turn on the event loop."""
_SPREAD = 0.05
"""Seconds by which workers look apart from each other."""
_AFTER_COLLISION = 0.1
_AFTER_ERROR = 1.0
_LOOKING = "looking for due schedules"
_AFTER_RIDDLE = 10.0
_FEW = 20
_REMEMBERED = 10_000
"""Schedules that cannot be read, and of which the log has been told."""


class Scheduler(BackgroundTask):
    """Waits until a schedule is due, by the database's clock, and has it fire. Costs nothing while there are none."""

    task_name = "batuta-scheduler"

    def __init__(self, store: Store, clock: DatabaseClock, outage: Outage, reporter: Reporter) -> None:
        self._store, self._clock, self._outage, self._reporter = store, clock, outage, reporter
        self._due: dict[str, int] = {}
        """When the schedules of this look were due."""
        self._spread = 0.0 if store.poll_seconds is None else _SPREAD
        self._at: int | None = None
        self._uncertain = False
        self._unreadable: set[tuple[str, int]] = set()
        self._news = asyncio.Event()

    def learn(self, at: int | None) -> None:
        """A heartbeat says when the next schedule is due."""
        if at != self._at:
            self._at = at
            self._news.set()

    def changed(self) -> None:
        """A schedule was made or changed: it may be due earlier than was thought."""
        self._uncertain = True
        self._news.set()

    # -- the task

    async def _run(self) -> None:
        while True:
            self._news.clear()
            try:
                if self._uncertain:
                    self._uncertain = False
                    self._at = await self._store.schedule_at()
                wait = await self._look() if self._is_due() else self._until_due()
                self._outage.worked(_LOOKING)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look comes
                self._outage.failed(_LOOKING, error)
                wait = _AFTER_ERROR * (0.5 + jitter())
            await woken(self._news, wait)

    def _is_due(self) -> bool:
        return self._at is not None and self._at <= self._clock.now()

    def _until_due(self) -> float | None:
        if self._at is None:
            return None
        # A little apart from the others: who comes second finds nothing to do.
        return max(0.0, (self._at - self._clock.now()) / SECOND) + self._spread * jitter()

    async def _look(self) -> float | None:
        """Fire due schedules, a bounded number at a time. Returns how long to wait for the next look."""
        found, firings = await self._find()
        fired = 0
        for group in _in_groups(firings):
            failpoint("schedule.before_fire")
            done = await self._store.fire(group)
            failpoint("schedule.after_fire")
            happened = [firing for firing, happened in zip(group, done, strict=True) if happened]
            fired += len(happened)
            for firing in happened:
                late = (self._clock.now() - self._due[firing.id]) / SECOND
                self._reporter.fired(firing.id, len(firing.starts), late)
            await self._check_begun(happened)
        self._at = await self._store.schedule_at()
        if not found:  # this clock is ahead of the store's, which may have been set back
            late = 0.0 if self._at is None else (self._at - await self._store.now()) / SECOND
            return min(max(late, _AFTER_COLLISION), _AFTER_RIDDLE) * (1.0 + self._spread * jitter())
        if not firings:
            return await self._after_riddle()
        if not fired:  # others were quicker, and may not be done
            return _AFTER_COLLISION * (0.5 + jitter())
        return 0.0 if self._is_due() else self._until_due()

    async def _check_begun(self, firings: Sequence[Firing]) -> None:
        """A slot's id may be taken by a run of something else: then nothing was begun."""
        for firing in firings:
            for new in firing.starts:
                try:
                    run = await self._store.get(new.id)
                except UnknownRun:
                    continue  # over, and deleted
                if (run.kind, run.name) != (new.kind, new.name):
                    error = WrongWorkflow(run.id, run.kind, run.name, new.kind, new.name)
                    log.error("schedule %r did not begin a slot: %s", firing.id, told(error))

    async def _find(self) -> tuple[bool, list[Firing]]:
        """Whether anything is due, and what of it fires. Looks behind those that this worker cannot read."""
        found = await self._store.due_schedules(MOST_LOOKED_AT)
        firings, anything = await self._decide_all(found), bool(found)
        while not firings and len(found) == MOST_LOOKED_AT:
            last = found[-1].schedule
            found = await self._store.due_schedules(MOST_LOOKED_AT, (last.next_at or 0, last.id))
            firings = await self._decide_all(found)
        return anything, firings

    async def _after_riddle(self) -> float:
        """All that is due is for others to read. Those may see to it; meanwhile the next one comes due."""
        wait, at = _AFTER_RIDDLE * (0.5 + jitter()), await self._store.schedule_at(self._clock.now())
        return wait if at is None else min(wait, max(0.0, (at - self._clock.now()) / SECOND) + self._spread * jitter())

    async def _decide_all(self, found: Sequence[DueSchedule]) -> list[Firing]:
        firings = []
        self._due = {due.schedule.id: due.schedule.next_at or 0 for due in found}
        now = await self._store.now() if found else 0  # its own word: this clock may not know yet that it was set
        for number, due in enumerate(found):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            row = due.schedule
            try:
                plan, state = read_plan(row), read_state(row)
            except InvalidSchedule as error:
                self._give_up(row, error)
                continue
            made = decide(plan, state, max(now, row.next_at or 0), due.busy, row.last_id)
            self._tell(row.id, row.last_id, plan, made)
            if made.cancel:
                await self._ask_to_end(row.last_id, row.id)
            firings.append(firing_of(self._store.namespace, row, plan, made))
        return firings

    def _give_up(self, row: ScheduleRow, error: InvalidSchedule) -> None:
        """A schedule of another version of this package: its workers fire it."""
        if (row.id, row.revision) not in self._unreadable:
            self._unreadable = {(row.id, row.revision), *islice(self._unreadable, _REMEMBERED)}
            log.error("schedule %r cannot be looked at: %s", row.id, told(error))

    async def _ask_to_end(self, run: str, id: str) -> None:
        """Before it is noted that it was asked: once more does no harm."""
        try:
            found = await self._store.get(run)
            reason = f"the next slot of schedule {id!r} has come"
            message = Message(message_id=f"cancel:{found.run_id}", kind=MessageKind.CANCEL, name=reason)
            await self._store.send(found.run_id, message)
            await self._reporter.closes.tell(await self._store.end_unbegun([found.run_id], reason))
        except (UnknownRun, RunClosed):
            pass  # it has ended

    def _tell(self, id: str, last_id: str, plan: Plan, made: Decision) -> None:
        if made.missed is not None:
            limit = human_duration(plan.catch_up / SECOND)
            log.warning("schedule %r: slots from %s on are missed: over %s", id, slot_text(made.missed), limit)
        if made.skipped:
            count, first = f"{'more than ' if made.uncounted else ''}{len(made.skipped)}", slot_text(made.skipped[0])
            log.info("schedule %r: %s slots from %s on are skipped, for run %r", id, count, first, last_id)


def _in_groups(firings: Sequence[Firing]) -> list[list[Firing]]:
    """So that no transaction begins too many runs."""
    groups: list[list[Firing]] = []
    room = 0
    for firing in firings:
        if not groups or len(firing.starts) > room:
            groups.append([])
            room = _MOST_STARTS
        groups[-1].append(firing)
        room -= len(firing.starts)
    return groups


# -- what code declares


async def reconcile(store: Store, plans: Mapping[str, Plan]) -> None:
    """See to it that the store has these schedules. An unchanged schedule costs a read."""
    if not plans:
        return
    known = await _read(store, plans)
    for id, plan in plans.items():
        row = known.get(id)
        if row is None or replaced_row(row.schedule, plan, 0) is not None:
            await declare(store, id, plan)


async def _read(store: Store, plans: Mapping[str, Plan]) -> dict[str, DueSchedule]:
    found: dict[str, DueSchedule] = {}
    if len(plans) <= _FEW:
        for id in plans:
            try:
                found[id] = await store.schedule(id)
            except UnknownSchedule:
                pass
        return found
    after = ""
    while page := await store.schedules(after):
        after = page[-1].schedule.id
        found.update((due.schedule.id, due) for due in page)
    return found


async def declare(store: Store, id: str, plan: Plan, *, must_exist: bool = False, actor: Actor | None = None) -> None:
    """Write the schedule, or put it in place of another of its id. Raises UnknownSchedule with `must_exist`."""
    now = await store.now()
    while True:
        try:
            row = (await store.schedule(id)).schedule
        except UnknownSchedule:
            if must_exist:
                raise
            if await store.put_schedule(first_row(id, plan, now)):
                log.info("schedule %r is new: %s", id, plan.when)
                return
            continue
        changed = replaced_row(row, plan, now)
        if changed is None:
            return
        act: Act | None = None
        if actor is not None:
            terms, changed_terms = schedule_terms(row), schedule_terms(changed)
            unseen = {"changed": payloads} if (payloads := changed_payloads(row, changed)) else None
            act = actor.act(Verb.PUT_SCHEDULE, detail=unseen, before=terms, after=changed_terms)
        if await store.put_schedule(changed, row.revision, act):
            log.info("schedule %r was replaced: %s", id, plan.when)
            return
