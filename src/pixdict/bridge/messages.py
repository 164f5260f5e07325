"""Messages of gRPC as those of the directory, and back: fields with the same name are the same field."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import Struct

from pixdict.errors import InvalidArgument

LARGEST = 1024 * 1024
"""Bytes of a message that a Bridge reads."""

S = TypeVar("S", bound=Struct)
M = TypeVar("M", bound=Message)


def to_struct(kind: type[S], message: Message, **more: Any) -> S:
    """`more`: fields that the message does not have. Raises InvalidArgument."""
    try:
        return msgspec.convert(_values(message) | {_pascal(name): value for name, value in more.items()}, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{type(message).__name__}: {error}") from None


def to_message(kind: type[M], answer: Struct, **more: Any) -> M:
    """Fields that the message does not have are left out. `more` are used instead of those of the answer."""
    return kind(**{**_fields(answer, kind.DESCRIPTOR, but=more), **more})


def stamp(moment: datetime | None) -> Timestamp | None:
    """A time for a message."""
    if moment is None:
        return None
    made = Timestamp()
    made.FromDatetime(moment)
    return made


def moment(message: Message, name: str) -> datetime | None:
    """A time of a message; None when it is not set. Raises InvalidArgument."""
    return _moment(getattr(message, name), name) if message.HasField(name) else None


def _moment(given: Any, name: str) -> datetime:
    try:
        found: datetime = given.ToDatetime(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"{name} is no time: {error}") from None
    return found


@cache
def _plan(descriptor: Any) -> tuple[tuple[str, str, str], ...]:
    """Of each field: its name, its name in the directory, and how it is read."""
    return tuple((field.name, _pascal(field.name), _kind(field)) for field in descriptor.fields)


def _kind(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        if field.message_type.full_name == Timestamp.DESCRIPTOR.full_name:
            return "time"
        return "messages" if field.is_repeated else "message"
    if field.is_repeated:
        return "values"
    if field.has_presence:
        return "optional"
    return "text" if field.type == FieldDescriptor.TYPE_STRING else "value"


@cache
def _pascal(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _values(message: Message) -> dict[str, Any]:
    return dict(_set_values(message))


def _set_values(message: Message) -> Iterator[tuple[str, Any]]:
    for name, key, kind in _plan(message.DESCRIPTOR):
        value = getattr(message, name)
        if kind == "messages":
            yield key, [_values(one) for one in value]
        elif kind == "values":
            yield key, list(value)
        elif kind in ("message", "time", "optional"):
            if message.HasField(name):
                yield key, _values(value) if kind == "message" else _moment(value, key) if kind == "time" else value
        elif value or kind == "value":  # a text that is empty is not there
            yield key, value


def _fields(struct: Struct, descriptor: Any, but: Collection[str] = ()) -> dict[str, Any]:
    found = {}
    for name, _, _ in _plan(descriptor):
        value = getattr(struct, name, None)
        if value is not None and name not in but:
            found[name] = _plain(value, descriptor.fields_by_name[name].message_type)
    return found


def _plain(value: Any, inner: Any) -> Any:
    if isinstance(value, Struct) and inner is not None:
        return _fields(value, inner)
    if isinstance(value, list):
        return [_plain(one, inner) for one in value]
    return str(value) if isinstance(value, UUID) else value
