"""Options that several commands have, each said once: the same word means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from batuta.cli.common.inputs import DURATION

F = TypeVar("F", bound=Callable[..., Any])

SINCE = click.option("--since", metavar="TIME", help="From this time on: 1h (ago), 2d, or ISO 8601.")
UNTIL = click.option("--until", metavar="TIME", help="Before this time: 1h (ago), 2d, or ISO 8601.")
LIMIT = click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Rows per page.")
CURSOR = click.option("--cursor", metavar="TEXT", help="The cursor that the previous page printed.")
NAME = click.option("--name", metavar="NAME", help="The name of the workflow or job.")
REASON = click.option("--reason", default="", metavar="TEXT", help="Why you do it; recorded in the audit log.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")


def app_option(text: str, *, required: bool = False) -> Callable[[F], F]:
    """Code: a module, or an App in it."""
    return click.option("--app", metavar="MODULE[:ATTR]", required=required, help=text)


def duration_option(name: str, text: str, *, required: bool = False) -> Callable[[F], F]:
    """Seconds, or a text such as 5min."""
    return click.option(name, type=DURATION, metavar="DURATION", required=required, help=text)


def with_options(*options: Any) -> Callable[[F], F]:
    """Give a command these options, in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
