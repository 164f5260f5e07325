"""The steps of a reconciliation: questions to the directory, comparisons, repairs of our own rows."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import msgspec

from batuta import Retry, activity, activity_info, bus, heartbeat
from pixdict.connect.keys.models import EntryStatus
from pixdict.connect.reconciliation.audit import Audit
from pixdict.connect.reconciliation.held import Held, HeldEntries
from pixdict.connect.reconciliation.metrics import ReconciliationMetrics
from pixdict.connect.reconciliation.mirror import BEGINNING, Mirror
from pixdict.connect.reconciliation.models import (
    ACTION,
    ALERT,
    HERE,
    THERE,
    TOPIC,
    Asked,
    Change,
    Compared,
    Difference,
    Limits,
    Repaired,
    Report,
    Snapshot,
    Walked,
)
from pixdict.dict import messages
from pixdict.dict.entries import Entry
from pixdict.errors import ConstraintViolation, InvalidArgument, NotFound, RateLimited

BRIDGE = Retry(attempts=10, first=1.0, factor=3.0, longest=600.0, jitter=0.0, never=[InvalidArgument, NotFound])
"""Half an hour: the next reconciliation is tomorrow."""
DATABASE = Retry(
    attempts=8, first=0.5, factor=3.0, longest=120.0, jitter=0.0, never=[InvalidArgument, ConstraintViolation]
)
TIMEOUT, HEARTBEAT = 600.0, 60.0

_BEFORE = timedelta(minutes=1)
"""Events are read again from a little earlier: some may be told late."""
_SHORTEST = timedelta(milliseconds=1)
_EVENTS, _PAGES = 200, 20
"""The longest page, and how many of them one attempt reads."""
_COMPARED, BATCH = 1_000, 100
LAST = "g"
"""After every identifier."""


class Bridge(Protocol):
    """The part of the Bridge's client that is needed."""

    async def create_sync_verification(
        self, key_type: str, verifier: str, *, request_id: str | UUID
    ) -> messages.ExtendedSyncVerification: ...
    async def list_cid_events(
        self, key_type: str, *, start_time: datetime, limit: int = 0
    ) -> messages.ListCidSetEventsResponse: ...
    async def get_entry_by_cid(self, cid: str) -> messages.GetEntryByCidResponse: ...


class Publish(Protocol):
    """`batuta.bus.publish`, or a stand-in."""

    def __call__(self, topic: str, payload: Any, *, key: str, id: str, type: str) -> Awaitable[object]: ...


class ReconciliationActivities:
    """What the activities need: the Bridge, our entries, the copy of the directory's identifiers, audit and gauges."""

    def __init__(
        self,
        bridge: Bridge,
        held: HeldEntries,
        mirror: Mirror,
        audit: Audit,
        metrics: ReconciliationMetrics,
        publish: Publish = bus.publish,
    ) -> None:
        self._bridge, self._held, self._mirror, self._audit = bridge, held, mirror, audit
        self._metrics, self._publish = metrics, publish

    @activity(retry=DATABASE, timeout=TIMEOUT)
    async def snapshot(self, key_type: str) -> Snapshot:
        """Our active entries of that type."""
        return await self._held.snapshot(key_type)

    @activity(retry=BRIDGE, timeout=TIMEOUT)
    async def verify(self, key_type: str, verifier: str, request_id: UUID) -> bool:
        """Whether the directory has the same verifier."""
        found = await self._bridge.create_sync_verification(key_type, verifier, request_id=request_id)
        return found.result == "OK"

    # Events

    @activity(retry=BRIDGE, timeout=TIMEOUT, heartbeat=HEARTBEAT)
    async def walk(self, key_type: str, is_first: bool) -> Walked:
        """Some pages of events, from the newest one that is known; the first time in a round from a little earlier."""
        known = await self._mirror.until(key_type)
        since = BEGINNING if known is None else known - _BEFORE if is_first else known
        seen: set[tuple[str, str, datetime]] = set()
        for _ in range(_PAGES):
            heartbeat(f"{len(seen)} events")
            try:
                page = await self._bridge.list_cid_events(key_type, start_time=since, limit=_EVENTS)
            except RateLimited as error:
                return Walked(events=len(seen), is_more=True, wait=max(1.0, error.seconds))
            await self._mirror.apply(key_type, page.cid_set_events)
            seen.update((event.cid, event.type, event.timestamp) for event in page.cid_set_events)
            if not page.has_more_elements:
                return await self._ended(key_type, page, len(seen))
            newest = page.cid_set_events[-1].timestamp
            # More events of one moment than a page has: those that are left out show in the verifier.
            since = newest if newest > since else since + _SHORTEST
        return Walked(events=len(seen), is_more=True)

    async def _ended(self, key_type: str, page: messages.ListCidSetEventsResponse, events: int) -> Walked:
        await self._mirror.prune(key_type)
        verifier = page.sync_verifier_end
        adds_up = await self._mirror.verifier(key_type) == verifier.lower()
        return Walked(events=events, is_more=False, verifier=verifier, adds_up=adds_up, now=page.response_time)

    @activity(retry=DATABASE)
    async def start_over(self, key_type: str) -> None:
        """The next walk begins with the first event."""
        await self._mirror.clear(key_type)

    # Differences

    @activity(retry=DATABASE, timeout=TIMEOUT, heartbeat=HEARTBEAT)
    async def compare(self, key_type: str, side: str, after: str, limits: Limits) -> Compared:
        """Identifiers that only this side has, from one on."""
        found: list[Difference] = []
        young = 0
        while len(found) < BATCH:
            heartbeat(after[:8])
            here = dict(await self._held.page(key_type, after, _COMPARED))
            there = dict(await self._mirror.page(key_type, after, _COMPARED))
            end = min((max(one) for one in (here, there) if len(one) == _COMPARED), default=LAST)
            only = here.keys() - there.keys() if side == HERE else there.keys() - here.keys()
            for cid in sorted(one for one in only if one <= end):
                if await self._is_young(key_type, cid, here, there, limits):
                    young += 1
                else:
                    found.append(Difference(cid=cid, side=side))
            if end == LAST:
                return Compared(differences=found, young=young, after=None)
            after = end
        return Compared(differences=found, young=young, after=after)

    async def _is_young(
        self, key_type: str, cid: str, here: dict[str, datetime], there: dict[str, datetime], limits: Limits
    ) -> bool:
        if cid in there:
            return there[cid] > limits.there
        removed = await self._mirror.changed_at(key_type, cid)
        return here[cid] > limits.here or (removed is not None and removed > limits.there)

    @activity(retry=BRIDGE, timeout=TIMEOUT, heartbeat=HEARTBEAT)
    async def ask(self, key_type: str, differences: list[Difference], limits: Limits) -> Asked:
        """Count rows of ours that a repair would end, or that only changed. No row is changed."""
        count = 0
        for done, difference in enumerate(differences):
            heartbeat(difference.cid[:8])
            try:
                entry = await self._entry_of(difference.cid)
            except RateLimited as error:
                return Asked(count=count, done=done, wait=max(1.0, error.seconds))
            await self._mirror.correct(key_type, difference.cid, is_there=entry is not None)
            if difference.side == HERE:
                count += entry is None
            elif entry is not None:
                held = await self._held.of_request(entry.request_id)
                count += held is not None and held.status == EntryStatus.ACTIVE and held.updated_at <= limits.here
        return Asked(count=count, done=len(differences))

    @activity(retry=BRIDGE, timeout=TIMEOUT, heartbeat=HEARTBEAT)
    async def repair(self, run_id: str, key_type: str, differences: list[Difference], limits: Limits) -> Repaired:
        """Our rows become what the directory has. It may be done again, and goes on where it was."""
        repaired = young = 0
        for difference in differences:
            heartbeat(difference.cid[:8])
            repairing = _Repair(self._held, self._audit, run_id, key_type, limits.here)
            try:
                entry = await self._entry_of(difference.cid)
            except RateLimited as error:
                return Repaired(repaired=repaired, young=young, wait=max(1.0, error.seconds))
            await self._mirror.correct(key_type, difference.cid, is_there=entry is not None)
            if difference.side == THERE and entry is not None:
                await repairing.take(entry)
            elif difference.side == HERE and entry is None:
                await repairing.remove(difference.cid)
            repaired, young = repaired + repairing.done, young + repairing.skipped
        return Repaired(repaired=repaired, young=young)

    async def _entry_of(self, cid: str) -> messages.GetEntryByCidResponse | None:
        """The live entry of ours with that identifier: events may be behind, or tell of what is gone. An identifier
        names its participant: when the directory says that it is another one's, the Bridge is not ours."""
        try:
            return await self._bridge.get_entry_by_cid(cid)
        except NotFound:
            return None

    # The end

    @activity(retry=DATABASE)
    async def close(self, report: Report) -> Report:
        """Into the table for audits, and the gauges."""
        counts = await self._audit.repaired(report.run_id, report.key_type)
        closed = msgspec.structs.replace(report, repaired=sum(counts.values()))
        await self._audit.close(closed)
        self._metrics.set(closed, counts)
        return closed

    @activity(retry=BRIDGE)
    async def alert(self, report: Report, sample: list[Difference]) -> None:
        """To the bus: a person must look."""
        data = {**msgspec.to_builtins(report), "differences": msgspec.to_builtins(sample)}
        payload = {"action": ACTION, "data": data}
        await self._publish(TOPIC, payload, key=report.key_type, id=f"reconciliation:{activity_info().key}", type=ALERT)


class _Repair:
    """One difference. A change is written into the audit before it is made, so that a crash cannot hide it."""

    def __init__(self, held: HeldEntries, audit: Audit, run_id: str, key_type: str, unchanged_since: datetime) -> None:
        self._held, self._audit = held, audit
        self._run_id, self._key_type, self._limit = run_id, key_type, unchanged_since
        self.done = self.skipped = 0

    async def take(self, found: messages.GetEntryByCidResponse) -> None:
        """The directory has an entry: ours becomes active, with its data."""
        shown, cid = found.entry, found.cid.lower()
        entry = Entry(key=shown.key, key_type=shown.key_type, account=shown.account, owner=shown.owner)
        held = await self._held.of_request(found.request_id)
        if held is not None and (held.status, held.cid) == (EntryStatus.ACTIVE, cid):
            return
        for other in await self._held.active(self._key_type, key=shown.key):
            if (held is None or other.id != held.id) and not await self._retire(other):
                return
        if held is None:
            id = str(found.request_id)
            await self._audit.note(self._change(cid, "ADDED", id, ""))
            await self._held.add(id, entry, found.request_id, cid)
            self.done += 1
            return
        action = "CHANGED" if held.status == EntryStatus.ACTIVE else "RESTORED"
        change = self._change(cid, action, held.id, held.status)
        await self._audit.note(change)
        await self._count(await self._held.restore(held, entry, cid, self._limit), change)

    async def remove(self, cid: str) -> None:
        """The directory has no such entry: ours is not active any more."""
        for held in await self._held.active(self._key_type, cid=cid):
            await self._retire(held)

    async def _retire(self, held: Held) -> bool:
        status = await self._held.ending_of(held)
        change = self._change(held.cid, str(status), held.id, held.status)
        await self._audit.note(change)
        return await self._count(await self._held.retire(held, status, self._limit), change)

    async def _count(self, is_done: bool, change: Change) -> bool:
        if is_done:
            self.done += 1
        else:
            self.skipped += 1
            await self._audit.withdraw(change)
        return is_done

    def _change(self, cid: str, action: str, entry_id: str, before: str) -> Change:
        return Change(
            run_id=self._run_id,
            key_type=self._key_type,
            cid=cid,
            action=action,
            entry_id=entry_id,
            before=before,
            at=self._held.now(),
        )
