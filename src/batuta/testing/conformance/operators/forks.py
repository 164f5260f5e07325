"""Runs made from others."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from batuta.clock import SECOND
from batuta.errors import AlreadyStarted, LetterResolved, RunMoved, UnknownRun
from batuta.ids import new_run_id
from batuta.journal.audit import Act, Verb
from batuta.journal.dead_letters import LetterState
from batuta.journal.entries import Body, Entry, EntryKind, crc_holds, encode_entry
from batuta.journal.forks import Fork
from batuta.journal.records import (
    Attempt,
    Effects,
    LetterReason,
    Message,
    MessageKind,
    Move,
    NewLetter,
    Output,
    OutputKind,
    ParentPolicy,
    Run,
    RunFilter,
    RunKind,
    Successor,
    Verdict,
)
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import (
    MakeStore,
    Pen,
    claim_one,
    claimed,
    inbox,
    live_worker,
    new_run,
    signal,
    start_owned,
)
from batuta.testing.conformance.runs.close import last_word

ACT = Act(actor="ann@desk", verb=Verb.FORK, reason="try again")


def fork_of(pen: Pen, keep: int = 0, **parts: Any) -> Fork:
    """A fork of the pen's run after entry `keep`, as the next of its chain unless `id` says otherwise."""
    new = parts.pop("new", None) or Successor(run_id=new_run_id(), name="flow")
    return Fork(source=pen.run_id, head=pen.head, new=new, keep=keep, **parts)


async def forked(store: Store, fork: Fork) -> Run:
    """The new run. What stands in the way is raised."""
    [outcome] = await store.fork([fork], ACT)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def failed(store: Store, entries: int = 3, **options: Any) -> Pen:
    """A run that has failed with its last entry."""
    worker = await live_worker(store)
    pen = await start_owned(store, worker, **options)
    assert await pen.write(store, worker, entries - 1, move=Move(RunState.FAILED)) is None
    return pen


async def dead(store: Store) -> Pen:
    """The same, and it is a dead letter."""
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    letter = NewLetter(reason=LetterReason.EXHAUSTED, error="Boom", message="boom", fingerprint="f")
    assert await pen.write(store, worker, move=Move(RunState.FAILED), effects=Effects(letter=letter)) is None
    return pen


def next_entry(before: Entry) -> Entry:
    return encode_entry(before.ord + 1, EntryKind.TIMER_FIRED, before.at + 5, Body(seq=9), before.crc)


class ForksConformance:
    """What was done stays; what comes after is the new run's own."""

    async def test_it_goes_on_in_the_chain_with_what_was_done(self, store: Store) -> None:
        pen = await failed(store, 4, id="order-1", priority=3, tags='{"a":"b"}', memo='"m"', flow_key="k")
        run = await forked(store, fork_of(pen, keep=1))
        source = await store.get_run(pen.run_id)
        assert (run.id, run.chain_id, run.state, run.head, run.epoch) == ("order-1", pen.run_id, RunState.WAITING, 1, 0)
        assert (run.priority, run.tags, run.memo, run.flow_key) == (3, '{"a":"b"}', '"m"', "k")
        assert (run.forked_from, run.forked_at, run.owner, run.closed_at) == (pen.run_id, 1, None, None)
        assert (source.state, source.head) == (RunState.FAILED, 3)
        assert (await store.get("order-1")).run_id == run.run_id
        assert await store.journal(run.run_id) == (await store.journal(pen.run_id))[:2]
        assert await store.epochs(run.run_id) == [0, 0]

    async def test_it_is_claimed_and_written_to_like_any_other(self, store: Store) -> None:
        pen = await failed(store)
        run = await forked(store, fork_of(pen, keep=1))
        worker = await live_worker(store)
        stored = await claim_one(store, worker)
        assert (stored.run.run_id, stored.run.epoch, len(stored.entries)) == (run.run_id, 1, 2)
        after = Pen.of(stored)
        assert await after.write(store, worker, move=Move(RunState.COMPLETED)) is None
        entries = await store.journal(run.run_id)
        assert crc_holds(entries[0], 0)
        assert all(crc_holds(entry, before.crc) for before, entry in pairwise(entries))

    async def test_entries_of_its_own_come_after_what_is_kept(self, store: Store) -> None:
        pen = await failed(store)
        before = (await store.journal(pen.run_id))[1]
        run = await forked(store, fork_of(pen, keep=1, entries=[next_entry(before)]))
        assert (run.head, run.forked_at) == (2, 1)
        assert (await store.journal(run.run_id))[2] == next_entry(before)

    async def test_entries_may_take_the_place_of_all(self, store: Store) -> None:
        pen = await failed(store)
        entries = (await store.journal(pen.run_id))[:2]
        run = await forked(store, fork_of(pen, keep=-1, at=1, entries=entries))
        assert (run.head, run.forked_at, run.state) == (1, 1, RunState.WAITING)
        assert await store.journal(run.run_id) == entries

    async def test_without_an_entry_it_is_pending_with_a_start_of_its_own(self, store: Store) -> None:
        pen = await failed(store)
        new = Successor(run_id=new_run_id(), name="flow", start='{"value":["again"]}', delay=5 * SECOND)
        run = await forked(store, fork_of(pen, keep=-1, new=new))
        assert (run.state, run.head, run.forked_at) == (RunState.PENDING, -1, -1)
        assert run.wake_at == run.created_at + 5 * SECOND
        unread = (await store.load(run.run_id)).messages
        assert [(one.kind, one.body) for one in unread if one.message_id == f"start:{run.run_id}"] == [
            (MessageKind.START, '{"value":["again"]}')
        ]

    async def test_the_source_is_forked_once(self, store: Store) -> None:
        pen = await failed(store, id="order-1")
        first = await forked(store, fork_of(pen))
        [second] = await store.fork([fork_of(pen)], ACT)
        assert isinstance(second, RunMoved)
        assert (await store.get("order-1")).run_id == first.run_id

    async def test_written_again_it_is_the_same_run(self, store: Store) -> None:
        fork = fork_of(await failed(store))
        first = await forked(store, fork)
        assert await forked(store, fork) == first
        worker = await live_worker(store)
        pen = Pen.of(await claim_one(store, worker))
        await pen.write(store, worker, move=Move(RunState.FAILED))
        assert (await forked(store, fork)).run_id == first.run_id

    async def test_of_two_at_once_one_forks(self, make_store: MakeStore) -> None:
        one, other = await make_store(), await make_store()
        pen = await failed(one)
        outcomes = await asyncio.gather(one.fork([fork_of(pen)], ACT), other.fork([fork_of(pen)], ACT))
        assert sorted(type(outcome).__name__ for [outcome] in outcomes) == ["Run", "RunMoved"]

    async def test_what_does_not_hold_leaves_everything_as_it_was(self, store: Store) -> None:
        worker = await live_worker(store)
        closed, open_ = await failed(store), await start_owned(store, worker)
        stale, ahead = fork_of(closed), fork_of(closed, id="free")
        stale.head -= 1
        ahead.head += 1
        wrong = [
            stale,
            fork_of(open_),
            fork_of(closed, close=last_word(closed)),
            fork_of(closed, id=(await store.get_run(open_.run_id)).id),
            fork_of(Pen(new_run_id(), 1, 0)),
            ahead,
        ]
        before = [await store.get_run(pen.run_id) for pen in (closed, open_)]
        outcomes = await store.fork(wrong, ACT)
        assert [type(outcome) for outcome in outcomes] == [RunMoved] * 3 + [AlreadyStarted, UnknownRun, RunMoved]
        assert [await store.get_run(pen.run_id) for pen in (closed, open_)] == before
        assert await store.count_runs(RunFilter()) == len(before)

    async def test_one_that_is_refused_does_not_harm_the_others(self, store: Store) -> None:
        first, second = await failed(store), await failed(store)
        wrong = fork_of(second)
        wrong.head += 1
        made, refused, again = await store.fork([fork_of(first), wrong, fork_of(second)], ACT)
        assert isinstance(made, Run)
        assert isinstance(refused, RunMoved)
        assert isinstance(again, Run)

    # -- a chain of its own

    async def test_under_another_id_it_begins_a_chain(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, id="order-1")
        await pen.write(store, worker)
        run = await forked(store, fork_of(pen, id="order-1-copy"))
        assert (run.id, run.chain_id, run.forked_from) == ("order-1-copy", run.run_id, pen.run_id)
        assert (await store.get("order-1")).run_id == pen.run_id
        assert await pen.write(store, worker) is None  # the source goes on
        late = fork_of(pen, id="another")
        await pen.write(store, worker)
        assert (await forked(store, late)).head == 0

    async def test_an_earlier_run_of_a_chain_is_forked_under_another_id_only(self, store: Store) -> None:
        pen = await failed(store)
        await forked(store, fork_of(pen))
        [moved] = await store.fork([fork_of(pen)], ACT)
        assert isinstance(moved, RunMoved)
        assert (await forked(store, fork_of(pen, id="copy"))).head == 0

    # -- an open run

    async def test_an_open_run_is_closed_and_its_owner_refused(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, id="order-1")
        await pen.write(store, worker, 2)
        run = await forked(store, fork_of(pen, keep=1, close=last_word(pen)))
        source, last = await store.outcome(pen.run_id)
        assert (source.state, source.reason, source.epoch, source.owner) == (RunState.TERMINATED, "enough", 2, None)
        assert last is not None
        assert (last.kind, source.head) == (EntryKind.TERMINATED, 3)
        assert await pen.write(store, worker) is Verdict.REFUSED
        assert (await store.get("order-1")).run_id == run.run_id

    async def test_a_paused_run_is_closed_and_the_next_is_not_paused(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.release(store, worker)
        await store.pause_runs([pen.run_id], ACT)
        run = await forked(store, fork_of(pen, close=last_word(pen)))
        source = await store.get_run(pen.run_id)
        assert (source.state, source.paused_at, source.resume_at) == (RunState.TERMINATED, None, None)
        assert (run.state, run.paused_at, run.resume_at) == (RunState.WAITING, None, None)

    async def test_it_takes_the_place_of_an_open_child(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(
            store, worker, parent_run_id=parent.run_id, parent_seq=7, parent_policy=ParentPolicy.TERMINATE
        )
        run = await forked(store, fork_of(child, close=last_word(child)))
        assert (run.parent_run_id, run.parent_seq) == (parent.run_id, 7)
        assert await inbox(store, parent) == []
        pen = Pen.of(await claim_one(store, worker))
        await pen.write(store, worker, move=Move(RunState.COMPLETED, outcome='{"seq":7}'))
        assert await inbox(store, parent) == [f"child:{run.run_id}"]

    async def test_the_parent_of_a_closed_child_hears_nothing_more(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id, parent_seq=7)
        await child.write(store, worker, move=Move(RunState.FAILED, outcome='{"seq":7}'))
        run = await forked(store, fork_of(child))
        assert run.parent_run_id is None
        pen = Pen.of(await claim_one(store, worker))
        await pen.write(store, worker, move=Move(RunState.COMPLETED, outcome='{"seq":7}'))
        assert await inbox(store, parent) == [f"child:{child.run_id}"]

    async def test_children_of_an_open_run_are_told(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=pen.run_id, parent_policy=ParentPolicy.TERMINATE)
        await forked(store, fork_of(pen, close=last_word(pen)))
        assert await inbox(store, child) == [f"parent:{pen.run_id}"]

    async def test_children_are_forked_with_it(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        child = await start_owned(
            store, worker, parent_run_id=pen.run_id, parent_seq=3, parent_policy=ParentPolicy.TERMINATE
        )
        for one in (child, pen):
            await one.write(store, worker, move=Move(RunState.FAILED))
        inner = fork_of(child)
        run = await forked(store, fork_of(pen, children=[inner]))
        made = await store.get_run(inner.new.run_id)
        assert (made.parent_run_id, made.parent_seq, made.forked_from) == (run.run_id, 3, child.run_id)
        assert len(await store.audit()) == 2
        stored_runs = {stored.run.run_id: stored for stored in await claimed(store, worker)}
        again = Pen.of(stored_runs[made.run_id])
        await again.write(store, worker, move=Move(RunState.COMPLETED, outcome='{"seq":3}'))
        assert [one.message_id for one in (await store.load(run.run_id)).messages] == [f"child:{made.run_id}"]

    async def test_with_a_child_that_stands_in_the_way_nothing_is_forked(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=pen.run_id, parent_seq=3)
        await pen.write(store, worker, move=Move(RunState.FAILED))
        before = [await store.get_run(one.run_id) for one in (pen, child)]
        [outcome] = await store.fork([fork_of(pen, children=[fork_of(child)])], ACT)
        assert isinstance(outcome, RunMoved)
        assert [await store.get_run(one.run_id) for one in (pen, child)] == before
        assert await store.count_runs(RunFilter()) == 2

    # -- messages

    async def test_what_the_source_has_read_can_be_read_again(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        for name in ("one", "two", "three"):
            await store.send(pen.run_id, signal(name, f'"{name}"'))
        await pen.write(store, worker, consumed=["one", "two", "three"], move=Move(RunState.FAILED))
        run = await forked(store, fork_of(pen, again=["three", "two"]))
        unread = (await store.load(run.run_id)).messages
        assert [(one.message_id, one.body) for one in unread] == [("two", '"two"'), ("three", '"three"')]
        await store.send(run.run_id, signal("four"))
        assert not await store.send(run.run_id, signal("one"))
        again = Pen.of(await claim_one(store, worker))
        assert await again.write(store, worker, move=Move(RunState.COMPLETED)) is Verdict.UNREAD
        read = ["two", "three", "four"]
        assert await again.write(store, worker, consumed=read, move=Move(RunState.COMPLETED)) is None

    async def test_what_the_source_has_not_read_is_there_for_the_next(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, signal("one"))
        run = await forked(store, fork_of(pen, close=last_word(pen)))
        assert [one.message_id for one in (await store.load(run.run_id)).messages] == ["one"]

    async def test_what_was_for_the_source_alone_is_not_for_the_next(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        kinds = (MessageKind.TERMINATE, MessageKind.CHILD, MessageKind.ACTIVITY)
        for kind in kinds:
            await store.send(pen.run_id, Message(message_id=f"a {kind}", kind=kind))
        await store.send(pen.run_id, signal("one"))
        await store.pause_runs([pen.run_id], ACT)
        run = await forked(store, fork_of(pen, close=last_word(pen)))
        assert [one.message_id for one in (await store.load(run.run_id)).messages] == ["one"]

    async def test_a_cancel_goes_on_to_the_run_that_takes_the_place_of_an_open_one(self, store: Store) -> None:
        worker = await live_worker(store)
        pen, ended = [await start_owned(store, worker) for _ in range(2)]
        for one in (pen, ended):
            await store.send(one.run_id, Message(message_id="m", kind=MessageKind.CANCEL))
        run = await forked(store, fork_of(pen, close=last_word(pen)))
        again = Pen.of(await claim_one(store, worker))
        assert await inbox(store, again) == ["m"]
        assert await again.write(store, worker, move=Move(RunState.COMPLETED)) is Verdict.UNREAD
        assert again.run_id == run.run_id
        await ended.write(store, worker, move=Move(RunState.TERMINATED))
        run = await forked(store, fork_of(ended))
        assert (await store.load(run.run_id)).messages == [], "it was not for a run that begins after the end"

    async def test_an_answer_that_the_plan_does_not_know_stands_in_the_way(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.release(store, worker)
        for kind in (MessageKind.ACTIVITY, MessageKind.CHILD):
            await store.send(pen.run_id, Message(message_id=f"an {kind}", kind=kind, name=str(pen.run_id)))
        for heard in ([], ["an activity"], ["an child", "another"]):
            [outcome] = await store.fork([fork_of(pen, close=last_word(pen), heard=heard)], ACT)
            assert isinstance(outcome, RunMoved)
            assert len(await inbox(store, pen)) == 2
        run = await forked(store, fork_of(pen, close=last_word(pen), heard=["an activity", "an child"]))
        assert (await store.load(run.run_id)).messages == []

    async def test_a_run_that_never_began_begins_with_its_own_start_alone(self, store: Store) -> None:
        run, _ = await store.start(new_run())
        pen = Pen(run.run_id, 0)
        new = Successor(run_id=new_run_id(), name="flow", start='{"value":["again"]}')
        made = await forked(store, fork_of(pen, keep=-1, new=new, close=last_word(pen)))
        assert [one.body for one in (await store.load(made.run_id)).messages] == ['{"value":["again"]}']

    async def test_a_chain_of_its_own_gets_copies(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        for name in ("one", "two"):
            await store.send(pen.run_id, signal(name, f'"{name}"'))
        await pen.write(store, worker, consumed=["one", "two"])
        run = await forked(store, fork_of(pen, id="copy", again=["one", "two"]))
        assert [one.body for one in (await store.load(run.run_id)).messages] == ['"one"', '"two"']
        assert await inbox(store, pen) == []
        [mine] = await claimed(store, worker)
        assert await Pen.of(mine).write(store, worker, move=Move(RunState.COMPLETED)) is Verdict.UNREAD

    async def test_it_begins_with_messages_attempts_and_outputs(self, store: Store) -> None:
        pen = await failed(store)
        message = Message(message_id="answer", kind=MessageKind.ACTIVITY, name="n", body='{"seq":1}')
        attempt = Attempt(seq=2, number=1, started_at=5, ended_at=6, next_at=7, error='{"e":1}', details='"d"')
        attempt.tokens = "hash"
        output = Output(kind=OutputKind.PUBLISHED, name="progress", ord=0, at=5, value="1")
        run = await forked(store, fork_of(pen, messages=[message], attempts=[attempt], outputs=[output]))
        stored = await store.load(run.run_id)
        assert [(one.message_id, one.kind, one.body) for one in stored.messages] == [
            ("answer", "activity", '{"seq":1}')
        ]
        assert stored.attempts == [attempt]
        assert await store.outputs(run.run_id) == [output]

    # -- times and kinds

    async def test_it_has_times_of_its_own(self, store: Store) -> None:
        pen = await failed(store)
        new = Successor(run_id=new_run_id(), name="flow", timeout=9 * SECOND, execution_timeout=60 * SECOND)
        chain = await store.get_run(pen.run_id)
        store.shift_clock(3)
        run = await forked(store, fork_of(pen, new=new))
        assert run.deadline == run.created_at + 9 * SECOND
        new = Successor(run_id=new_run_id(), name="flow", timeout=90 * SECOND, execution_timeout=60 * SECOND)
        copy = await forked(store, fork_of(pen, new=new, id="copy"))
        assert copy.deadline == copy.created_at + 60 * SECOND
        assert run.created_at > chain.created_at

    async def test_a_job_stays_one(self, store: Store) -> None:
        pen = await failed(store, kind=RunKind.JOB, code="job:send")
        run = await forked(store, fork_of(pen, new=Successor(run_id=new_run_id(), name="send", code="job:send")))
        assert (run.kind, run.code, run.name) == (RunKind.JOB, "job:send", "send")

    async def test_other_namespaces_are_left_alone(self, make_store: MakeStore) -> None:
        here, there = await make_store(), await make_store("other")
        pen = await failed(here)
        [outcome] = await there.fork([fork_of(pen)], ACT)
        assert isinstance(outcome, UnknownRun)
        assert (await here.get_run(pen.run_id)).state is RunState.FAILED

    async def test_a_start_takes_no_id_from_it(self, store: Store) -> None:
        pen = await failed(store, id="order-1")
        run = await forked(store, fork_of(pen))
        found, is_new = await store.start(new_run("order-1"))
        assert (found.run_id, is_new) == (run.run_id, False)

    # -- the audit log, and dead letters

    async def test_it_is_in_the_audit_log_once(self, store: Store) -> None:
        pen = await failed(store, id="order-1")
        fork = fork_of(pen)
        wrong = fork_of(Pen(new_run_id(), 1, 0))
        await store.fork([fork, wrong], ACT)
        await store.fork([fork], ACT)
        [row] = await store.audit()
        assert (row.actor, row.verb, row.target, row.run_id) == ("ann@desk", "fork", "order-1", str(pen.run_id))
        assert (row.reason, row.before) == ("try again", '{"state":"failed"}')
        assert row.after == f'{{"run_id":"{fork.new.run_id}","at":0}}'

    async def test_it_resolves_the_dead_letter_of_its_source(self, store: Store) -> None:
        pen = await dead(store)
        fork = fork_of(pen, letter=True)
        await forked(store, fork)
        letter = await store.letter(pen.run_id)
        assert (letter.state, letter.successor) == (LetterState.REPROCESSED, fork.new.run_id)
        assert (await forked(store, fork)).run_id == fork.new.run_id

    async def test_a_dead_letter_that_is_not_open_is_not_forked(self, store: Store) -> None:
        discarded, none = await dead(store), await failed(store)
        await store.discard_letters([discarded.run_id], ACT)
        outcomes = await store.fork([fork_of(pen, letter=True) for pen in (discarded, none)], ACT)
        assert [type(outcome) for outcome in outcomes] == [LetterResolved, LetterResolved]
        assert await store.count_runs(RunFilter()) == 2

    async def test_a_dead_letter_is_resolved_once_by_two_at_once(self, make_store: MakeStore) -> None:
        one, other = await make_store(), await make_store()
        pens = [await dead(one) for _ in range(5)]
        forks = [[fork_of(pen, letter=True, id=f"copy-{pen.run_id}-{n}") for pen in pens] for n in range(2)]
        outcomes = await asyncio.gather(one.fork(forks[0], ACT), other.fork(forks[1][::-1], ACT))
        kinds = sorted(type(outcome).__name__ for some in outcomes for outcome in some)
        assert kinds == ["LetterResolved"] * 5 + ["Run"] * 5
