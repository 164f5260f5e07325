"""Create, update and delete a key: at the directory and in our own table, or in neither."""

from __future__ import annotations

from uuid import UUID

from batuta import logger, saga, uuid, workflow
from pixdict.connect.keys.activities import FOR_EVER, KeyActivities
from pixdict.connect.keys.models import EntryChange, EntryNotActive, EntryStatus, NewEntry
from pixdict.errors import InvalidArgument, NotFound

REFUSED = [InvalidArgument, NotFound, EntryNotActive]
"""Errors that are answers: such a run is no dead letter."""


@workflow(fails=REFUSED)
async def create_entry(new: NewEntry) -> str:
    """Returns the key.

    Refused by the directory: our row is FAILED. The directory away for longer than all attempts: a dead letter, our row
    stays PENDING, and reprocessing goes on with the same request id. Our own table away afterwards: undone in reverse.
    """
    request_id, undo_id = uuid(), uuid()
    await KeyActivities.insert_entry(new, request_id)
    try:
        made = await KeyActivities.register(new.entry, new.reason, request_id)
    except (InvalidArgument, NotFound) as error:
        await KeyActivities.set_entry_status(new.id, EntryStatus.FAILED, str(error))
        raise
    async with saga() as undo:
        undo(KeyActivities.set_entry_status, new.id, EntryStatus.FAILED, "undone")
        undo(KeyActivities.unregister, made.key, "RECONCILIATION", undo_id)
        await KeyActivities.store_entry(new.id, made, request_id)
    return made.key


@workflow(fails=REFUSED)
async def update_entry(id: str, change: EntryChange) -> None:
    """Account and names of an active entry. If our own table cannot be written, the old ones are sent there."""
    before = await KeyActivities.active_entry(id)
    request_id, undo_id = uuid(), uuid()
    old = EntryChange(account=before.entry.account, owner=before.entry.owner, reason="RECONCILIATION")
    async with saga() as undo:
        changed = await KeyActivities.change(before.entry.key or "", change, request_id)
        undo(KeyActivities.change, changed.key, old, undo_id)
        await KeyActivities.store_entry(id, changed, UUID(before.request_id))


@workflow(fails=REFUSED)
async def delete_entry(id: str, reason: str = "USER_REQUESTED") -> None:
    """Remove an active entry. What the directory removed cannot be brought back with its identifier: so our own table
    is written until it is done."""
    row = await KeyActivities.active_entry(id)
    await KeyActivities.set_entry_status(id, EntryStatus.DELETING)
    try:
        await KeyActivities.unregister(row.entry.key or "", reason, uuid())
    except (InvalidArgument, NotFound) as error:
        logger.warning("entry %s stays: %s", id, error)
        await KeyActivities.set_entry_status(id, EntryStatus.ACTIVE, str(error))
        raise
    await KeyActivities.set_entry_status.with_options(retry=FOR_EVER)(id, EntryStatus.DELETED)
