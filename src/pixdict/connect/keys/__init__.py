"""Keys and claims of our institution: workflows over the Bridge and our own tables."""

from __future__ import annotations

from pixdict.connect.keys.activities import AuditEvent, KeyActivities
from pixdict.connect.keys.claims import answer_claim, cancel_claim, claim_key, confirm_claim, prove_possession
from pixdict.connect.keys.entries import create_entry, delete_entry, update_entry
from pixdict.connect.keys.models import Asked, AuditUnavailable, EntryChange, EntryStatus, NewClaim, NewEntry
from pixdict.connect.keys.polling import deliver_with, poll_claims, polling
from pixdict.connect.keys.tables import KeyTables, ReplicaTables
from pixdict.connect.keys.worker import QUEUE, WORKFLOWS, keys_worker

__all__ = [
    "QUEUE",
    "WORKFLOWS",
    "Asked",
    "AuditEvent",
    "AuditUnavailable",
    "EntryChange",
    "EntryStatus",
    "KeyActivities",
    "KeyTables",
    "NewClaim",
    "NewEntry",
    "ReplicaTables",
    "answer_claim",
    "cancel_claim",
    "claim_key",
    "confirm_claim",
    "create_entry",
    "delete_entry",
    "deliver_with",
    "keys_worker",
    "poll_claims",
    "polling",
    "prove_possession",
    "update_entry",
]
