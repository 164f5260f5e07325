"""Turns messages into deliveries: runs of jobs, in order by key. Every worker with subscriptions does it.

One turn is one transaction of the store. It decides what is to become a run; the runs are started with ids made from
subscription and message, so a turn that is done twice, here or by another worker, starts nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import DecodeError, Struct, json

from batuta.authoring.client.bus import prune_messages
from batuta.authoring.client.enqueue import JobRequest
from batuta.authoring.jobs import Job
from batuta.authoring.services import Backend
from batuta.clock import SECOND
from batuta.errors import BatutaError, StoreUnavailable
from batuta.ids import RunId
from batuta.journal.bus.messages import DELIVERY, Begun, Delivery
from batuta.journal.codec_envelope import is_coded
from batuta.journal.records import Hint
from batuta.names import LONGEST_ID, joined, shortened

log = logging.getLogger("batuta.bus")

LIMIT = 500
"""Messages of a turn."""
_LONGEST_REST = 0.05
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_MOST_OPEN = 20_000
_PRUNE_EVERY = _LOOK_EVERY = 60.0
_TRACE = "traceparent"


class _Traced(Struct):
    trace: str = ""


_trace_of = json.Decoder(_Traced).decode


class Deliveries:
    """The deliveries of one worker."""

    def __init__(
        self, backend: Backend, jobs: Mapping[str, Job[..., object]], topics: Mapping[str, str], keep: float
    ) -> None:
        """`jobs`, `topics`: by the names of subscriptions. `keep`: seconds that messages are kept for."""
        self._backend, self._jobs, self._topics, self._keep = backend, jobs, topics, round(keep * SECOND)
        self._store, self._poll = backend.bus.store, backend.bus.store.poll_seconds
        self._names = list(jobs)
        self._news = asyncio.Event()
        self._open: set[RunId] = set()
        """Runs that this worker has begun, and whose ends it has not heard of."""
        self._pruned_at = self._looked_at = 0.0
        self._deleted: set[str] = set()
        self._said: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        undo = self._store.listen(self._hear)
        self._pruned_at = self._looked_at = self._now()
        pause = _FIRST_PAUSE
        begun: list[Begun] = []
        try:
            while True:
                try:
                    begun, again = await self.turn(begun)
                    await self._prune()
                    await self._look()
                except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                    self._failed(error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
                    continue
                pause = _FIRST_PAUSE
                if not again:
                    await self._rest()
        finally:
            undo()

    async def turn(self, begun: Sequence[Begun]) -> tuple[list[Begun], bool]:
        """One turn, with what the one before has begun. What has begun now, and whether the next turn is due."""
        started = self._now()
        self._news.clear()
        turn = await self._store.bus_turn(self._names, begun, LIMIT)
        found = await self._begin(turn.deliveries)
        self._remember(found)
        if not found and not turn.more:
            # Ends of runs come in bursts: as much time again goes to all else.
            await asyncio.sleep(min(self._now() - started, _LONGEST_REST))
        return found, bool(found) or turn.more

    async def _begin(self, deliveries: Sequence[Delivery]) -> list[Begun]:
        fitting = [one for one in deliveries if one.topic == self._topics[one.subscription]]
        if len(fitting) < len(deliveries):
            self._say("some rows of bus_deliveries give a subscription a message of another topic: they are skipped")
        readable = [one for one in fitting if not is_coded(one.body)]
        if len(readable) < len(fitting):
            self._say("some messages went through a codec that this process does not have: others must deliver them")
        if not readable:
            return []
        requests = [self._request(one) for one in readable]
        try:
            refs = await self._backend.enqueue_many(requests, None)
        except BatutaError as error:
            if isinstance(error, StoreUnavailable) or len(requests) == 1:
                raise
            return await self._begin_each(readable, requests)
        return [_begun(one, ref.run_id) for one, ref in zip(readable, refs, strict=True)]

    async def _begin_each(self, deliveries: Sequence[Delivery], requests: Sequence[JobRequest]) -> list[Begun]:
        """A delivery that cannot begin must not hold up the others."""
        found: list[Begun] = []
        for one, request in zip(deliveries, requests, strict=True):
            try:
                found.append(_begun(one, (await self._backend.enqueue(request)).run_id))
            except BatutaError as error:
                self._failed(error)
        return found

    def _request(self, delivery: Delivery) -> JobRequest:
        name = delivery.subscription
        job = self._jobs[name]
        headers: dict[str, str] = {}
        with suppress(DecodeError, RecursionError):
            headers = {_TRACE: trace} if (trace := _trace_of(delivery.body).trace) else {}
        return JobRequest(
            job=job.name,
            input=f"[{delivery.body}]".encode(),
            id=shortened(DELIVERY + joined(name, delivery.id), LONGEST_ID),
            queue=job.options.queue or "default",
            priority=job.priority,
            key=delivery.key,
            headers=headers,
        )

    def _remember(self, begun: Sequence[Begun]) -> None:
        if len(self._open) > _MOST_OPEN:  # of many ends there is one hint, which names none
            self._open.clear()
        self._open.update(one.run_id for one in begun)

    def _hear(self, hint: Hint) -> None:
        """Ends of other runs are no news. Those that another worker has begun are found by looking at times; a store
        in memory, which has no other worker, tells of each."""
        closed = hint.closed
        if hint.bus or closed is None or (closed and self._poll is None) or not self._open.isdisjoint(closed):
            self._open.difference_update(closed or ())
            self._news.set()

    async def _rest(self) -> None:
        """Until there is news, or it is time to look."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._poll or _LOOK_EVERY):
                await self._news.wait()

    async def _prune(self) -> None:
        """In memory. Elsewhere one of the workers does it, also where none has subscriptions."""
        if self._poll is None and self._now() - self._pruned_at > _PRUNE_EVERY:
            self._pruned_at = self._now()
            await prune_messages(self._store, self._keep)

    async def _look(self) -> None:
        """Whether somebody has deleted a subscription of this worker."""
        if self._now() - self._looked_at < _LOOK_EVERY:
            return
        self._looked_at = self._now()
        there = {one.name for one in (await self._store.bus_status()).subscriptions}
        deleted = {name for name in self._names if name not in there}
        for name in sorted(deleted - self._deleted):
            log.warning(
                "subscription %r was deleted: it gets no messages of topic %r until a worker that has it starts",
                name,
                self._topics[name],
            )
        self._deleted = deleted

    @staticmethod
    def _now() -> float:
        """Virtual, in a test in virtual time."""
        return asyncio.get_running_loop().time()

    def _failed(self, error: Exception) -> None:
        self._say(f"delivering messages: {type(error).__name__}: {error}")

    def _say(self, what: str) -> None:
        """Once each, until there are too many to remember."""
        if len(self._said) > 100:
            self._said.clear()
        if what not in self._said:
            self._said.add(what)
            log.warning("%s", what)


def _begun(delivery: Delivery, run_id: object) -> Begun:
    return Begun(subscription=delivery.subscription, number=delivery.number, run_id=run_id)  # type: ignore[arg-type]
