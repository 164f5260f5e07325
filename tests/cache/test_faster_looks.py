"""Redis as a faster look for idempotency and limits: whatever becomes of it, the store has the last word."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

import batuta
from batuta.cache import Cache, Entity, MemoryCache, RedisCache, WindowCounter
from batuta.clock import ManualClock
from batuta.errors import InvalidInput, LimitReached
from batuta.journal.queues import Rate
from batuta.resilience import EdgeLimit
from batuta.resilience.idempotency import Idempotency, KeptAnswer, idempotent
from batuta.testing.valkey import ValkeyServer
from tests.cache.clusters import two_nodes
from tests.cache.test_failures import HASTY, _watch
from tests.cache.until import until

REQUESTS = "bridge:idempotency:{request_id}"
Disturb = Callable[[int], Awaitable[None]]
"""Does something to Redis in a round of the load."""
ROUNDS, AT_ONCE = 12, 6


@asynccontextmanager
async def stopped() -> AsyncIterator[tuple[str, Disturb]]:
    with ValkeyServer() as server:

        async def disturb(round_: int) -> None:
            if round_ == 2:
                server.stop()

        yield server.url, disturb
        server.start()


@asynccontextmanager
async def restarted_empty() -> AsyncIterator[tuple[str, Disturb]]:
    with ValkeyServer() as server:

        async def disturb(round_: int) -> None:
            if round_ in (2, 6):
                server.stop()
            if round_ in (4, 8):
                server.start()

        yield server.url, disturb


@asynccontextmanager
async def flushed() -> AsyncIterator[tuple[str, Disturb]]:
    with ValkeyServer() as server:
        async with Redis(port=server.port, password=server.password) as raw:

            async def disturb(_: int) -> None:
                await raw.flushall()
                await raw.script_flush()

            yield server.url, disturb


@asynccontextmanager
async def read_only() -> AsyncIterator[tuple[str, Disturb]]:
    with ValkeyServer() as server:
        async with Redis(port=server.port, password=server.password) as raw:

            async def disturb(round_: int) -> None:
                if round_ == 2:
                    await raw.replicaof("127.0.0.1", "1")
                if round_ == 8:
                    await raw.replicaof("NO", "ONE")

            yield server.url, disturb


@asynccontextmanager
async def failing_over() -> AsyncIterator[tuple[str, Disturb]]:
    with ValkeyServer() as first:
        follows = ("replicaof", f"127.0.0.1 {first.port}")
        with (
            ValkeyServer(follows, password=first.password) as second,
            ValkeyServer(password="", sentinel=True) as watch,
        ):
            await _watch(watch, first)

            async def disturb(round_: int) -> None:
                if round_ == 2:
                    first.stop()
                if round_ == 8:
                    async with Redis(port=second.port, password=second.password) as raw:

                        async def leads() -> bool:
                            return (await raw.role())[0] == b"master"

                        await until(leads)

            yield f"redis+sentinel://:{first.password}@127.0.0.1:{watch.port}/mymaster/0", disturb


@asynccontextmanager
async def moving_slots() -> AsyncIterator[tuple[str, Disturb]]:
    async with two_nodes() as cluster:

        async def disturb(round_: int) -> None:
            """The slots of the keys of this round change their node, and their values are lost."""
            if round_ >= 2:
                await cluster.move_slot_of(f"bridge:idempotency:key-{round_ - 1}", lose=True)

        yield cluster.url, disturb


WORLDS = [stopped, restarted_empty, flushed, read_only, failing_over, moving_slots]


# covers C-05, C-11
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
async def test_nothing_is_done_twice_and_no_limit_is_passed(world: Callable[[], object]) -> None:
    done: Counter[str] = Counter()
    admitted = 0
    waits: list[float] = []

    def work_of(key: str) -> Callable[[], Awaitable[tuple[str, bool]]]:
        async def work() -> tuple[str, bool]:
            done[key] += 1
            return f'"{key} was done"', True

        return work

    async with world() as (url, disturb), batuta.connect("memory://") as client:  # type: ignore[attr-defined]
        backend = await RedisCache.connect(url, HASTY)
        async with Cache(backend, timeout=2, failures=3, retry_after=0.02) as cache:
            answers = Entity(cache, REQUESTS, KeptAnswer, lifetime=3600)
            # Two processes: each has its own view of the same Redis and store.
            both = [Idempotency(client.namespace.requests, wait=30, answers=answers) for _ in range(2)]
            limit = EdgeLimit(client, "CreateEntry", rates=["20/h"], counts=WindowCounter(cache))

            async def ask(round_: int, number: int) -> None:
                nonlocal admitted
                for key in (f"key-{round_}", f"key-{max(0, round_ - 1)}"):
                    answer, _ = await both[number % 2].once("", key, b"1", work_of(key))
                    assert answer == f'"{key} was done"'
                try:
                    await limit.admit(ispb="00000000", operation="CreateEntry")
                    admitted += 1
                except LimitReached as refused:
                    waits.append(refused.retry_after)

            for round_ in range(ROUNDS):
                await disturb(round_)
                await asyncio.gather(*(ask(round_, number) for number in range(AT_ONCE)))
            assert set(done.values()) == {1}, done
            assert len(done) == ROUNDS
            assert all(0 < wait <= 2 * 3_600 for wait in waits)
            assert admitted == 20, "72 asked, and the store lets 20 in"
            if cache.available:
                assert await cache.without_lifetime() == []


async def test_a_repeated_request_is_answered_without_the_store() -> None:
    async with batuta.connect("memory://") as client, Cache(MemoryCache()) as cache:
        answers = Entity(cache, REQUESTS, KeptAnswer, lifetime=3600)

        class Counted:
            """A store that says how often it was asked."""

            asked = 0

            def __getattr__(self, name: str) -> object:
                self.asked += 1
                return getattr(client.namespace.requests, name)

        store = Counted()
        once = Idempotency(store, answers=answers)  # type: ignore[arg-type]

        async def work() -> tuple[str, bool]:
            return "1", True

        assert await once.once("", "k", b"a", work) == ("1", False)
        before = store.asked
        assert await once.once("", "k", b"a", work) == ("1", True)
        assert store.asked == before
        with pytest.raises(batuta.errors.IdempotencyKeyReused):
            await once.once("", "k", b"other", work)
        assert store.asked > before, "what does not fit is the store's to judge"
        backend = cache._backend
        assert await backend.get("bridge:idempotency:k") is not None


async def test_a_namespace_gets_no_answer_of_another_from_the_same_redis() -> None:
    async with batuta.connect("memory://") as ours, batuta.connect("memory://", namespace="theirs") as theirs:
        answers = Entity(Cache(MemoryCache()), REQUESTS, KeptAnswer, lifetime=3600)

        async def ask(client: batuta.Batuta, answer: str) -> tuple[str, bool]:
            async def work() -> tuple[str, bool]:
                return answer, True

            return await Idempotency(client.namespace.requests, answers=answers).once("scope", "k", b"1", work)

        assert await ask(ours, "ours") == ("ours", False)
        assert await ask(theirs, "theirs") == ("theirs", False)
        assert [await ask(ours, "again"), await ask(theirs, "again")] == [("ours", True), ("theirs", True)]


@pytest.mark.parametrize("key", ["k" * 200, ":" * 200, " {" * 100])
async def test_a_long_idempotency_key_is_kept_in_redis_too(key: str) -> None:
    async with batuta.connect("memory://") as client:
        answers = Entity(Cache(MemoryCache()), REQUESTS, KeptAnswer, lifetime=3600)
        once = Idempotency(client.namespace.requests, answers=answers)

        async def work() -> tuple[str, bool]:
            return "1", True

        assert [await once.once("a scope " * 30, key, b"", work) for _ in range(2)] == [("1", False), ("1", True)]


async def test_a_failed_request_and_one_that_is_not_kept_leave_nothing_in_redis() -> None:
    async with batuta.connect("memory://") as client, Cache(MemoryCache()) as cache:
        answers = Entity(cache, REQUESTS, KeptAnswer, lifetime=3600)
        calls = 0

        @idempotent(client, key="id", answers=answers)
        async def create(id: str) -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ConnectionError("away")
            return calls

        with pytest.raises(ConnectionError):
            await create("k")
        assert (await cache.info()).keys == 0
        assert [await create("k") for _ in range(3)] == [2, 2, 2]
        once = Idempotency(client.namespace.requests, answers=answers)

        async def not_kept() -> tuple[str, bool]:
            return "0", False

        assert [await once.once("", "x", b"", not_kept) for _ in range(2)] == [("0", False)] * 2


# covers C-06
async def test_calls_are_counted_under_the_names_of_document_c_and_windows_end() -> None:
    clock = ManualClock()
    backend = MemoryCache(clock=clock)
    async with Cache(backend, clock=clock) as cache:
        counter = WindowCounter(cache)
        rates = [Rate.parse("2/min"), Rate.parse("3/h")]
        ids = {"ispb": "00000000", "operation": "CreateClaim"}
        minute, hour = (counter.key(rate, **ids) for rate in rates)
        began = minute.removeprefix("ratelimit:00000000:CreateClaim:")
        assert len(began) == len("2025-10-25-10:00")
        assert hour == f"ratelimit:00000000:CreateClaim:{began[:13]}"
        assert [await counter.take(rates, **ids) for _ in range(2)] == [0.0, 0.0]
        assert 0 < await counter.take(rates, **ids) <= 60
        assert await counter.take(rates, ispb="11111111", operation="CreateClaim") == 0.0
        clock.advance(60)
        assert await counter.take(rates, **ids) == 0.0, "what was refused by the minute does not count for the hour"
        wait = await counter.take(rates, **ids)
        assert 0 < wait <= 3_600
        assert await cache.without_lifetime() == []


async def test_bad_input_of_limits_at_the_edge_is_refused() -> None:
    async with batuta.connect("memory://") as client, Cache(MemoryCache()) as cache:
        with pytest.raises(InvalidInput, match="window"):
            WindowCounter(cache, "ratelimit:{ispb}")
        with pytest.raises(InvalidInput, match="rates"):
            EdgeLimit(client, "x", rates=[])
        limit = EdgeLimit(client, "y", rates=["5/min"], counts=WindowCounter(cache))
        with pytest.raises(InvalidInput, match="operation"):
            await limit.admit(ispb="1")
        await limit.admit(ispb="1", operation="o")


async def test_other_identifiers_are_counted_apart_however_they_are_written_and_ordered() -> None:
    async with batuta.connect("memory://") as client:
        limit = EdgeLimit(client, "z", rates=["1/min"])
        for one, other in (("1:2", "3"), ("1", "2:3"), ("1/2", "3"), ("1", "2/3")):
            await limit.admit(one=one, other=other)
            with pytest.raises(LimitReached):
                await limit.admit(other=other, one=one)
        for refused in ("", "x" * 300, "\0"):
            with pytest.raises(InvalidInput, match="identifiers of edge limit 'z'"):
                await limit.admit(one=refused)
        with pytest.raises(InvalidInput, match="identifiers of edge limit 'z'"):
            await limit.admit()
