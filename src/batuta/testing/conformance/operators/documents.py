"""Documents that are kept for a time, and which namespaces there are."""

from __future__ import annotations

from batuta.clock import SECOND
from batuta.journal.audit import Act, Verb
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, live_worker, new_run

HOUR = 3600 * SECOND


class DocumentsConformance:
    """A store keeps documents until their time is over."""

    async def test_a_document_is_written_over_and_keeps_its_age_of_creation(self, store: Store) -> None:
        await store.put_documents("k", {"a": '{"\u00e9": 1}', "b": "2"}, HOUR)
        first = await store.document("k", "a")
        assert first is not None
        store.shift_clock(60)
        await store.put_documents("k", {"a": "3"}, HOUR)
        again, other = await store.document("k", "a"), await store.document("k", "b")
        assert again is not None
        assert other is not None
        assert (first.body, again.body, again.created_at) == ('{"\u00e9": 1}', "3", first.created_at)
        assert again.age < 50 * SECOND < other.age
        assert await store.document("k", "c") is None
        assert await store.document("other", "a") is None

    async def test_documents_are_listed_newest_first_up_to_a_limit(self, store: Store) -> None:
        for key in "bca":
            await store.put_documents("k", {key: "1"}, HOUR)
            store.shift_clock(1)
        await store.put_documents("other", {"z": "1"}, HOUR)
        await store.put_documents("k", {}, HOUR)
        assert [one.key for one in await store.documents("k")] == ["a", "c", "b"]
        assert [one.key for one in await store.documents("k", 2)] == ["a", "c"]

    async def test_writing_documents_for_somebody_is_in_the_audit_log(self, store: Store) -> None:
        act = Act(actor="ann", verb=Verb.SET_SECRET, reason="new")
        await store.put_documents("k", {"b": "1", "a": "1"}, HOUR, act)
        await store.put_documents("k", {"b": "2"}, HOUR)
        assert [(row.verb, row.target, row.reason) for row in await store.audit()] == [
            ("set secret", "a", "new"),
            ("set secret", "b", "new"),
        ]

    async def test_a_document_is_forgotten_when_its_time_is_over(self, store: Store) -> None:
        await store.put_documents("k", {"a": "1", "b": "1"}, HOUR)
        store.shift_clock(3601)
        assert await store.document("k", "a") is None
        assert await store.documents("k") == []
        await store.put_documents("k", {"a": "2"}, HOUR)
        [found] = await store.documents("k")
        assert (found.key, found.body, found.age < SECOND * 60) == ("a", "2", True)

    async def test_namespaces_with_something_in_them_are_listed_by_name(
        self, store: Store, make_store: MakeStore
    ) -> None:
        assert store.namespace not in await store.known_namespaces()
        for name in ("acme", "acme/eu", "beta", "gamma", "z\u00e9ro"):
            other = await make_store(namespace=name)
            if name == "beta":
                await live_worker(other)
            elif name == "gamma":
                await other.put_documents("k", {"a": "1"}, HOUR)
            else:
                await other.start(new_run("due"))
        every = await store.known_namespaces()
        assert [name for name in every if name != store.namespace] == ["acme", "acme/eu", "beta", "gamma", "z\u00e9ro"]
        assert await store.known_namespaces("acme", 2) == ["acme/eu", "beta"]
