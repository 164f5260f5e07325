"""Redacts the output of commands, with BATUTA_REDACT or in a marked namespace, unless --reveal is given."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import json

from batuta.printable import paragraph, printable, printable_json

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
    """The same for a text. Its control characters are written out."""
    found = redactor()
    return printable(text if found is None else found.text(text))


def say(text: str, *, err: bool = False, whole: bool = False) -> None:
    """A line for people that may have somebody's words in it, as this command may show them. `whole`: not redacted."""
    click.echo(paragraph(text if whole else shown_text(text)), err=err)


def shown_json(value: Any, label: str = "") -> str:
    """The JSON of a payload, possibly with a name, as this command may show it."""
    found, data = redactor(), json.encode(value)
    text = (data if found is None else json.encode(found.labelled(label, json.decode(data)))).decode()
    return printable_json(text)


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
        from batuta.cli.common.app_loading import import_user_module

        import_user_module(text.partition(":")[0].strip())
    return from_env()


def may_show_whole() -> bool:
    """Whether this command shows payloads, and BATUTA_REDACT hides nothing of them."""
    context = click.get_current_context()
    redactor()
    return _REVEAL in context.meta and context.meta[_REDACTOR] is None


def redact() -> None:
    """Have this command redact as with BATUTA_REDACT=1: its namespace asks for it."""
    from batuta.redaction import Redactor

    click.get_current_context().meta[_REDACTOR] = Redactor()


def reveals() -> bool:
    """Whether this command shows what would have been hidden."""
    context = click.get_current_context()
    redactor()
    return bool(context.meta.get(_REVEAL)) and context.meta[_REDACTOR] is not None


def _note_reveal(context: click.Context, _param: click.Parameter, value: bool) -> None:
    context.meta[_REVEAL] = value


def revealing(command: F) -> F:
    """Give a command that shows payloads the option to show them unredacted. Goes above `placed`."""
    return click.option(
        "--reveal",
        is_flag=True,
        expose_value=False,
        callback=_note_reveal,
        help="Show redacted values; recorded in the audit log.",
    )(command)
