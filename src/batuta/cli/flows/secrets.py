"""`batuta flows secrets`: values that actions use, and that are never shown."""

from __future__ import annotations

import sys

import click

from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import REASON, CommonOptions, with_common_options
from batuta.errors import NothingMatches

secrets = LazyGroup(
    "secrets",
    {
        "delete": ("batuta.cli.flows.secrets:delete", "Forget a secret."),
        "list": ("batuta.cli.flows.secrets:list_secrets", "List the names of all secrets."),
        "set": ("batuta.cli.flows.secrets:set_secret", "Store a secret; its value comes from standard input."),
    },
    help="Secrets that flows name as secret://store/NAME. Their values are never shown.",
)


@click.command("set")
@click.argument("name")
@REASON
@with_common_options
def set_secret(common: CommonOptions, name: str, reason: str) -> None:
    """Keep the secret NAME, in place of the one of that name.

    Its value is asked for, or read from standard input without the last end of line: a value among the arguments would
    be seen by others. It is encrypted where the database has keys.
    """
    if sys.stdin.isatty():
        value = click.prompt(f"Value of {name}", hide_input=True, err=True)
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    common.because(reason).ask(lambda client: client.flows.secrets.set(name, value))
    reference = f"secret://store/{name}"
    common.tell({"name": name, "reference": reference}, f"kept: write {reference} in a flow")


@click.command("list")
@with_common_options
def list_secrets(common: CommonOptions) -> None:
    """List the names of all secrets."""
    names = common.ask(lambda client: client.flows.secrets.names())
    common.tell({"secrets": names}, "\n".join(names) or "there are no secrets")


@click.command("delete")
@click.argument("name")
@REASON
@with_common_options
def delete(common: CommonOptions, name: str, reason: str) -> None:
    """Forget the secret NAME: calls that name it fail from now on."""
    if not common.because(reason).ask(lambda client: client.flows.secrets.remove(name)):
        raise NothingMatches(f"there is no secret {name!r}")
    common.tell({"name": name, "deleted": True}, f"deleted secret {name}")
