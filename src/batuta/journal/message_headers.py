"""Messages with headers, such as the sender's trace.

Most have none, and the inbox holds only their payload. The others are an object of both; so is a payload that looks
like one, so that the form is never ambiguous.
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
    """The payload, and the JSON of the headers, of a message's body.

    Raises DecodeError or RecursionError for invalid JSON, which would make the journal unreadable.
    """
    if not body.startswith(_MARK):
        return json.decode(body.encode(), type=Raw), UNSET
    found = json.decode(body, type=_Headed)
    # Copies, because the decoded values are views of the whole.
    return Raw(bytes(found.value)), Raw(bytes(found.headers)) if bytes(found.headers) != b"{}" else UNSET
