"""Marks of a namespace, which every client that connects to it reads."""

from __future__ import annotations

from batuta.journal.audit import Act, Verb
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore

SET = Act(actor="ann", verb=Verb.SET_MARK, reason="the auditors")
CLEAR = Act(actor="ann", verb=Verb.CLEAR_MARK)


class MarksConformance:
    """A store keeps marks, and does nothing else because of one."""

    async def test_there_are_none_at_first(self, make_store: MakeStore) -> None:
        assert await (await make_store(namespace="unmarked")).marks() == {}

    async def test_a_mark_is_there_for_all_of_its_namespace(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        assert await store.set_mark("b", "1")
        assert await store.set_mark("a", "x é")
        assert await other.set_mark("a", "theirs")
        assert list((await (await make_store()).marks()).items()) == [("a", "x é"), ("b", "1")]
        assert await other.marks() == {"a": "theirs"}

    async def test_a_mark_is_replaced_by_another_of_its_name(self, store: Store) -> None:
        assert await store.set_mark("a", "1")
        assert not await store.set_mark("a", "1")
        assert await store.set_mark("a", "2")
        assert await store.marks() == {"a": "2"}

    async def test_a_mark_is_taken_away(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        await store.set_mark("a", "")
        await other.set_mark("a", "")
        assert not await store.clear_mark("b")
        assert await store.clear_mark("a")
        assert not await store.clear_mark("a")
        assert (await store.marks(), await other.marks()) == ({}, {"a": ""})

    async def test_who_sets_one_is_recorded_when_it_changes_something(self, store: Store) -> None:
        for value in ("1", "1", "2"):
            await store.set_mark("a", value, SET)
        await store.clear_mark("a", CLEAR)
        await store.clear_mark("a", CLEAR)
        found = [(row.verb, row.target, row.actor, row.reason) for row in await store.audit()]
        assert found == [("set mark", "a", "ann", "the auditors")] * 2 + [("clear mark", "a", "ann", "")]
