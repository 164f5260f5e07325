"""Runs that reach for each other at the same moment, with every interleaving made on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from batuta.clock import SECOND
from batuta.ids import new_run_id
from batuta.journal.records import Change, Effects, MessageKind, Move, ParentPolicy, Refusal, Successor, Verdict
from batuta.journal.states import RunState
from batuta.stores.postgres import PostgresStore, cross_run_effects
from batuta.stores.postgres.database import batch_columns
from batuta.testing.conformance.kit import Pen, claim_one, inbox, live_worker, new_run, signal, start_owned
from batuta.testing.conformance.operators.audit import act, cancel
from batuta.testing.conformance.runs.children import births, child_of, end, messages
from batuta.testing.conformance.runs.close import last_word
from batuta.testing.conformance.runs.sends import sends
from tests.stores.postgres.raw import connection, until_blocked

WAYS = ["one entry", "several entries", "everything", "beyond"]


def closing_in(way: str, pen: Pen, bystander: Pen) -> list[Change]:
    """The pen's end, in a batch that takes the named way through the store."""
    closing = pen.change(1, move=Move(RunState.COMPLETED, children=way == "beyond"))
    match way:
        case "one entry" | "beyond":
            return [closing]
        case "several entries":
            return [closing, bystander.change(1)]
        case _:
            return [closing, bystander.change(0, consumed=["nothing"])]


async def commit_in(raw: Any, store: PostgresStore, worker_id: str, changes: list[Change]) -> None:
    """Write the changes in the transaction of this connection, and not commit it yet."""
    columns = cross_run_effects.columns_of(batch_columns.in_order(changes))
    row = await raw.fetchrow(store._sql["commit_beyond"], store.namespace, worker_id, "", *columns)
    assert {change.run_id for change in changes} == set(row["won"])


@asynccontextmanager
async def behind(
    postgres_url: str, first: Callable[[Any], Awaitable[None]], then: Callable[[], Awaitable[Any]], keep: bool = True
) -> AsyncIterator[Any]:
    """What `then` gives, when it has to wait for a transaction that did `first`, which is kept or not."""
    async with connection(postgres_url) as raw, connection(postgres_url) as watcher:
        transaction = raw.transaction()
        await transaction.start()
        await first(raw)
        waiting = asyncio.ensure_future(then())
        await until_blocked(watcher)
        await (transaction.commit() if keep else transaction.rollback())
        yield await waiting


def going_on() -> Effects:
    return Effects(successor=Successor(run_id=new_run_id(), name="flow"))


@pytest.mark.parametrize("known", [False, True], ids=["first", "not the first"])
@pytest.mark.parametrize("way", WAYS)
async def test_an_end_that_waits_for_a_message_finds_it(
    store: PostgresStore, postgres_url: str, way: str, known: bool
) -> None:
    """The message is not committed yet when the closing statement begins: its snapshot shows an empty inbox."""
    worker = await live_worker(store)
    sender, target, bystander = [await start_owned(store, worker, id) for id in ("sender", "target", "bystander")]
    if known:
        await store.send(target.run_id, signal("before"))
        await target.write(store, worker, consumed=["before"])
    closing = closing_in(way, target, bystander)
    async with behind(
        postgres_url,
        lambda raw: commit_in(raw, store, worker.worker_id, [sender.change(1, effects=sends(("target", "m")))]),
        lambda: store.commit(worker.worker_id, closing),
    ) as answers:
        assert answers == {0: Verdict.UNREAD}
    assert (await store.get("target")).state is RunState.RUNNING
    assert await target.write(store, worker, consumed=["m"], move=Move(RunState.COMPLETED)) is None


@pytest.mark.parametrize("way", WAYS)
async def test_an_end_that_waits_for_a_message_from_outside_finds_it(
    store: PostgresStore, postgres_url: str, way: str
) -> None:
    worker = await live_worker(store)
    target, bystander = await start_owned(store, worker), await start_owned(store, worker)
    closing = closing_in(way, target, bystander)

    async def send(raw: Any) -> None:
        await raw.fetch(store._sql["send_message"], "default", target.run_id, "m", "signal", "go", "null")

    async with behind(postgres_url, send, lambda: store.commit(worker.worker_id, closing)) as answers:
        assert answers == {0: Verdict.UNREAD}


async def test_a_message_that_waits_for_an_end_is_refused(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
    closing = target.change(1, move=Move(RunState.FAILED, children=True))
    async with behind(
        postgres_url,
        lambda raw: commit_in(raw, store, worker.worker_id, [closing]),
        lambda: sender.write(store, worker, effects=sends(("target", "m"))),
    ) as answer:
        assert answer == [Refusal(1, "target", "RunClosed", "failed")]
    assert await inbox(store, target) == []


async def test_an_eviction_that_waits_for_a_send_finds_it(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
    later = await store.now() + 600 * SECOND
    async with behind(
        postgres_url,
        lambda raw: commit_in(raw, store, worker.worker_id, [sender.change(1, effects=sends(("target", "m")))]),
        lambda: target.release(store, worker, wake_at=later),
    ):
        assert (await claim_one(store, worker)).run.run_id == target.run_id


async def test_a_send_that_waits_for_an_eviction_wakes_the_run(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
    async with behind(
        postgres_url,
        lambda raw: commit_in(raw, store, worker.worker_id, [target.change(1, move=Move(RunState.WAITING))]),
        lambda: sender.write(store, worker, effects=sends(("target", "m"))),
    ) as answer:
        assert answer is None
        assert (await claim_one(store, worker)).run.run_id == target.run_id


async def test_a_send_that_waits_for_a_chain_to_go_on_reaches_the_next_run(
    store: PostgresStore, postgres_url: str
) -> None:
    """The run that it has found is no longer the current one when it gets the lock."""
    worker = await live_worker(store)
    sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
    continuing = target.change(1, move=Move(RunState.CONTINUED), effects=going_on())
    async with behind(
        postgres_url,
        lambda raw: commit_in(raw, store, worker.worker_id, [continuing]),
        lambda: sender.write(store, worker, effects=sends(("target", "m"))),
    ) as answer:
        assert answer is None
    stored = await claim_one(store, worker)
    assert stored.run.run_id != target.run_id
    assert [m.kind for m in stored.messages] == [MessageKind.START, MessageKind.SIGNAL]
    assert await Pen.of(stored).write(store, worker, move=Move(RunState.COMPLETED)) is Verdict.UNREAD


async def test_a_terminate_that_waits_for_the_birth_of_a_child_tells_it(
    store: PostgresStore, postgres_url: str
) -> None:
    """The child is not there when the terminate looks for children."""
    worker = await live_worker(store)
    parent = await start_owned(store, worker)
    child = child_of(parent, parent_policy=ParentPolicy.TERMINATE)
    birth = parent.change(1, effects=births(child))
    after = Pen(parent.run_id, 1, parent.head, parent.last)
    after.wrote(birth)
    async with behind(
        postgres_url,
        lambda raw: commit_in(raw, store, worker.worker_id, [birth]),
        lambda: store.close_run(parent.run_id, after.head, last_word(after), RunState.TERMINATED, "enough"),
    ) as closed:
        assert closed
    told = await messages(store, Pen(child.run_id, 0))
    assert [m.kind for m in told] == [MessageKind.START, MessageKind.TERMINATE]


async def test_a_terminate_that_waits_for_a_child_to_go_on_tells_the_next_run(
    store: PostgresStore, postgres_url: str
) -> None:
    worker = await live_worker(store)
    parent = await start_owned(store, worker)
    child = await start_owned(store, worker, "child", parent_run_id=parent.run_id)
    continuing = child.change(1, move=Move(RunState.CONTINUED), effects=going_on())
    async with behind(
        postgres_url,
        lambda raw: commit_in(raw, store, worker.worker_id, [continuing]),
        lambda: store.close_run(parent.run_id, parent.head, last_word(parent), RunState.TERMINATED, "enough"),
    ) as closed:
        assert closed
    told = await messages(store, Pen((await store.get("child")).run_id, 0))
    assert [m.kind for m in told] == [MessageKind.START, MessageKind.CANCEL]


async def test_a_parent_that_waits_for_the_end_of_its_child_is_woken(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    parent = await start_owned(store, worker)
    child = await start_owned(store, worker, parent_run_id=parent.run_id)
    async with behind(
        postgres_url,
        lambda raw: commit_in(raw, store, worker.worker_id, [child.change(1, move=end())]),
        lambda: parent.release(store, worker),
    ):
        assert [m.kind for m in (await claim_one(store, worker)).messages] == [MessageKind.CHILD]


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "rolled back"])
async def test_the_first_of_two_children_with_one_id_gets_it(
    store: PostgresStore, postgres_url: str, keep: bool
) -> None:
    worker = await live_worker(store)
    one, other = await start_owned(store, worker), await start_owned(store, worker)
    async with behind(
        postgres_url,
        lambda raw: commit_in(raw, store, worker.worker_id, [one.change(1, effects=births(child_of(one, "child")))]),
        lambda: other.write(store, worker, effects=births(child_of(other, "child"))),
        keep,
    ) as answer:
        assert answer == ([Refusal(3, "child", "AlreadyStarted", "pending", "workflow flow")] if keep else None)
    assert (await store.get("child")).parent_run_id == (one if keep else other).run_id


async def test_a_start_that_loses_its_id_while_it_waits_starts_no_child(
    store: PostgresStore, postgres_url: str
) -> None:
    """Its child's id comes first in the order, and was taken already when the start itself is refused."""
    worker = await live_worker(store)
    taken, new = new_run("parent"), new_run("parent")
    parent = Pen(new.run_id, epoch=1)
    async with behind(
        postgres_url,
        lambda raw: commit_in(raw, store, worker.worker_id, [Pen(taken.run_id, 1).change(1, start=taken)]),
        lambda: parent.write(store, worker, start=new, effects=births(child_of(parent, "a-child"))),
    ) as answer:
        assert answer is Verdict.EXISTS
    async with connection(postgres_url) as raw:
        assert await raw.fetchval("SELECT count(*) FROM batuta.runs") == 1


async def test_a_start_with_a_message_that_waits_for_a_start_sends_to_that_one(
    store: PostgresStore, postgres_url: str
) -> None:
    worker = await live_worker(store)
    first = new_run("same")
    async with behind(
        postgres_url,
        lambda raw: commit_in(raw, store, worker.worker_id, [Pen(first.run_id, 1).change(1, start=first)]),
        lambda: store.start(new_run("same"), signal("m")),
    ) as (run, is_new):
        assert (run.run_id, is_new) == (first.run_id, False)
    assert await inbox(store, Pen(first.run_id, 1)) == ["m"]


async def test_runs_that_signal_each_other_and_end_do_end(store: PostgresStore) -> None:
    """In one batch: both cannot close, but one does, and what it sent keeps the other from it only once."""
    worker = await live_worker(store)
    pens = [await start_owned(store, worker, f"run-{n}") for n in range(3)]
    changes = [
        pen.change(1, effects=sends((f"run-{(n + 1) % 3}", f"from-{n}")), move=Move(RunState.COMPLETED))
        for n, pen in enumerate(pens)
    ]
    answers = await store.commit(worker.worker_id, changes)
    assert set(answers.values()) == {Verdict.UNREAD}
    assert 0 < len(answers) < 3
    for index in answers:
        read = await inbox(store, pens[index])
        assert read in ([], [f"from-{(index - 1) % 3}"])


async def test_a_cancel_that_waits_for_a_run_which_continues_is_recorded(
    store: PostgresStore, postgres_url: str
) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker, "order-1")
    change = pen.change(1, effects=going_on(), move=Move(RunState.CONTINUED))
    async with behind(
        postgres_url,
        lambda raw: commit_in(raw, store, worker.worker_id, [change]),
        lambda: store.send(pen.run_id, cancel(), act()),
    ) as sent:
        assert sent
    assert [(row.verb, row.target) for row in await store.audit()] == [("cancel", "order-1")]
