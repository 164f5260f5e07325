"""Keys of the server."""

from __future__ import annotations

from batuta.clock import SECOND
from batuta.journal.audit import Act, Verb
from batuta.journal.server.api_keys import StoredKey
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore

CREATE = Act(actor="ann", verb=Verb.CREATE_API_KEY, reason="for the dashboard")
REVOKE = Act(actor="ann", verb=Verb.REVOKE_API_KEY)


def key(id: str, expires_at: int | None = None) -> StoredKey:
    return StoredKey(
        id=id, namespace="", name="é", scope="viewer", digest=f"{id:0>64}", created_by="ann", expires_at=expires_at
    )


class ApiKeysConformance:
    """A store keeps the hashes of keys, each for one namespace."""

    async def test_a_key_is_kept_for_its_namespace_and_found_from_every_other(
        self, store: Store, make_store: MakeStore
    ) -> None:
        other = await make_store(namespace="other")
        assert await store.put_api_key(key("b"))
        assert await store.put_api_key(key("a"))
        assert [(one.id, one.namespace) for one in await store.api_keys()] == [
            ("a", store.namespace),
            ("b", store.namespace),
        ]
        assert await other.api_keys() == []
        found = await other.find_api_key("a")
        assert found is not None
        assert (found.namespace, found.name, found.scope, found.digest) == (
            store.namespace,
            "é",
            "viewer",
            f"{'a':0>64}",
        )
        assert abs(found.created_at - await store.now()) < 60 * SECOND
        assert await store.find_api_key("c") is None

    async def test_an_id_is_taken_once_in_all_namespaces(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        assert await store.put_api_key(key("a"))
        assert not await store.put_api_key(key("a"))
        assert not await other.put_api_key(key("a"))

    async def test_whether_any_key_works_counts_neither_expired_nor_revoked_ones(
        self, store: Store, make_store: MakeStore
    ) -> None:
        other = await make_store(namespace="other")
        assert not await store.has_api_keys()
        await store.put_api_key(key("old", expires_at=1))
        assert not await store.has_api_keys()
        await other.put_api_key(key("a"))
        assert await store.has_api_keys()
        await other.revoke_api_key("a")
        assert not await store.has_api_keys()

    async def test_a_key_is_revoked_at_once_or_later_and_by_its_own_namespace_alone(
        self, store: Store, make_store: MakeStore
    ) -> None:
        other = await make_store(namespace="other")
        await store.put_api_key(key("a"))
        assert not await other.revoke_api_key("a")
        assert not await store.revoke_api_key("b")
        assert await store.revoke_api_key("a", 3600 * SECOND)
        later = await store.find_api_key("a")
        assert later is not None
        assert later.is_good(await store.now())
        assert await store.revoke_api_key("a")
        now = await store.find_api_key("a")
        assert now is not None
        assert not now.is_good(await store.now() + 1)
        assert not await store.revoke_api_key("a")

    async def test_the_last_use_is_noted_once_a_minute(self, store: Store) -> None:
        await store.put_api_key(key("a"))
        await store.note_api_key("a")
        first = await store.find_api_key("a")
        await store.note_api_key("a")
        again = await store.find_api_key("a")
        store.shift_clock(61)
        await store.note_api_key("a")
        later = await store.find_api_key("a")
        assert first is not None
        assert again is not None
        assert later is not None
        assert first.last_used_at is not None
        assert again.last_used_at == first.last_used_at
        assert later.last_used_at is not None
        assert later.last_used_at >= first.last_used_at + 60 * SECOND
        await store.note_api_key("nothing")

    async def test_who_made_and_revoked_a_key_is_recorded(self, store: Store) -> None:
        await store.put_api_key(key("a"), CREATE)
        await store.put_api_key(key("a"), CREATE)
        await store.revoke_api_key("a", 0, REVOKE)
        await store.revoke_api_key("a", 0, REVOKE)
        found = [(row.verb, row.target, row.actor, row.reason) for row in await store.audit()]
        assert found == [("create api key", "a", "ann", "for the dashboard"), ("revoke api key", "a", "ann", "")]
