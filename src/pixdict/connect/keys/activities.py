"""The steps of keys and claims: calls of the Bridge, and writes of our own tables."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

from msgspec import Struct

from batuta import Retry, activity, activity_info
from batuta.resilience import breaker
from pixdict.bridge.calls import BREAKER
from pixdict.connect.keys.models import (
    COMPENSATED,
    COMPENSATED_ENTRY,
    COMPENSATED_UPDATE,
    NO_REQUEST,
    Asked,
    AttemptsExhausted,
    ClaimRow,
    EntryChange,
    EntryNotActive,
    EntryRow,
    EntryStatus,
    How,
    NewClaim,
    NewEntry,
    Outcome,
)
from pixdict.connect.keys.requests import EVENTS, RESPONSES, Response
from pixdict.connect.keys.tables import ChangedTables, KeyTables
from pixdict.dict import messages
from pixdict.dict.cids import cid_of
from pixdict.dict.claims import UNFINISHED, Claim, ExtendedClaim, Role, is_of_same_claimer
from pixdict.dict.entries import Account, Entry, ExtendedEntry, Person, Reason
from pixdict.errors import (
    BridgeError,
    BridgeUnavailable,
    CircuitOpen,
    ConstraintViolation,
    InvalidArgument,
    NotFound,
    RateLimited,
    Refused,
)

log = logging.getLogger("pixdict.connect")

T = TypeVar("T")

BACEN = breaker(BREAKER, watch=True)
"""The breaker that the Bridge keeps: while it is open, accepted work waits here, and uses up no attempt."""
BRIDGE = Retry(
    attempts=10,
    first=1.0,
    factor=2.0,
    longest=30.0,
    jitter=0.0,
    never=[InvalidArgument, NotFound, AttemptsExhausted, CircuitOpen, RateLimited],
)
"""How long to wait between attempts. `KeyActivities(attempts=...)` says how many there are. What the Bridge did not let
in is no attempt: the workflow calls again, see `once_open`."""
UNDO = Retry(attempts=10, first=1.0, factor=2.0, longest=60.0, jitter=0.0)
"""Attempts of a compensation, which no workflow calls again. Then it is parked for a person."""
DATABASE = Retry(
    attempts=3, first=0.5, factor=2.0, longest=10.0, jitter=0.0, never=[InvalidArgument, ConstraintViolation]
)
FOR_EVER = Retry(attempts=0, first=1.0, factor=2.0, longest=300.0, jitter=0.0)
"""For what must be done since the directory has done its part, or has refused to."""
CALL = 120.0
"""Seconds of one attempt. The client of the Bridge has a shorter deadline of its own, `BridgeClient(timeout=...)`."""
_BEFORE = timedelta(minutes=1)
"""Lists are read again from a little earlier: the directory's clock is not ours."""
_SHORTEST = timedelta(milliseconds=1)
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
    async def get_claim(self, claim_id: str | UUID) -> ExtendedClaim: ...
    async def acknowledge_claim(self, claim_id: str | UUID, *, request_id: str | UUID) -> ExtendedClaim: ...
    async def confirm_claim(self, claim_id: str | UUID, *, reason: str, request_id: str | UUID) -> ExtendedClaim: ...
    async def cancel_claim(self, claim_id: str | UUID, *, reason: str, request_id: str | UUID) -> ExtendedClaim: ...
    async def complete_claim(
        self, claim_id: str | UUID, *, request_id: str | UUID
    ) -> messages.CompleteClaimResponse: ...


class Publish(Protocol):
    """`client.publish`, or a stand-in."""

    def __call__(
        self, topic: str, payload: Any, *, key: str, id: str, type: str, transaction: Any = None
    ) -> Awaitable[object]: ...


class AuditEvent(Struct, frozen=True, kw_only=True):
    """What the audit log gets."""

    type: str
    entry_id: str
    key_type: str
    trace_id: str


Audit = Callable[[AuditEvent], Awaitable[object]]
"""Raises AuditUnavailable."""

Deliver = Callable[[ExtendedClaim, str, str], Awaitable[object]]
"""Hands a changed claim to its run: the claim, our side of it, the id of the run."""


def _outcome(asked: Asked, how: How, status: str, problem: str = "") -> Outcome | None:
    """None: no request waits for it."""
    if not asked.request:
        return None
    return Outcome(request=asked.request, how=how, status=str(status), problem=problem, trace_id=asked.trace_id)


def _response(subject: Literal["entry", "claim"], id: str, outcome: Outcome | None) -> list[Response]:
    return [] if outcome is None else [Response(subject=subject, id=id, outcome=outcome)]


def _alert(subject: str, id: str, problem: str, asked: Asked) -> tuple[str, str, Any]:
    data = {f"{subject}_id": id, "error": problem, "trace_id": asked.trace_id, "severity": "CRITICAL"}
    return f"{subject}.dead_letter", id, {"action": "ActionDeadLetter", "data": data}


def _sent(message: Response | tuple[str, str, Any], id: str) -> tuple[str, Any, dict[str, str]]:
    """Topic, payload and options of a message."""
    if isinstance(message, Response):
        return RESPONSES, message, {"key": message.id, "id": id, "type": f"{message.subject}.{message.outcome.how}"}
    kind, key, payload = message
    return EVENTS, payload, {"key": key, "id": id, "type": kind}


class KeyActivities:
    """Activities. `deliver` is needed by those that poll, see `polling`."""

    def __init__(
        self,
        bridge: Bridge,
        tables: KeyTables,
        publish: Publish,
        *,
        participant: str,
        deliver: Deliver | None = None,
        audit: Audit | None = None,
        attempts: int = 3,
    ) -> None:
        """`audit`: takes an event of each new entry, after the directory and before the entry is active; when it fails
        for good, the entry is undone. `attempts`: calls of the Bridge until a request is given up."""
        self._bridge = bridge
        self._tables, self._publish, self._deliver = tables, publish, deliver
        self._participant, self._audit, self._attempts = participant, audit, attempts

    async def _ask(self, call: Awaitable[T]) -> T:
        """What the Bridge answers. Raises AttemptsExhausted when it was away too often."""
        try:
            return await call
        except CircuitOpen:
            raise
        except (BridgeUnavailable, BridgeError) as error:
            attempt = activity_info().attempt
            if attempt < self._attempts:
                raise
            raise AttemptsExhausted(f"{type(error).__name__} after {attempt} attempts: {error}") from error

    async def _keep(
        self, write: Callable[[ChangedTables], Awaitable[object]], *messages: Response | tuple[str, str, Any]
    ) -> None:
        """Write, and publish: in one transaction, or else with the same ids in every attempt."""
        key = activity_info().key
        sent = [_sent(message, f"{key}:{number}") for number, message in enumerate(messages)]
        async with self._tables.change() as tables:
            await write(tables)
            if tables.connection is not None:
                for topic, payload, options in sent:
                    await self._publish(topic, payload, transaction=tables.connection, **options)
                return
        for topic, payload, options in sent:
            await self._publish(topic, payload, **options)

    # Entries

    @activity(retry=DATABASE)
    async def insert_entry(self, new: NewEntry, request_id: UUID) -> None:
        """Our own row, with the request id that every call for it will have."""
        row = EntryRow(id=new.id, status=EntryStatus.PENDING, request_id=str(request_id), entry=new.entry)
        await self._tables.insert_entry(row)

    @activity(retry=BRIDGE, timeout=CALL, gates=[BACEN])
    async def register(self, entry: Entry, reason: str, request_id: UUID) -> ExtendedEntry:
        """Create the entry at the directory. A repeat gets the same answer."""
        return (await self._ask(self._bridge.create_entry(entry, reason=reason, request_id=request_id))).entry

    @activity(retry=BRIDGE, timeout=CALL, gates=[BACEN])
    async def unregister(self, key: str, reason: str, request_id: UUID) -> None:
        """Remove the entry from the directory. One that is not there is removed: perhaps by an attempt before a crash,
        which does not count as one."""
        with suppress(NotFound):
            await self._ask(self._bridge.delete_entry(key, reason=reason, request_id=request_id))

    @activity(retry=BRIDGE, timeout=CALL, gates=[BACEN])
    async def change(self, key: str, change: EntryChange, request_id: UUID) -> ExtendedEntry:
        """Change the entry at the directory."""
        found = await self._ask(
            self._bridge.update_entry(
                key, reason=change.reason, request_id=request_id, account=change.account, owner=change.owner
            )
        )
        return found.entry

    @activity(retry=DATABASE)
    async def store_entry(
        self, id: str, stored: ExtendedEntry, request_id: UUID, asked: Asked = NO_REQUEST, event: str = ""
    ) -> None:
        """The entry as the directory has it. `event` goes to the audit log first, and to the institution with it."""
        entry = Entry(key=stored.key, key_type=stored.key_type, account=stored.account, owner=stored.owner)
        if event and self._audit is not None:
            await self._audit(AuditEvent(type=event, entry_id=id, key_type=entry.key_type, trace_id=asked.trace_id))
        ended = _outcome(asked, How.DONE, EntryStatus.ACTIVE)
        await self._keep(
            lambda tables: tables.store_entry(id, entry, cid_of(entry, request_id), ended),
            *_response("entry", id, ended),
        )

    @activity(retry=FOR_EVER)
    async def set_entry_status(
        self, id: str, status: str, problem: str = "", asked: Asked = NO_REQUEST, how: str = How.DONE
    ) -> None:
        """Another status of our own row; with it the request has ended."""
        ended = _outcome(asked, How(how), status, problem)
        await self._keep(
            lambda tables: tables.set_entry_status(id, status, problem, ended), *_response("entry", id, ended)
        )

    @activity(retry=FOR_EVER)
    async def answer_entry(self, id: str, problem: str, asked: Asked, how: str) -> None:
        """A request for an entry has ended, and the entry has not changed."""
        row = await self._tables.entry(id)
        ended = _outcome(asked, How(how), "" if row is None else row.status, problem)
        if row is not None and ended is not None:
            await self._keep(lambda tables: tables.answer_entry(id, problem, ended), *_response("entry", id, ended))

    @activity(retry=FOR_EVER)
    async def entry_exhausted(self, id: str, status: str, problem: str, asked: Asked) -> None:
        """The directory was away for all attempts: tell the waiting caller, and alert a person."""
        ended = _outcome(asked, How.EXHAUSTED, status, problem)

        async def write(tables: ChangedTables) -> None:
            if ended is None:
                await tables.set_entry_status(id, status, problem)
            else:
                await tables.answer_entry(id, problem, ended)

        await self._keep(write, *_response("entry", id, ended), _alert("entry", id, problem, asked))

    @activity(retry=UNDO, timeout=CALL, gates=[BACEN])
    async def undo_create(self, id: str, key: str, request_id: UUID, asked: Asked) -> None:
        """Compensation: remove the entry from the directory, and only then say so here. A key that has become active,
        as by a reconciliation before the dead letter is processed, stays."""
        active = await self._tables.active_entry(key)
        if active is not None and active.id == id:
            log.warning("entry %s is active by now: its creation is not undone", id)
            return
        if active is None:
            with suppress(NotFound):
                await self._bridge.delete_entry(key, reason="RECONCILIATION", request_id=request_id)
        ended = _outcome(asked, How.UNDONE, EntryStatus.FAILED, COMPENSATED_ENTRY)
        await self._keep(
            lambda tables: tables.set_entry_status(id, EntryStatus.FAILED, COMPENSATED_ENTRY, ended),
            *_response("entry", id, ended),
        )

    @activity(retry=UNDO, timeout=CALL, gates=[BACEN])
    async def undo_change(self, id: str, key: str, old: EntryChange, request_id: UUID, asked: Asked) -> None:
        """Compensation: give the directory the old values back, and only then say so here. What has changed since, as
        before a dead letter is processed, is not taken back."""
        row = await self._tables.entry(id)
        now = None if row is None or row.status != EntryStatus.ACTIVE else (row.entry.account, row.entry.owner)
        if now != (old.account, old.owner):
            log.warning("entry %s has changed since: its update is not undone", id)
            return
        await self._bridge.update_entry(
            key, reason=old.reason, request_id=request_id, account=old.account, owner=old.owner
        )
        ended = _outcome(asked, How.UNDONE, EntryStatus.ACTIVE, COMPENSATED_UPDATE)
        await self._keep(
            lambda tables: tables.set_entry_status(id, EntryStatus.ACTIVE, COMPENSATED_UPDATE, ended),
            *_response("entry", id, ended),
        )

    @activity(retry=DATABASE)
    async def active_entry(self, id: str) -> EntryRow:
        """Our own row. Raises EntryNotActive unless it is active."""
        row = await self._tables.entry(id)
        if row is None or row.status not in (EntryStatus.ACTIVE, EntryStatus.DELETING):
            raise EntryNotActive(f"entry {id} is {row.status}" if row else f"there is no entry {id}")
        return row

    @activity(retry=FOR_EVER)
    async def give_away(self, claim: ExtendedClaim) -> None:
        """Our own entry of a key that a claim took. That of the claimer stays, who may be a customer of ours, too."""
        row = await self._tables.active_entry(claim.key)
        if row is None:
            return
        account, owner = row.entry.account, row.entry.owner
        taken = (claim.claimer_account.participant, claim.claimer.tax_id_number)
        if (account.participant, owner.tax_id_number) != taken:
            await self._tables.set_entry_status(row.id, EntryStatus.TRANSFERRED)

    # Claims

    @activity(retry=DATABASE)
    async def insert_claim(
        self, id: str, side: str, key: str, status: str, directory_id: str = "", claim: Claim | None = None
    ) -> None:
        """Our own row."""
        row = ClaimRow(id=id, side=side, status=status, key=key, directory_id=directory_id, claim=claim)
        await self._tables.insert_claim(row)

    @activity(retry=BRIDGE, timeout=CALL, gates=[BACEN])
    async def open_claim(self, new: NewClaim, request_id: UUID) -> ExtendedClaim:
        """Open the claim at the directory. It knows no repeats of this: before another attempt its claims are read."""
        return await self._ask(self._open(new, request_id))

    async def _open(self, new: NewClaim, request_id: UUID) -> ExtendedClaim:
        if activity_info().attempt > 1 and (found := await self._own_claim(new)):
            return found
        try:
            return await self._bridge.create_claim(new.claim, request_id=request_id)
        except Refused as error:
            # An attempt that a crash interrupted does not count as one, but may have opened it.
            if str(error).startswith("ClaimAlreadyExistsForKey") and (found := await self._own_claim(new)):
                return found
            raise

    async def _own_claim(self, new: NewClaim) -> ExtendedClaim | None:
        """The one that an attempt before has opened: not that of another request for the same."""
        since: datetime | None = None
        while True:
            page = await self._bridge.list_claims(
                is_claimer=True, status=sorted(UNFINISHED), modified_after=since, limit=_PAGE
            )
            for claim in page.claims:
                if claim.type == new.claim.type and is_of_same_claimer(claim, new.claim):
                    return None if await self._is_of_another(new.id, claim.id) else claim
            if not page.has_more_elements or not page.claims or page.claims[-1].last_modified == since:
                return None
            since = page.claims[-1].last_modified

    async def _is_of_another(self, id: str, claim_id: UUID) -> bool:
        row = await self._tables.claim_of(str(claim_id), Role.CLAIMER)
        return row is not None and row.id != id

    @activity(retry=DATABASE)
    async def store_claim(self, id: str, claim: ExtendedClaim, asked: Asked = NO_REQUEST) -> None:
        """The claim as the directory has it. Raises Refused when it is that of another request of ours."""
        ended = _outcome(asked, How.DONE, claim.status)
        try:
            await self._keep(lambda tables: tables.store_claim(id, claim, ended), *_response("claim", id, ended))
        except ConstraintViolation:
            if not await self._is_of_another(id, claim.id):
                raise
            raise Refused(f"ClaimAlreadyExistsForKey: {claim.id} is the claim of another request") from None

    @activity(retry=FOR_EVER)
    async def fail_claim(self, id: str, problem: str, asked: Asked = NO_REQUEST) -> None:
        """Our own row of a claim that was not opened."""
        await self._fail_claim(id, problem, _outcome(asked, How.REFUSED, "FAILED", problem))

    async def _fail_claim(self, id: str, problem: str, ended: Outcome | None) -> None:
        await self._keep(
            lambda tables: tables.set_claim(id, "FAILED", "", problem, ended), *_response("claim", id, ended)
        )

    @activity(retry=UNDO, timeout=CALL, gates=[BACEN])
    async def undo_claim(self, id: str, claim_id: UUID, request_id: UUID, asked: Asked) -> None:
        """Compensation: cancel the claim at the directory, and only then say so here. One that another request of ours
        has taken over by now stays."""
        if not await self._is_of_another(id, claim_id):
            await self._bridge.cancel_claim(claim_id, reason=Reason.USER_REQUESTED, request_id=request_id)
        await self._fail_claim(id, COMPENSATED, _outcome(asked, How.UNDONE, "FAILED", COMPENSATED))

    @activity(retry=FOR_EVER)
    async def answer_claim_act(self, id: str, status: str, problem: str, asked: Asked, how: str) -> None:
        """A request for a claim has ended, and the claim has not changed."""
        ended = _outcome(asked, How(how), status, problem)
        if ended is None:
            return
        alert = [_alert("claim", id, problem, asked)] if ended.how is How.EXHAUSTED else []
        await self._keep(lambda tables: tables.answer_claim(id, ended), *_response("claim", id, ended), *alert)

    @activity(retry=BRIDGE, timeout=CALL, gates=[BACEN])
    async def acknowledge(self, claim_id: UUID, request_id: UUID) -> ExtendedClaim:
        """We have seen it."""
        return await self._ask(self._bridge.acknowledge_claim(claim_id, request_id=request_id))

    @activity(retry=BRIDGE, timeout=CALL, gates=[BACEN])
    async def confirm(self, claim_id: UUID, reason: str, request_id: UUID) -> ExtendedClaim:
        """Give the key away."""
        return await self._ask(self._bridge.confirm_claim(claim_id, reason=reason, request_id=request_id))

    @activity(retry=BRIDGE, timeout=CALL, gates=[BACEN])
    async def cancel(self, claim_id: UUID, reason: str, request_id: UUID) -> ExtendedClaim:
        """End the claim."""
        return await self._ask(self._bridge.cancel_claim(claim_id, reason=reason, request_id=request_id))

    @activity(retry=BRIDGE, timeout=CALL, gates=[BACEN])
    async def complete(self, claim_id: UUID, request_id: UUID) -> ExtendedClaim:
        """Take the key."""
        return (await self._ask(self._bridge.complete_claim(claim_id, request_id=request_id))).claim

    @activity(retry=BRIDGE, timeout=CALL, gates=[BACEN])
    async def read_claim(self, claim_id: UUID) -> ExtendedClaim:
        """As the directory has it now."""
        return await self._ask(self._bridge.get_claim(claim_id))

    @activity(retry=FOR_EVER)
    async def take_key(self, claim: ExtendedClaim, request_id: UUID) -> None:
        """Our own row of a key that a claim of ours took. A reconciliation that was quicker gave it the same id."""
        entry = Entry(key=claim.key, key_type=claim.key_type, account=claim.claimer_account, owner=claim.claimer)
        row = EntryRow(
            id=str(request_id),
            status=EntryStatus.ACTIVE,
            request_id=str(request_id),
            entry=entry,
            cid=cid_of(entry, request_id),
        )
        await self._tables.insert_entry(row)

    @activity(retry=FOR_EVER)
    async def tell_overdue(self, id: str, problem: str) -> None:
        """A person must know: the directory does not take what its rules want of us."""
        payload = {"action": "ActionClaimOverdue", "data": {"claim_id": id, "error": problem, "severity": "CRITICAL"}}
        await self._publish(EVENTS, payload, key=id, id=activity_info().key, type="claim.overdue")

    @activity(retry=FOR_EVER)
    async def remind(self, id: str, side: str, what: str) -> None:
        """Tell the rest of the institution that a person must act."""
        payload = {"action": "ActionClaimReminder", "data": {"claim_id": id, "side": side, "what": what}}
        await self._publish(EVENTS, payload, key=id, id=activity_info().key, type="claim.reminder")

    # Polling

    @activity(retry=BRIDGE, timeout=120.0, gates=[BACEN])
    async def poll_claims(self) -> int:
        """Hand every claim that changed to its run, on both sides. Returns how many there were."""
        return await self._ask(self._poll())

    async def _poll(self) -> int:
        if self._deliver is None:
            raise InvalidArgument("these activities were made without deliver=")
        since, count = await self._tables.polled_until("claims"), 0
        while True:
            page = await self._bridge.list_claims(modified_after=since, limit=_PAGE)
            for claim in page.claims:
                count += await self._hand_over(claim)
            if not page.claims:
                return count
            newest = page.claims[-1].last_modified
            await self._tables.set_polled_until("claims", (newest - _BEFORE).astimezone(UTC))
            if not page.has_more_elements:
                return count
            if newest == since:
                log.error("more than %d claims changed at %s: only these are known", _PAGE, newest)
                newest += _SHORTEST
            since = newest

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
