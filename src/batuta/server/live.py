"""Live updates: one stream of events for a browser, fed from the store.

An event tells that something changed; the page asks again. What was told is compared with the state of the store, never
with a log of events: a stream that begins again, also at another process, is told at once what changed meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, suppress
from typing import Any

from msgspec import Struct, json
from starlette.responses import StreamingResponse

from batuta.authoring.backend import Description
from batuta.client import Batuta
from batuta.errors import BatutaError, InvalidInput
from batuta.server.access.check import EVERY_NAMESPACE
from batuta.server.http.call import Call, Refused, described, find_run, now
from batuta.server.http.routing import Scope, route

log = logging.getLogger("batuta.server")

TOPICS = ("runs", "queues", "workers", "schedules", "dead_letters")
MOST_RUNS = 10
"""Runs that one stream watches."""
MOST_STREAMS, MOST_OF_ONE = 1_000, 250
"""Open streams of a server, and of one caller of it: one tenant takes no other one's."""
LOOK = 0.5
"""Seconds between two looks at the store while a stream is open."""
COMMENT = 15.0
"""Seconds after which a silent stream says that it lives."""
RETRY = 2_000
"""Milliseconds after which a browser asks again."""
_NEWEST = 100


class EventsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """`topic`: all of them unless told. `run`: ids of runs to follow."""

    topic: list[str] = []
    run: list[str] = []


class Feed:
    """Looks at one namespace for all streams that are open for it."""

    def __init__(self, client: Batuta, ending: asyncio.Event) -> None:
        self._client, self._ending = client, ending
        self.digests: dict[str, str] = {}
        """The state of each topic now; of a run under `run:<run id>`."""
        self.runs: dict[str, Description | None] = {}
        """Watched runs; None: it is gone."""
        self.counts: dict[str, int] = {}
        """How many runs and dead letters are open."""
        self._watched: Counter[str] = Counter()
        self._streams = 0
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self.is_away = False
        """The last look failed: what is known may be old."""

    async def enter(self, runs: Iterable[str]) -> None:
        self._streams += 1
        self._watched.update(runs)
        await self.look()
        self._note(away=False)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_looking())

    def leave(self, runs: Iterable[str]) -> None:
        self._streams -= 1
        self._watched.subtract(runs)
        self._watched += Counter()  # without those that no one watches
        if not self._streams and self._task is not None:
            self._task.cancel()
            self._task = None

    async def news(self, seconds: float) -> None:
        """Wait for a change, or for so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            if uvicorn_ends():
                self._ending.set()
            try:
                await self.look()
                self._note(away=False)
            except BatutaError as error:  # streams stay, and hear of it
                if not self.is_away:
                    log.warning("live updates of namespace %s stand still: %s", self._client.namespace.name, error)
                self._note(away=True)

    def _note(self, *, away: bool) -> None:
        if away != self.is_away:
            self.is_away = away
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def look(self) -> None:
        """Read what the topics look like; wake those who wait when something is different."""
        found = await self._topics()
        for run_id in list(self._watched):
            run = await described(self._client, run_id)
            self.runs[run_id] = run
            found[f"run:{run_id}"] = _digest(_run_facts(run))
        for run_id in self.runs.keys() - self._watched.keys():
            del self.runs[run_id]
        if found != self.digests:
            self.digests = found
            self._wake()

    async def _topics(self) -> dict[str, str]:
        client = self._client
        page, gauges, queues, workers, schedules, letters = await asyncio.gather(
            client.list(kind="any", limit=_NEWEST),
            client.namespace.gauges(),
            client.queues(),
            client.workers.list(),
            client.schedules.list(limit=_NEWEST),
            client.dead_letters.list(limit=1),
        )
        self.counts = {"open": sum(gauges.states.values()), "dead_letters": gauges.dead_letters}
        facts: dict[str, Any] = {
            "runs": [self.counts["open"], [(run.run_id, run.state, run.entries, run.wake_at) for run in page.runs]],
            "queues": queues,
            "workers": [(worker.worker_id, worker.live) for worker in workers],
            "schedules": [(one.id, one.paused, one.next_at, one.last_id, one.running) for one in schedules],
            "dead_letters": [self.counts["dead_letters"], letters.letters],
        }
        return {topic: _digest(value) for topic, value in facts.items()}

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def uvicorn_ends() -> bool:
    """Uvicorn waits for open streams before it tells an application to end. What it has for SIGTERM knows earlier."""
    return bool(getattr(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), "should_exit", False))


def _run_facts(run: Description | None) -> Any:
    if run is None:
        return None
    tries = [(one.seq, one.number, one.ended_at is None, one.details) for one in run.attempts]
    return [run.run_id, run.state, run.entries, run.reason, run.worker, run.wake_at, tries]


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.encode(value), digest_size=6).hexdigest()


class LiveFeeds:
    """The feeds of a server, one for each namespace."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}
        self.open: Counter[str] = Counter()
        """Streams, by who has them."""
        self.ending = asyncio.Event()

    def feed(self, client: Batuta) -> Feed:
        return self._feeds.setdefault(client.namespace.name, Feed(client, self.ending))

    async def close(self) -> None:
        self.ending.set()
        for feed in self._feeds.values():
            await feed.close()


async def events(call: Call) -> StreamingResponse:
    query: EventsQuery = call.query
    if unknown := set(query.topic) - {*TOPICS, "run"}:
        raise InvalidInput(f"topic={sorted(unknown)[0][:50]!r} must be one of {', '.join(TOPICS)}")
    if len(query.run) > MOST_RUNS:
        raise InvalidInput(f"{len(query.run)} runs are too many for one stream: {MOST_RUNS} at most")
    live = call.server.live
    mine = live.open[call.principal.caller]
    if call.server.draining or live.open.total() >= MOST_STREAMS or mine >= MOST_OF_ONE:
        raise Refused(503, "too_many_streams", "this server opens no more streams: try again", retry_after=5)
    runs = [str((await find_run(call.client, id)).run_id) for id in dict.fromkeys(query.run)]
    topics = [topic for topic in TOPICS if not query.topic or topic in query.topic]
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    stream = _Stream(call, live, topics, runs).events()
    hello = await anext(stream)  # when the database is away this is a problem, as of every route
    return StreamingResponse(_after(hello, stream), headers=headers, media_type="text/event-stream")


async def _after(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(rest):
        yield first
        async for part in rest:
            yield part


class _Stream:
    """The stream of one browser."""

    def __init__(self, call: Call, live: LiveFeeds, topics: list[str], runs: list[str]) -> None:
        self._call, self._live, self._topics, self._runs = call, live, topics, runs
        self._feed = live.feed(call.client)
        self._names = [*topics, *(f"run:{run_id}" for run_id in runs)]
        told = _read_token(call.request.headers.get("last-event-id", ""))
        self._told = {name: told[name] for name in self._names if name in told}
        self._told_away = False

    async def events(self) -> AsyncGenerator[bytes, None]:
        self._live.open[self._call.principal.caller] += 1
        try:
            await self._feed.enter(self._runs)
            self._told = self._told or self._mine()
            yield _event(
                "hello",
                {"as_of": now(), "topics": self._topics, "counts": self._feed.counts, "retry": RETRY},
                _token(self._told),
                retry=RETRY,
            )
            while not self._live.ending.is_set():
                if not await self._is_allowed():
                    yield _event("bye", {"reason": "signed_out"})
                    return
                told = [part async for part in self._changes()]
                yield b"".join(told) if told else b":\n\n"
                await self._wait()
            yield _event("bye", {"reason": "shutdown"})
        finally:
            self._live.open[self._call.principal.caller] -= 1
            self._live.open += Counter()  # without those that have none
            self._feed.leave(self._runs)

    async def _wait(self) -> None:
        """For news of this stream: what others are told about does not wake it for long."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + COMMENT
        while not self._has_news() and not self._live.ending.is_set() and (left := ends - loop.time()) > 0:
            waits = [asyncio.ensure_future(self._feed.news(left)), asyncio.ensure_future(self._live.ending.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()

    def _has_news(self) -> bool:
        return self._mine() != self._told or self._feed.is_away != self._told_away

    def _mine(self) -> dict[str, str]:
        return {name: self._feed.digests[name] for name in self._names if name in self._feed.digests}

    async def _is_allowed(self) -> bool:
        """Asked again before each event: a key may be revoked, a session may be over."""
        try:
            found = await self._call.server.auth.admission(self._call.request)
        except Refused:
            return False
        if found is None or found.principal.scope < Scope.VIEWER:
            return False
        return found.principal.namespace in (EVERY_NAMESPACE, self._call.client.namespace.name)

    async def _changes(self) -> AsyncIterator[bytes]:
        current = self._mine()
        changed = [name for name, digest in current.items() if self._told.get(name) != digest]
        self._told = current
        token = _token(current)
        if self._feed.is_away != self._told_away:
            self._told_away = self._feed.is_away
            yield _event("store", {"as_of": now(), "reachable": not self._told_away}, token)
        if topics := [name for name in changed if ":" not in name]:
            yield _event("changed", {"as_of": now(), "topics": topics, "counts": self._feed.counts}, token)
        for run_id in (name.partition(":")[2] for name in changed if ":" in name):
            run = self._feed.runs.get(run_id)
            if run is None:
                yield _event("gone", {"run_id": run_id}, token)
            else:
                redactor = await self._call.server.redactor_for(self._call.client)
                shown = run if redactor is None else redactor.value(json.decode(json.encode(run)))
                yield _event("run", shown, token)


def _event(name: str, data: Any, token: str = "", retry: int = 0) -> bytes:
    lines = [f"event: {name}", f"data: {json.encode(data).decode()}"]
    lines += [f"id: {token}"] if token else []
    lines += [f"retry: {retry}"] if retry else []
    return ("\n".join(lines) + "\n\n").encode()


def _token(digests: dict[str, str]) -> str:
    return ",".join(f"{name}={digest}" for name, digest in sorted(digests.items()))


def _read_token(text: str) -> dict[str, str]:
    """The state that an earlier stream had sent; nothing when the text is no token of ours."""
    if len(text) > 4_096:
        return {}
    return {name: digest for name, equals, digest in (part.partition("=") for part in text.split(",")) if equals}


ROUTES = (
    route(
        "GET",
        "/api/v1/events",
        events,
        "A stream of changes (text/event-stream).",
        None,
        query=EventsQuery,
        streams=True,
        media="text/event-stream",
    ),
)
