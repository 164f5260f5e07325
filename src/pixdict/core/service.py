"""What core does, without HTTP: a row and its message in one transaction, and the wait for how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid5

import msgspec
from msgspec.structs import replace

from batuta import Batuta, BreakerOpen
from batuta.bus import Message
from batuta.clock import SystemClock, as_datetime
from batuta.errors import StoreUnavailable
from batuta.ids import new_secret
from batuta.resilience import breaker
from batuta.resilience.degradation import Reading
from batuta.resilience.idempotency import Idempotency
from pixdict.bridge.calls import BREAKER
from pixdict.caches import CachedClaim, CachedEntry, Caches, Limits
from pixdict.connect.keys import EntryChange, EntryStatus, KeyTables, NewClaim, NewEntry
from pixdict.connect.keys.models import Asked, ClaimAct, ClaimRow, EntryRow, How, Outcome
from pixdict.connect.keys.requests import (
    REQUESTS,
    ActOnClaim,
    CreateClaim,
    CreateEntry,
    DeleteEntry,
    Request,
    Response,
    UpdateEntry,
    type_of,
)
from pixdict.connect.keys.tables import ChangedTables
from pixdict.core.outcomes import CIRCUIT_OPEN, KEY_CONFLICT, refused
from pixdict.core.reads import Reads
from pixdict.core.settings import CoreSettings
from pixdict.core.waiting import Table, Waiters
from pixdict.dict.claims import Claim, Role
from pixdict.dict.entries import Entry
from pixdict.errors import DatabaseTimeout, InvalidArgument

log = logging.getLogger("pixdict.core")

READ_PATIENCE, WRITE_PATIENCE = 1.0, 5.0
"""Seconds for which a request waits to be counted."""
_IDS = UUID("6ef3c0a2-6a2c-4d0e-9d53-3c1c5f0a9f27")
"""The namespace of ids that are made from idempotency keys."""


class _KeyIsFree(Exception):
    """A row is there that an idempotency key led to, and its day is over."""


class Core:
    """One participant's. `client` is open; `tables` lie in the database of its store."""

    def __init__(
        self,
        client: Batuta,
        tables: KeyTables,
        settings: CoreSettings,
        *,
        replica: KeyTables | None = None,
        caches: Caches | None = None,
    ) -> None:
        """`replica`: where entries and claims are read while the database is away. `caches`: entries, claims, answers
        to idempotency keys and limits are looked at there first, and keys of others can be looked up. They are closed
        after the core."""
        self.client, self.tables, self.settings = client, tables, settings
        self.lookups = None if caches is None else caches.lookups
        if caches is not None and tables.watch is None:
            tables.watch = caches.rows(tables)
        self._clock = SystemClock()
        self.waiters = Waiters(tables, settings.poll)
        self.once = Idempotency(
            client.namespace.requests,
            lock=settings.lock,
            keep=settings.keep,
            wait=settings.wait + 5,
            answers=None if caches is None else caches.answers(settings.keep),
        )
        self._breaker = breaker(BREAKER, watch=True, on_refusal="fail")
        self._limits = Limits(client, None if caches is None else caches.cache, rates=settings.limits)
        self._reads = Reads(tables, replica, None if caches is None else (caches.entries, caches.claims))

    async def close(self) -> None:
        """No caller waits any more."""
        await self.waiters.close()

    # -- what may be asked

    async def admit(self, operation: str) -> None:
        """Count a request of the participant. Raises LimitReached, with the seconds to wait, and DatabaseTimeout while
        the store is away, where it is counted."""
        try:
            async with asyncio.timeout(WRITE_PATIENCE):
                await self._count(operation)
        except TimeoutError as error:
            raise DatabaseTimeout(f"{operation} is not counted: the store does not answer") from error

    async def admit_read(self) -> None:
        """As `admit`, for reads: while the store is away they go on without it."""
        try:
            async with asyncio.timeout(READ_PATIENCE):
                await self._count("GetEntry")
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("degraded: a read is not counted, the store is away: %s", error)

    async def _count(self, operation: str) -> None:
        if operation in self.settings.limits:
            await self._limits.admit(operation, self.settings.participant)

    async def check_breaker(self) -> None:
        """Raises Refused, 503, while no call reaches the directory."""
        try:
            async with self.client.gates(self._breaker):
                return
        except BreakerOpen as error:
            why = f"the directory does not answer, nothing was written: {error}"
            raise refused(503, "circuit_open", why, CIRCUIT_OPEN, retry_after=error.retry_after) from error

    # -- entries

    def new_id(self, caller: str, key: str) -> str:
        """Of an entry or claim. With an idempotency key the same one, also after a death of the process."""
        return str(uuid5(_IDS, f"{caller}\0{key}") if key else UUID(bytes=new_secret(16), version=4))

    async def create_entry(self, id: str, entry: Entry, reason: str, trace_id: str) -> tuple[str, Outcome | None]:
        """The id of the entry, and how the creation ended; None: it has not yet. An entry of that id which is there
        already is waited for; when its answer would not be kept any more, the entry gets another id. Raises Refused
        when what is there is another one."""
        asked = Asked(request=f"create-{id}", trace_id=trace_id)
        request_id = UUID(bytes=new_secret(16), version=4)
        row = EntryRow(
            id=id, status=EntryStatus.PENDING, request_id=str(request_id), entry=entry, request=asked.request
        )
        new = NewEntry(id=id, entry=entry, reason=reason, request_id=request_id, asked=asked)

        async def there() -> Outcome | None:
            found = await self.tables.entry(id)
            if found is None:
                return None
            self._check_is_kept(found)
            if not _asks_for(entry, found):
                raise _reused(id)
            if found.request == asked.request:
                return found.outcome
            return Outcome(request=asked.request, how=How.DONE, status=found.status)

        try:
            request = CreateEntry(new=new)
            return id, await self._ask("dict_entries", id, request, lambda tables: tables.insert_entry(row), there)
        except _KeyIsFree:
            return await self.create_entry(str(uuid5(_IDS, id)), entry, reason, trace_id)

    def _check_is_kept(self, row: EntryRow | ClaimRow) -> None:
        """Raises _KeyIsFree for a row whose idempotency key may be used for another request."""
        since = as_datetime(self._clock.now()) - timedelta(seconds=self.settings.keep)
        if row.created_at is not None and row.created_at < since:
            raise _KeyIsFree

    @staticmethod
    def _request_name(act: str, what: object, key: str) -> str:
        """What the id of a request begins with. With an idempotency key it is the same one when it is repeated."""
        if not key:
            return f"{act}-{new_secret(8).hex()}"
        asked = msgspec.json.encode(what).decode()
        return f"{act}-{uuid5(_IDS, f'{key} {asked}').hex}"

    def _request_id(self, name: str) -> str:
        return f"{name}-{self._clock.now():x}-{new_secret(4).hex()}"

    def _is_repeated(self, row: EntryRow | ClaimRow, name: str) -> bool:
        """Whether the last request of a row is the one of that name: under way or done, and its day is not over."""
        before, _, made = row.request.rpartition("-")[0].rpartition("-")
        if before != name or not (row.outcome is None or row.outcome.how is How.DONE):
            return False
        return as_datetime(int(made, 16)) > as_datetime(self._clock.now()) - timedelta(seconds=self.settings.keep)

    async def change_entry(self, id: str, change: EntryChange | str, trace_id: str, key: str = "") -> Outcome | None:
        """Update an entry, or delete it for that reason. `key`: of a caller; a repetition is asked for once, also after
        a death of the process. Raises Refused."""
        kind = "delete" if isinstance(change, str) else "update"
        name = self._request_name(kind, [id, change], key)
        if key and (row := await self.tables.entry(id)) is not None and self._is_repeated(row, name):
            return await self._ended("dict_entries", row)
        asked = Asked(request=self._request_id(name), trace_id=trace_id)
        request: Request = (
            DeleteEntry(id=id, reason=change, asked=asked)
            if isinstance(change, str)
            else UpdateEntry(id=id, change=change, asked=asked)
        )

        async def write(tables: ChangedTables) -> bool:
            if await tables.ask_entry(id, asked.request) is None:
                raise await self._cannot_change_entry(id)
            return True

        return await self._ask("dict_entries", id, request, write)

    async def _cannot_change_entry(self, id: str) -> Exception:
        row = await self.tables.entry(id)
        if row is None:
            return refused(404, "entry_not_found", f"there is no entry {id}")
        if row.status == EntryStatus.ACTIVE:
            return refused(409, "entry_busy", f"entry {id} is being changed: try again", retry_after=1)
        return refused(409, "entry_not_active", f"entry {id} is {row.status}")

    # -- claims

    async def create_claim(self, id: str, claim: Claim, trace_id: str) -> tuple[str, Outcome | None]:
        """As `create_entry`."""
        asked = Asked(request=f"claim-{id}", trace_id=trace_id)
        row = ClaimRow(id=id, side=Role.CLAIMER, status="PENDING", key=claim.key, request=asked.request, claim=claim)
        new = NewClaim(id=id, claim=claim, request_id=UUID(bytes=new_secret(16), version=4), asked=asked)

        async def there() -> Outcome | None:
            found = await self.tables.claim(id)
            if found is None:
                return None
            self._check_is_kept(found)
            if found.claim != claim:
                raise _reused(id)
            if found.request == asked.request:
                return found.outcome
            return Outcome(request=asked.request, how=How.DONE, status=found.status)

        try:
            request = CreateClaim(new=new)
            return id, await self._ask("dict_claims", id, request, lambda tables: tables.insert_claim(row), there)
        except _KeyIsFree:
            return await self.create_claim(str(uuid5(_IDS, id)), claim, trace_id)

    async def act_on_claim(self, row: ClaimRow, act: ClaimAct, key: str = "") -> Outcome | None:
        """Confirm it, cancel it, or prove possession. `key`: as for `change_entry`. Raises Refused."""
        name = self._request_name(act.action, [row.id, act.reason], key)
        if key and (found := await self.tables.claim(row.id)) is not None and self._is_repeated(found, name):
            return await self._ended("dict_claims", found)
        act = replace(act, asked=replace(act.asked, request=self._request_id(name)))

        async def write(tables: ChangedTables) -> bool:
            if await tables.ask_claim(row.id, act.asked.request) is None:
                raise await self._cannot_act(row.id)
            return True

        return await self._ask("dict_claims", row.id, ActOnClaim(id=row.id, run=row.run, act=act), write)

    async def _cannot_act(self, id: str) -> Exception:
        row = await self.tables.claim(id)
        if row is not None and row.status in ("OPEN", "WAITING_RESOLUTION", "CONFIRMED"):
            return refused(409, "claim_busy", f"claim {id} is being changed: try again", retry_after=1)
        return refused(409, "claim_operation_invalid", f"the claim is {'gone' if row is None else row.status}")

    # -- asking

    async def _ask(
        self,
        table: Table,
        id: str,
        request: Request,
        write: Callable[[ChangedTables], Awaitable[bool]],
        there: Callable[[], Awaitable[Outcome | None]] | None = None,
    ) -> Outcome | None:
        """Write our row and publish the request, in one transaction, then wait. When `write` says False the request
        came before, and `there` knows its outcome, or None."""
        message = {"key": id, "id": request.asked.request, "type": type_of(request)}
        with self.waiters.expect(table, id, request.asked.request) as outcome:
            async with self.tables.change() as tables:
                if tables.connection is None:
                    raise InvalidArgument("core needs its tables beside the store: open_database(url, client)")
                is_new = await write(tables)
                if is_new:
                    await self.client.publish(REQUESTS, request, transaction=tables.connection, **message)
            if not is_new and there is not None and (found := await there()) is not None:
                return found
            return await self._in_time(outcome)

    async def _ended(self, table: Table, row: EntryRow | ClaimRow) -> Outcome | None:
        """How the last request of a row ended; None: it has not yet."""
        if row.outcome is not None:
            return row.outcome
        with self.waiters.expect(table, row.id, row.request) as outcome:
            return await self._in_time(outcome)

    async def _in_time(self, outcome: asyncio.Future[Outcome]) -> Outcome | None:
        try:
            async with asyncio.timeout(self.settings.wait):
                return await asyncio.shield(outcome)
        except TimeoutError:
            return None

    async def take(self, message: Message[Response]) -> None:
        """A response of connect."""
        outcome = message.payload.outcome
        if outcome.problem:
            log.warning(
                "%s %s: %s, %s (trace %s)",
                *(message.payload.subject, message.payload.id, outcome.how, outcome.problem, outcome.trace_id),
            )
        self.waiters.tell(outcome)

    # -- reading

    async def entry(self, key: str) -> Reading[CachedEntry | None]:
        """By our id, or by the value of the key."""
        return await self._reads.entry(key)

    async def entries(self, **wanted: Any) -> Reading[list[CachedEntry]]:
        """The newest first."""
        return await self._reads.entries(**wanted)

    async def claim(self, id: str) -> Reading[CachedClaim | None]:
        """By our id."""
        return await self._reads.claim(id)

    async def claims(self, **wanted: Any) -> Reading[list[CachedClaim]]:
        """The newest first."""
        return await self._reads.claims(**wanted)


def _asks_for(entry: Entry, row: EntryRow) -> bool:
    """Whether a row came of a request for that entry. Its account and names may have been changed since, and the
    directory made its key if it is a random one."""
    if row.status in (EntryStatus.PENDING, EntryStatus.FAILED):
        return row.entry == entry
    return row.entry.key_type == entry.key_type and entry.key in (None, row.entry.key)


def _reused(id: str) -> Exception:
    return refused(409, "idempotency_key_reused", f"the idempotency key was used for {id}", KEY_CONFLICT)
