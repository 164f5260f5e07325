"""Claims are found by asking the directory once a minute: it calls no one."""

from __future__ import annotations

import logging
from datetime import timedelta

from batuta import Batuta, RunClosed, Schedule, UnknownRun, every, workflow
from pixdict.connect.keys.activities import Deliver, KeyActivities
from pixdict.connect.keys.claims import ENDED, answer_claim, claim_changed
from pixdict.connect.keys.models import AttemptsExhausted
from pixdict.dict.claims import ClaimStatus, ExtendedClaim, Role
from pixdict.errors import PASSING

log = logging.getLogger("pixdict.connect")

EXPECTED = [*PASSING, AttemptsExhausted]
"""Errors that end one poll. The next slot makes the next one, so they are no dead letters."""


@workflow(fails=EXPECTED)
async def poll_claims() -> int:
    """Hand every claim that changed to its run."""
    return await KeyActivities.poll_claims()


def polling(queue: str = "default", period: timedelta = timedelta(minutes=1)) -> Schedule:
    """Once a minute at least, as the manual wants it. A slot that comes while a poll is open is left out."""
    return Schedule(
        "poll-claims",
        every(period),
        poll_claims,
        queue=queue,
        overlap="skip",
        timeout=timedelta(minutes=5),
    )


def deliver_with(client: Batuta, queue: str = "default") -> Deliver:
    """Sends changed claims to their runs, and starts the donor's ones. Each change arrives once."""

    async def deliver(claim: ExtendedClaim, side: str, run_id: str) -> None:
        change = f"{claim.status}-{claim.last_modified.isoformat()}"
        try:
            if side == Role.DONOR and claim.status in (ClaimStatus.OPEN, ClaimStatus.WAITING_RESOLUTION):
                await client.start(answer_claim, claim, id=run_id, queue=queue, signal=(claim_changed, claim, change))
            else:
                handle = await client.get(run_id)
                await handle.signal(claim_changed, claim, message_id=change)
        except (RunClosed, UnknownRun) as error:  # it must not keep the others from theirs
            if claim.status not in ENDED:
                log.error("claim %s is %s, and no run of it is open: %s", claim.id, claim.status, error)

    return deliver
