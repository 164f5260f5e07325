"""What listeners in the process itself hear: SQLite tells them nothing of the commits of their own connection."""

from __future__ import annotations

import sqlite3
from uuid import uuid4

import pytest

from batuta.errors import StoreUnavailable
from batuta.journal.flows.records import EventRow, FlowStart, NewEvent
from batuta.journal.records import Message, MessageKind
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import new_run


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
