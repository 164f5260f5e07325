"""Ends and the next claim, for a store that cannot do both in one transaction, or not with these changes."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.journal.records import Change, Claim, Refusal, Verdict, WorkerInfo
from batuta.journal.store import Store


async def commit_then_claim(
    store: Store, worker: WorkerInfo, changes: Sequence[Change], limit: int
) -> tuple[dict[int, Verdict | list[Refusal]], Claim]:
    """As `Store.hand_over`: one after the other."""
    answers = await store.commit(worker.worker_id, changes)
    try:
        return answers, await store.claim(worker, limit)
    except StoreUnavailable as error:  # "nothing was written" would be a lie
        raise OutcomeUnknown(str(error)) from error
