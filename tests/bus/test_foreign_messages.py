"""Whatever a broker gives becomes a message: one that cannot be read holds up no other."""

import pytest

from batuta.bus.cloudevents import event_of, received
from batuta.journal.bus.messages import NewMessage, StoredMessage

DEEP = b"[" * 100_000 + b"]" * 100_000


def read(data: bytes) -> NewMessage:
    return received("orders", "book", data, id="7", key="k", time=0)


@pytest.mark.parametrize(
    "data",
    [
        DEEP,
        b'{"specversion":%b}' % DEEP,
        b'{"specversion":"1.0","id":"a","source":"s","type":"t","data":%b}' % DEEP,
        b'{"specversion":"2.0","id":"a","source":"s","type":"t"}',
        b'{"amount":1e999}',
        b"\xff",
        b"",
    ],
)
def test_what_cannot_be_read_is_a_message_with_the_problem(data: bytes) -> None:
    found = read(data)
    assert (found.id, found.key, found.subscription) == ("7", "k", "book")
    sent = event_of(StoredMessage(topic="orders", id="7", body=found.body, number=1, at=0, taken=False))
    assert sent.type == "unreadable"
