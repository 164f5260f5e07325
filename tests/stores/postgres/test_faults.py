"""What goes wrong with a database, and what the store says then."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import asyncpg
import pytest

from batuta.errors import (
    BadData,
    OutcomeUnknown,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownRun,
)
from batuta.journal.records import Message, MessageKind, RunFilter, Verdict
from batuta.stores.postgres import PostgresStore, starts
from batuta.stores.postgres.database.connection import Session
from batuta.stores.postgres.database.errors import RowLocked, translate
from batuta.testing.conformance.kit import (
    Pen,
    beat,
    claim_one,
    live_worker,
    new_run,
    outlive_lease,
    start_owned,
    worker_info,
)
from batuta.testing.conformance.runs.plain import job
from tests.stores.postgres.raw import connection, until_blocked

# It waits for each to end: a session that is still ending holds its locks.
KILL = """
    SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'batuta'
"""


def lose_replies_to(store: PostgresStore, verb: str) -> None:
    """The next reply to this verb does not arrive."""

    def fault(passed: str) -> None:
        if passed == verb:
            store.faults = None
            raise ConnectionResetError("the reply was lost")

    store.faults = fault


@pytest.mark.parametrize("count", [1, 3])
async def test_a_commit_whose_reply_was_lost_is_durable_when_written_again(store: PostgresStore, count: int) -> None:
    worker = await live_worker(store)
    pens = [await start_owned(store, worker) for _ in range(count)]
    changes = [pen.change(1) for pen in pens]
    lose_replies_to(store, "commit")
    with pytest.raises(OutcomeUnknown, match="write it again"):
        await store.commit(worker.worker_id, changes)
    assert await store.commit(worker.worker_id, changes) == {}
    for pen in pens:
        assert len(await store.journal(pen.run_id)) == 2


async def test_a_start_whose_reply_was_lost_is_durable_when_written_again(store: PostgresStore) -> None:
    worker, new = await live_worker(store), new_run("once")
    change = Pen(new.run_id, epoch=1).change(1, start=new)
    lose_replies_to(store, "commit")
    with pytest.raises(OutcomeUnknown):
        await store.commit(worker.worker_id, [change])
    assert await store.commit(worker.worker_id, [change]) == {}
    assert len(await store.journal(new.run_id)) == 1


async def test_a_claim_whose_reply_was_lost_is_found_by_the_next_beat(store: PostgresStore) -> None:
    worker = await live_worker(store)
    run, _ = await store.start(new_run())
    lose_replies_to(store, "claim")
    with pytest.raises(OutcomeUnknown):
        await store.claim(worker, 10)
    assert (await beat(store, worker)).owned == {run.run_id: 1}


async def test_a_session_killed_during_a_commit_leaves_the_outcome_unknown(
    store: PostgresStore, postgres_url: str
) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    change = pen.change(1)
    async with connection(postgres_url) as raw, connection(postgres_url) as watcher:
        async with raw.transaction():
            await raw.execute("SELECT FROM batuta.runs WHERE run_id = $1 FOR UPDATE", pen.run_id)
            commit = asyncio.create_task(store.commit(worker.worker_id, [change]))
            await until_blocked(watcher)
            await watcher.execute(KILL)
            with pytest.raises(OutcomeUnknown):
                await commit
        assert await store.commit(worker.worker_id, [change]) == {}
    assert (await store.journal(pen.run_id))[1:] == change.entries


async def test_killed_sessions_are_replaced_without_a_word_to_readers(store: PostgresStore, postgres_url: str) -> None:
    run, _ = await store.start(new_run("kept"))
    async with connection(postgres_url) as raw:
        for _ in range(3):
            await raw.execute(KILL)
            assert await store.get("kept") == run


async def test_a_storm_of_killed_sessions_loses_and_doubles_nothing(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    pens = [await start_owned(store, worker) for _ in range(5)]
    broken = 0
    async with connection(postgres_url) as raw:
        for _ in range(40):
            changes = [pen.change(1) for pen in pens]
            kill = asyncio.create_task(raw.execute(KILL))
            for pause in range(pens[0].head % 6):  # sometimes before, sometimes during the commit
                await asyncio.sleep(0.0002 * pause)
            while True:
                try:
                    assert await store.commit(worker.worker_id, changes) == {}
                    break
                except (OutcomeUnknown, StoreUnavailable):
                    broken += 1
            await kill
            for pen, change in zip(pens, changes, strict=True):
                pen.wrote(change)
    assert broken > 0
    for pen in pens:
        assert [entry.ord for entry in await store.journal(pen.run_id)] == list(range(41))


async def test_a_cancelled_commit_does_not_give_its_reply_to_the_next(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    pens = [await start_owned(store, worker) for _ in range(2)]
    async with connection(postgres_url) as raw, connection(postgres_url) as watcher:
        async with raw.transaction():
            await raw.execute("SELECT FROM batuta.runs WHERE run_id = $1 FOR UPDATE", pens[0].run_id)
            commit = asyncio.create_task(store.commit(worker.worker_id, [pens[0].change(1)]))
            await until_blocked(watcher)
            commit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await commit
            assert await pens[1].write(store, worker) is None
    assert len(await store.journal(pens[1].run_id)) == 2


async def test_a_value_that_the_database_refuses_is_bad_data(store: PostgresStore) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    bad, good = pen.change(1), pen.change(1)
    bad.entries[0].body = "a\x00b"
    with pytest.raises(BadData):
        await store.commit(worker.worker_id, [bad])
    bad.entries[0].body = "\ud800"
    with pytest.raises(BadData):
        await store.commit(worker.worker_id, [bad])
    assert await store.commit(worker.worker_id, [good]) == {}
    with pytest.raises(BadData):
        await store.start(new_run("nul\x00"))
    with pytest.raises(BadData):
        await store.send(pen.run_id, Message(message_id=secrets.token_hex(8_000), kind=MessageKind.SIGNAL))


async def test_a_start_with_a_value_that_is_refused_does_not_harm_those_it_came_with(store: PostgresStore) -> None:
    news = [new_run(f"run-{number}") for number in range(9)]
    news[3].id = "nul\x00"
    news[7].start = "\ud800"
    outcomes = await store.start_many(news)
    assert [index for index, outcome in enumerate(outcomes) if isinstance(outcome, BadData)] == [3, 7]
    assert await store.count_runs(RunFilter()) == 7
    assert [isinstance(outcome, tuple) and outcome[1] for outcome in outcomes].count(True) == 7


@pytest.mark.parametrize("several", [False, True], ids=["alike", "with another"])
async def test_separators_are_refused_in_every_name(store: PostgresStore, several: bool) -> None:
    bad = job(queue="a\x1fb")
    outcomes = await store.start_many([bad, job()] if several else [bad])
    assert isinstance(outcomes[0], BadData)
    assert not any(isinstance(outcome, BadData) for outcome in outcomes[1:])


async def test_many_starts_whose_connection_breaks_before_the_commit_are_written_on_another(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = [job() for _ in range(starts._PART + 1)]
    write_in_parts = Session.write_in_parts

    async def cut(session: Session, query: str, parts: Iterable[Any]) -> list[Any]:
        def broken() -> Iterator[Any]:
            for number, part in enumerate(parts):
                if number == 1:
                    session.drop()
                yield part

        return await write_in_parts(session, query, broken())

    monkeypatch.setattr(Session, "write_in_parts", cut)
    outcomes = await store.start_many(news)
    assert [isinstance(outcome, tuple) and outcome[1] for outcome in outcomes] == [True] * len(news)
    assert await store.count_runs(RunFilter()) == len(news)


async def test_when_some_of_many_starts_may_be_written_the_outcome_is_unknown(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    await store.start(new_run("taken"))
    monkeypatch.setattr(store, "_look_up", away)
    with pytest.raises(StoreUnavailable):
        await store.start_many([new_run("taken")])
    with pytest.raises(OutcomeUnknown):
        await store.start_many([new_run("taken"), new_run("new")])
    assert (await store.get("new")).head == -1


async def test_a_start_of_a_worker_whose_lease_was_over_is_refused_though_it_is_renewed_by_now(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, new = await live_worker(store), new_run("late")
    await outlive_lease(store)
    judge = store._judge

    async def judge_later(*given: Any) -> Any:
        await beat(store, worker)
        return await judge(*given)

    monkeypatch.setattr(store, "_judge", judge_later)
    assert await Pen(new.run_id, epoch=1).write(store, worker, start=new) is Verdict.REFUSED
    with pytest.raises(UnknownRun):
        await store.get("late")


async def test_a_database_that_is_read_only_is_unavailable(store: PostgresStore) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    session = await store._commit_session.connect()
    await session.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="primary"):
        await pen.write(store, worker)
    await session.execute("SET default_transaction_read_only = off")
    assert await pen.write(store, worker) is None


async def test_a_database_that_is_away_says_where_and_keeps_the_password() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = PostgresStore(f"postgresql://someone:secret@127.0.0.1:{port}/shop")
    for verb in (store.open(), store.now(), store.claim(worker_info(), 1)):
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port}/shop") as caught:
            await verb
        assert "secret" not in str(caught.value)
    await store.close()


async def test_a_database_that_does_not_exist_is_unavailable(postgres_url: str) -> None:
    store = PostgresStore(postgres_url.rpartition("/")[0] + "/nowhere")
    with pytest.raises(StoreUnavailable, match="nowhere"):
        await store.open()
    await store.close()


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("22021", BadData),
        ("23505", BadData),
        ("54000", BadData),
        ("53100", StoreFull),
        ("53300", StoreUnavailable),
        ("55P03", RowLocked),
        ("57P03", StoreUnavailable),
        ("25006", StoreUnavailable),
        ("40001", StoreUnavailable),
        ("40P01", StoreUnavailable),
        ("26000", StoreUnavailable),
        ("42P01", SchemaMismatch),
        ("57P01", OutcomeUnknown),
        ("57014", OutcomeUnknown),
        ("08006", OutcomeUnknown),
        ("XX000", OutcomeUnknown),
    ],
)
def test_only_what_proves_a_rollback_is_not_unknown(state: str, expected: type[StoreError]) -> None:
    error = asyncpg.PostgresError.new({"C": state, "M": "no", "S": "ERROR", "V": "ERROR"})
    assert type(translate(error, "here", writing=True)) is expected


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("gone"),
        TimeoutError(),
        asyncpg.InterfaceError("closed"),
        asyncpg.InternalClientError("lost its way"),
        asyncpg.ConnectionDoesNotExistError("gone"),
    ],
)
def test_every_error_of_a_broken_connection_means_outcome_unknown(error: Exception) -> None:
    assert type(translate(error, "here", writing=True)) is OutcomeUnknown
    assert type(translate(error, "here", writing=False)) is StoreUnavailable


async def test_deadlocks_are_tried_again(store: PostgresStore, postgres_url: str) -> None:
    """A session that holds what we want, and wants what we hold, is made on purpose; the store gets through."""
    worker = await live_worker(store)
    first, second = sorted([await start_owned(store, worker) for _ in range(2)], key=lambda pen: pen.run_id)
    async with connection(postgres_url) as raw, connection(postgres_url) as watcher:
        await raw.execute("SET deadlock_timeout = '60s'")
        session = await store._commit_session.connect()
        await session.execute("SET deadlock_timeout = '1s'")
        rival = raw.transaction()
        await rival.start()
        await raw.execute("SELECT FROM batuta.runs WHERE run_id = $1 FOR UPDATE", second.run_id)
        changes = [first.change(1), second.change(1)]
        commit = asyncio.create_task(store.commit(worker.worker_id, changes))
        await until_blocked(watcher)
        await raw.execute("SELECT FROM batuta.runs WHERE run_id = $1 FOR UPDATE", first.run_id)
        await rival.rollback()
        verdicts = await commit
        if verdicts:  # tried again before the rival let go: the committer comes back for busy ones
            assert set(verdicts.values()) == {Verdict.BUSY}
            verdicts = await store.commit(worker.worker_id, changes)
        assert verdicts == {}


async def test_claimed_tapes_are_whole_after_a_kill(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    await store.start(new_run())
    async with connection(postgres_url) as raw:
        await raw.execute(KILL)
    try:
        stored = await claim_one(store, worker)
    except OutcomeUnknown:
        stored = await claim_one(store, worker)
    assert len(stored.messages) == 1
