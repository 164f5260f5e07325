"""Starting runs that have no owner yet."""

from __future__ import annotations

import asyncio

import pytest

from batuta.clock import SECOND
from batuta.errors import AlreadyStarted, RunClosed, UnknownRun, WrongWorkflow
from batuta.journal.records import IfExists, MessageKind, Move, Run, RunFilter, RunKind, StartOutcome
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, claim_one, claimed, live_worker, new_run, signal, start_owned


def _tuples(outcomes: list[StartOutcome]) -> list[tuple[Run, bool]]:
    return [outcome for outcome in outcomes if isinstance(outcome, tuple)]


class StartConformance:
    """A start is durable or refused, and an id has one current run."""

    async def test_a_started_run_is_pending_and_owned_by_nobody(self, store: Store) -> None:
        before = await store.now()
        new = new_run("order-1", queue="pix", priority=7, version="3", tags='{"a":"b"}', memo='{"m":1}')
        run, is_new = await store.start(new)
        assert is_new
        assert (run.run_id, run.id, run.chain_id, run.name) == (new.run_id, "order-1", new.run_id, "flow")
        assert (run.state, run.owner, run.epoch, run.head, run.deaths) == (RunState.PENDING, None, 0, -1, 0)
        assert (run.queue, run.priority, run.version) == ("pix", 7, "3")
        assert (run.tags, run.memo, run.failed_code, run.reason) == ('{"a":"b"}', '{"m":1}', [], "")
        assert before <= run.created_at <= await store.now()
        assert run.wake_at == run.created_at
        assert (run.closed_at, run.deadline, run.parent_run_id) == (None, None, None)
        assert await store.get("order-1") == run == await store.get_run(new.run_id)

    async def test_its_start_message_waits_in_the_inbox(self, store: Store) -> None:
        new = new_run(start='{"value":["fish",2]}')
        await store.start(new)
        stored = await store.load(new.run_id)
        assert [(m.kind, m.body) for m in stored.messages] == [(MessageKind.START, '{"value":["fish",2]}')]
        assert stored.messages[0].at == stored.run.created_at
        assert stored.entries == [] == stored.attempts

    async def test_a_parent_is_remembered(self, store: Store) -> None:
        parent, _ = await store.start(new_run())
        run, _ = await store.start(new_run(parent_run_id=parent.run_id, parent_seq=4))
        assert (run.parent_run_id, run.parent_seq) == (parent.run_id, 4)

    async def test_another_process_sees_it_at_once(self, store: Store, make_store: MakeStore) -> None:
        run, _ = await store.start(new_run("seen"))
        assert await (await make_store()).get("seen") == run

    async def test_a_delayed_run_is_due_later(self, store: Store) -> None:
        run, _ = await store.start(new_run(delay=30 * SECOND))
        assert run.wake_at == run.created_at + 30 * SECOND

    async def test_a_taken_id_gives_the_run_that_has_it(self, store: Store) -> None:
        first, _ = await store.start(new_run("taken"))
        second, is_new = await store.start(new_run("taken"))
        assert (second, is_new) == (first, False)

    async def test_a_taken_id_gives_the_run_that_has_it_even_closed(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "done")
        await pen.write(store, worker, move=Move(RunState.COMPLETED))
        run, is_new = await store.start(new_run("done"))
        assert (run.run_id, run.state, is_new) == (pen.run_id, RunState.COMPLETED, False)

    @pytest.mark.parametrize("policy", [IfExists.REJECT, IfExists.RESTART])
    async def test_a_taken_id_is_refused(self, store: Store, policy: IfExists) -> None:
        first, _ = await store.start(new_run("taken"))
        with pytest.raises(AlreadyStarted, match="taken"):
            await store.start(new_run("taken", if_exists=policy))
        assert await store.get("taken") == first

    @pytest.mark.parametrize("policy", [IfExists.RETURN, IfExists.RENEW, IfExists.SAME])
    async def test_the_run_of_another_workflow_is_not_given(self, store: Store, policy: IfExists) -> None:
        first, _ = await store.start(new_run("taken"))
        for other in ({"name": "another"}, {"kind": RunKind.JOB}):
            with pytest.raises(WrongWorkflow, match="of workflow 'flow', not of"):
                await store.start(new_run("taken", if_exists=policy, **other))
            with pytest.raises(WrongWorkflow):
                await store.start(new_run("taken", if_exists=policy, **other), signal("s1"))
            [outcome, sound] = await store.start_many([new_run("taken", if_exists=policy, **other), new_run()])
            assert isinstance(outcome, WrongWorkflow)
            assert isinstance(sound, tuple)
        assert await store.get("taken") == first
        assert [message.kind for message in (await store.load(first.run_id)).messages] == [MessageKind.START]

    async def test_reject_refuses_an_id_whose_run_is_closed(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "done")
        await pen.write(store, worker, move=Move(RunState.FAILED))
        with pytest.raises(AlreadyStarted, match="failed"):
            await store.start(new_run("done", if_exists=IfExists.REJECT))

    async def test_restart_takes_an_id_over_from_a_closed_run(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "again")
        await pen.write(store, worker, move=Move(RunState.COMPLETED))
        run, is_new = await store.start(new_run("again", if_exists=IfExists.RESTART))
        assert is_new
        assert run.run_id != pen.run_id
        assert run.chain_id == run.run_id
        assert await store.get("again") == run
        assert (await store.get_run(pen.run_id)).state is RunState.COMPLETED

    @pytest.mark.parametrize("policy", list(IfExists))
    async def test_the_same_start_written_again_is_the_same_run(self, store: Store, policy: IfExists) -> None:
        new = new_run("once", if_exists=policy)
        first, _ = await store.start(new)
        assert await store.start(new) == (first, True)
        assert len((await store.load(new.run_id)).messages) == 1

    async def test_many_starts_are_what_each_would_be_alone(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "again")
        await pen.write(store, worker, move=Move(RunState.COMPLETED))
        taken, _ = await store.start(new_run("taken"))
        news = [
            new_run("z", queue="pix", delay=SECOND, timeout=5 * SECOND, start='{"value":["z"]}'),
            new_run("taken"),
            new_run("taken", if_exists=IfExists.REJECT),
            new_run("again", if_exists=IfExists.RESTART),
            new_run("a", parent_run_id=taken.run_id, parent_seq=4, priority=3, start='{"value":["a"]}'),
        ]
        outcomes = await store.start_many(news)
        assert [isinstance(outcome, tuple) and outcome[1] for outcome in outcomes] == [True, False, False, True, True]
        assert outcomes[1] == (taken, False)
        assert isinstance(outcomes[2], AlreadyStarted)
        for index in (0, 3, 4):
            run = await store.get(news[index].id)
            assert outcomes[index] == (run, True)
            assert run.run_id == news[index].run_id
            assert [(m.kind, m.body) for m in (await store.load(run.run_id)).messages] == [
                (MessageKind.START, news[index].start)
            ]
        assert await store.start_many([]) == []

    async def test_of_many_starts_of_one_id_the_first_has_it(self, store: Store) -> None:
        news = [new_run("one"), new_run("one"), new_run("one", if_exists=IfExists.REJECT)]
        first, second, third = await store.start_many(news)
        run = await store.get("one")
        assert (first, second) == ((run, True), (run, False))
        assert isinstance(third, AlreadyStarted)
        assert len((await store.load(news[0].run_id)).messages) == 1

    async def test_many_starts_written_again_are_the_same_runs(self, store: Store) -> None:
        news = [new_run("a"), new_run("b", if_exists=IfExists.REJECT), new_run("c", if_exists=IfExists.RESTART)]
        once = await store.start_many(news)
        assert await store.start_many([*news, new_run("d")]) == [*once, (await store.get("d"), True)]
        assert len((await store.load(news[0].run_id)).messages) == 1

    async def test_many_starts_are_due_at_once(self, store: Store) -> None:
        worker = await live_worker(store)
        news = [new_run() for _ in range(300)]
        assert len({run.run_id for run, _ in _tuples(await store.start_many(news))}) == 300
        assert len(await claimed(store, worker, 1_000)) == 300

    async def test_the_deadline_is_the_earlier_timeout(self, store: Store) -> None:
        for timeout, execution, expected in [(5, 0, 5), (0, 9, 9), (5, 9, 5), (9, 5, 5)]:
            new = new_run(timeout=timeout * SECOND, execution_timeout=execution * SECOND)
            run, _ = await store.start(new)
            assert run.deadline == run.created_at + expected * SECOND

    async def test_the_time_of_a_delayed_run_begins_when_it_may(self, store: Store) -> None:
        run, _ = await store.start(new_run(delay=30 * SECOND, timeout=5 * SECOND))
        assert run.deadline == run.created_at + 35 * SECOND

    async def test_the_code_that_it_needs_is_its_name_unless_said(self, store: Store) -> None:
        worker = await live_worker(store)
        for code, expected in [("", "flow"), ("flow@2", "flow@2")]:
            run, _ = await store.start(new_run(code=code))
            pen = await start_owned(store, worker, code=code)
            assert (run.code, (await store.get_run(pen.run_id)).code) == (expected, expected)

    async def test_the_execution_timeout_counts_from_the_chains_begin(self, store: Store) -> None:
        worker = await live_worker(store)
        first = await start_owned(store, worker, "long", execution_timeout=100 * SECOND)
        await first.write(store, worker, move=Move(RunState.CONTINUED))
        begun = (await store.get_run(first.run_id)).created_at
        store.shift_clock(7)
        follower = new_run("long", chain_id=first.run_id, execution_timeout=100 * SECOND, if_exists=IfExists.RESTART)
        run, _ = await store.start(follower)
        assert (run.chain_id, run.deadline) == (first.run_id, begun + 100 * SECOND)

    async def test_namespaces_do_not_see_each_other(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        mine, _ = await store.start(new_run("same"))
        theirs, is_new = await other.start(new_run("same", if_exists=IfExists.REJECT))
        assert is_new
        assert (await store.get("same"), await other.get("same")) == (mine, theirs)
        for missing in (other.get_run(mine.run_id), other.load(mine.run_id), other.outcome(mine.run_id)):
            with pytest.raises(UnknownRun):
                await missing
        worker = await live_worker(other)
        assert (await claim_one(other, worker)).run.run_id == theirs.run_id

    # -- with a message

    async def test_a_new_run_starts_with_a_message(self, store: Store) -> None:
        run, is_new = await store.start(new_run("both"), signal("m", "7"))
        assert is_new
        messages = (await store.load(run.run_id)).messages
        assert [(m.kind, m.body) for m in messages] == [(MessageKind.START, '{"value":["first"]}'), ("signal", "7")]
        assert run == await store.get("both")

    async def test_the_run_that_has_the_id_gets_the_message(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "both")
        await pen.release(store, worker)
        run, is_new = await store.start(new_run("both"), signal("m"))
        assert (run.run_id, is_new) == (pen.run_id, False)
        stored = await claim_one(store, worker)
        assert [m.message_id for m in stored.messages] == ["m"]
        assert (await store.start(new_run("both"), signal("m")))[1] is False
        assert len((await store.load(pen.run_id)).messages) == 1

    async def test_the_same_start_with_its_message_written_again(self, store: Store) -> None:
        new = new_run("both")
        for _ in range(2):
            run, is_new = await store.start(new, signal("m"))
            assert (run.run_id, is_new) == (new.run_id, True)
        assert len((await store.load(new.run_id)).messages) == 2
        assert await store.count_runs(RunFilter()) == 1

    async def test_a_closed_run_refuses_the_message_and_nothing_is_written(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "done")
        await pen.write(store, worker, move=Move(RunState.COMPLETED))
        with pytest.raises(RunClosed, match="completed"):
            await store.start(new_run("done"), signal("m"))
        assert (await store.load(pen.run_id)).messages == []
        run, is_new = await store.start(new_run("done", if_exists=IfExists.RESTART), signal("m"))
        assert is_new
        assert len((await store.load(run.run_id)).messages) == 2

    async def test_a_refused_start_sends_nothing(self, store: Store) -> None:
        run, _ = await store.start(new_run("taken"))
        with pytest.raises(AlreadyStarted):
            await store.start(new_run("taken", if_exists=IfExists.REJECT), signal("m"))
        assert len((await store.load(run.run_id)).messages) == 1

    async def test_one_of_many_starts_with_messages_is_new_and_gets_them_all(
        self, store: Store, make_store: MakeStore
    ) -> None:
        stores = [store, await make_store()]
        results = await asyncio.gather(*(stores[n % 2].start(new_run("same"), signal(f"m{n}")) for n in range(8)))
        assert sum(is_new for _run, is_new in results) == 1
        run = await store.get("same")
        assert {m.message_id for m in (await store.load(run.run_id)).messages[1:]} == {f"m{n}" for n in range(8)}
