"""Breakers and limits: documents that processes change together, and runs that wait for a gate."""

from __future__ import annotations

import asyncio

from batuta.clock import SECOND
from batuta.journal.audit import Act, Verb
from batuta.journal.records import Hint, Move
from batuta.journal.resilience.partners import BREAKER, LIMIT, PartnerChange, PartnerDocs, PartnerRule, gate_reason
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, claimed, live_worker, start_owned

HOUR = 3600 * SECOND
FORCE = Act(actor="ann", verb=Verb.FORCE_BREAKER, reason="maintenance")


def put(doc: str, *, expires_in: int | None = None) -> PartnerRule[str | None]:
    """A rule that writes this document, and answers the one before."""

    def rule(docs: PartnerDocs) -> PartnerChange[str | None]:
        return PartnerChange(docs.doc, doc, expires_at=None if expires_in is None else docs.now + expires_in)

    return rule


def add_one(docs: PartnerDocs) -> PartnerChange[int]:
    count = int(docs.doc or 0) + 1
    return PartnerChange(count, str(count))


def look(docs: PartnerDocs) -> PartnerChange[tuple[str | None, str | None]]:
    return PartnerChange((docs.own, docs.doc))


class PartnersConformance:
    """What is kept of partners."""

    async def test_a_document_is_kept_changed_and_forgotten(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        assert (await store.change_partner(BREAKER, "bank", "", put("{}"))).answer is None
        assert (await other.change_partner(BREAKER, "bank", "", put("[1]"))).answer == "{}"
        await store.change_partner(LIMIT, "bank", "", put("7"))
        await store.change_partner(LIMIT, "bank", "key", put("8"))
        assert (await other.change_partner(LIMIT, "bank", "key", look)).answer == ("7", "8")
        assert (await other.change_partner(LIMIT, "bank", "another", look)).answer == ("7", None)
        kept = [(one.kind, one.name, one.key, one.doc) for one in await other.partners(keys=True)]
        assert kept == [(BREAKER, "bank", "", "[1]"), (LIMIT, "bank", "", "7"), (LIMIT, "bank", "key", "8")]
        assert [one.doc for one in await other.partners()] == ["[1]", "7"]
        await store.change_partner(BREAKER, "bank", "", put(""))
        assert [one.kind for one in await other.partners()] == [LIMIT]
        assert await (await make_store(namespace="other")).partners() == []

    async def test_no_change_is_lost_between_processes(self, store: Store, make_store: MakeStore) -> None:
        others = [store, await make_store(), await make_store()]
        await asyncio.gather(*(one.change_partner(LIMIT, "bank", "k", add_one) for one in others * 10))
        assert (await store.change_partner(LIMIT, "bank", "k", add_one)).answer == 31

    async def test_documents_that_have_expired_go_when_others_change(self, store: Store) -> None:
        await store.change_partner(LIMIT, "bank", "old", put("1", expires_in=SECOND))
        store.shift_clock(2)
        for _ in range(101):
            await store.change_partner(LIMIT, "bank", "new", add_one)
        assert [one.key for one in await store.partners(keys=True)] == ["new"]

    async def test_an_act_is_recorded_with_the_change_alone(self, store: Store) -> None:
        await store.change_partner(BREAKER, "bank", "", put("{}"), FORCE)
        await store.change_partner(BREAKER, "bank", "", put("{}"), FORCE)
        await store.change_partner(BREAKER, "bank", "", look, FORCE)
        acts = await store.audit()
        assert [(act.verb, act.target, act.reason) for act in acts] == [(FORCE.verb, "bank", "maintenance")]

    async def test_others_hear_of_a_change_that_is_told(self, store: Store, make_store: MakeStore) -> None:
        heard, other = asyncio.Event(), await make_store()

        def hear(hint: Hint) -> None:
            if hint.partners:
                heard.set()

        undo = other.listen(hear)
        async with asyncio.timeout(20):
            while not heard.is_set():  # the listener may not be connected yet
                await store.change_partner(BREAKER, "bank", "", lambda _: PartnerChange(None, "{}", tell=True))
                await asyncio.sleep(0.02)
        undo()

    async def test_runs_that_wait_for_a_gate_are_woken_by_its_name(self, store: Store) -> None:
        worker = await live_worker(store)
        waits = [gate_reason("bank"), gate_reason("bank"), gate_reason("bank"), gate_reason("post"), "bank", ""]
        for number, reason in enumerate(waits):
            pen = await start_owned(store, worker, f"run-{number}")
            wake_at = await store.now() + HOUR * (number + 1)
            assert await pen.write(store, worker, move=Move(RunState.WAITING, wake_at, reason)) is None
        assert await store.wake_gate("bank", 2) == 2
        assert await store.wake_gate("bank", 5) == 1
        assert await store.wake_gate("bank", 5) == 0
        assert sorted(one.run.id for one in await claimed(store, worker)) == ["run-0", "run-1", "run-2"]
