"""`batuta quotas`: how much a namespace may start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from batuta.cli.lazy import LazyGroup
from batuta.cli.place import Place, placed
from batuta.errors import InvalidInput

if TYPE_CHECKING:
    from batuta.authoring.quotas import Quota
    from batuta.client import Batuta

quotas = LazyGroup(
    "quotas",
    {
        "clear": ("batuta.cli.quotas:clear", "Take a quota away."),
        "list": ("batuta.cli.quotas:list_quotas", "The quotas that hold, and what of them is used."),
        "set": ("batuta.cli.quotas:set_quota", "Set a quota, or replace it."),
    },
    help="How much a namespace may start: list, set and clear its quotas.",
)

_NONE = "none"


@click.command("list")
@placed
def list_quotas(place: Place) -> None:
    """The quotas that hold in the namespace: its own, and those of namespace `*` where it has none."""
    _answer(place, place.ask(lambda client: client.quotas.list()))


@click.command("set")
@click.argument("name")
@click.argument("limit", metavar="LIMIT|none")
@click.option("--burst", type=int, metavar="N", help="Of starts_per_second: how many may come at once.")
@placed
def set_quota(place: Place, name: str, limit: str, burst: int | None) -> None:
    """Set the quota NAME: open_runs, starts_per_second or payload_bytes.

    It holds for all clients of the namespace, within a second or so. With --namespace '*' it holds for every namespace
    that has none of its own; `none` is none, also where `*` has one.
    """

    async def work(client: Batuta) -> Sequence[Quota]:
        await client.quotas.set(name, _limit(limit), burst=burst)
        return await client.quotas.list()

    _answer(place, place.ask(work))


@click.command()
@click.argument("name")
@placed
def clear(place: Place, name: str) -> None:
    """Take the quota NAME of the namespace away. That of namespace `*` holds then, if there is one."""

    async def work(client: Batuta) -> tuple[bool, Sequence[Quota]]:
        return await client.quotas.clear(name), await client.quotas.list()

    found, rest = place.ask(work)
    if not found:
        click.echo(f"there was no quota {name}", err=True)
    _answer(place, rest)


def _limit(text: str) -> float | None:
    if text.lower() == _NONE:
        return None
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        raise InvalidInput(f"LIMIT={text!r} must be a number, or `{_NONE}`") from None


def _answer(place: Place, found: Sequence[Quota]) -> None:
    def human(console: Any) -> None:
        from batuta.cli.tables import table

        made = table("quota", "limit", "used", "of")
        for quota in found:
            made.add_row(quota.name, _shown_limit(quota), _shown_use(quota), "this namespace" if quota.own else "*")
        console.print(made)
        if not found:
            click.echo("there are no quotas: all that is asked for is started", err=True)

    place.answer({"quotas": found}, human)


def _shown_limit(quota: Quota) -> str:
    if quota.limit is None:
        return _NONE
    return f"{quota.limit:,}" + ("" if quota.burst is None else f", {quota.burst:,} at once")


def _shown_use(quota: Quota) -> str:
    if quota.limit is None or quota.used is None:
        return ""
    is_more = quota.burst is None and quota.used > quota.limit
    return f"more than {quota.limit:,}" if is_more else f"{quota.used:,.0f}"
