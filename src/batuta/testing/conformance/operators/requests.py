"""Requests with an idempotency key."""

from __future__ import annotations

import asyncio

from batuta.clock import SECOND
from batuta.journal.server.requests import KeptRequest
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore

LOCK, KEEP = 30 * SECOND, 3600 * SECOND


async def begin(store: Store, owner: str, digest: str = "d", key: str = "k") -> KeptRequest:
    return await store.begin_request(key, digest, owner, LOCK, KEEP)


class RequestsConformance:
    """A store lets one caller at a time carry out a request, and keeps its answer."""

    async def test_the_first_owns_a_request_and_others_see_who_does(self, store: Store) -> None:
        first = await begin(store, "ann")
        assert (first.owner, first.digest, first.answer) == ("ann", "d", None)
        assert (await begin(store, "bob")).owner == "ann"
        assert (await begin(store, "bob", "other")).digest != "other", "the key came with another request"
        assert (await begin(store, "bob", key="k2")).owner == "bob"

    async def test_an_answer_is_kept_and_given_again(self, store: Store) -> None:
        await begin(store, "ann")
        assert not await store.finish_request("k", "bob", "{}")
        assert await store.finish_request("k", "ann", '{"é": 1}')
        assert (await begin(store, "bob")).answer == '{"é": 1}'
        store.shift_clock(60)
        assert (await begin(store, "bob")).answer == '{"é": 1}'

    async def test_a_request_that_is_dropped_may_be_carried_out_again(self, store: Store) -> None:
        await begin(store, "ann")
        assert not await store.drop_request("k", "bob")
        assert await store.drop_request("k", "ann")
        assert (await begin(store, "bob", "other")).owner == "bob"
        await store.finish_request("k", "bob", "{}")
        assert not await store.drop_request("k", "bob")

    async def test_a_request_whose_lock_is_over_is_taken_over_and_its_first_owner_writes_no_answer(
        self, store: Store
    ) -> None:
        await begin(store, "ann")
        store.shift_clock(31)
        assert (await begin(store, "bob", "other")).owner == "ann"
        assert (await begin(store, "bob")).owner == "bob"
        assert not await store.finish_request("k", "ann", "{}")
        assert await store.finish_request("k", "bob", "{}")

    async def test_a_request_is_forgotten_when_its_time_is_over(self, store: Store) -> None:
        await begin(store, "ann")
        await store.finish_request("k", "ann", "{}")
        store.shift_clock(3601)
        again = await begin(store, "bob", "other")
        assert (again.owner, again.digest, again.answer) == ("bob", "other", None)

    async def test_a_key_of_another_namespace_is_another_key(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        await begin(store, "ann")
        assert (await begin(other, "bob")).owner == "bob"
        assert not await other.finish_request("k", "ann", "{}")
        assert not await other.drop_request("k", "ann")

    async def test_a_living_owner_renews_its_lock(self, store: Store) -> None:
        await begin(store, "ann")
        store.shift_clock(29)
        assert await store.renew_request("k", "ann", 30 * SECOND)
        assert not await store.renew_request("k", "bob", 30 * SECOND)
        store.shift_clock(29)
        assert (await begin(store, "bob")).owner == "ann"
        await store.finish_request("k", "ann", '"done"')
        assert not await store.renew_request("k", "ann", 30 * SECOND)

    async def test_requests_are_found_listed_and_cleared(self, store: Store) -> None:
        for key in ("b 2", "a 1", "b 1"):
            await store.begin_request(key, "digest", "ann", 30 * SECOND, 3600 * SECOND)
        await store.finish_request("b 1", "ann", '"done"')
        found = await store.find_request("b 1")
        assert found is not None
        assert (found.owner, found.answer) == ("ann", '"done"')
        assert await store.find_request("c") is None
        listed = await store.list_requests("", 10)
        assert [(one.key, one.answer) for one in listed] == [("a 1", None), ("b 1", ""), ("b 2", None)]
        assert [one.key for one in await store.list_requests("b 1", 10)] == ["b 2"]
        assert [one.key for one in await store.list_requests("", 1, "b")] == ["b 1"]
        assert await store.clear_request("b 1")
        assert not await store.clear_request("b 1")
        store.shift_clock(3601)
        assert await store.list_requests("", 10) == []
        assert await store.find_request("a 1") is None

    async def test_of_many_at_once_one_owns_it(self, store: Store) -> None:
        found = await asyncio.gather(*(begin(store, f"o{number}") for number in range(8)))
        assert len({one.owner for one in found}) == 1
