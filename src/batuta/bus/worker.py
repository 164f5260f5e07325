"""What a worker with subscriptions does beside executing runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

from batuta.authoring.jobs import Job
from batuta.authoring.services import Backend
from batuta.bus.broker import Broker
from batuta.bus.deliveries import Deliveries
from batuta.bus.relay import Consumer, Relay
from batuta.bus.subscriptions import Client, Subscription
from batuta.errors import DuplicateDefinition, InvalidInput
from batuta.journal.bus.messages import SubscriptionRow

_BEGIN = 10.0
"""How long a worker waits for the broker to know its subscriptions."""

Work = Callable[[], Coroutine[Any, Any, None]]


def delivery_jobs(subscriptions: Sequence[Subscription], client: Client) -> dict[str, Job[..., Any]]:
    """The jobs of subscriptions, by name. Raises InvalidInput, DuplicateDefinition."""
    found: dict[str, Job[..., Any]] = {}
    for one in subscriptions:
        if not isinstance(one, Subscription):
            raise InvalidInput(f'{one!r} is not a subscription: make one with subscribe("topic", handler)')
        if one.name in found:
            raise DuplicateDefinition(f"two subscriptions are named {one.name!r}: give one another name=")
        found[one.name] = one.job(client)
    return found


@asynccontextmanager
async def with_deliveries(
    worker: AbstractAsyncContextManager[Any],
    backend: Backend,
    subscriptions: Sequence[Subscription],
    jobs: dict[str, Job[..., Any]],
    keep: float,
    relay: Relay | None = None,
    broker: Broker | None = None,
) -> AsyncIterator[Any]:
    """The worker, and beside it what turns messages into its jobs."""
    for one in subscriptions:
        await put_subscription(backend, one, "" if broker is None else broker.name)
    consumers = [] if broker is None else [Consumer(backend, broker, one) for one in subscriptions]
    works: list[Work] = [one.run for one in consumers]
    if subscriptions:
        works.append(Deliveries(backend, jobs, {one.name: one.topic for one in subscriptions}, keep).run)
    if relay is not None:
        works.append(relay.run)
    async with worker as entered:
        tasks = [asyncio.create_task(work(), name="batuta-bus") for work in works]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_BEGIN):
                    for consumer in consumers:
                        await consumer.begun.wait()
            yield entered
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def put_subscription(backend: Backend, one: Subscription, via: str) -> None:
    """See to it that the store has it. Raises InvalidInput when another has its name."""
    row = SubscriptionRow(name=one.name, topic=one.topic, via=via, ordered=one.ordered)
    there = await backend.bus.store.put_subscription(row, from_start=one.from_start)
    if (there.topic, there.via) != (one.topic, via):
        raise InvalidInput(
            f"subscription {one.name!r} is of topic {there.topic!r}"
            f"{f' of {there.via}' if there.via else ''}, not of {one.topic!r}{f' of {via}' if via else ''}: give this "
            f"one another name=, or delete the other with `batuta bus delete {one.name}`"
        )
