"""A group of commands that are imported when they are called, and the one place where errors become exit codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from batuta.cli.redacting import shown_text
from batuta.errors import (
    BatutaError,
    InvalidInput,
    NothingMatches,
    StoreError,
    UnknownLetter,
    UnknownQueue,
    UnknownRun,
    UnknownSchedule,
)

OK, FAILED, USAGE, NOT_FOUND, NO_DATABASE = range(5)
"""Exit codes. They are promised: see `batuta --help`."""

AS_JSON = "batuta.json"
"""Key in click's `meta`: whether --json was given."""


def exit_code(error: BatutaError) -> int:
    """The exit code that an error ends a command with."""
    match error:
        case UnknownRun() | UnknownQueue() | UnknownSchedule() | UnknownLetter() | NothingMatches():
            return NOT_FOUND
        case StoreError():
            return NO_DATABASE
        case InvalidInput():
            return USAGE
        case _:
            return FAILED


def tell(error: BatutaError, *, as_json: bool) -> None:
    """An expected error: a sentence on stderr (a JSON object with --json), never a traceback."""
    message = shown_text(str(error))
    if as_json:
        _tell_json(type(error).__name__, message)
    else:
        click.echo(f"error: {message}", err=True)


def _tell_json(kind: str, message: str) -> None:
    click.echo(json.dumps({"error": {"type": kind, "message": message}}, ensure_ascii=False), err=True)


def _told(message: str) -> str:
    """What was written wrong, redacted; a BATUTA_REDACT that is wrong itself hides nothing of it."""
    try:
        return shown_text(message)
    except InvalidInput:
        return message


class LazyGroup(click.Group):
    """A group whose commands are `name: (module:attribute, one line of help)`."""

    def __init__(self, name: str, lazy: Mapping[str, tuple[str, str]], help: str) -> None:  # noqa: A002 - click's word
        super().__init__(name, help=help, context_settings={"help_option_names": ["-h", "--help"]})
        self._lazy = lazy
        self.params.append(
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_version,
                help="Show the version and exit.",
            )
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

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
            error.message = _told(error.message)  # type: ignore[misc]  # whoever shows it asks for it only now
            if not ctx.meta.get(AS_JSON):
                raise
            _tell_json("UsageError", error.format_message())
            ctx.exit(USAGE)
        except BatutaError as error:
            tell(error, as_json=bool(ctx.meta.get(AS_JSON)))
            ctx.exit(exit_code(error))


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from batuta import __version__

        click.echo(f"batuta {__version__}")
        ctx.exit()
