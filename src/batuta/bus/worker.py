"""The background tasks of a worker with subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self

from batuta.authoring.jobs import Job
from batuta.authoring.services import Backend
from batuta.bus.broker import Broker
from batuta.bus.deliveries import Deliveries
from batuta.bus.relay import Consumer, Relay
from batuta.bus.subscriptions import Client, Subscription
from batuta.durations import Duration
from batuta.errors import DuplicateDefinition, InvalidInput
from batuta.journal.bus.messages import SubscriptionRow
from batuta.settings import Settings

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


class Worker(Protocol):
    """The part of a worker that the bus uses."""

    @property
    def settings(self) -> Settings: ...
    async def start(self) -> None: ...
    async def stop(self, grace: Duration | None = None) -> None: ...


class DeliveringWorker:
    """A worker, and beside it what turns messages into its jobs."""

    def __init__(
        self,
        worker: Worker,
        backend: Backend,
        subscriptions: Sequence[Subscription],
        jobs: dict[str, Job[..., Any]],
        relay: Relay | None = None,
        broker: Broker | None = None,
    ) -> None:
        self._worker, self._backend, self._subscriptions = worker, backend, subscriptions
        self._via = "" if broker is None else broker.name
        self._consumers = [] if broker is None else [Consumer(backend, broker, one) for one in subscriptions]
        self._works: list[Work] = [one.run for one in self._consumers]
        if subscriptions:
            topics = {one.name: one.topic for one in subscriptions}
            self._works.append(Deliveries(backend, jobs, topics, worker.settings.bus_keep).run)
        if relay is not None:
            self._works.append(relay.run)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Subscribe and begin to work. Raises InvalidInput when another subscription has a name of these."""
        for one in self._subscriptions:
            await put_subscription(self._backend, one, self._via)
        await self._worker.start()
        self._tasks = [asyncio.create_task(work(), name="batuta-bus") for work in self._works]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_BEGIN):
                    for consumer in self._consumers:
                        await consumer.begun.wait()
        except BaseException:
            await self.stop()
            raise

    async def stop(self, grace: Duration | None = None) -> None:
        """Begin no delivery any more, and stop as a worker does."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._worker.stop(grace)

    def abandon(self) -> None:
        """The worker's process has died, in a test: begin no delivery any more."""
        for task in self._tasks:
            task.cancel()

    async def run(self) -> None:
        """Work until the task is cancelled."""
        async with self:
            await asyncio.Event().wait()


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
