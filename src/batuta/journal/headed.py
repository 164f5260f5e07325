"""Messages with headers: what goes with a signal or update besides its payload, such as the sender's trace.

Most have none, and lie in the inbox as their payload alone. The others are an object of both; so is a payload that
looks like one, so that there is no doubt about any.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, Raw, Struct, UnsetType, json

_MARK = '{"~headers":'


class _Headed(Struct, rename={"headers": "~headers"}):
    headers: Raw
    value: Raw


def with_headers(payload: str, headers: Mapping[str, str] | Raw | UnsetType | None) -> str:
    """The body of a message."""
    if (headers is None or headers is UNSET or not headers) and not payload.startswith(_MARK):
        return payload
    said = bytes(headers) if isinstance(headers, Raw) else json.encode(headers or {})
    return f'{_MARK}{said.decode()},"value":{payload}}}'


def without_headers(body: str) -> tuple[Raw, Raw | UnsetType]:
    """The payload, and the JSON of the headers, of a message's body."""
    if not body.startswith(_MARK):
        return Raw(body.encode()), UNSET
    found = json.decode(body, type=_Headed)
    # Copies: what was decoded is a view of the whole.
    return Raw(bytes(found.value)), Raw(bytes(found.headers)) if bytes(found.headers) != b"{}" else UNSET
