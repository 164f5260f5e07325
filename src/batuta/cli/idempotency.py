"""`batuta idempotency`: keys of requests that are carried out once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from batuta.cli import output
from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import REASON, CommonOptions, with_common_options

if TYPE_CHECKING:
    from rich.table import Table

idempotency = LazyGroup(
    "idempotency",
    {
        "list": ("batuta.cli.idempotency:list_keys", "List keys and their states."),
        "delete": ("batuta.cli.idempotency:delete", "Delete a key: the next request with it is carried out."),
    },
    help="Idempotency keys of requests: each request is carried out once, and its answer is kept for a day.",
)


@click.command("list")
@click.option("--prefix", default="", help="Only keys with this prefix, such as 'POST /orders'.")
@click.option("--cursor", help="Of the page before.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many.")
@with_common_options
def list_keys(common: CommonOptions, prefix: str, cursor: str | None, limit: int) -> None:
    """The keys of the namespace, in their order: where each was used, and the key itself."""
    found = common.ask(lambda client: client.idempotency.list(prefix=prefix, cursor=cursor, limit=limit))

    def view() -> Table:
        when = output.tables.when
        rows = [(one.key, one.state, when(one.locked_until), when(one.expires_at)) for one in found.keys]
        return output.tables.table("key", "state", "locked until (UTC)", "kept until (UTC)", rows=rows)

    more = "" if found.cursor is None else f"there are more: --cursor {found.cursor}"  # a key: it may be redacted
    common.show(found, view, note=more if found.keys else "no keys are kept")


@click.command()
@click.argument("key")
@REASON
@with_common_options
def delete(common: CommonOptions, key: str, reason: str) -> None:
    """Delete KEY, as `batuta idempotency list` shows it. The next request with it is carried out again."""
    deleted = common.ask(lambda client: client.idempotency.delete(key, reason=reason))
    said = "was deleted" if deleted else "is not kept: `batuta idempotency list` shows the keys that are"
    common.tell({"key": key, "deleted": deleted}, f"key {key} {said}")
