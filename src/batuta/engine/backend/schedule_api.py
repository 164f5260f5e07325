"""Schedules for clients: made, looked at, paused, triggered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import UNSET

from batuta.authoring.backend import RunRef
from batuta.authoring.client.calendar import slot_text
from batuta.authoring.client.schedules import MOST_BACKFILLED, Schedule, ScheduleView
from batuta.clock import SECOND, as_datetime
from batuta.engine.backend.actor import Actor
from batuta.engine.backend.batching import start_all
from batuta.engine.backend.schedule_rules import (
    Plan,
    first_row,
    new_run,
    paused_row,
    plan_of,
    read_plan,
    read_state,
    resumed_row,
    run_for,
    schedule_terms,
    slot_id,
)
from batuta.engine.backend.starts import unowned_run
from batuta.engine.machine.row_values import read_memo, read_tags
from batuta.engine.worker.scheduler import declare
from batuta.errors import InvalidSchedule, ScheduleExists, UnknownSchedule
from batuta.ids import new_run_id
from batuta.journal.audit import Verb
from batuta.journal.entries import Body
from batuta.journal.records import NewRun
from batuta.journal.schedules import DueSchedule, Firing, ScheduleRow
from batuta.journal.store import Store
from batuta.serde import decode_stored

_CHUNK = 500


class NativeSchedules:
    """Implements `authoring.client.schedules.ScheduleService` on a store."""

    def __init__(self, store: Store, actor: Actor) -> None:
        self._store, self._actor = store, actor

    def plan(self, schedule: Schedule) -> Plan:
        """As it is kept."""
        return plan_of(schedule, unowned_run(schedule.request))

    async def new_row(self, schedule: Schedule) -> ScheduleRow:
        """Raises InvalidSchedule."""
        row = first_row(schedule.id, self.plan(schedule), await self._store.now())
        if row.next_at is None:
            raise InvalidSchedule(f"schedule {schedule.id!r} ({schedule.when}) has no future slot")
        return row

    async def create(self, schedule: Schedule) -> ScheduleView:
        row = await self.new_row(schedule)
        if not await self._store.put_schedule(row, act=self._actor.act(Verb.PUT_SCHEDULE, after=schedule_terms(row))):
            raise ScheduleExists(schedule.id)
        return await self.get(schedule.id)

    async def update(self, schedule: Schedule) -> ScheduleView:
        await declare(self._store, schedule.id, self.plan(schedule), must_exist=True, actor=self._actor)
        return await self.get(schedule.id)

    async def get(self, id: str) -> ScheduleView:
        return _view(await self._store.schedule(id))

    async def list(self, after: str, limit: int) -> Sequence[ScheduleView]:
        return [_view(found) for found in await self._store.schedules(after, limit)]

    async def delete(self, id: str) -> None:
        row = (await self._store.schedule(id)).schedule
        if not await self._store.delete_schedule(id, self._actor.act(Verb.DELETE_SCHEDULE, before=schedule_terms(row))):
            raise UnknownSchedule(id, self._store.namespace)

    async def pause(self, id: str, reason: str) -> None:
        await self._rewrite(id, Verb.PAUSE_SCHEDULE, lambda row: paused_row(row, reason), reason)

    async def resume(self, id: str) -> None:
        now = await self._store.now()
        await self._rewrite(id, Verb.RESUME_SCHEDULE, lambda row: resumed_row(row, now) if row.paused else row)

    async def _rewrite(
        self, id: str, verb: Verb, change: Callable[[ScheduleRow], ScheduleRow], reason: str = ""
    ) -> None:
        while True:
            row = (await self._store.schedule(id)).schedule
            changed = change(row)
            act = self._actor.act(verb, reason, before={"paused": row.paused}, after={"paused": changed.paused})
            if changed is row or await self._store.put_schedule(changed, row.revision, act):
                return

    async def trigger(self, id: str) -> RunRef:
        """The run counts as the schedule's last one, unless that is open: then slots depend on that one."""
        now = await self._store.now()
        run = _triggered(self._store.namespace, (await self._store.schedule(id)).schedule, now)
        begun = {"id": run.id, "run_id": str(run.run_id)}
        await self._store.note_act(id, self._actor.act(Verb.TRIGGER_SCHEDULE, after=begun))
        while True:
            found = await self._store.schedule(id)
            row, run = found.schedule, _triggered(self._store.namespace, found.schedule, now)
            if row.paused or found.busy:
                await self._store.start(run)
                break
            firing = Firing(id=id, revision=row.revision, next_at=row.next_at, state=row.state)
            firing.last_at, firing.last_id, firing.starts = now, run.id, [run]
            if (await self._store.fire([firing]))[0]:
                break
        return RunRef(run.id, run.run_id, chain_id=run.run_id)

    async def backfill(self, id: str, start: int, end: int) -> Sequence[str]:
        plan = read_plan((await self._store.schedule(id)).schedule)
        wanted = plan.between(start - 1, end - 1, MOST_BACKFILLED + 1)
        if len(wanted) > MOST_BACKFILLED:
            raise InvalidSchedule(f"there are more than {MOST_BACKFILLED:,} slots in that range: choose a shorter one")
        slots = {"first": slot_text(wanted[0]), "last": slot_text(wanted[-1]), "slots": len(wanted)} if wanted else None
        await self._store.note_act(id, self._actor.act(Verb.BACKFILL_SCHEDULE, detail=slots))
        begun: list[str] = []
        for first in range(0, len(wanted), _CHUNK):
            # With their own run ids, which show whether a run is new.
            chunk = wanted[first : first + _CHUNK]
            runs = [new_run(plan.work, slot_id(id, slot), new_run_id(), slot) for slot in chunk]
            outcomes = await start_all(self._store, runs)
            begun += [
                run.id for run, outcome in zip(runs, outcomes, strict=True) if isinstance(outcome, tuple) and outcome[1]
            ]
        return begun

    async def next_times(self, id: str, count: int) -> Sequence[datetime]:
        plan = read_plan((await self._store.schedule(id)).schedule)
        found: list[datetime] = []
        slot = plan.next(await self._store.now())
        while slot is not None and len(found) < count:
            found.append(as_datetime(slot))
            slot = plan.next(slot)
        return found


def _triggered(namespace: str, row: ScheduleRow, now: int) -> NewRun:
    return run_for(namespace, read_plan(row), f"{row.id}:triggered-{slot_text(now)}", now)


def _view(found: DueSchedule) -> ScheduleView:
    row = found.schedule
    plan, state = read_plan(row), read_state(row)
    work, start = plan.work, f"what schedule {row.id!r} starts"
    body: Body = decode_stored(plan.work.start, start, Body)
    return ScheduleView(
        id=row.id,
        when=str(plan.when),
        workflow=work.name,
        kind=work.kind,
        arguments=decode_stored(body.value, start) if body.value is not UNSET else None,
        overlap=plan.overlap,
        catch_up=plan.catch_up / SECOND,
        jitter=plan.jitter / SECOND,
        start_at=as_datetime(plan.start_at),
        end_at=as_datetime(plan.end_at),
        queue=work.queue,
        priority=work.priority,
        key=work.flow_key,
        version=work.version,
        timeout=work.timeout / SECOND or None,
        execution_timeout=work.execution_timeout / SECOND or None,
        expires=work.expires / SECOND or None,
        tags=read_tags(work.tags),
        memo=read_memo(work.memo),
        paused=row.paused,
        reason=row.reason,
        next_at=None if row.paused else as_datetime(plan.next(state.cursor)),
        last_at=as_datetime(row.last_at),
        last_id=row.last_id,
        running=found.busy,
        waiting=as_datetime(state.waiting),
        created_at=as_datetime(row.created_at),
        updated_at=as_datetime(row.updated_at),
    )
