"""`batuta bus`: topics, subscriptions, what waits, and messages."""

from __future__ import annotations

import click

from batuta.authoring.client.bus import MessageView
from batuta.cli import output
from batuta.cli.common.inputs import read_json
from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import REASON, CommonOptions, duration_option, with_common_options
from batuta.clock import as_datetime
from batuta.journal.bus.messages import SubscriptionStatus
from batuta.printable import number_of

_HERE = "batuta.cli.bus.command"
bus = LazyGroup(
    "bus",
    {
        "delete": (f"{_HERE}:delete", "Delete a subscription and its undelivered messages."),
        "lag": (f"{_HERE}:lag", "Show how many messages wait for each subscription."),
        "messages": (f"{_HERE}:messages", "List messages of a topic, newest first."),
        "prune": (f"{_HERE}:prune", "Delete old messages that were delivered."),
        "publish": (f"{_HERE}:publish", "Publish a message."),
        "subscriptions": (f"{_HERE}:subscriptions", "List subscriptions."),
        "topics": (f"{_HERE}:topics", "List topics."),
    },
    help="Topics, subscriptions and messages of the bus.",
)

_NO_SUBSCRIPTIONS = "there are no subscriptions: give a worker subscriptions=[subscribe(...)]"


@click.command()
@with_common_options
def topics(common: CommonOptions) -> None:
    """List topics: messages that are kept, those that wait for a broker, and when the last one came."""
    found = common.ask(lambda client: client.bus.status()).topics

    common.show_rows(
        {"topics": found},
        ("topic", "messages", "unsent", "last (UTC)"),
        ((one.name, str(one.messages), str(one.unsent), _when(one.last_at)) for one in found),
        none="there are no topics: a topic exists with its first message or subscription",
    )


@click.command()
@with_common_options
def subscriptions(common: CommonOptions) -> None:
    """List subscriptions: their topics, and where their messages come from."""
    found = common.ask(lambda client: client.bus.status()).subscriptions

    def row(one: SubscriptionStatus) -> tuple[str, ...]:
        order = "by key" if one.ordered else "none"
        return one.name, one.topic, one.via or "store", order, _when(one.created_at)

    columns = ("name", "topic", "bus", "order", "since (UTC)")
    common.show_rows({"subscriptions": found}, columns, map(row, found), none=_NO_SUBSCRIPTIONS)


@click.command()
@with_common_options
def lag(common: CommonOptions) -> None:
    """Show what each subscription has yet to get: waiting messages, open runs, what its broker still holds, and when
    the oldest was published."""
    found = common.ask(lambda client: client.bus.status()).subscriptions

    def row(one: SubscriptionStatus) -> tuple[str, ...]:
        behind = "" if one.behind is None else str(one.behind)
        return one.name, one.topic, str(one.waiting), str(one.running), behind, _when(one.oldest_at)

    columns = ("name", "topic", "waiting", "running", "at the broker", "oldest (UTC)")
    common.show_rows({"subscriptions": found}, columns, map(row, found), none=_NO_SUBSCRIPTIONS)


@click.command()
@click.argument("topic")
@click.option("--cursor", type=int, metavar="NUMBER", help="Of the page before.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many.")
@with_common_options
def messages(common: CommonOptions, topic: str, cursor: int | None, limit: int) -> None:
    """Messages of TOPIC that are kept, newest first. --json shows the payloads."""
    found = common.ask(lambda client: client.bus.messages(topic, cursor=cursor, limit=limit))

    def row(one: MessageView) -> tuple[str, ...]:
        state = "cannot be read" if one.problem else "taken" if one.taken else "waits"
        to = one.subscription or one.via or "all"
        return str(one.number), output.tables.when(one.published_at), one.id, one.key, one.type, to, state

    columns = ("number", "published (UTC)", "id", "key", "type", "to", "state")
    none = "no messages of this topic are kept"
    common.show_rows(found, columns, map(row, found.messages), none=none, cursor=found.cursor)


@click.command()
@click.argument("topic")
@click.argument("payload", metavar="JSON|@FILE|@-")
@click.option("--key", default="", metavar="TEXT", help="Messages of one key are delivered in order.")
@click.option("--id", "id", metavar="ID", help="A second message of this id is not published.")
@click.option("--type", "kind", metavar="TYPE", help="The type of the event.  [default: the topic]")
@with_common_options
def publish(common: CommonOptions, topic: str, payload: str, key: str, id: str | None, kind: str | None) -> None:
    """Publish a message on TOPIC. It is durable when this returns."""
    value = read_json(payload, "the payload")
    made = common.ask(lambda client: client.publish(topic, value, key=key, id=id, type=kind), migrate=True)
    common.tell({"id": made, "topic": topic}, f"message {made} is published on topic {topic}")


@click.command()
@click.argument("name")
@REASON
@with_common_options
def delete(common: CommonOptions, name: str, reason: str) -> None:
    """Delete the subscription NAME and its undelivered messages. Runs that have begun go on."""
    deleted = common.ask(lambda client: client.bus.delete(name, reason=reason))
    said = "was deleted" if deleted else "is not there: `batuta bus subscriptions` lists those that are"
    common.tell({"name": name, "deleted": deleted}, f"subscription {name} {said}")


@click.command()
@duration_option("--keep", "Keep messages that are younger, such as 7d; 0 keeps none.", required=True)
@with_common_options
def prune(common: CommonOptions, keep: float) -> None:
    """Delete messages that were delivered and are older than --keep. Workers do it by themselves."""
    deleted = common.ask(lambda client: client.bus.prune(keep))
    common.tell({"messages": deleted}, number_of(deleted, "message was deleted", "messages were deleted"))


def _when(micros: int | None) -> str:
    return "" if micros is None else output.tables.when(as_datetime(micros))
