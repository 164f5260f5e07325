"""The steps of keys and claims: calls of the Bridge, and writes of our own tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from batuta import Retry, activity, activity_info
from pixdict.connect.keys.models import ClaimRow, EntryChange, EntryNotActive, EntryRow, EntryStatus, NewClaim, NewEntry
from pixdict.connect.keys.tables import KeyTables
from pixdict.dict import messages
from pixdict.dict.cids import cid_of
from pixdict.dict.claims import UNFINISHED, Claim, ExtendedClaim, Role
from pixdict.dict.entries import Account, Entry, ExtendedEntry, Person
from pixdict.errors import ConstraintViolation, InvalidArgument, NotFound, Refused

TOPIC = "core-events"
BRIDGE = Retry(attempts=3, first=1.0, factor=2.0, longest=30.0, jitter=0.0, never=[InvalidArgument, NotFound])
DATABASE = Retry(
    attempts=3, first=0.5, factor=2.0, longest=10.0, jitter=0.0, never=[InvalidArgument, ConstraintViolation]
)
FOR_EVER = Retry(attempts=0, first=1.0, factor=2.0, longest=300.0)
"""For what must be done since the directory has done its part."""
CALL = 30.0
"""Seconds of one call of the Bridge, which makes three attempts of 5 s itself."""
_BEFORE = timedelta(minutes=1)
"""Lists are read again from a little earlier: the directory's clock is not ours."""
_PAGE = 200


class Bridge(Protocol):
    """The part of the Bridge's client that is needed."""

    async def create_entry(
        self, entry: Entry, *, reason: str, request_id: str | UUID
    ) -> messages.CreateEntryResponse: ...
    async def update_entry(
        self,
        key: str,
        *,
        reason: str,
        request_id: str | UUID,
        account: Account | None = None,
        owner: Person | None = None,
    ) -> messages.UpdateEntryResponse: ...
    async def delete_entry(self, key: str, *, reason: str, request_id: str | UUID) -> messages.DeleteEntryResponse: ...
    async def create_claim(self, claim: Claim, *, request_id: str | UUID) -> ExtendedClaim: ...
    async def list_claims(
        self,
        *,
        is_donor: bool | None = None,
        is_claimer: bool | None = None,
        status: Sequence[str] = (),
        modified_after: datetime | None = None,
        limit: int = 0,
    ) -> messages.ListClaimsResponse: ...
    async def acknowledge_claim(self, claim_id: str | UUID, *, request_id: str | UUID) -> ExtendedClaim: ...
    async def confirm_claim(self, claim_id: str | UUID, *, reason: str, request_id: str | UUID) -> ExtendedClaim: ...
    async def cancel_claim(self, claim_id: str | UUID, *, reason: str, request_id: str | UUID) -> ExtendedClaim: ...
    async def complete_claim(
        self, claim_id: str | UUID, *, request_id: str | UUID
    ) -> messages.CompleteClaimResponse: ...


class Publish(Protocol):
    """`batuta.bus.publish`, or a stand-in."""

    def __call__(self, topic: str, payload: Any, *, key: str, id: str, type: str) -> Awaitable[object]: ...


Deliver = Callable[[ExtendedClaim, str, str], Awaitable[object]]
"""Hands a changed claim to its run: the claim, our side of it, the id of the run."""


class KeyActivities:
    """Activities. `deliver` is needed by those that poll, see `polling`."""

    def __init__(
        self, bridge: Bridge, tables: KeyTables, publish: Publish, *, participant: str, deliver: Deliver | None = None
    ) -> None:
        self._bridge = bridge
        self._tables, self._publish, self._deliver = tables, publish, deliver
        self._participant = participant

    # Entries

    @activity(retry=DATABASE)
    async def insert_entry(self, new: NewEntry, request_id: UUID) -> None:
        """Our own row, with the request id that every call for it will have."""
        row = EntryRow(id=new.id, status=EntryStatus.PENDING, request_id=str(request_id), entry=new.entry)
        await self._tables.insert_entry(row)

    @activity(retry=BRIDGE, timeout=CALL)
    async def register(self, entry: Entry, reason: str, request_id: UUID) -> ExtendedEntry:
        """Create the entry at the directory. A repeat gets the same answer."""
        return (await self._bridge.create_entry(entry, reason=reason, request_id=request_id)).entry

    @activity(retry=BRIDGE, timeout=CALL)
    async def unregister(self, key: str, reason: str, request_id: UUID) -> None:
        """Remove the entry from the directory; it may be gone already."""
        try:
            await self._bridge.delete_entry(key, reason=reason, request_id=request_id)
        except NotFound:
            if activity_info().attempt == 1 and reason != "RECONCILIATION":
                raise

    @activity(retry=BRIDGE, timeout=CALL)
    async def change(self, key: str, change: EntryChange, request_id: UUID) -> ExtendedEntry:
        """Change the entry at the directory."""
        found = await self._bridge.update_entry(
            key, reason=change.reason, request_id=request_id, account=change.account, owner=change.owner
        )
        return found.entry

    @activity(retry=DATABASE)
    async def store_entry(self, id: str, stored: ExtendedEntry, request_id: UUID) -> None:
        """The entry as the directory has it."""
        entry = Entry(key=stored.key, key_type=stored.key_type, account=stored.account, owner=stored.owner)
        await self._tables.store_entry(id, entry, cid_of(entry, request_id))

    @activity(retry=DATABASE)
    async def set_entry_status(self, id: str, status: str, problem: str = "") -> None:
        """Another status of our own row."""
        await self._tables.set_entry_status(id, status, problem)

    @activity(retry=DATABASE)
    async def active_entry(self, id: str) -> EntryRow:
        """Our own row. Raises EntryNotActive unless it is active."""
        row = await self._tables.entry(id)
        if row is None or row.status not in (EntryStatus.ACTIVE, EntryStatus.DELETING):
            raise EntryNotActive(f"entry {id} is {row.status}" if row else f"there is no entry {id}")
        return row

    @activity(retry=DATABASE)
    async def give_away(self, key: str) -> None:
        """Our own entry of a key that a claim took."""
        row = await self._tables.active_entry(key)
        if row is not None:
            await self._tables.set_entry_status(row.id, EntryStatus.TRANSFERRED)

    # Claims

    @activity(retry=DATABASE)
    async def insert_claim(self, id: str, side: str, key: str, status: str, directory_id: str = "") -> None:
        """Our own row."""
        await self._tables.insert_claim(ClaimRow(id=id, side=side, status=status, key=key, directory_id=directory_id))

    @activity(retry=BRIDGE, timeout=CALL)
    async def open_claim(self, new: NewClaim, request_id: UUID) -> ExtendedClaim:
        """Open the claim at the directory. It knows no repeats of this: before another attempt its claims are read."""
        if activity_info().attempt > 1 and (found := await self._own_claim(new.claim)):
            return found
        try:
            return await self._bridge.create_claim(new.claim, request_id=request_id)
        except Refused as error:
            # An attempt that a crash interrupted does not count as one, but may have opened it.
            if str(error).startswith("ClaimAlreadyExistsForKey") and (found := await self._own_claim(new.claim)):
                return found
            raise

    async def _own_claim(self, wanted: Claim) -> ExtendedClaim | None:
        since: datetime | None = None
        while True:
            page = await self._bridge.list_claims(
                is_claimer=True, status=sorted(UNFINISHED), modified_after=since, limit=_PAGE
            )
            for claim in page.claims:
                asked = (claim.type, claim.key, claim.claimer_account, claim.claimer)
                if asked == (wanted.type, wanted.key, wanted.claimer_account, wanted.claimer):
                    return claim
            if not page.has_more_elements or not page.claims or page.claims[-1].last_modified == since:
                return None
            since = page.claims[-1].last_modified

    @activity(retry=DATABASE)
    async def store_claim(self, id: str, claim: ExtendedClaim) -> None:
        """The claim as the directory has it."""
        await self._tables.set_claim(id, claim.status, str(claim.id))

    @activity(retry=DATABASE)
    async def fail_claim(self, id: str, problem: str) -> None:
        """Our own row of a claim that was not opened."""
        await self._tables.set_claim(id, "FAILED", "", problem)

    @activity(retry=BRIDGE, timeout=CALL)
    async def acknowledge(self, claim_id: UUID, request_id: UUID) -> ExtendedClaim:
        """We have seen it."""
        return await self._bridge.acknowledge_claim(claim_id, request_id=request_id)

    @activity(retry=BRIDGE, timeout=CALL)
    async def confirm(self, claim_id: UUID, reason: str, request_id: UUID) -> ExtendedClaim:
        """Give the key away."""
        return await self._bridge.confirm_claim(claim_id, reason=reason, request_id=request_id)

    @activity(retry=BRIDGE, timeout=CALL)
    async def cancel(self, claim_id: UUID, reason: str, request_id: UUID) -> ExtendedClaim:
        """End the claim."""
        return await self._bridge.cancel_claim(claim_id, reason=reason, request_id=request_id)

    @activity(retry=BRIDGE, timeout=CALL)
    async def complete(self, claim_id: UUID, request_id: UUID) -> ExtendedClaim:
        """Take the key."""
        return (await self._bridge.complete_claim(claim_id, request_id=request_id)).claim

    @activity(retry=BRIDGE)
    async def remind(self, id: str, side: str, what: str) -> None:
        """Tell the rest of the institution that a person must act."""
        payload = {"action": "ActionClaimReminder", "data": {"claim_id": id, "side": side, "what": what}}
        await self._publish(TOPIC, payload, key=id, id=activity_info().key, type="claim.reminder")

    # Polling

    @activity(retry=BRIDGE, timeout=120.0)
    async def poll_claims(self) -> int:
        """Hand every claim that changed to its run, on both sides. Returns how many there were."""
        if self._deliver is None:
            raise InvalidArgument("these activities were made without deliver=")
        known = await self._tables.polled_until("claims")
        since, count = known, 0
        while True:
            page = await self._bridge.list_claims(modified_after=since, limit=_PAGE)
            for claim in page.claims:
                count += await self._hand_over(claim)
            newest = page.claims[-1].last_modified if page.claims else since
            if not page.has_more_elements or newest == since:
                break
            since = newest
        if newest is not None:
            await self._tables.set_polled_until("claims", (newest - _BEFORE).astimezone(UTC))
        return count

    async def _hand_over(self, claim: ExtendedClaim) -> int:
        assert self._deliver is not None  # noqa: S101 - checked by the caller
        delivered = 0
        if claim.donor_participant == self._participant:
            await self._deliver(claim, Role.DONOR, f"answer-{claim.id}")
            delivered += 1
        if claim.claimer_account.participant == self._participant:
            row = await self._tables.claim_of(str(claim.id), Role.CLAIMER)
            if row is not None:
                await self._deliver(claim, Role.CLAIMER, f"claim-{row.id}")
                delivered += 1
        return delivered
