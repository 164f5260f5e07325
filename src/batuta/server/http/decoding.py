"""Reads input strictly: query parameters and JSON bodies with limits."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from batuta.server.http.call import Refused

MOST_PARAMETERS = 200
DEEPEST = 64
_SHOWN = 300


def read_query(kind: type[Struct], text: bytes, also: Iterable[str] = ()) -> tuple[Any, dict[str, str]]:
    """The query parameters as that struct, and those of `also` apart. Raises Refused."""
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_PARAMETERS, errors="strict")
    except ValueError:
        raise Refused(400, "invalid_input", "the query of the address cannot be read: percent-encode UTF-8") from None
    apart: dict[str, str] = {}
    found: dict[str, Any] = {}
    several, names = _lists(kind)
    for name, value in pairs:
        if "\x00" in value:
            raise Refused(400, "invalid_input", f"query parameter {name[:50]!r} holds a NUL character", path=name[:50])
        if name in also:
            apart[name] = value
        elif name in several:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise Refused(
                400, "invalid_input", f"query parameter {name[:50]!r} is given twice: give it once", path=name
            )
        elif name not in names:
            known = ", ".join(sorted([*names, *also])) or "none"
            raise Refused(
                400, "invalid_input", f"unknown query parameter {name[:50]!r}: there are {known}", path=name[:50]
            )
        else:
            found[name] = value
    try:
        return msgspec.convert(found, kind, strict=False), apart
    except msgspec.ValidationError as error:
        said, path = _where(error)
        raise Refused(400, "invalid_input", f"query parameter {path or '?'}: {said}", path=path) from None


@cache
def _lists(kind: type[Struct]) -> tuple[frozenset[str], frozenset[str]]:
    """The names of parameters that may be repeated, and of all."""
    fields = msgspec.structs.fields(kind)
    several = frozenset(field.encode_name for field in fields if _is_list(field.type))
    return several, frozenset(field.encode_name for field in fields)


def _is_list(kind: Any) -> bool:
    return get_origin(kind) in (list, tuple) or any(_is_list(one) for one in get_args(kind))


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def read_body(kind: Any, data: bytes) -> Any:
    """A JSON body as that struct. Raises Refused."""
    if not data.strip():
        data = b"{}"
    try:
        json.loads(data, object_pairs_hook=_once, parse_constant=_no_constant)
        found = _decoder(kind).decode(data)
    except msgspec.ValidationError as error:
        said, path = _where(error)
        raise Refused(
            400, "invalid_input", f"the body does not fit at {path or 'its top'}: {said}", path=path
        ) from None
    except _Twice as error:
        raise Refused(400, "invalid_input", f"the body has the key {str(error)[:50]!r} twice in one object") from None
    except RecursionError:
        raise Refused(400, "invalid_input", f"the body is nested too deeply: {DEEPEST} levels are allowed") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise Refused(400, "invalid_input", f"the body is not JSON: {str(error)[:_SHOWN]}") from None
    if _too_deep(found, DEEPEST):
        raise Refused(400, "invalid_input", f"the body is nested too deeply: {DEEPEST} levels are allowed")
    return found


class _Twice(ValueError):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        raise _Twice(next(name for name, _ in pairs if name in seen or seen.add(name)))  # type: ignore[func-returns-value]
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _too_deep(value: Any, levels: int) -> bool:
    if isinstance(value, Struct):
        return any(_too_deep(getattr(value, name), levels - 1) for name in value.__struct_fields__)
    if isinstance(value, dict):
        return levels <= 0 or any(_too_deep(one, levels - 1) for one in value.values())
    if isinstance(value, list):
        return levels <= 0 or any(_too_deep(one, levels - 1) for one in value)
    return False


def _where(error: msgspec.ValidationError) -> tuple[str, str]:
    """What msgspec says, and the path that it names, without the dollar."""
    said, _, path = str(error).partition(" - at `")
    if said.startswith("Invalid enum value"):
        said += ": /docs lists the values"
    return said[:_SHOWN], path.rstrip("`").removeprefix("$").lstrip(".")
