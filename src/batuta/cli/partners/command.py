"""`batuta partners`: breakers and limits towards partners."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from batuta.cli import output
from batuta.cli.common.inputs import DURATION
from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import REASON, CommonOptions, with_common_options
from batuta.cli.common.redaction import say

if TYPE_CHECKING:
    from rich.console import Console

    from batuta.client import Batuta
    from batuta.resilience.operators import BreakerView, LimitView

    Found = tuple[Sequence[BreakerView], Sequence[LimitView]]

_HERE = "batuta.cli.partners.command"
partners = LazyGroup(
    "partners",
    {
        "close": (f"{_HERE}:close", "Close a breaker, and let it work by itself."),
        "delete": (f"{_HERE}:delete", "Delete a breaker or a limit."),
        "hold": (f"{_HERE}:hold", "Stop all calls to a partner for a while."),
        "limit": (f"{_HERE}:limit", "Change a limit, or make one."),
        "list": (f"{_HERE}:list_partners", "List breakers and limits."),
        "off": (f"{_HERE}:off", "Switch a breaker off: it lets everything in."),
        "open": (f"{_HERE}:open_breaker", "Hold a breaker open: no call reaches the partner."),
        "release": (f"{_HERE}:release", "End a pause now."),
        "reset": (f"{_HERE}:reset", "Go back to the limit that code declares."),
        "sync": (f"{_HERE}:sync", "Tell the balance that a partner keeps."),
    },
    help="List and change breakers and limits towards partners.",
)

_KEY = click.option("--key", help="Only for this key of the limit.")


@click.command("list")
@with_common_options
def list_partners(common: CommonOptions) -> None:
    """List the breakers and limits of the namespace."""
    _answer(common, common.ask(_found))


@click.command("open")
@click.argument("name")
@REASON
@with_common_options
def open_breaker(common: CommonOptions, name: str, reason: str) -> None:
    """Hold the breaker NAME open until it is closed."""
    _do(common.because(reason), lambda client: client.breakers.open(name))


@click.command()
@click.argument("name")
@REASON
@with_common_options
def close(common: CommonOptions, name: str, reason: str) -> None:
    """Close the breaker NAME now. From then on it works by itself."""
    _do(common.because(reason), lambda client: client.breakers.close(name))


@click.command()
@click.argument("name")
@REASON
@with_common_options
def off(common: CommonOptions, name: str, reason: str) -> None:
    """Switch the breaker NAME off until it is closed."""
    _do(common.because(reason), lambda client: client.breakers.off(name))


@click.command()
@click.argument("name")
@click.option("--rate", "rates", multiple=True, metavar="RATE", help="Such as 100/min; several hold at once.")
@click.option("--concurrency", type=int, metavar="N", help="Calls at once.")
@REASON
@with_common_options
def limit(common: CommonOptions, name: str, rates: tuple[str, ...], concurrency: int | None, reason: str) -> None:
    """Have this hold for the limit NAME instead of what code declares, at once in all workers."""
    _do(common.because(reason), lambda client: client.limits.change(name, rates=rates, concurrency=concurrency))


@click.command()
@click.argument("name")
@REASON
@with_common_options
def reset(common: CommonOptions, name: str, reason: str) -> None:
    """Have what code declares hold again for the limit NAME."""
    _do(common.because(reason), lambda client: client.limits.reset(name))


@click.command()
@click.argument("name")
@click.argument("wait", type=DURATION, metavar="DURATION")
@_KEY
@with_common_options
def hold(common: CommonOptions, name: str, wait: float, key: str | None) -> None:
    """Have no worker pass the limit NAME for DURATION, such as 10min."""
    _do(common, lambda client: client.limits.hold(name, wait, key=key))


@click.command()
@click.argument("name")
@_KEY
@with_common_options
def release(common: CommonOptions, name: str, key: str | None) -> None:
    """End a pause of the limit NAME now."""
    _do(common, lambda client: client.limits.release(name, key=key))


@click.command(context_settings={"ignore_unknown_options": True})  # so that -5 is a balance
@click.argument("name")
@click.argument("balance", type=float)
@_KEY
@with_common_options
def sync(common: CommonOptions, name: str, balance: float, key: str | None) -> None:
    """Tell the BALANCE that the partner has for the limit NAME; it may be negative."""
    _do(common, lambda client: client.limits.sync(name, balance, key=key))


@click.command()
@click.argument("kind", type=click.Choice(["breaker", "limit"]))
@click.argument("name")
@REASON
@with_common_options
def delete(common: CommonOptions, kind: str, name: str, reason: str) -> None:
    """Delete the breaker or limit NAME, with all that it counts. A worker that uses it declares it again."""
    _do(
        common.because(reason),
        lambda client: (client.breakers if kind == "breaker" else client.limits).forget(name),
    )


def _do(common: CommonOptions, act: Callable[[Batuta], Awaitable[object]]) -> None:
    """Act, and show what there is then."""
    _, found = common.ask_both(act, _found)
    _answer(common, found)


async def _found(client: Batuta) -> Found:
    return await client.breakers.list(), await client.limits.list()


def _answer(common: CommonOptions, found: Found) -> None:
    breakers, limits = found

    def human(console: Console) -> None:
        if breakers:
            columns = ("breaker", "state", "since", "until", "reason")
            console.print(output.tables.table(*columns, rows=map(_breaker_row, breakers)))
        if limits:
            rows = [row for limit in limits for row in _limit_rows(limit)]
            console.print(output.tables.table("limit", "allows", "key", "used", "held until", rows=rows))
        if not breakers and not limits:
            say("there are no breakers and limits: workers declare them when they first use them", err=True)

    common.answer({"breakers": breakers, "limits": limits}, human)


def _breaker_row(one: BreakerView) -> tuple[str, ...]:
    state = f"{one.state} (forced {one.forced})" if one.forced else one.state
    return one.name, state, _time(one.since), _time(one.until), one.reason


def _limit_rows(limit: LimitView) -> Iterator[tuple[str, ...]]:
    """One for each key, the first with the name and the settings of the limit."""
    allows = limit.text() + (f" (changed; code: {limit.declared or 'none'})" if limit.changed else "")
    head = (limit.name, allows)
    for key in limit.keys:
        used = [f"{count} of {rate}" for rate, count in key.used.items()]
        used += [f"{key.running} at once"] if limit.concurrency else []
        used += [f"balance {key.balance:g}"] if key.balance is not None else []
        yield (*head, key.key, ", ".join(used), _time(key.held_until))
        head = ("", "")
    if not limit.keys:
        yield (*head, "", "", "")


def _time(moment: Any) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"
