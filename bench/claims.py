"""claims: an ownership claim whose new owner never proves possession: 30 days of its run, in virtual time.

The workflow alone: activities are doubles. `python -m bench.claims`
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from batuta.testing import Environment, double, in_virtual_time
from pixdict.connect.keys import WORKFLOWS, KeyActivities, NewClaim, claim_key
from pixdict.dict.claims import Claim, ExtendedClaim
from pixdict.dict.entries import Account, Person

RUNS: Final = 40
OPENED: Final = datetime(2020, 1, 1, tzinfo=UTC)
CLAIM: Final = Claim(
    type="OWNERSHIP",
    key="+5561988887777",
    key_type="PHONE",
    claimer_account=Account(
        participant="12345678", account_number="1", account_type="CACC", opening_date=OPENED, branch="1"
    ),
    claimer=Person(type="NATURAL_PERSON", tax_id_number="11122233300", name="Ada"),
)


def known(status: str, at: datetime) -> ExtendedClaim:
    """The claim as the directory has it."""
    return ExtendedClaim(
        type=CLAIM.type,
        key=CLAIM.key,
        key_type=CLAIM.key_type,
        claimer_account=CLAIM.claimer_account,
        claimer=CLAIM.claimer,
        donor_participant="87654321",
        id=UUID(int=1),
        status=status,
        resolution_period_end=at + timedelta(days=7),
        completion_period_end=at + timedelta(days=14),
        last_modified=at,
    )


@in_virtual_time
async def thirty_days() -> tuple[float, str, int, timedelta]:
    """Milliseconds of real time from the start of the run to its end, its result, its reminders, its virtual time."""
    env: Environment
    remind = double(KeyActivities.remind)
    doubles = [
        double(KeyActivities.insert_claim),
        double(KeyActivities.open_claim, lambda new, request_id: known("OPEN", env.now)),
        double(KeyActivities.store_claim),
        double(KeyActivities.cancel, lambda claim_id, reason, request_id: known("CANCELLED", env.now)),
        remind,
    ]
    async with Environment(workflows=WORKFLOWS, activities=doubles) as env:
        began, begun = env.now, time.perf_counter()
        handle = await env.start(claim_key, NewClaim(id="1", claim=CLAIM))
        result = await handle.result()
        return (time.perf_counter() - begun) * 1000, result, len(remind.calls), env.now - began


def main() -> None:
    """Show the median and the longest."""
    took = []
    for _ in range(RUNS):
        milliseconds, *_ = thirty_days()
        took.append(milliseconds)
    print(f"30 days of a claim: median {statistics.median(took):.1f} ms, longest {max(took):.1f} ms, of {RUNS}")


if __name__ == "__main__":
    main()
