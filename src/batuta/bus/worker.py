"""What a worker with subscriptions does beside executing runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from batuta.authoring.jobs import Job
from batuta.authoring.services import Backend
from batuta.bus.deliveries import Deliveries
from batuta.bus.subscriptions import Client, Subscription
from batuta.errors import DuplicateDefinition, InvalidInput
from batuta.journal.bus.messages import SubscriptionRow

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
) -> AsyncIterator[Any]:
    """The worker, and beside it what turns messages into its jobs."""
    for one in subscriptions:
        await put_subscription(backend, one, "")
    deliveries = Deliveries(backend, jobs, keep)
    async with worker as entered:
        task = asyncio.create_task(deliveries.run(), name="batuta-bus")
        try:
            yield entered
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def put_subscription(backend: Backend, one: Subscription, via: str) -> None:
    """See to it that the store has it. Raises InvalidInput when another has its name."""
    row = SubscriptionRow(name=one.name, topic=one.topic, via=via, ordered=one.ordered)
    there = await backend.bus.store.put_subscription(row, from_start=one.from_start)
    if (there.topic, there.via) != (one.topic, via):
        raise InvalidInput(
            f"subscription {one.name!r} is of topic {there.topic!r}"
            f"{f' of {there.via}' if there.via else ''}, not of {one.topic!r}{f' of {via}' if via else ''}: give this "
            f"one another name=, or drop the other with `batuta bus drop {one.name}`"
        )
