"""`batuta quotas`: how much a namespace may start."""

from __future__ import annotations

from collections.abc import Sequence

import click

from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import REASON, CommonOptions, with_common_options
from batuta.cli.common.redaction import say
from batuta.errors import InvalidInput
from batuta.journal.quotas import Quota

quotas = LazyGroup(
    "quotas",
    {
        "delete": ("batuta.cli.quotas:delete", "Delete a quota of the namespace."),
        "list": ("batuta.cli.quotas:list_quotas", "List quotas and how much of them is used."),
        "set": ("batuta.cli.quotas:set_quota", "Set a quota, or replace it."),
    },
    help="List, set and delete the quotas of a namespace.",
)

_NONE = "none"


@click.command("list")
@with_common_options
def list_quotas(common: CommonOptions) -> None:
    """List the quotas of the namespace: its own, and those of namespace `*` where it has none."""
    _answer(common, common.ask(lambda client: client.quotas.list()))


@click.command("set")
@click.argument("name")
@click.argument("limit", metavar="LIMIT|none")
@click.option("--burst", type=int, metavar="N", help="For starts_per_second: the largest burst.")
@REASON
@with_common_options
def set_quota(common: CommonOptions, name: str, limit: str, burst: int | None, reason: str) -> None:
    """Set the quota NAME: open_runs, starts_per_second, payload_bytes or waiting_messages.

    It applies to all clients of the namespace, within about a second. With --namespace '*' it applies to every
    namespace without its own quota. The limit `none` means no limit, also where `*` has one.
    """
    _, found = common.because(reason).ask_both(
        lambda client: client.quotas.set(name, _limit(limit), burst=burst), lambda client: client.quotas.list()
    )
    _answer(common, found)


@click.command()
@click.argument("name")
@REASON
@with_common_options
def delete(common: CommonOptions, name: str, reason: str) -> None:
    """Delete the quota NAME of the namespace. The quota of namespace `*` then applies, if there is one."""
    found, rest = common.because(reason).ask_both(
        lambda client: client.quotas.delete(name), lambda client: client.quotas.list()
    )
    if not found:
        say(f"there was no quota {name}", err=True)
    _answer(common, rest)


def _limit(text: str) -> float | None:
    if text.lower() == _NONE:
        return None
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        raise InvalidInput(f"LIMIT={text!r} must be a number, or `{_NONE}`") from None


def _answer(common: CommonOptions, found: Sequence[Quota]) -> None:
    common.show_rows(
        {"quotas": found},
        ("quota", "limit", "used", "of"),
        ((one.name, _shown_limit(one), _shown_use(one), "this namespace" if one.own else "*") for one in found),
        none="there are no quotas: starts are not limited",
    )


def _shown_limit(quota: Quota) -> str:
    if quota.limit is None:
        return _NONE
    return f"{quota.limit:,}" + ("" if quota.burst is None else f", {quota.burst:,} at once")


def _shown_use(quota: Quota) -> str:
    if quota.limit is None or quota.used is None:
        return ""
    is_more = quota.burst is None and quota.used > quota.limit
    return f"more than {quota.limit:,}" if is_more else f"{quota.used:,.0f}"
