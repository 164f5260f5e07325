"""What listeners in the process itself hear: SQLite tells them nothing of the commits of their own connection."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from uuid import uuid4

import pytest

from batuta.errors import StoreUnavailable
from batuta.journal.flows.records import EventRow, FlowStart, NewEvent
from batuta.journal.queues import QueueLimits
from batuta.journal.records import Message, MessageKind
from batuta.journal.states import RunState
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import Pen, claim_one, live_worker, new_run
from batuta.testing.conformance.runs.close import last_word


def lose_an_answer(step: str) -> None:
    if step == "committed":
        error = sqlite3.OperationalError("injected")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error


@pytest.mark.parametrize("verb", ["alone", "with a message", "many", "after others", "event"])
async def test_a_start_whose_first_answer_was_lost_is_heard_when_it_comes_again(store: SqliteStore, verb: str) -> None:
    new, last, message = new_run(), new_run(), Message(message_id="m", kind=MessageKind.SIGNAL)
    row = EventRow(event_id=uuid4(), type="t", source="s", payload="{}")
    event = NewEvent(event=row, starts=[FlowStart(uuid4(), new)])
    verbs = {
        "alone": lambda: store.start(new),
        "with a message": lambda: store.start(new, message),
        "many": lambda: store.start_many([new, last]),
        "after others": lambda: store.start_many([new], last),
        "event": lambda: store.accept_events([event]),
    }
    ear = Ear(store)
    store.faults = lose_an_answer
    with pytest.raises(StoreUnavailable):
        await verbs[verb]()
    store.faults = None
    assert not ear.hints
    await verbs[verb]()
    await ear.hears(lambda hint: hint.due)


async def test_a_slot_that_is_freed_while_a_claim_finds_none_is_heard(store: SqliteStore) -> None:
    worker = await live_worker(store)
    await store.limit_queue("default", QueueLimits(concurrency=1))
    await store.start(new_run())
    first = Pen.of(await claim_one(store, worker))
    await store.start(new_run())
    ear = Ear(store)
    await asyncio.sleep(0)
    ear.hints.clear()

    committing, go_on = threading.Event(), threading.Event()

    def slowly(step: str) -> None:
        if step == "commit":
            committing.set()
            go_on.wait(10)

    store._writer._commit_seconds = 1.0  # of a slow disk: the event loop goes on meanwhile
    store.faults = slowly
    closing = asyncio.create_task(
        store.close_run(first.run_id, first.head, last_word(first), RunState.TERMINATED, "enough")
    )
    await asyncio.to_thread(committing.wait, 10)
    assert (await store.claim(worker, 1)).held
    go_on.set()
    assert await closing
    await ear.hears(lambda hint: hint.due)
