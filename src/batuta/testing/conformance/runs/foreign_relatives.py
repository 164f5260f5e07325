"""A run that names a run of another namespace as its parent, or as its chain."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from batuta.ids import RunId
from batuta.journal.audit import Verb
from batuta.journal.entries import Body, EntryKind, encode_entry
from batuta.journal.records import Effects, Move, Output, OutputKind
from batuta.journal.states import RunState
from batuta.testing.conformance.kit import MakeStore, Pen, claimed, live_worker, new_run, outlive_lease, signal
from batuta.testing.conformance.runs.namespaces import OTHER, OWN, Scene, acts, attempted, furnish, plan, quoted, seen


class ForeignRelativesConformance:
    """It changes nothing there, however it ends."""

    @pytest.mark.parametrize("ending", ["commit", "hand over", "close", "terminate", "expire"])
    @pytest.mark.parametrize("role", ["last", "part", "held"])
    async def test_a_run_that_says_its_parent_is_of_another_namespace_tells_and_ends_nothing_there(
        self, make_store: MakeStore, ending: str, role: str
    ) -> None:
        theirs = await furnish(await make_store(OWN), plan())
        last = replace(new_run("last"), parent_run_id=None)
        part = new_run("part")
        await theirs.store.start_many([part], last)
        theirs.ids |= {"last": last.run_id, "part": part.run_id}
        before = await seen(theirs)
        mine = Scene(await make_store(OTHER), await live_worker(await make_store(OTHER)), {}, {})
        expires = 1 if ending == "expire" else 0
        child = replace(new_run("mine", parent_run_id=theirs.ids[role], parent_seq=1), expires=expires)
        await attempted(mine.store.start(child))
        await _end(mine, child.run_id, ending)
        assert await seen(theirs) == before
        due = {stored.run.id for stored in await claimed(theirs.store, theirs.worker)}
        assert "last" not in due, "one of its own has not ended yet"

    async def test_a_run_that_says_its_chain_is_of_another_namespace_reads_and_writes_nothing_there(
        self, make_store: MakeStore
    ) -> None:
        theirs = await furnish(await make_store(OWN), plan())
        before = await seen(theirs)
        store = await make_store(OTHER)
        mine = Scene(store, await live_worker(store), {}, {})
        for role in ("held", "ready"):
            run = new_run(f"mine {role}", chain_id=theirs.ids[role])
            found = [await attempted(store.start(run)), await attempted(store.unread([run.run_id]))]
            found += [await attempted(store.load(run.run_id)), await attempted(store.inbox(run.run_id))]
            for stored in await claimed(store, mine.worker):
                pen, word = Pen.of(stored), quoted(mine.word)
                answer = Output(kind=OutputKind.ANSWER, name="ask", ord=1, at=9, value=word)
                found.append(stored)
                await attempted(pen.write(store, mine.worker, consumed=["unread"], effects=Effects(outputs=[answer])))
                found.append(await attempted(store.send(run.run_id, signal("new", word))))
                found.append(await attempted(store.unread([run.run_id])))
                await attempted(pen.write(store, mine.worker, consumed=["new"], move=Move(RunState.COMPLETED)))
            found.append(await attempted(store.delete_runs([run.run_id], acts(Verb.DELETE))))
            assert theirs.word not in repr(found)
        assert await seen(theirs) == before


async def _end(scene: Scene, run_id: RunId, ending: str) -> None:
    """Whichever way a run ends: its relatives are told of it."""
    store, worker = scene.store, scene.worker
    if ending == "expire":
        await outlive_lease(store)
        async with store.heartbeat(worker.worker_id) as heartbeat:
            for _ in range(2):
                await heartbeat.beat(await live_worker(store), reap=True)
        return
    if ending == "terminate":
        await store.terminate_runs([run_id], scene.word, acts(Verb.TERMINATE))
        return
    for stored in await claimed(store, worker):
        pen, move = Pen.of(stored), Move(RunState.COMPLETED, outcome=quoted(scene.word), children=True)
        messages = [one.message_id for one in stored.messages]
        if ending == "close":
            await pen.write(store, worker, start=None, consumed=messages)
            assert pen.last is not None
            entry = encode_entry(1, EntryKind.TERMINATED, pen.last.at + 1, Body(reason="x"), pen.last.crc)
            assert await store.close_run(run_id, 0, entry, RunState.TERMINATED, "x")
        elif ending == "hand over":
            await store.hand_over(worker, [pen.change(consumed=messages, move=move)], 5)
        else:
            assert await pen.write(store, worker, consumed=messages, move=move) is None
