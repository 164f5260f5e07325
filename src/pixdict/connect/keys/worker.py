"""The worker that runs keys and claims."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

from batuta import Batuta
from batuta.bus import publish
from pixdict.connect.keys.activities import Bridge, KeyActivities
from pixdict.connect.keys.claims import answer_claim, claim_key
from pixdict.connect.keys.entries import create_entry, delete_entry, update_entry
from pixdict.connect.keys.polling import deliver_with, poll_claims, polling
from pixdict.connect.keys.tables import KeyTables

QUEUE = "dict-keys"
WORKFLOWS: list[Any] = [create_entry, update_entry, delete_entry, claim_key, answer_claim, poll_claims]


def keys_worker(
    client: Batuta,
    bridge: Bridge,
    tables: KeyTables,
    *,
    participant: str,
    period: timedelta = timedelta(minutes=1),
    **settings: Any,
) -> AbstractAsyncContextManager[Any]:
    """Takes the queue `dict-keys` and asks for claims every `period`. Start runs with `queue=QUEUE`."""
    activities = KeyActivities(bridge, tables, publish, participant=participant, deliver=deliver_with(client, QUEUE))
    return client.worker(
        workflows=WORKFLOWS, activities=[activities], queues=[QUEUE], schedules=[polling(QUEUE, period)], **settings
    )
