"""Messages of the bus, as programs give and get them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from msgspec import Raw, Struct, json

from batuta.errors import InvalidInput
from batuta.journal.bus.messages import NewMessage
from batuta.names import check_name, quoted
from batuta.serde import encode

T = TypeVar("T")

LONGEST_KEY = 250
"""Characters of a message's id or key: the id of a delivery's run holds the former."""


class Message(Struct, Generic[T], kw_only=True):
    """A message, as a subscriber gets it. `Message[Order]`: with a payload that is decoded and checked as an Order."""

    id: str
    topic: str
    payload: T
    key: str = ""
    """Those of one key come one after the other, in order."""
    type: str = ""
    source: str = ""
    """Who published it: a URI reference, as CloudEvents have it."""
    time: int = 0
    """When, in microseconds since 1970."""
    trace: str = ""
    """The W3C `traceparent` of the run that published it."""
    problem: str = ""
    """Why it could not be read. No subscriber gets such a message: its delivery fails, and is a dead letter."""

    def __post_init__(self) -> None:
        if self.problem:
            raise ValueError(self.problem)


class Draft(Struct, kw_only=True):
    """A message that is about to be published."""

    topic: str
    payload: Any
    key: str = ""
    id: str | None = None
    """None: made from the key of the activity that publishes it, or by chance."""
    type: str | None = None


class WrittenMessage(Struct, kw_only=True, omit_defaults=True):
    """The JSON of a message, as it lies in the store."""

    id: str
    topic: str
    payload: Raw
    key: str = ""
    type: str = ""
    source: str = ""
    time: int = 0
    trace: str = ""
    problem: str = ""


def new_message(
    draft: Draft, id: str, limit: int, *, source: str, time: int, trace: str = "", via: str = ""
) -> NewMessage:
    """The message that a store keeps. `id`: if the draft has none. Raises InvalidInput, TooLarge."""
    topic = check_name(draft.topic, "topic")
    id = _checked(draft.id if draft.id is not None else id, "id")
    if not id:
        raise InvalidInput(f"the id of a message on topic {topic!r} is empty: leave it out, or give one")
    key = _checked(draft.key, "key")
    kind = check_name(draft.type if draft.type is not None else topic, "type")
    payload = Raw(encode(draft.payload, f"the payload of a message on topic {topic!r}", limit))
    written = WrittenMessage(
        id=id, topic=topic, payload=payload, key=key, type=kind, source=source, time=time, trace=trace
    )
    return NewMessage(topic=topic, id=id, key=key, body=json.encode(written).decode(), via=via)


def unreadable_message(topic: str, id: str, key: str, text: str, problem: str, time: int) -> str:
    """The JSON of a message of which a broker has given nothing but this text."""
    payload = Raw(json.encode(text))
    return json.encode(
        WrittenMessage(id=id, topic=topic, payload=payload, key=key, type="unreadable", time=time, problem=problem)
    ).decode()


def _checked(text: object, what: str) -> str:
    if text == "" or text is None:
        return ""
    if not isinstance(text, str) or len(text) > LONGEST_KEY or not text.isprintable():
        raise InvalidInput(f"the {what} {quoted(text)} of a message must be at most {LONGEST_KEY} printable characters")
    return text
