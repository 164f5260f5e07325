"""Jobs as most of them are: without an id from the caller, begun from their start message, and completed."""

from __future__ import annotations

from collections import UserList
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from batuta.clock import SECOND
from batuta.errors import AlreadyStarted, UnknownRun
from batuta.ids import new_run_id
from batuta.journal.entries import Body, EntryKind, encode_entry
from batuta.journal.records import (
    Change,
    IfExists,
    Message,
    MessageKind,
    Move,
    NewRun,
    RunFilter,
    RunKind,
    StoredRun,
    Verdict,
)
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, Pen, claimed, live_worker, new_run, signal

LONG = 5_000
MANY = 2_100


class Unmade(UserList[NewRun]):
    """Runs of which the last ones cannot be made."""

    def __getitem__(self, index: Any) -> Any:
        if (index.indices(MANY)[1] if isinstance(index, slice) else index) > MANY - 50:
            raise ZeroDivisionError
        return self.data[index]

    def __iter__(self) -> Iterator[NewRun]:
        return iter(self[:])


def job(**options: Any) -> NewRun:
    """A run that has its run_id for an id."""
    run = new_run(kind=RunKind.JOB, **options)
    run.id = str(run.run_id)
    return run


def ended(stored: StoredRun) -> Change:
    """Its whole journal at once, and the end."""
    start = stored.messages[0]
    opening = encode_entry(0, EntryKind.STARTED, 1_000, Body(message_id=start.message_id), 0)
    closing = encode_entry(1, EntryKind.ACTIVITY_DONE, 1_001, Body(seq=1), opening.crc)
    run, move = stored.run, Move(RunState.COMPLETED)
    return Change(run.run_id, run.epoch, -1, [opening, closing], consumed=(start.message_id,), move=move)


def _starts(stored_runs: Sequence[StoredRun]) -> list[tuple[str, str]]:
    return [(stored.messages[0].message_id, stored.messages[0].body) for stored in stored_runs]


class PlainConformance:
    """The short path of most jobs gives the same as the long one."""

    async def test_many_begin_together_each_with_its_own(self, store: Store) -> None:
        worker = await live_worker(store, code={"flow": "v1", "other": "v1"}, queues=["default", "side"])
        asked = [
            job(start='{"value":[1]}'),
            job(start='{"value":["é"]}', name="other", queue="side", priority=3, tags='{"a":"b"}', memo='"m"'),
            job(start='{"value":[3]}', flow_key="k", delay=30 * SECOND, expires=60 * SECOND),
        ]
        outcomes = await store.start_many(asked)
        assert [await store.get(run.id) for run in asked] == [one[0] for one in outcomes if isinstance(one, tuple)]
        assert [one[1] for one in outcomes if isinstance(one, tuple)] == [True] * 3
        late = await store.get_run(asked[2].run_id)
        assert late.wake_at == late.created_at + 30 * SECOND
        assert late.expires_at == late.created_at + 60 * SECOND
        stored_runs = await claimed(store, worker)
        assert [(stored.run.run_id, stored.run.name, stored.run.tags) for stored in stored_runs] == [
            (asked[1].run_id, "other", '{"a":"b"}'),
            (asked[0].run_id, "flow", "{}"),
        ]
        assert _starts(stored_runs) == [(f"start:{run.run_id}", run.start) for run in (asked[1], asked[0])]

    async def test_a_start_that_is_sent_again_is_the_same(self, store: Store) -> None:
        asked = [job(), job()]
        await store.start_many(asked[:1])
        assert [outcome[1] for outcome in await store.start_many(asked) if isinstance(outcome, tuple)] == [True, True]
        assert len(await claimed(store, await live_worker(store))) == 2

    async def test_thousands_begin_together_each_with_its_own(self, store: Store) -> None:
        asked = [job(start=f'{{"value":[{number}]}}') for number in range(MANY)]
        outcomes = await store.start_many(asked)
        assert [one[1] for one in outcomes if isinstance(one, tuple)] == [True] * MANY
        found = [await store.get(run.id) for run in asked[::500]]
        assert found == [one[0] for one in outcomes[::500] if isinstance(one, tuple)]
        stored_runs = await claimed(store, await live_worker(store), MANY + 1)
        assert sorted(_starts(stored_runs)) == sorted((f"start:{run.run_id}", run.start) for run in asked)

    @pytest.mark.parametrize("place", [0, MANY - 1])
    async def test_one_of_thousands_that_is_there_already_stays_as_it_is(self, store: Store, place: int) -> None:
        asked = [job() for _ in range(MANY)]
        [once] = await store.start_many([asked[place]])
        outcomes = await store.start_many(asked)
        assert outcomes[place] == once
        assert len({one[0].run_id for one in outcomes if isinstance(one, tuple)}) == MANY
        assert await store.count_runs(RunFilter()) == MANY

    async def test_one_of_thousands_that_is_no_plain_job_is_among_them(self, store: Store) -> None:
        asked = [job() for _ in range(MANY)]
        asked[-1] = new_run("by name", if_exists=IfExists.RENEW)
        assert all(isinstance(one, tuple) and one[1] for one in await store.start_many(asked))
        assert (await store.get("by name")).run_id == asked[-1].run_id
        assert await store.count_runs(RunFilter()) == MANY

    async def test_when_one_of_thousands_cannot_be_made_nothing_is_written(self, store: Store) -> None:
        asked = Unmade([job() for _ in range(MANY)])
        with pytest.raises(ZeroDivisionError):
            await store.start_many(asked)
        assert await store.count_runs(RunFilter()) == 0
        assert (await store.start_many([job()]))[0]

    async def test_a_long_start_is_delivered_as_well(self, store: Store) -> None:
        asked = [job(start=f'{{"value":["{"x" * LONG}"]}}'), job()]
        await store.start_many(asked)
        stored_runs = await claimed(store, await live_worker(store))
        assert sorted(_starts(stored_runs)) == sorted((f"start:{run.run_id}", run.start) for run in asked)

    async def test_the_start_comes_before_what_was_sent_since(self, store: Store) -> None:
        run = job()
        await store.start_many([run])
        await store.send(run.run_id, Message(message_id="c", kind=MessageKind.CANCEL))
        await store.send(run.run_id, signal("s"))
        expected = [f"start:{run.run_id}", "c", "s"]
        assert [message.message_id for message in (await store.load(run.run_id)).messages] == expected
        [stored] = await claimed(store, await live_worker(store))
        assert [message.message_id for message in stored.messages] == expected
        unread = (await store.unread([run.run_id]))[run.run_id].messages
        assert [message.message_id for message in unread] == expected

    async def test_what_goes_back_unbegun_is_due_with_its_start(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start_many([job()])
        [stored] = await claimed(store, worker)
        await Pen.of(stored).release(store, worker)
        [again] = await claimed(store, worker)
        assert again.messages == stored.messages

    async def test_jobs_that_ended_are_closed_with_their_journals(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start_many([job(), job(), job(start=f'{{"value":["{"x" * LONG}"]}}')])
        changes = [ended(stored) for stored in await claimed(store, worker)]
        assert await store.commit(worker.worker_id, changes) == {}
        for change in changes:
            stored = await store.load(change.run_id)
            assert (stored.run.state, stored.run.head, stored.run.owner) == (RunState.COMPLETED, 1, None)
            assert (stored.entries, stored.messages) == (change.entries, [])
        assert await store.commit(worker.worker_id, changes) == {}  # written again: they are there

    async def test_only_those_end_whose_fence_holds_and_whose_mail_is_read(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start_many([job(), job(), job()])
        changes = [ended(stored) for stored in await claimed(store, worker)]
        await store.send(changes[0].run_id, signal("late"))
        changes[1].epoch += 1
        answers = await store.commit(worker.worker_id, changes)
        assert answers == {0: Verdict.UNREAD, 1: Verdict.REFUSED}
        heads = [(await store.get_run(change.run_id)).head for change in changes]
        assert heads == [-1, -1, 1]

    async def test_nobody_else_gets_an_id_that_is_a_run_id(self, store: Store, make_store: MakeStore) -> None:
        first = job()
        await store.start_many([first])
        other = new_run(first.id, kind=RunKind.JOB)
        run, is_new = await store.start(other)
        assert (run.run_id, is_new) == (first.run_id, False)
        with pytest.raises(AlreadyStarted):
            await store.start(new_run(first.id, if_exists=IfExists.REJECT))
        assert (await (await make_store("elsewhere")).start(new_run(first.id)))[1]
        with pytest.raises(UnknownRun):
            await store.get(str(new_run_id()))

    async def test_a_run_that_follows_has_the_id_then(self, store: Store) -> None:
        worker = await live_worker(store)
        first = job()
        await store.start_many([first])
        [stored] = await claimed(store, worker)
        assert await store.commit(worker.worker_id, [ended(stored)]) == {}
        later = new_run(first.id, if_exists=IfExists.RESTART)
        assert (await store.start(later))[1]
        assert (await store.get(first.id)).run_id == later.run_id
        assert not (await store.start(new_run(first.id)))[1]
