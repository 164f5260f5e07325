"""Workflows of keys and claims in virtual time, against the real rules of the directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from sqlite3 import IntegrityError
from typing import Any

from msgspec import Struct

from batuta.clock import as_micros
from batuta.testing import Environment
from pixdict.connect.database import Rows, SqliteDatabase
from pixdict.connect.keys import WORKFLOWS, KeyActivities, KeyTables, NewEntry, deliver_with, polling
from pixdict.dict import messages
from pixdict.dict.claims import Claim, ExtendedClaim
from pixdict.dict.entries import Account, Entry, Person
from pixdict.directory.service import Service
from pixdict.directory.settings import DirectorySettings
from pixdict.directory.storage import Storage
from pixdict.errors import BridgeUnavailable, ConstraintViolation, DatabaseTimeout, NotFound, RateLimited, Refused
from tests.pixdict.directory.kit import A, Answer, B, Bank, create

EVERY = timedelta(hours=6)


class DirectBridge:
    """The Bridge without gRPC and HTTP: the directory's own rules, and the errors of the Bridge's client."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.away: list[str] = []
        """Methods whose next call does nothing and fails."""
        self.lost: list[str] = []
        """Methods whose next call is done, but fails."""
        self.tokens: dict[str, int] = {}
        """How many calls of a method are let in; of those that are not named, all."""
        self.calls: list[str] = []

    def _ask(self, operation: str, message: Struct | None = None, *, value: str = "", **parameters: Any) -> Any:
        self.calls.append(operation)
        if operation in self.away:
            self.away.remove(operation)
            raise BridgeUnavailable("no connection")
        if operation in self.tokens:
            self.tokens[operation] -= 1
            if self.tokens[operation] < 0:
                raise RateLimited(60.0, "the bucket has no tokens")
        answer: Answer = self.bank.ask(operation, message, value=value, **parameters)
        if operation in self.lost:
            self.lost.remove(operation)
            raise BridgeUnavailable("no answer in time")
        if answer.status == 404:
            raise NotFound(answer.problem)
        if answer.problem:
            raise Refused(f"{answer.problem}: {answer.message.detail}")
        return answer.message

    async def create_entry(self, entry: Entry, *, reason: str, request_id: Any) -> messages.CreateEntryResponse:
        message = messages.CreateEntryRequest(entry=entry, reason=reason, request_id=request_id)
        found: messages.CreateEntryResponse = self._ask("createEntry", message)
        return found

    async def update_entry(
        self, key: str, *, reason: str, request_id: Any, account: Account | None = None, owner: Person | None = None
    ) -> messages.UpdateEntryResponse:
        message = messages.UpdateEntryRequest(key=key, account=account, owner=owner, reason=reason)
        found: messages.UpdateEntryResponse = self._ask("updateEntry", message, value=key)
        return found

    async def delete_entry(self, key: str, *, reason: str, request_id: Any) -> messages.DeleteEntryResponse:
        message = messages.DeleteEntryRequest(key=key, participant=self.bank.ispb, reason=reason)
        found: messages.DeleteEntryResponse = self._ask("deleteEntry", message, value=key)
        return found

    async def create_claim(self, claim: Claim, *, request_id: Any) -> ExtendedClaim:
        found: ExtendedClaim = self._ask("createClaim", messages.CreateClaimRequest(claim=claim)).claim
        return found

    async def list_claims(
        self,
        *,
        is_donor: bool | None = None,
        is_claimer: bool | None = None,
        status: Sequence[str] = (),
        modified_after: datetime | None = None,
        limit: int = 20,
    ) -> messages.ListClaimsResponse:
        given = {"IsDonor": is_donor, "IsClaimer": is_claimer}
        parameters: dict[str, Any] = {name: str(flag).lower() for name, flag in given.items() if flag is not None}
        if status:
            parameters["Status"] = list(status)
        if modified_after:
            parameters["ModifiedAfter"] = modified_after.isoformat()
        found: messages.ListClaimsResponse = self._ask(
            "listClaims", Participant=self.bank.ispb, Limit=limit, **parameters
        )
        return found

    async def get_claim(self, claim_id: Any) -> ExtendedClaim:
        found: ExtendedClaim = self._ask("getClaim", value=str(claim_id)).claim
        return found

    async def acknowledge_claim(self, claim_id: Any, *, request_id: Any) -> ExtendedClaim:
        return self._act("acknowledge", claim_id)

    async def confirm_claim(self, claim_id: Any, *, reason: str, request_id: Any) -> ExtendedClaim:
        return self._act("confirm", claim_id, reason=reason)

    async def cancel_claim(self, claim_id: Any, *, reason: str, request_id: Any) -> ExtendedClaim:
        return self._act("cancel", claim_id, reason=reason)

    async def complete_claim(self, claim_id: Any, *, request_id: Any) -> messages.CompleteClaimResponse:
        message = messages.CompleteClaimRequest(claim_id=claim_id, participant=self.bank.ispb, request_id=request_id)
        found: messages.CompleteClaimResponse = self._ask("completeClaim", message, value=str(claim_id))
        return found

    def _act(self, action: str, claim_id: Any, **fields: Any) -> ExtendedClaim:
        kind = getattr(messages, f"{action.capitalize()}ClaimRequest")
        message = kind(claim_id=claim_id, participant=self.bank.ispb, **fields)
        found: ExtendedClaim = self._ask(f"{action}Claim", message, value=str(claim_id)).claim
        return found


class FailingDatabase(SqliteDatabase):
    """Statements that contain `failing` fail, `times` times. It has no thread: no virtual time passes meanwhile."""

    failing, times = "", 0

    async def _in_thread(self, act: Any) -> Any:
        try:
            return act()
        except IntegrityError as error:
            raise ConstraintViolation(str(error)) from error

    def fail(self, part: str, times: int) -> None:
        self.failing, self.times = part, times

    async def execute(self, statement: str, *values: Any) -> Rows:
        if self.times and self.failing in f"{statement} {values}":
            self.times -= 1
            raise DatabaseTimeout("the database is away")
        return await super().execute(statement, *values)


class _Time:
    """The time of the environment, for the directory, whose clock may be behind."""

    env: Environment
    behind = timedelta(0)

    def now(self) -> int:
        return as_micros(self.env.now - self.behind)

    def monotonic(self) -> float:
        return self.now() / 1e6


class World:
    """Our institution A with its workflows, and institution B, which acts by hand."""

    def __init__(self, path: Path) -> None:
        self.time = _Time()
        self.database = FailingDatabase(path / "pixdict.db")
        self.tables = KeyTables(self.database)
        self.reminders: list[str] = []
        self.alerts: list[str] = []

    async def begin(self, *, polls: bool) -> Environment:
        async def publish(topic: str, payload: Any, *, key: str, id: str, type: str, transaction: Any = None) -> None:
            said: list[str] = self.reminders if type == "claim.reminder" else self.alerts
            said.append(payload["data"].get("what") or payload["data"]["error"])

        async def deliver(claim: ExtendedClaim, side: str, run_id: str) -> None:
            await deliver_with(self.env.client)(claim, side, run_id)

        self.activities = KeyActivities(
            DirectBridge.__new__(DirectBridge), self.tables, publish, participant=A, deliver=deliver
        )
        schedules = [polling(period=EVERY)] if polls else []
        self.env = Environment(workflows=WORKFLOWS, activities=[self.activities], schedules=schedules)
        self.time.env = self.env
        return self.env

    def connect_directory(self) -> None:
        self.directory = Service(DirectorySettings(), Storage(":memory:"), self.time)
        self.a, self.b = Bank(self.directory, A), Bank(self.directory, B)
        self.bridge = DirectBridge(self.a)
        self.activities._bridge = self.bridge

    async def later(self, wait: timedelta | float) -> None:
        """Let time pass, and everything happen that is due then."""
        await self.env.advance(wait)
        await self.env.settle()

    async def status(self, id: str = "e-1") -> str:
        row = await self.tables.entry(id)
        assert row is not None
        return row.status


@asynccontextmanager
async def world(path: Path, *, polls: bool = False) -> AsyncIterator[World]:
    made = World(path)
    try:
        async with await made.begin(polls=polls):
            made.connect_directory()
            yield made
    finally:
        await made.database.close()


def new_entry(id: str = "e-1", *arguments: Any, **options: Any) -> NewEntry:
    return NewEntry(id=id, entry=create(*arguments, **options).entry)
