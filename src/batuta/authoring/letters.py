"""What a client sends to a run, and what it starts one with: checked and encoded."""

from __future__ import annotations

import re
from typing import Any

from batuta.authoring.backend import Letter, StartRequest
from batuta.authoring.messages import Query, Signal, Update
from batuta.authoring.names import check_name
from batuta.authoring.starting import check_id, check_start_options, name_version_input
from batuta.errors import InvalidInput
from batuta.ids import new_message_id
from batuta.journal.records import IfExists
from batuta.serde import Decoder, decode, decoder_for, encode


def signal_letter(signal: Any, value: Any, message_id: str | None, limit: int) -> Letter:
    """A signal. With its definition at hand, a value that does not fit is refused here."""
    name = name_of(signal, Signal)
    what = f"the value of signal {name!r}"
    data = encode(value, what, limit)
    if isinstance(signal, Signal):
        decode(data, signal.decoder, what)
    return Letter(name, data, _message_id(message_id))


def start_signal(given: Any, limit: int) -> Letter:
    """The `signal` option of a start: (definition or name, value) or (..., value, message id)."""
    if not isinstance(given, tuple) or not 2 <= len(given) <= 3:
        raise InvalidInput(f"signal={given!r} must be (a signal or its name, value) or (..., value, message id)")
    return signal_letter(given[0], given[1], given[2] if len(given) == 3 else None, limit)


def update_letter(update: Any, args: tuple[Any, ...], update_id: str | None, limit: int) -> Letter:
    """A request for an update."""
    name = name_of(update, Update)
    return Letter(name, encode(args, f"the input of update {name!r}", limit), _message_id(update_id))


def query_input(query: Any, args: tuple[Any, ...], limit: int) -> tuple[str, bytes]:
    """A query's name and arguments."""
    name = name_of(query, Query)
    return name, encode(args, f"the input of query {name!r}", limit)


def decoder_of(definition: Any) -> Decoder:
    """For what comes back; plain JSON values when only a name is known."""
    return definition.decoder if isinstance(definition, Update | Query) else _ANYTHING


_ANYTHING = decoder_for(Any, "an answer")


def name_of(given: Any, kind: type[Signal[Any] | Update[Any] | Query[Any]]) -> str:
    """The name of a signal, update or query, given as its definition or as a text. Raises InvalidInput."""
    if isinstance(given, kind):
        return given.name
    if isinstance(given, str):
        return check_name(given, f"{kind.what} name")
    raise InvalidInput(f"{given!r} is no {kind.what}: give a {kind.__name__}(...) or its name")


_OURS = re.compile(r"(start|cancel|child|parent|answer):[0-9a-f]{8}-")
"""Ids of messages that are not signals or updates. One of ours that is taken already would count as sent before."""


def _message_id(given: str | None) -> str:
    if given is None:
        return new_message_id()
    if _OURS.match(check_name(given, "message id")):
        raise InvalidInput(f"message id {given!r} looks like one of Batuta's own: put something else before it")
    return given


# -- starts


def start_request(
    workflow: Any, args: tuple[Any, ...], id: str | None, options: dict[str, Any], limit: int
) -> StartRequest:
    """What `start` asks of the backend. Raises InvalidInput."""
    if id is not None:
        check_id(id)
    if not options:
        name, version, data = name_version_input(workflow, args, None, limit)
        return StartRequest(workflow=name, version=version, input=data, id=id)
    _check_options(options)
    name, version, data = name_version_input(workflow, args, options.pop("version", None), limit)
    if options.get("signal") is not None:
        options["signal"] = start_signal(options["signal"], limit)
    return StartRequest(workflow=name, version=version, input=data, id=id, **options)


_OPTIONS = frozenset(StartRequest.__struct_fields__) - {"workflow", "input", "id"}


def _check_options(options: dict[str, Any]) -> None:
    if unknown := options.keys() - _OPTIONS:
        raise InvalidInput(
            f"unknown start options {', '.join(sorted(unknown))}: there are {', '.join(sorted(_OPTIONS))} "
            f"(arguments of the workflow are given by position)"
        )
    check_start_options(options)
    if "if_exists" in options:
        try:
            options["if_exists"] = IfExists(options["if_exists"])
        except ValueError:
            raise InvalidInput(f"if_exists={options['if_exists']!r} must be one of {', '.join(IfExists)}") from None
