"""`batuta webhooks`: endpoints, deliveries, and events to be sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from batuta.authoring.backend import Description
from batuta.cli import output
from batuta.cli.common.inputs import read_json
from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import (
    CURSOR,
    LIMIT,
    REASON,
    CommonOptions,
    duration_option,
    with_common_options,
    with_options,
)
from batuta.cli.common.redaction import say

if TYPE_CHECKING:
    from batuta.webhooks import Endpoint, NewEndpoint

_HERE = "batuta.cli.partners.webhooks"
webhooks = LazyGroup(
    "webhooks",
    {
        "create": (f"{_HERE}:create", "Add an endpoint, and print its secret once."),
        "delete": (f"{_HERE}:delete", "Delete an endpoint."),
        "deliveries": (f"{_HERE}:deliveries", "List deliveries."),
        "disable": (f"{_HERE}:disable", "Stop deliveries to an endpoint."),
        "enable": (f"{_HERE}:enable", "Deliver to an endpoint again."),
        "list": (f"{_HERE}:list_endpoints", "List endpoints."),
        "resend": (f"{_HERE}:resend", "Deliver again, with the same id and body."),
        "rotate": (f"{_HERE}:rotate", "Sign with a new secret, and print it once."),
        "send": (f"{_HERE}:send", "Send an event to the endpoints that take it."),
        "show": (f"{_HERE}:show", "Show an endpoint."),
        "test": (f"{_HERE}:test", "Send a test event to an endpoint."),
        "update": (f"{_HERE}:update", "Change an endpoint."),
    },
    help="Webhooks to other people's endpoints: list, change, send, resend.",
)

_TYPES = click.option(
    "--type", "types", multiple=True, metavar="TYPE", help="A type of events: order.paid, or order.*."
)
_DESCRIPTION = click.option("--description", metavar="TEXT", help="Owner and purpose of the endpoint.")
_AFTER = duration_option("--disable-after", "Disable the endpoint after only failures for this long; 0: never.")
_FIELDS = with_options(_TYPES, _DESCRIPTION, _AFTER)


@click.command()
@click.argument("address")
@_FIELDS
@REASON
@with_common_options
def create(
    common: CommonOptions,
    address: str,
    types: tuple[str, ...],
    description: str | None,
    disable_after: float | None,
    reason: str,
) -> None:
    """Add an endpoint at ADDRESS, and print its secret. It is not shown again."""
    made = common.ask(
        lambda client: client.webhooks.create(
            address,
            types=types,
            description=description or "",
            disable_after=disable_after or None,
            reason=reason,
        ),
        migrate=True,
    )
    _show_new(common, made)


@click.command("list")
@with_common_options
def list_endpoints(common: CommonOptions) -> None:
    """List the endpoints of the namespace."""
    found = common.ask(lambda client: client.webhooks.list())

    def row(one: Endpoint) -> tuple[str, ...]:
        since = output.tables.to_second(one.failing_since)
        return one.id, one.url, ", ".join(one.types) or "all", _state(one), since, one.description

    columns = ("id", "url", "takes", "state", "fails since (UTC)", "description")
    none = "there are no endpoints: `batuta webhooks create ADDRESS` adds one"
    common.show_rows({"endpoints": found}, columns, map(row, found), none=none)


@click.command()
@click.argument("id")
@with_common_options
def show(common: CommonOptions, id: str) -> None:
    """Show the endpoint ID, without its secrets."""
    _show(common, common.ask(lambda client: client.webhooks.get(id)))


@click.command()
@click.argument("id")
@click.option("--address", metavar="URL", help="Where it is.")
@_FIELDS
@REASON
@with_common_options
def update(
    common: CommonOptions,
    id: str,
    address: str | None,
    types: tuple[str, ...],
    description: str | None,
    disable_after: float | None,
    reason: str,
) -> None:
    """Change the endpoint ID. What is not given stays; `--type '*'` stands for all events."""
    _show(
        common,
        common.ask(
            lambda client: client.webhooks.update(
                id,
                url=address,
                types=types or None,
                description=description,
                disable_after=disable_after,
                reason=reason,
            )
        ),
    )


@click.command()
@click.argument("id")
@duration_option("--overlap", "How long the old secret signs, too.  [default: 24h]")
@REASON
@with_common_options
def rotate(common: CommonOptions, id: str, overlap: float | None, reason: str) -> None:
    """Sign with a new secret for the endpoint ID, and print it. It is not shown again."""
    lasts = 24 * 3600.0 if overlap is None else overlap
    _show_new(common, common.ask(lambda client: client.webhooks.rotate(id, overlap=lasts, reason=reason)))


@click.command()
@click.argument("id")
@REASON
@with_common_options
def enable(common: CommonOptions, id: str, reason: str) -> None:
    """Deliver to the endpoint ID again."""
    _show(common, common.ask(lambda client: client.webhooks.enable(id, reason)))


@click.command()
@click.argument("id")
@REASON
@with_common_options
def disable(common: CommonOptions, id: str, reason: str) -> None:
    """Deliver no more to the endpoint ID."""
    _show(common, common.ask(lambda client: client.webhooks.disable(id, reason)))


@click.command()
@click.argument("id")
@REASON
@with_common_options
def delete(common: CommonOptions, id: str, reason: str) -> None:
    """Delete the endpoint ID. Deliveries that are under way become dead letters."""
    common.ask(lambda client: client.webhooks.delete(id, reason))
    common.tell({"id": id, "deleted": True}, f"endpoint {id} is deleted")


@click.command()
@click.argument("event_type", metavar="TYPE")
@click.option("--data", metavar="JSON", help="What happened; @file reads a file.")
@click.option("--id", help="The webhook's id: an id that was sent before is not sent again.")
@click.option("--endpoint", "endpoints", multiple=True, metavar="ID", help="Only this endpoint.")
@with_common_options
def send(common: CommonOptions, event_type: str, data: str | None, id: str | None, endpoints: tuple[str, ...]) -> None:
    """Send an event of this TYPE to every endpoint that takes it."""
    value = None if data is None else read_json(data, "--data")
    made = common.ask(lambda client: client.webhooks.send(event_type, value, id=id, endpoints=endpoints or None))
    _sent(common, made)


@click.command()
@click.argument("id")
@with_common_options
def test(common: CommonOptions, id: str) -> None:
    """Send an event `webhook.test` to the endpoint ID."""
    _sent(common, [common.ask(lambda client: client.webhooks.test(id))])


@click.command()
@click.option("--endpoint", metavar="ID", help="To this endpoint.")
@click.option("--type", "event", metavar="TYPE", help="Only deliveries of this type of event.")
@click.option("--state", "states", multiple=True, help="Only deliveries in this state, such as failed or completed.")
@LIMIT
@CURSOR
@with_common_options
def deliveries(
    common: CommonOptions,
    endpoint: str | None,
    event: str | None,
    states: tuple[str, ...],
    limit: int,
    cursor: str | None,
) -> None:
    """List deliveries, newest first. `batuta jobs show ID` has the attempts of one."""
    page = common.ask(
        lambda client: client.webhooks.deliveries(
            endpoint=endpoint, event=event, states=states, limit=limit, cursor=cursor
        )
    )

    def row(one: Description) -> tuple[str, ...]:
        sent, due = (output.tables.to_second(at) for at in (one.created_at, one.wake_at))
        return one.id, one.tags.get("type", ""), str(one.state), sent, due if one.closed_at is None else "", one.reason

    columns = ("id", "type", "state", "sent (UTC)", "next attempt (UTC)", "reason")
    note = f"more: --cursor {page.cursor}" if page.cursor else ""
    document = {"deliveries": page.runs, "cursor": page.cursor}
    common.show(document, lambda: output.tables.table(*columns, rows=map(row, page.runs)), note=note)


@click.command()
@click.argument("id")
@REASON
@with_common_options
def resend(common: CommonOptions, id: str, reason: str) -> None:
    """Deliver again what was delivered or has failed: ID is the id or the run id of the delivery."""
    _sent(common, [common.ask(lambda client: client.webhooks.resend(id, reason))])


def _state(one: Endpoint) -> str:
    return "enabled" if one.enabled else f"disabled ({one.reason})"


def _show(common: CommonOptions, one: Endpoint) -> None:
    said = f"{one.id}  {one.url}  takes {', '.join(one.types) or 'all'}  {_state(one)}"
    common.tell(one, said)


def _show_new(common: CommonOptions, made: NewEndpoint) -> None:
    note = f"the secret of endpoint {made.id}, for the receiver: it is not shown again"
    common.show_secret(made, made.secret, note)


def _sent(common: CommonOptions, made: Any) -> None:
    rows = [{"id": one.id, "run_id": one.run_id, "is_new": one.is_new is not False} for one in made]

    def human(_: Any) -> None:
        for row in rows:
            say(f"{row['id']}" + ("" if row["is_new"] else "  (was sent before)"))
        if not rows:
            say("no enabled endpoint takes it", err=True)

    common.answer({"deliveries": rows}, human)
