"""`/api/v1/lookups`: keys of other institutions, for a payment."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from datetime import datetime
from typing import TypeVar

from msgspec import Struct

from batuta.resilience.degradation import SOURCE_HEADER
from batuta.server import Answer, Call, Route, route
from pixdict.caches import Found
from pixdict.connect.keys.models import How, Outcome
from pixdict.core.outcomes import BAD_GATEWAY, CIRCUIT_OPEN, refusal_of, refused
from pixdict.core.requests import answering
from pixdict.core.service import Core
from pixdict.core.views import AccountBody, PersonBody
from pixdict.dict.headers import PAYER
from pixdict.errors import BridgeError, BridgeUnavailable, CircuitOpen, InvalidArgument, NotFound, RateLimited

T = TypeVar("T")
_END_TO_END_ID = re.compile(r"[A-Za-z0-9]{1,50}")


class LookupQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who pays, and with which payment: the directory counts look-ups of each payer."""

    payer_id: str
    end_to_end_id: str


class LookupView(Struct, frozen=True, kw_only=True):
    """An entry of any institution, as the directory has it."""

    key_type: str
    key_value: str
    account: AccountBody
    owner: PersonBody
    created_at: datetime
    owned_since: datetime
    open_claim_created_at: datetime | None

    @classmethod
    def of(cls, found: Found) -> LookupView:
        entry = found.entry
        return cls(
            key_type=entry.key_type,
            key_value=entry.key,
            account=AccountBody.of(entry.account),
            owner=PersonBody.of(entry.owner),
            created_at=entry.creation_date,
            owned_since=entry.key_ownership_date,
            open_claim_created_at=entry.open_claim_creation_date,
        )


async def _told(asking: Awaitable[T]) -> T:
    """Errors of the Bridge as problems."""
    try:
        return await asking
    except CircuitOpen as error:
        why = f"the directory does not answer: {error}"
        raise refused(503, "circuit_open", why, CIRCUIT_OPEN, retry_after=1) from error
    except RateLimited as error:
        raise refused(429, "limit_reached", str(error), "Rate limit exceeded", retry_after=error.seconds) from None
    except (NotFound, InvalidArgument) as error:
        raise refusal_of("entry", Outcome(request="", how=How.REFUSED, status="", problem=str(error))) from None
    except (BridgeUnavailable, BridgeError) as error:
        raise refused(502, "directory_away", f"the directory did not answer: {error}", BAD_GATEWAY) from error


def lookup_routes(core: Core) -> list[Route]:
    """None without `Core(lookups=...)`. Viewers may look up: each look-up costs a token of the payer."""
    lookups = core.lookups
    if lookups is None:
        return []

    async def get(call: Call) -> Answer:
        """From the Bridge, or from the cache, which is said in X-Data-Source and Age."""
        query: LookupQuery = call.query
        if not PAYER.fullmatch(query.payer_id):
            raise refused(
                400, "invalid_input", "payer_id must be a CPF (11 digits) or CNPJ (14 digits)", path="payer_id"
            )
        if not _END_TO_END_ID.fullmatch(query.end_to_end_id):
            why = "end_to_end_id must be the EndToEndId of the payment: up to 50 letters and digits"
            raise refused(400, "invalid_input", why, path="end_to_end_id")
        await core.admit_read()
        found = await _told(lookups.find(call.id, payer_id=query.payer_id, end_to_end_id=query.end_to_end_id))
        headers = {SOURCE_HEADER: "cache", "Age": str(int(found.age))} if found.source == "cache" else {}
        return Answer(body=LookupView.of(found), headers=headers)

    said = "The entry of a key of any institution, for a payment."
    return [route("GET", "/api/v1/lookups/{key}", answering(get), said, LookupView, query=LookupQuery)]
