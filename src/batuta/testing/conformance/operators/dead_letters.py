"""Dead letters: written with the close that makes one, listed, grouped, counted and resolved."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batuta.clock import as_datetime, as_micros
from batuta.errors import InvalidInput, UnknownLetter
from batuta.ids import RunId, new_run_id
from batuta.journal.audit import Act, Verb, first_break
from batuta.journal.dead_letters import DeadLetter, LetterFilter, LetterState
from batuta.journal.records import (
    Change,
    Effects,
    IfExists,
    LetterReason,
    Move,
    NewLetter,
    RunKind,
    Verdict,
    WorkerInfo,
)
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, Pen, live_worker, new_run, signal, start_owned

OPEN, DISCARDED = LetterState.OPEN, LetterState.DISCARDED
ANY = LetterFilter(states=())


def dead(fingerprint: str = "f", **fields: Any) -> Effects:
    """What a change that closes a run as a dead letter has."""
    settings: dict[str, Any] = {"reason": LetterReason.EXHAUSTED, "error": "ValueError", "message": "no"} | fields
    return Effects(letter=NewLetter(fingerprint=fingerprint, **settings))


def discard(reason: str = "of no use") -> Act:
    return Act(actor="ann", verb=Verb.DISCARD, reason=reason)


async def give_up(
    store: Store, worker: WorkerInfo, fingerprint: str = "f", options: dict[str, Any] | None = None, **fields: Any
) -> RunId:
    """A run that was given up, a moment after the one before."""
    pen = await start_owned(store, worker, **(options or {}))
    store.shift_clock(0.001)
    answer = await pen.write(store, worker, move=Move(RunState.FAILED), effects=dead(fingerprint, **fields))
    assert answer is None
    return pen.run_id


async def ids_of(store: Store, where: LetterFilter = ANY) -> list[RunId]:
    return [letter.run_id for letter in (await store.letters(where)).letters]


async def groups_of(store: Store, where: LetterFilter = ANY, limit: int = 50) -> list[tuple[str, int, RunId]]:
    """All pages together."""
    found, cursor = [], None
    while True:
        page = await store.letter_groups(where, cursor, limit)
        found += [(group.fingerprint, group.count, group.example.run_id) for group in page.groups]
        cursor = page.cursor
        if cursor is None:
            return found


class LettersConformance:
    """A run that was given up is a dead letter until somebody says what becomes of it."""

    async def test_a_letter_says_what_was_given_up_and_why(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store, queues=["q"], code={"send": "1"})
        new = new_run("mail-1", name="send", kind=RunKind.JOB, queue="q", flow_key="ann", if_exists=IfExists.RESTART)
        letter = NewLetter(
            reason=LetterReason.TIMED_OUT,
            error="ActivityTimeout",
            message="too slow: ç",
            fingerprint="f1",
            activity="send",
            seq=1,
            attempts=3,
            keep=0,
            trace="abc",
        )
        move, effects = Move(RunState.FAILED), Effects(letter=letter)
        assert await Pen(new.run_id, 1).write(store, worker, 2, start=new, move=move, effects=effects) is None
        closed = (await store.get_run(new.run_id)).closed_at
        assert closed is not None
        expected = DeadLetter(
            run_id=new.run_id,
            id="mail-1",
            kind=RunKind.JOB,
            name="send",
            queue="q",
            key="ann",
            state=OPEN,
            at=as_datetime(closed),
            reason=LetterReason.TIMED_OUT,
            error="ActivityTimeout",
            message="too slow: ç",
            fingerprint="f1",
            activity="send",
            seq=1,
            attempts=3,
            keep=0,
            trace="abc",
        )
        other = await make_store()
        assert await other.letter(new.run_id) == expected
        assert (await other.letters(LetterFilter())).letters == [expected]

    async def test_what_is_no_letter_is_not_found(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        run_id = await give_up(store, worker)
        elsewhere = await make_store(namespace="other")
        for place, asked in ((store, new_run_id()), (elsewhere, run_id)):
            with pytest.raises(UnknownLetter):
                await place.letter(asked)
        assert await ids_of(elsewhere) == []
        assert await groups_of(elsewhere) == []
        assert await elsewhere.count_letters(ANY) == 0
        assert await elsewhere.discard_letters([run_id], discard()) == []
        assert (await store.letter(run_id)).state is OPEN

    async def test_a_refused_change_leaves_no_letter(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        zombie = Pen(pen.run_id, epoch=7, head=pen.head, last=pen.last)
        failed = Move(RunState.FAILED)
        assert await zombie.write(store, worker, move=failed, effects=dead()) is Verdict.REFUSED
        await store.send(pen.run_id, signal("s"))
        assert await pen.write(store, worker, move=failed, effects=dead()) is Verdict.UNREAD
        assert await store.count_letters(ANY) == 0
        assert await groups_of(store) == []

    async def test_a_change_that_is_written_twice_leaves_one_letter(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        change = pen.change(1, move=Move(RunState.FAILED), effects=dead())
        for _ in range(2):
            assert await store.commit(worker.worker_id, [change]) == {}
        assert await groups_of(store) == [("f", 1, pen.run_id)]

    async def test_a_letter_may_come_with_the_transaction_of_an_activity(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        transaction = store.transact(2.0)
        await transaction.begin()
        change = pen.change(1, move=Move(RunState.FAILED), effects=dead())
        assert await transaction.commit(worker.worker_id, change, lambda _: None) == []
        assert await groups_of(store) == [("f", 1, pen.run_id)]

    async def test_letters_of_a_batch_are_all_kept(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = [await start_owned(store, worker) for _ in range(5)]
        changes: list[Change] = [
            pen.change(1, move=Move(RunState.FAILED), effects=dead("even" if n % 2 == 0 else "odd"))
            for n, pen in enumerate(pens)
        ]
        done = await start_owned(store, worker)
        changes.append(done.change(1, move=Move(RunState.COMPLETED)))
        assert await store.commit(worker.worker_id, changes) == {}
        assert sorted(await ids_of(store)) == sorted(pen.run_id for pen in pens)
        assert sorted(group[:2] for group in await groups_of(store)) == [("even", 3), ("odd", 2)]

    async def test_pages_go_on_where_the_last_one_ended(self, store: Store) -> None:
        worker = await live_worker(store)
        made = [await give_up(store, worker, f"f{n % 3}") for n in range(7)]
        await store.discard_letters(made[2:4], discard())
        seen: list[RunId] = []
        cursor = None
        while True:
            page = await store.letters(ANY, cursor, 2)
            seen += [letter.run_id for letter in page.letters]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == made[::-1]
        assert await groups_of(store, limit=1) == [("f0", 3, made[6]), ("f2", 2, made[5]), ("f1", 2, made[4])]
        for bad in ("x", "1:", "5:not-an-id", f"-1:{made[0]}"):
            with pytest.raises(InvalidInput):
                await store.letters(ANY, bad)
        for bad in ("x", "1:"):
            with pytest.raises(InvalidInput):
                await store.letter_groups(ANY, bad)

    async def test_filters_restrict_lists_groups_and_counts(self, store: Store) -> None:
        worker = await live_worker(store, queues=["default", "other"], code={"flow": "1", "send": "1"})
        await give_up(store, worker, "f1")
        options = {"name": "send", "kind": RunKind.JOB, "queue": "other", "flow_key": "k", "id": "mail-1"}
        fields = {"reason": LetterReason.REFUSED, "error": "KeyError", "activity": "send"}
        wanted = await give_up(store, worker, "f2", options, **fields)
        values: dict[str, Any] = options | fields | {"fingerprint": "f2", "id_prefix": "mail", "kind": "job"}
        del values["id"]
        for field, value in values.items():
            where = LetterFilter(**{field: value})
            assert await ids_of(store, where) == [wanted], field
            assert await groups_of(store, where) == [("f2", 1, wanted)], field
            assert await store.count_letters(where) == 1, field
            unheard_of: dict[str, Any] = {field: LetterReason.RAISED if field == "reason" else "unheard of"}
            nothing = LetterFilter(**unheard_of)
            assert await ids_of(store, nothing) == [], field
            assert await groups_of(store, nothing) == [], field
            assert await store.count_letters(nothing) == 0, field

    async def test_letters_of_a_time_are_found(self, store: Store) -> None:
        worker = await live_worker(store)
        made = [await give_up(store, worker, f"f{n}") for n in range(3)]
        times = [as_micros((await store.letter(run_id)).at) for run_id in made]
        where = LetterFilter(after=times[0], before=times[2])
        assert await ids_of(store, where) == [made[1]]
        assert await groups_of(store, where) == [("f1", 1, made[1])]
        assert await store.count_letters(where) == 1
        assert await ids_of(store, LetterFilter(before=times[1], fingerprint="f0")) == [made[0]]

    async def test_one_group_has_letters_of_several_workflows(self, store: Store) -> None:
        worker = await live_worker(store, code={"flow": "1", "send": "1"})
        first = await give_up(store, worker)
        other = await give_up(store, worker, "f", {"name": "send"}, reason=LetterReason.REFUSED)
        last = await give_up(store, worker)
        assert await groups_of(store) == [("f", 3, last)]
        assert await groups_of(store, LetterFilter(name="send")) == [("f", 1, other)]
        assert await groups_of(store, LetterFilter(name="flow")) == [("f", 2, last)]
        page = await store.letter_groups(LetterFilter(name="flow"))
        assert (page.groups[0].first_at, page.groups[0].last_at) == tuple(
            [(await store.letter(run_id)).at for run_id in (first, last)]
        )

    async def test_a_discarded_letter_keeps_its_note_and_leaves_the_open_ones(self, store: Store) -> None:
        worker = await live_worker(store)
        one, two, three = [await give_up(store, worker) for _ in range(3)]
        assert set(await store.discard_letters([three, one, new_run_id()], discard("twice"))) == {three, one}
        letter = await store.letter(one)
        assert (letter.state, letter.note, letter.successor) == (DISCARDED, "twice", None)
        assert letter.resolved_at is not None
        assert letter.resolved_at >= letter.at
        assert await ids_of(store, LetterFilter()) == [two]
        (group,) = (await store.letter_groups(LetterFilter())).groups
        at = (await store.letter(two)).at
        assert (group.count, group.first_at, group.last_at, group.example.run_id) == (1, at, at, two)
        assert await groups_of(store, LetterFilter(states=(DISCARDED,))) == [("f", 2, three)]
        assert await groups_of(store) == [("f", 3, three)]
        assert [await store.count_letters(LetterFilter(states=(state,))) for state in LetterState] == [1, 0, 2]

    async def test_what_was_discarded_is_not_discarded_again(self, store: Store) -> None:
        worker = await live_worker(store)
        run_id = await give_up(store, worker)
        assert await store.discard_letters([run_id], discard("first")) == [run_id]
        assert await store.discard_letters([run_id, run_id], discard("second")) == []
        assert (await store.letter(run_id)).note == "first"
        assert await groups_of(store, LetterFilter()) == []
        assert await store.count_letters(LetterFilter()) == 0

    async def test_what_was_discarded_is_in_the_audit_log(self, store: Store) -> None:
        worker = await live_worker(store)
        one, two, three = [await give_up(store, worker, options={"id": f"run-{n}"}) for n in range(3)]
        await store.discard_letters([one], discard("first"))
        await store.discard_letters([one, two, new_run_id()], discard("second"))
        await store.discard_letters([one, two], discard("third"))
        rows = await store.audit()
        said = [(row.actor, row.verb, row.target, row.run_id, row.reason) for row in rows]
        assert said == [
            ("ann", "discard", "run-0", str(one), "first"),
            ("ann", "discard", "run-1", str(two), "second"),
        ]
        assert {(row.before, row.after) for row in rows} == {('{"state":"open"}', '{"state":"discarded"}')}
        assert first_break("default", (0, ""), rows) is None
        assert (await store.letter(three)).state is OPEN

    async def test_each_is_discarded_by_one_of_many(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        made = [await give_up(store, worker, f"f{n % 3}") for n in range(12)]
        stores = [await make_store() for _ in range(3)]
        orders = (made, made[::-1], made[6:] + made[:6])
        won = await asyncio.gather(
            *(each.discard_letters(order, discard()) for each, order in zip(stores, orders, strict=True))
        )
        assert sorted(run_id for part in won for run_id in part) == sorted(made)
        assert await groups_of(store, LetterFilter()) == []
        assert [group[1] for group in await groups_of(store)] == [4, 4, 4]

    async def test_letters_that_come_and_go_at_once_are_counted_right(
        self, store: Store, make_store: MakeStore
    ) -> None:
        worker, other = await live_worker(store), await make_store()
        for _ in range(5):
            here = [await give_up(store, worker, f"f{n}") for n in range(2)]
            pens = [await start_owned(store, worker) for _ in range(4)]
            changes = [
                pen.change(1, move=Move(RunState.FAILED), effects=dead(f"f{n % 2}")) for n, pen in enumerate(pens)
            ]
            await asyncio.gather(store.commit(worker.worker_id, changes), other.discard_letters(here, discard()))
        groups = (await store.letter_groups(LetterFilter())).groups
        assert sorted((group.fingerprint, group.count) for group in groups) == [("f0", 10), ("f1", 10)]
        for group in groups:
            alike = (await store.letters(LetterFilter(fingerprint=group.fingerprint))).letters
            assert (group.count, group.last_at, group.first_at) == (len(alike), alike[0].at, alike[-1].at)
