"""The envelope of messages outside: CloudEvents 1.0 in structured mode, as JSON."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from datetime import datetime
from typing import Any

from msgspec import DecodeError, Raw, Struct, json

from batuta.authoring.client.messages import LONGEST_KEY, WrittenMessage, unreadable_message
from batuta.clock import as_datetime, as_micros
from batuta.journal.bus.messages import NewMessage, StoredMessage

CONTENT_TYPE = "application/cloudevents+json"
VERSION = "1.0"
_OURS = "/batuta/"
_LONGEST_SHOWN = 10_000


class Event(Struct, kw_only=True, omit_defaults=True):
    """A CloudEvent. `subject` and `partitionkey` are the key of the message."""

    specversion: str
    id: str
    source: str
    type: str
    datacontenttype: str = ""
    subject: str = ""
    time: str = ""
    partitionkey: str = ""
    traceparent: str = ""
    data: Raw = Raw(b"null")
    data_base64: str = ""


def event_of(message: StoredMessage) -> Event:
    """The envelope of a message. Raises DecodeError if the envelope cannot be read."""
    try:
        stored = json.decode(message.body, type=WrittenMessage)
    except RecursionError as error:
        raise DecodeError(str(error)) from None
    moment = as_datetime(stored.time)
    return Event(
        specversion=VERSION,
        id=stored.id,
        source=stored.source or "/batuta",
        type=stored.type or message.topic,
        datacontenttype="application/json",
        subject=stored.key,
        time=moment.isoformat().replace("+00:00", "Z"),
        partitionkey=stored.key,
        traceparent=stored.trace,
        data=stored.payload,
    )


def received(topic: str, name: str, data: bytes, *, id: str, key: str, time: int) -> NewMessage:
    """The message that a broker has given, for one subscription. `id`, `key` and `time` are the broker's.

    Never raises: what cannot be read becomes a message with the problem, whose delivery is a dead letter. Plain JSON
    that is no CloudEvent is a payload.
    """
    try:
        return _read(topic, name, data, id=id, key=key, time=time)
    except (DecodeError, ValueError, RecursionError) as error:
        problem = f"a message of topic {topic!r} cannot be read: {error}"
        text = data[:_LONGEST_SHOWN].decode("utf-8", "backslashreplace")
        body = unreadable_message(topic, id, _short(key), text, problem, time)
        return NewMessage(topic=topic, id=id, key=_short(key), body=body, subscription=name)


def _read(topic: str, name: str, data: bytes, *, id: str, key: str, time: int) -> NewMessage:
    value: Any = json.decode(data)
    if not (isinstance(value, dict) and "specversion" in value):
        written = WrittenMessage(id=id, topic=topic, payload=Raw(data), key=_short(key), type=topic, time=time)
        return NewMessage(topic=topic, id=id, key=_short(key), body=json.encode(written).decode(), subscription=name)
    event = json.decode(data, type=Event)
    if event.specversion != VERSION:
        raise ValueError(f"CloudEvents version {event.specversion!r} is not known: there is {VERSION}")
    if not event.id or not event.source:
        raise ValueError("a CloudEvent needs an id and a source")
    key = _short(event.partitionkey or event.subject or key)
    payload = event.data
    if event.data_base64:
        payload = Raw(json.encode(b64encode(b64decode(event.data_base64, validate=True)).decode()))
    written = WrittenMessage(
        id=event.id,
        topic=topic,
        payload=payload,
        key=key,
        type=event.type,
        source=event.source,
        time=_micros(event.time, time),
        trace=event.traceparent,
    )
    body = json.encode(written).decode()
    return NewMessage(topic=topic, id=_unique(event), key=key, body=body, subscription=name)


def _unique(event: Event) -> str:
    """Ids of our own messages are unique in their topic, those of others together with their source."""
    if event.source.startswith(_OURS) and _short(event.id) == event.id:
        return event.id
    return hashlib.sha256(json.encode((event.source, event.id))).hexdigest()


def _short(key: str) -> str:
    """A key or id as every store can keep it: strangers' may be long, or hold NUL."""
    return key if len(key) <= LONGEST_KEY and key.isprintable() else hashlib.sha256(key.encode()).hexdigest()


def _micros(text: str, otherwise: int) -> int:
    if not text:
        return otherwise
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"its time {text!r} has no time zone")
    return as_micros(moment)
