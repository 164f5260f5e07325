"""What a command may show: with BATUTA_REDACT everything goes through a redactor, unless --reveal asks for the rest."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from batuta.redaction import Redactor

F = TypeVar("F", bound=Callable[..., Any])

_REDACTOR, _REVEAL = "batuta.redactor", "batuta.reveal"
"""Keys in click's `meta`."""


def shown(value: Any) -> Any:
    """A value of JSON as this command may show it."""
    found = redactor()
    return value if found is None else found.value(value)


def shown_text(text: str) -> str:
    """The same for a text."""
    found = redactor()
    return text if found is None else found.text(text)


def say(text: str, *, err: bool = False) -> None:
    """A line for people that has somebody's words in it, as this command may show them."""
    click.echo(shown_text(text), err=err)


def shown_json(value: Any, label: str = "") -> str:
    """The JSON of a payload, which may go by a name, as this command may show it."""
    from msgspec import json

    found, data = redactor(), json.encode(value)
    return (data if found is None else json.encode(found.labelled(label, json.decode(data)))).decode()


def redactor() -> Redactor | None:
    """Of the command that is carried out; None when it shows everything. Raises InvalidInput."""
    context = click.get_current_context(silent=True)
    if context is None:
        return None
    if _REDACTOR not in context.meta:
        context.meta[_REDACTOR] = None  # if the next line fails, that is still told
        context.meta[_REDACTOR] = _chosen()
    found: Redactor | None = None if context.meta.get(_REVEAL) else context.meta[_REDACTOR]
    return found


def _chosen() -> Redactor | None:
    text = os.environ.get("BATUTA_REDACT", "")
    if not text:
        return None
    from batuta.redaction import from_env

    if ":" in text:
        from batuta.cli.loading import import_user_module

        import_user_module(text.partition(":")[0].strip())
    return from_env()


def reveals() -> bool:
    """Whether this command shows what would have been hidden."""
    context = click.get_current_context()
    redactor()
    return bool(context.meta.get(_REVEAL)) and context.meta[_REDACTOR] is not None


def _note_reveal(context: click.Context, _param: click.Parameter, value: bool) -> None:
    context.meta[_REVEAL] = value


def revealing(command: F) -> F:
    """Give a command that shows payloads the option to show them whole. Stands above `placed`."""
    return click.option(
        "--reveal",
        is_flag=True,
        expose_value=False,
        callback=_note_reveal,
        help="Show what BATUTA_REDACT hides; the audit log tells who did.",
    )(command)
