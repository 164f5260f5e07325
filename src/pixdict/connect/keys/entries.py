"""Create, update and delete a key: at the directory and in our own table, or in neither."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from batuta import logger, saga, uuid, workflow
from pixdict.connect.keys.activities import KeyActivities
from pixdict.connect.keys.models import (
    COMPENSATED_ENTRY,
    COMPENSATED_UPDATE,
    NO_REQUEST,
    NOT_COMPENSATED,
    Asked,
    AttemptsExhausted,
    AuditUnavailable,
    Compensated,
    EntryChange,
    EntryNotActive,
    EntryStatus,
    How,
    NewEntry,
    NotCompensated,
)
from pixdict.errors import CircuitOpen, ConstraintViolation, DatabaseTimeout, InvalidArgument, NotFound, RateLimited

REFUSED = [InvalidArgument, NotFound, EntryNotActive]
"""Errors that are answers: such a run is no dead letter."""
AFTERWARDS = (DatabaseTimeout, ConstraintViolation, AuditUnavailable)
"""How a step after the directory fails."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0

T = TypeVar("T")


async def once_open(call: Callable[[], Awaitable[T]]) -> T:
    """The result of a call of the Bridge. One that it did not let in is made again: at the gate of the breaker, or when
    the bucket has tokens."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await call()
        except CircuitOpen as error:
            logger.info("again, once the breaker lets calls in: %s", error)
            wait, pause = pause, min(2 * pause, _LONGEST_PAUSE)
        except RateLimited as error:
            logger.info("again in %.0f s, when the bucket has tokens: %s", error.seconds, error)
            wait = max(error.seconds, _FIRST_PAUSE)
        await asyncio.sleep(wait)


@workflow(fails=[*REFUSED, Compensated, NotCompensated])
async def create_entry(new: NewEntry) -> str:
    """Returns the key.

    Refused by the directory: our row is FAILED. The directory away for longer than all attempts: a dead letter, our row
    stays PENDING, and reprocessing goes on with the same request id. A step after the directory fails: undone in
    reverse.
    """
    request_id, undo_id = new.request_id or uuid(), uuid()
    if new.request_id is None:
        await KeyActivities.insert_entry(new, request_id)
    try:
        made = await once_open(lambda: KeyActivities.register(new.entry, new.reason, request_id))
    except (InvalidArgument, NotFound) as error:
        await KeyActivities.set_entry_status(new.id, EntryStatus.FAILED, str(error), new.asked, How.REFUSED)
        raise
    except AttemptsExhausted as error:
        await KeyActivities.entry_exhausted(new.id, EntryStatus.PENDING, str(error), new.asked)
        raise
    undo = saga()
    try:
        async with undo:
            undo(KeyActivities.undo_create, new.id, made.key, undo_id, new.asked)
            await KeyActivities.store_entry(new.id, made, request_id, new.asked, "entry.created")
    except AFTERWARDS as error:
        if undo.failed:
            await KeyActivities.entry_exhausted(new.id, EntryStatus.PENDING, NOT_COMPENSATED, new.asked)
            raise NotCompensated(NOT_COMPENSATED) from error
        raise Compensated(COMPENSATED_ENTRY) from error
    return made.key


@workflow(fails=[*REFUSED, Compensated, NotCompensated])
async def update_entry(id: str, change: EntryChange, asked: Asked = NO_REQUEST) -> None:
    """Account and names of an active entry. If our own table cannot be written, the old ones are sent there."""
    request_id, undo_id = uuid(), uuid()
    try:
        before = await KeyActivities.active_entry(id)
        old = EntryChange(account=before.entry.account, owner=before.entry.owner, reason="RECONCILIATION")
        changed = await once_open(lambda: KeyActivities.change(before.entry.key or "", change, request_id))
    except (InvalidArgument, NotFound, EntryNotActive) as error:
        await _answer(id, str(error), asked, How.REFUSED)
        raise
    except AttemptsExhausted as error:
        await KeyActivities.entry_exhausted(id, EntryStatus.ACTIVE, str(error), asked)
        raise
    undo = saga()
    try:
        async with undo:
            undo(KeyActivities.undo_change, id, changed.key, old, undo_id, asked)
            await KeyActivities.store_entry(id, changed, UUID(before.request_id), asked)
    except AFTERWARDS as error:
        if undo.failed:
            await KeyActivities.entry_exhausted(id, EntryStatus.ACTIVE, NOT_COMPENSATED, asked)
            raise NotCompensated(NOT_COMPENSATED) from error
        raise Compensated(COMPENSATED_UPDATE) from error


@workflow(fails=REFUSED)
async def delete_entry(id: str, reason: str = "USER_REQUESTED", asked: Asked = NO_REQUEST) -> None:
    """Remove an active entry. What the directory removed cannot be brought back with its identifier: so our own table
    is written until it is done."""
    request_id = uuid()
    try:
        row = await KeyActivities.active_entry(id)
    except EntryNotActive as error:
        await _answer(id, str(error), asked, How.REFUSED)
        raise
    await KeyActivities.set_entry_status(id, EntryStatus.DELETING)
    try:
        await once_open(lambda: KeyActivities.unregister(row.entry.key or "", reason, request_id))
    except (InvalidArgument, NotFound) as error:
        logger.warning("entry %s stays: %s", id, error)
        await KeyActivities.set_entry_status(id, EntryStatus.ACTIVE, str(error), asked, How.REFUSED)
        raise
    except AttemptsExhausted as error:
        await KeyActivities.entry_exhausted(id, EntryStatus.DELETING, str(error), asked)
        raise
    await KeyActivities.set_entry_status(id, EntryStatus.DELETED, "", asked)


async def _answer(id: str, problem: str, asked: Asked, how: How) -> None:
    """Our own row stays as it is."""
    if asked.request:
        await KeyActivities.answer_entry(id, problem, asked, how)
