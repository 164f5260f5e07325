"""`/api/v1/claims`."""

from __future__ import annotations

from typing import Literal

from batuta.server import Answer, Call, Repeat, Route, route
from pixdict.connect.keys.models import Asked, ClaimAct, ClaimRow, How, Outcome
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
from pixdict.core.views import ActBody, ClaimAnswer, ClaimList, ClaimView, CreateClaimBody, cursor_of
from pixdict.dict.claims import CLAIM_REASONS, ClaimType, Role, claim_violations
from pixdict.dict.keys import normalised_key
from pixdict.dict.problems import Violation


class ClaimsQuery(PageQuery, kw_only=True, forbid_unknown_fields=True):
    """Which claims are listed."""

    status: Literal["", "PENDING", "OPEN", "WAITING_RESOLUTION", "CONFIRMED", "CANCELLED", "COMPLETED", "FAILED"] = ""
    side: Literal["", "DONOR", "CLAIMER"] = ""
    key_value: str = ""


Action = Literal["confirm", "cancel", "prove"]


class Claims:
    """The handlers."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def create(self, call: Call) -> Answer:
        """201 once the directory has it, 202 while that goes on."""
        core, body = self._core, call.body
        claim = body.claim()
        refuse_violations(claim_violations(claim))
        refuse_others(core, claim.claimer_account.participant)
        key = key_of(call, body.idempotency_key)
        await core.admit("CreateClaim")

        async def work() -> Answer:
            await core.check_breaker()
            id, outcome = await core.create_claim(core.new_id(call.principal.caller, key), claim, call.trace_id)
            return self._answer(call, id, 201, outcome, "PENDING")

        return await once(core, call, key, work)

    async def get(self, call: Call) -> Answer:
        """By our id."""
        found = await self._core.claim(call.id)
        if found.value is None:
            raise refused(404, "claim_not_found", f"there is no claim {call.id[:100]!r}")
        return Answer(body=ClaimView.of(found.value), headers=found.headers)

    async def list(self, call: Call) -> Answer:
        """The newest first."""
        query: ClaimsQuery = call.query
        found = await self._core.claims(
            status=query.status, side=query.side, key=normalised_key(query.key_value), **before_of(query)
        )
        rows = found.value
        listed = ClaimList(claims=[ClaimView.of(row) for row in rows], cursor=cursor_of(rows, query.limit))
        return Answer(body=listed, headers=found.headers)

    async def confirm(self, call: Call) -> Answer:
        """The donor's owner agrees."""
        return await self._act(call, "confirm")

    async def cancel(self, call: Call) -> Answer:
        """Either side ends the claim."""
        return await self._act(call, "cancel")

    async def prove(self, call: Call) -> Answer:
        """The claimer has shown that the key is theirs."""
        return await self._act(call, "prove")

    async def _act(self, call: Call, action: Action) -> Answer:
        core, body = self._core, call.body
        refuse_violations(
            [] if body.reason in CLAIM_REASONS else [Violation(reason="is no reason of a claim", property="reason")]
        )
        row = await core.tables.claim(call.id)
        if row is None:
            raise refused(404, "claim_not_found", f"there is no claim {call.id[:100]!r}")
        _refuse_act(row, action)
        act = ClaimAct(action=action, reason=body.reason, asked=Asked(trace_id=call.trace_id))
        key = key_of(call, body.idempotency_key)

        async def work() -> Answer:
            if action != "prove":
                await core.check_breaker()
            outcome = await core.act_on_claim(row, act, callers(call, key))
            return self._answer(call, row.id, 200, outcome, row.status)

        return await once(core, call, key, work)

    @staticmethod
    def _answer(call: Call, id: str, done: int, outcome: Outcome | None, status: str) -> Answer:
        if outcome is not None and outcome.how is not How.DONE:
            raise refusal_of("claim", outcome)
        status = status if outcome is None else outcome.status
        headers = call.located("claims", id)
        if outcome is None:
            headers["Retry-After"] = "1"
        return Answer(body=ClaimAnswer(claim_id=id, status=status), status=done if outcome else 202, headers=headers)


def _refuse_act(row: ClaimRow, action: Action) -> None:
    """Raises Refused for what this side of the claim never does."""
    wrong = ""
    if action == "confirm" and row.side != Role.DONOR:
        wrong = "only the donor confirms"
    elif action == "prove" and (row.side != Role.CLAIMER or row.claim is None or row.claim.type != ClaimType.OWNERSHIP):
        wrong = "only the claimer of an ownership proves possession"
    if wrong:
        raise refused(409, "claim_operation_invalid", f"claim {row.id}: {wrong}")


def claim_routes(core: Core) -> list[Route]:
    """Viewers may read, operators may change."""
    claims = Claims(core)
    path, one = "/api/v1/claims", "/api/v1/claims/{claim}"
    acts = (
        ("confirm", claims.confirm, "The owner agrees: the key is given away."),
        ("cancel", claims.cancel, "End a claim."),
        ("prove-possession", claims.prove, "The claimer has shown that the key is theirs."),
    )
    once = {"repeat": Repeat.OWN, "later": True}
    return [
        route(
            "POST",
            path,
            answering(claims.create),
            "Claim a key of others.",
            ClaimAnswer,
            body=CreateClaimBody,
            status=201,
            **once,
        ),
        route(
            "GET", path, answering(claims.list), "Claims of both sides, the newest first.", ClaimList, query=ClaimsQuery
        ),
        route("GET", one, answering(claims.get), "A claim.", ClaimView),
        *(
            route("POST", f"{one}/{name}", answering(act), said, ClaimAnswer, body=ActBody, **once)
            for name, act, said in acts
        ),
    ]
