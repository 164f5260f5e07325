"""`batuta api-keys`: who may ask the server."""

from __future__ import annotations

import click

from batuta.authoring.client.api_keys import ApiKey, NewApiKey
from batuta.cli import output
from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import REASON, CommonOptions, duration_option, with_common_options
from batuta.journal.server.api_keys import SCOPES

api_keys = LazyGroup(
    "api-keys",
    {
        "create": ("batuta.cli.api_keys:create", "Make a key, and print it once."),
        "list": ("batuta.cli.api_keys:list_keys", "List keys, without their secrets."),
        "revoke": ("batuta.cli.api_keys:revoke", "Refuse a key from now on."),
        "rotate": ("batuta.cli.api_keys:rotate", "Make a key like another, and revoke that one."),
    },
    help="API keys of the server, each with a scope. (`batuta keys` manages the keys that encrypt payloads.)",
)


@click.command()
@click.argument("name")
@click.option("--scope", type=click.Choice(SCOPES), default="viewer", show_default=True, help="What it may do.")
@duration_option("--expires", "The key is refused after that.")
@REASON
@with_common_options
def create(common: CommonOptions, name: str, scope: str, expires: float | None, reason: str) -> None:
    """Make a key with this NAME for the namespace, and print it. It is shown once: the database keeps a hash of it.

    With --namespace '*' it is good for every namespace.
    """
    made = common.ask(lambda client: client.api_keys.create(name, scope, expires=expires, reason=reason), migrate=True)
    _show_new(common, made)


@click.command("list")
@with_common_options
def list_keys(common: CommonOptions) -> None:
    """The keys of the namespace, also those that are expired or revoked."""
    found = common.ask(lambda client: client.api_keys.list())

    def row(key: ApiKey) -> list[str]:
        times = (key.created_at, key.expires_at, key.last_used_at, key.revoked_at)
        return [key.id, key.name, key.scope, key.namespace, *(output.tables.to_second(at) for at in times)]

    times = ("created (UTC)", "expires (UTC)", "last used (UTC)", "revoked (UTC)")
    none = "there are no keys: the server listens to this machine alone"
    common.show_rows({"api_keys": found}, ("id", "name", "scope", "namespace", *times), map(row, found), none=none)


@click.command()
@click.argument("id")
@duration_option("--overlap", "How long the old key still works.")
@REASON
@with_common_options
def rotate(common: CommonOptions, id: str, overlap: float | None, reason: str) -> None:
    """Make a key with the name, scope and length of validity of the key ID, and revoke that one."""
    _show_new(common, common.ask(lambda client: client.api_keys.rotate(id, overlap=overlap or 0, reason=reason)))


@click.command()
@click.argument("id")
@REASON
@with_common_options
def revoke(common: CommonOptions, id: str, reason: str) -> None:
    """Refuse the key ID from now on; servers know it within a second."""
    changed = common.ask(lambda client: client.api_keys.revoke(id, reason=reason))
    said = f"key {id} is revoked" if changed else f"key {id} was revoked before"
    common.tell({"id": id, "revoked": True}, said)


def _show_new(common: CommonOptions, made: NewApiKey) -> None:
    note = f"key {made.id} ({made.scope}, namespace {made.namespace}): it is not shown again"
    common.show_secret(made, made.key, note)
