"""The worker that runs keys and claims."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

from batuta import Batuta
from pixdict.connect.keys.activities import Audit, Bridge, KeyActivities
from pixdict.connect.keys.claims import answer_claim, claim_key
from pixdict.connect.keys.entries import create_entry, delete_entry, update_entry
from pixdict.connect.keys.polling import deliver_with, poll_claims, polling
from pixdict.connect.keys.tables import KeyTables
from pixdict.connect.keys.taking import taking

QUEUE = "dict-keys"
WORKFLOWS: list[Any] = [create_entry, update_entry, delete_entry, claim_key, answer_claim, poll_claims]


def keys_worker(
    client: Batuta,
    bridge: Bridge,
    tables: KeyTables,
    *,
    participant: str,
    period: timedelta = timedelta(minutes=1),
    audit: Audit | None = None,
    attempts: int = 3,
    **settings: Any,
) -> AbstractAsyncContextManager[Any]:
    """Takes the queue `dict-keys` and the requests of core, and asks for claims every `period`. Start runs of your own
    with `queue=QUEUE`. `audit`, `attempts`: as of `KeyActivities`; with them give the Bridge `attempts=1`."""
    activities = KeyActivities(
        bridge,
        tables,
        client.publish,
        participant=participant,
        deliver=deliver_with(client, QUEUE),
        audit=audit,
        attempts=attempts,
    )
    return client.worker(
        workflows=WORKFLOWS,
        activities=[activities],
        queues=[QUEUE],
        schedules=[polling(QUEUE, period)],
        subscriptions=[taking(client, tables, QUEUE)],
        **settings,
    )
