"""A group of commands that are imported when they are called, and the one place where errors become exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from batuta import __version__
from batuta.cli.common.redaction import say, shown_text
from batuta.errors import (
    BatutaError,
    InvalidInput,
    NothingMatches,
    StoreError,
    UnknownApiKey,
    UnknownEndpoint,
    UnknownEvent,
    UnknownFlow,
    UnknownLetter,
    UnknownQueue,
    UnknownRun,
    UnknownSchedule,
)
from batuta.printable import paragraph, printable, printable_json

OK, FAILED, USAGE, NOT_FOUND, NO_DATABASE = range(5)
"""Exit codes. They are promised: see `batuta --help`."""

AS_JSON, COMMAND = "batuta.json", "batuta.command"
"""Keys in click's `meta`: whether --json was given, and the command that is carried out."""

_OPTIONS = {
    "workflow": "name",
    "job": "name",
    "states": "state",
    "created_after": "since",
    "created_before": "until",
    "after": "since",
    "before": "until",
    "note": "reason",
}
"""Arguments of the client whose option has another name."""


def exit_code(error: BatutaError) -> int:
    """The exit code that an error ends a command with."""
    match error:
        case (
            UnknownRun()
            | UnknownQueue()
            | UnknownSchedule()
            | UnknownLetter()
            | UnknownApiKey()
            | UnknownEndpoint()
            | UnknownFlow()
            | UnknownEvent()
            | NothingMatches()
        ):
            return NOT_FOUND
        case StoreError():
            return NO_DATABASE
        case InvalidInput():
            return USAGE
        case _:
            return FAILED


def in_options(message: str, command: click.Command | None) -> str:
    """The message with the words of the command line: `--limit 0` in place of the client's `limit=0`."""
    if command is None:
        return message
    words = {param.name: max(param.opts, key=len) for param in command.params if isinstance(param, click.Option)}
    words |= {
        param.name: param.make_metavar(click.Context(command)) for param in command.params if param.name not in words
    }

    def word(found: re.Match[str]) -> str:
        option = words.get(found[1]) or words.get(_OPTIONS.get(found[1], ""))
        return f"{option}{' ' if found[2] else ''}" if option else f"{found[1]}="

    said, changed = re.subn(r"(?<![\w.])([a-z_]+)=(?=([^\s:;,.)])?)", word, message)
    return said.replace("None", "none") if changed else said


def tell(error: BatutaError, command: click.Command | None, *, as_json: bool) -> None:
    """An expected error: a sentence on stderr (a JSON object with --json), never a traceback."""
    message = shown_text(in_options(str(error), command))
    if as_json:
        _tell_json(type(error).__name__, message)
    else:
        say(f"error: {message}", err=True, whole=True)


def _tell_json(kind: str, message: str) -> None:
    click.echo(printable_json(json.dumps({"error": {"type": kind, "message": message}}, ensure_ascii=False)), err=True)


def _told(message: str) -> str:
    """The wrong text, redacted; with an invalid BATUTA_REDACT nothing is hidden."""
    try:
        return shown_text(message)
    except InvalidInput:
        return printable(message)


class LazyGroup(click.Group):
    """A group whose commands are `name: (module:attribute, one line of help)`."""

    def __init__(self, name: str, lazy: Mapping[str, tuple[str, str]], help: str) -> None:  # noqa: A002 - click's word
        super().__init__(name, help=help, context_settings={"help_option_names": ["-h", "--help"]})
        self._lazy = lazy
        click.version_option(__version__, message="batuta %(version)s")(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self._lazy)
            hint = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(sorted(self._lazy))}."
            raise click.UsageError(f"{error.message} {hint}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From our own table: click would import every command for its line of help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy[name][1]) for name in self.list_commands(ctx)])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta.setdefault(AS_JSON, "--json" in args)  # known before the words after it are found to be wrong
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.message = _told(error.message)  # type: ignore[misc]  # it is shown only later
            if not ctx.meta.get(AS_JSON):
                error.message = paragraph(error.message)  # type: ignore[misc]
                raise
            _tell_json("UsageError", error.format_message())
            ctx.exit(USAGE)
        except BatutaError as error:
            tell(error, ctx.meta.get(COMMAND), as_json=bool(ctx.meta.get(AS_JSON)))
            ctx.exit(exit_code(error))
