"""Requests of core: each message of `dict-requests` starts its run, or goes to the run of its claim."""

from __future__ import annotations

from typing import Any

from batuta import Batuta, Retry, RunClosed, UnknownRun
from batuta.bus import Message, Subscription, subscribe
from batuta.errors import WrongWorkflow
from pixdict.connect.keys.claims import act_on_claim, claim_key
from pixdict.connect.keys.entries import create_entry, delete_entry, update_entry
from pixdict.connect.keys.models import How, Outcome
from pixdict.connect.keys.requests import (
    REQUESTS,
    RESPONSES,
    ActOnClaim,
    CreateClaim,
    CreateEntry,
    DeleteEntry,
    Request,
    Response,
    UpdateEntry,
)
from pixdict.connect.keys.tables import KeyTables

SUBSCRIPTION = "dict-connect"
_RETRY = Retry(attempts=10, first=0.2, factor=2.0, longest=10.0)


def taking(client: Batuta, tables: KeyTables, queue: str) -> Subscription:
    """The subscription of connect. A message that comes twice starts nothing twice."""

    async def take(message: Message[Request]) -> None:
        request = message.payload
        trace = request.asked.trace_id
        options: dict[str, Any] = {"queue": queue}
        if trace:
            options["headers"] = {"traceparent": f"00-{trace}-{trace[:16]}-01"}
        match request:
            case CreateEntry(new=new):
                await client.start(create_entry, new, id=f"create-{new.id}", **options)
            case UpdateEntry(id=id, change=change, asked=asked):
                await client.start(update_entry, id, change, asked, id=asked.request, **options)
            case DeleteEntry(id=id, reason=reason, asked=asked):
                await client.start(delete_entry, id, reason, asked, id=asked.request, **options)
            case CreateClaim(new=claim):
                await client.start(claim_key, claim, id=f"claim-{claim.id}", **options)
            case ActOnClaim():
                await _act(client, tables, request)

    return subscribe(REQUESTS, take, name=SUBSCRIPTION, from_start=True, queue=queue, retry=_RETRY)


async def _act(client: Batuta, tables: KeyTables, request: ActOnClaim) -> None:
    try:
        handle = await client.get(request.run)
        await handle.signal(act_on_claim, request.act, message_id=request.asked.request)
    except (RunClosed, UnknownRun, WrongWorkflow):
        row = await tables.claim(request.id)
        status = "FAILED" if row is None else row.status
        problem = f"ClaimOperationInvalid: the claim is {status}"
        asked = request.asked
        outcome = Outcome(
            request=asked.request, how=How.REFUSED, status=status, problem=problem, trace_id=asked.trace_id
        )
        await tables.answer_claim(request.id, outcome)
        response = Response(subject="claim", id=request.id, outcome=outcome)
        await client.publish(RESPONSES, response, key=request.id, id=f"{asked.request}:closed", type="claim.refused")
