"""`/api/v1/keys`."""

from __future__ import annotations

from typing import Literal

from batuta.server import Answer, Call, Repeat, Route, route
from pixdict.connect.keys import EntryChange, EntryStatus
from pixdict.connect.keys.models import How, Outcome
from pixdict.core.outcomes import refusal_of, refused
from pixdict.core.requests import (
    PageQuery,
    answering,
    before_of,
    callers,
    key_of,
    once,
    refuse_others,
    refuse_violations,
)
from pixdict.core.service import Core
from pixdict.core.views import CreateKeyBody, EntryAnswer, EntryList, EntryView, UpdateKeyBody, cursor_of
from pixdict.dict.entries import (
    CREATE_REASONS,
    DELETE_REASONS,
    UPDATE_REASONS,
    account_violations,
    entry_violations,
    person_violations,
)
from pixdict.dict.problems import Violation


class KeysQuery(PageQuery, kw_only=True, forbid_unknown_fields=True):
    """Which entries are listed."""

    status: Literal["", "PENDING", "ACTIVE", "FAILED", "DELETING", "DELETED", "TRANSFERRED"] = ""
    key_type: Literal["", "CPF", "CNPJ", "PHONE", "EMAIL", "EVP"] = ""


class DeleteQuery(PageQuery, kw_only=True, forbid_unknown_fields=True):
    """Why an entry is deleted."""

    reason: str = "USER_REQUESTED"


class Keys:
    """The handlers."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def create(self, call: Call) -> Answer:
        """See the table in `pixdict.core.outcomes`."""
        core, body = self._core, call.body
        entry = body.entry()
        refuse_violations(_reasons(body.reason, CREATE_REASONS) + entry_violations(entry))
        refuse_others(core, entry.account.participant)
        key = key_of(call, body.idempotency_key)
        await core.admit("CreateEntry")

        async def work() -> Answer:
            await core.check_breaker()
            new_id = core.new_id(call.principal.caller, key)
            id, outcome = await core.create_entry(new_id, entry, body.reason, call.trace_id)
            return self._answer(call, id, 201, outcome, EntryStatus.PENDING)

        return await once(core, call, key, work)

    async def update(self, call: Call) -> Answer:
        """200 when it is done, 202 while it goes on."""
        core, body = self._core, call.body
        account = None if body.account is None else body.account.account()
        owner = None if body.owner is None else body.owner.person()
        found = _reasons(body.reason, UPDATE_REASONS)
        found += [] if account is None else account_violations(account, "account")
        found += [] if owner is None else person_violations(owner, "owner")
        if account is None and owner is None:
            found.append(Violation(reason="give account, owner, or both", property="account"))
        refuse_violations(found)
        if account is not None:
            refuse_others(core, account.participant)
        change = EntryChange(account=account, owner=owner, reason=body.reason)
        key = key_of(call, body.idempotency_key)

        async def work() -> Answer:
            await core.check_breaker()
            outcome = await core.change_entry(call.id, change, call.trace_id, callers(call, key))
            return self._answer(call, call.id, 200, outcome, EntryStatus.ACTIVE)

        return await once(core, call, key, work)

    async def delete(self, call: Call) -> Answer:
        """200 when it is done, 202 while it goes on."""
        core, reason = self._core, call.query.reason
        refuse_violations(_reasons(reason, DELETE_REASONS))
        key = key_of(call, None)

        async def work() -> Answer:
            await core.check_breaker()
            outcome = await core.change_entry(call.id, reason, call.trace_id, callers(call, key))
            return self._answer(call, call.id, 200, outcome, EntryStatus.DELETING)

        return await once(core, call, key, work)

    async def get(self, call: Call) -> Answer:
        """By our id, or by the value of the key."""
        await self._core.admit_read()
        found = await self._core.entry(call.id)
        if found.value is None:
            raise refused(404, "entry_not_found", "there is no entry of that id or key")
        return Answer(body=EntryView.of(found.value), headers=found.headers)

    async def list(self, call: Call) -> Answer:
        """The newest first."""
        query: KeysQuery = call.query
        found = await self._core.entries(status=query.status, key_type=query.key_type, **before_of(query))
        rows = found.value
        listed = EntryList(keys=[EntryView.of(row) for row in rows], cursor=cursor_of(rows, query.limit))
        return Answer(body=listed, headers=found.headers)

    @staticmethod
    def _answer(call: Call, id: str, done: int, outcome: Outcome | None, status: str) -> Answer:
        if outcome is not None and outcome.how is not How.DONE:
            raise refusal_of("entry", outcome)
        status = status if outcome is None else outcome.status
        headers = call.located("keys", id)
        if outcome is None:
            headers["Retry-After"] = "1"
        return Answer(body=EntryAnswer(entry_id=id, status=status), status=done if outcome else 202, headers=headers)


def _reasons(reason: str, allowed: frozenset[str] | set[str]) -> list[Violation]:
    if reason in allowed:
        return []
    return [Violation(reason=f"must be one of {', '.join(sorted(allowed))}", property="reason")]


def key_routes(core: Core) -> list[Route]:
    """Viewers may read, operators may change."""
    keys = Keys(core)
    path, one = "/api/v1/keys", "/api/v1/keys/{key}"
    once = {"repeat": Repeat.OWN, "later": True}
    return [
        route(
            "POST",
            path,
            answering(keys.create),
            "Create a key.",
            EntryAnswer,
            body=CreateKeyBody,
            status=201,
            **once,
        ),
        route("GET", path, answering(keys.list), "Keys of ours, the newest first.", EntryList, query=KeysQuery),
        route("GET", one, answering(keys.get), "A key, by the id of its entry or by its value.", EntryView),
        route(
            "PATCH", one, answering(keys.update), "Change account or owner.", EntryAnswer, body=UpdateKeyBody, **once
        ),
        route("DELETE", one, answering(keys.delete), "Delete a key.", EntryAnswer, query=DeleteQuery, **once),
    ]
