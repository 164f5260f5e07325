"""Messages of the bus: published once, handed to every subscription, in order by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batuta.clock import SECOND
from batuta.ids import RunId
from batuta.journal.audit import Act, Verb
from batuta.journal.bus.messages import WINDOW, Begun, Delivery, NewMessage, SubscriptionRow
from batuta.journal.records import RunKind
from batuta.journal.store import Store
from batuta.testing.conformance.kit import new_run

DAY = 86_400 * SECOND


def message(id: str, key: str = "", topic: str = "orders", **more: Any) -> NewMessage:
    return NewMessage(topic=topic, id=id, key=key, body=f'{{"id":"{id}","\u00e9":1}}', **more)


async def subscribe(store: Store, name: str = "mail", topic: str = "orders", **more: Any) -> SubscriptionRow:
    from_start = more.pop("from_start", False)
    return await store.put_subscription(SubscriptionRow(name=name, topic=topic, **more), from_start=from_start)


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [one.id for one in deliveries]


async def begin(store: Store, deliveries: Sequence[Delivery]) -> dict[str, RunId]:
    """The runs of deliveries, by the id of the message."""
    found: dict[str, RunId] = {}
    for one in deliveries:
        run, _ = await store.start(new_run(f"bus:{one.subscription}:{one.id}", kind=RunKind.JOB))
        found[one.id] = run.run_id
    return found


def begun(deliveries: Sequence[Delivery], runs: dict[str, RunId]) -> list[Begun]:
    return [Begun(subscription=one.subscription, number=one.number, run_id=runs[one.id]) for one in deliveries]


class BusConformance:
    """A store loses no message, and gives those of one key in order."""

    async def test_a_message_is_published_once_by_topic_subscription_and_id(self, store: Store) -> None:
        assert await store.publish_messages([message("a"), message("b"), message("a")]) == ["a", "b"]
        again = [message("b"), message("c"), message("a", topic="other"), message("a", subscription="mail")]
        assert sorted(await store.publish_messages(again)) == ["a", "a", "c"]
        assert await store.publish_messages([]) == []
        kept = await store.messages("orders")
        assert [(one.id, one.subscription) for one in kept] == [("a", "mail"), ("c", ""), ("b", ""), ("a", "")]
        assert [one.id for one in await store.messages("orders", kept[1].number, 1)] == ["b"]
        assert kept[1].body == '{"id":"c","\u00e9":1}'

    async def test_messages_of_all_topics_are_listed_newest_first(self, store: Store) -> None:
        await store.publish_messages([message("a"), message("b", topic="bills"), message("c")])
        kept = await store.messages(None)
        assert [(one.topic, one.id) for one in kept] == [("orders", "c"), ("bills", "b"), ("orders", "a")]
        assert await store.messages(None, kept[0].number, 1) == [kept[1]]

    async def test_every_subscription_of_the_topic_gets_it_and_no_other(self, store: Store) -> None:
        await subscribe(store, "mail")
        await subscribe(store, "books")
        await subscribe(store, "other", "else")
        await store.publish_messages([message("a"), message("b", subscription="mail")])
        found = await turn(store, [], 100)
        assert [(one.subscription, one.id) for one in found] == [("books", "a"), ("mail", "a"), ("mail", "b")]
        assert (found[0].topic, found[0].body) == ("orders", '{"id":"a","\u00e9":1}')

    async def test_a_new_subscription_gets_nothing_of_before_though_no_turn_has_seen_it(self, store: Store) -> None:
        await subscribe(store, "mail")
        await store.publish_messages([message("a", "k"), message("b", "k")])
        await subscribe(store, "books")
        await store.publish_messages([message("c", "k")])
        found = await turn(store, [], 100)
        assert [(one.subscription, one.id) for one in found] == [("mail", "a"), ("books", "c")]
        assert await store.drop_subscription("mail")
        await store.publish_messages([message("d")])
        await subscribe(store, "mail")
        await subscribe(store, "mail", ordered=False)
        await subscribe(store, "all", from_start=True)
        await store.publish_messages([message("e")])
        assert ids((await store.bus_turn(["mail"], [], 100)).deliveries) == ["e"]
        assert ids((await store.bus_turn(["all"], [], 100)).deliveries) == ["a", "d", "e"]

    async def test_a_delivery_is_returned_until_it_is_a_run(self, store: Store) -> None:
        await subscribe(store)
        await store.publish_messages([message("a")])
        [first] = await turn(store, [], 100)
        assert await turn(store, [], 100) == [first]
        runs = await begin(store, [first])
        assert await turn(store, begun([first], runs), 100) == []
        assert await turn(store, [], 100) == []

    async def test_messages_of_one_key_wait_until_the_run_before_has_ended(self, store: Store) -> None:
        await subscribe(store)
        await store.publish_messages([message("a1", "a"), message("b1", "b"), message("a2", "a"), message("a3", "a")])
        found = await turn(store, [], 100)
        assert ids(found) == ["a1", "b1"]
        runs = await begin(store, found)
        await store.publish_messages([message("b2", "b")])
        assert await turn(store, begun(found, runs), 100) == []
        await end(store, runs["a1"])
        found = await turn(store, [], 100)
        assert ids(found) == ["a2"]
        runs |= await begin(store, found)
        await turn(store, begun(found, runs), 100)
        await end(store, runs["b1"])
        await end(store, runs["a2"])
        assert ids(await turn(store, [], 100)) == ["a3", "b2"]

    async def test_a_turn_gives_only_what_its_caller_can_deliver(self, store: Store) -> None:
        for name in ("mail", "books"):
            await subscribe(store, name)
        await store.publish_messages([message("a"), message("b"), message("c")])
        found = await store.bus_turn(["books"], [], 2)
        assert ([(one.subscription, one.id) for one in found.deliveries], found.more) == (
            [("books", "a"), ("books", "b")],
            True,
        )
        assert not (await store.bus_turn([], [], 2)).more
        assert ids((await store.bus_turn(["mail"], [], 9)).deliveries) == ["a", "b", "c"]

    async def test_without_order_and_without_a_key_nothing_waits(self, store: Store) -> None:
        await subscribe(store, ordered=False)
        await store.publish_messages([message("a1", "a"), message("a2", "a"), message("x"), message("y")])
        assert ids(await turn(store, [], 100)) == ["a1", "a2", "x", "y"]

    async def test_a_new_subscription_gets_what_is_published_later(self, store: Store) -> None:
        await store.publish_messages([message("before")])
        await turn(store, [], 100)
        await subscribe(store)
        await store.publish_messages([message("after")])
        assert ids(await turn(store, [], 100)) == ["after"]

    async def test_a_subscription_from_the_start_gets_all_that_is_kept_in_order(self, store: Store) -> None:
        await store.publish_messages([message("a1", "a"), message("a2", "a"), message("b")])
        await turn(store, [], 100)
        await store.publish_messages([message("a3", "a")])
        await subscribe(store, from_start=True)
        found = await turn(store, [], 100)
        assert ids(found) == ["a1", "b"]
        assert (await store.bus_status()).subscriptions[0].waiting == 4
        await subscribe(store, from_start=True)
        assert (await store.bus_status()).subscriptions[0].waiting == 4

    async def test_a_subscription_keeps_its_topic_and_may_change_its_order(self, store: Store) -> None:
        first = await subscribe(store, ordered=False)
        assert (first.topic, first.ordered, first.created_at > 0) == ("orders", False, True)
        assert (await subscribe(store, ordered=True)).ordered
        assert (await subscribe(store, topic="else")).topic == "orders"

    async def test_a_dropped_subscription_gets_nothing_more(self, store: Store) -> None:
        await subscribe(store)
        await store.publish_messages([message("a"), message("b")])
        await turn(store, [], 1)
        assert await store.drop_subscription("mail")
        assert not await store.drop_subscription("mail")
        assert await turn(store, [], 100) == []
        await subscribe(store)
        assert await turn(store, [], 100) == []

    async def test_the_rest_waits_while_a_subscription_has_a_window_of_runs(self, store: Store) -> None:
        await subscribe(store)
        await subscribe(store, "books")
        total = WINDOW + 5
        await store.publish_messages([message(str(number), subscription="mail") for number in range(total)])
        found = await turn(store, [], total)
        assert ids(found) == [str(number) for number in range(WINDOW)]
        runs = dict(zip(ids(found), [run.run_id for run in await started(store, found)], strict=True))
        assert await turn(store, begun(found, runs), total) == []
        await store.publish_messages([message("b", subscription="books")])
        assert ids(await turn(store, [], total)) == ["b"]
        await end(store, runs["0"])
        assert sorted(ids(await turn(store, [], total))) == [str(WINDOW), "b"]

    async def test_lag_is_what_was_published_and_has_not_ended(self, store: Store) -> None:
        await subscribe(store)
        assert [(one.waiting, one.running, one.oldest_at) for one in await lag(store)] == [(0, 0, None)]
        await store.publish_messages([message("a", "k"), message("b", "k"), message("c", topic="else")])
        [seen] = await lag(store)
        assert (seen.waiting, seen.running) == (2, 0)
        assert seen.oldest_at is not None
        found = await turn(store, [], 100)
        runs = await begin(store, found)
        await turn(store, begun(found, runs), 100)
        assert [(one.waiting, one.running) for one in await lag(store)] == [(1, 1)]
        status = await store.bus_status()
        assert [(one.name, one.messages, one.unsent) for one in status.topics] == [("else", 1, 0), ("orders", 2, 0)]

    async def test_what_goes_to_a_broker_waits_until_it_is_sent(self, store: Store) -> None:
        await subscribe(store)
        await store.publish_messages([message("a", via="pulsar"), message("b"), message("c", via="pulsar")])
        assert ids(await turn(store, [], 100)) == ["b"]
        waiting = await store.unsent_messages("pulsar", 10)
        assert [one.id for one in waiting] == ["a", "c"]
        assert (await store.bus_status()).topics[0].unsent == 2
        await store.sent_messages([waiting[0].number])
        assert [one.id for one in await store.unsent_messages("pulsar", 10)] == ["c"]
        assert await store.unsent_messages("other", 10) == []

    async def test_old_messages_are_deleted_once_nobody_has_yet_to_get_them(self, store: Store) -> None:
        await subscribe(store)
        await store.publish_messages([message("a"), message("b"), message("c", via="pulsar")])
        assert await store.prune_messages(0, 100) == 0
        found = await turn(store, [], 100)
        runs = await begin(store, found)
        await turn(store, begun(found, runs), 100)
        await end(store, runs["a"])
        await turn(store, [], 100)
        assert await store.prune_messages(DAY, 100) == 0
        store.shift_clock(2 * 86_400)
        assert await store.prune_messages(DAY, 100) == 1
        assert [one.id for one in await store.messages("orders")] == ["c", "b"]
        assert await store.publish_messages([message("a")]) == ["a"]


async def turn(store: Store, begun: Sequence[Begun], limit: int) -> list[Delivery]:
    return (await store.bus_turn(["mail", "books"], begun, limit)).deliveries


async def lag(store: Store) -> list[Any]:
    return (await store.bus_status()).subscriptions


async def started(store: Store, deliveries: Sequence[Delivery]) -> list[Any]:
    runs = [new_run(f"bus:{one.subscription}:{one.id}", kind=RunKind.JOB) for one in deliveries]
    return [outcome[0] for outcome in await store.start_many(runs) if isinstance(outcome, tuple)]


async def end(store: Store, run_id: RunId) -> None:
    await store.terminate_runs([run_id], "done", Act(actor="eve", verb=Verb.TERMINATE))
