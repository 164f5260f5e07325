"""Runs whose payloads are encrypted: with the key, without it, with another, and with one that follows it."""

from __future__ import annotations

import asyncio
import base64
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from batuta import (
    Batuta,
    Handle,
    NonRetryable,
    QueryFailed,
    Retry,
    RunFailed,
    RunState,
    Schedule,
    Signal,
    Update,
    activity,
    connect,
    continue_as_new,
    every,
    job,
    publish,
    run_child,
    workflow,
)
from batuta.codecs import Compression, Encryption, Keys, PayloadCodec
from batuta.connect import store_for
from batuta.errors import AuditKeyMissing, InvalidSchedule, PayloadDamaged, PayloadSealed
from batuta.ids import new_run_id
from batuta.journal.records import RunFilter
from batuta.journal.states import CLOSED
from batuta.stores.coded.key_rotation import rotate
from batuta.stores.coded.store import CodedStore
from batuta.verify import verify
from tests.engine.arena import PATIENCE, until, until_state

pytestmark = pytest.mark.usefixtures("real_time")

SECRET = "4929-1234-5678"
K1, K2 = (f"{id}:{base64.b64encode(bytes([number]) * 32).decode()}" for id, number in (("k1", 1), ("k2", 2)))
ANOTHER_K1 = f"k1:{base64.b64encode(bytes([9]) * 32).decode()}"

go = Signal("go", str)
ask = Update("ask", str)


@activity
async def charge(card: str) -> str:
    return f"charged {card}"


@activity
async def refuses(card: str) -> str:
    raise NonRetryable(f"the bank does not like {card}")


@workflow
async def pay(card: str) -> str:
    publish("card", card)

    @ask.handle
    async def answer(what: str) -> str:
        return f"{what} {card}"

    charged = await charge(card)
    return f"{charged} for {await go.wait()}"


@workflow
async def parent(card: str) -> str:
    return await run_child(child, card)


@workflow
async def child(card: str) -> str:
    return await charge(card)


@workflow
async def twice(card: str, again: bool = True) -> str:
    if again:
        continue_as_new(f"{card}+", False)
    return card


@workflow
async def fails(card: str) -> str:
    return await refuses(card)


@job
async def mail(text: str) -> str:
    return f"mailed {text}"


@job
async def bounces(text: str) -> None:
    raise NonRetryable(f"nobody wants {text}")


EVERYTHING: dict[str, Any] = {
    "workflows": [pay, parent, child, twice, fails],
    "activities": [charge, refuses],
    "jobs": [mail, bounces],
    "heartbeat": 0.1,
}


@asynccontextmanager
async def working(url: str, *codecs: PayloadCodec) -> AsyncIterator[Batuta]:
    async with connect(url, codec=codecs) as client, client.worker(**EVERYTHING):
        yield client


async def until_charged(handle: Handle[Any]) -> None:
    """It waits for its signal now."""

    async def has_entries() -> bool:
        return (await handle.describe()).entries >= 2

    await until(has_entries)


async def wake(url: str, *handles: Handle[Any], codecs: list[PayloadCodec]) -> None:
    """Send them their signal while no worker runs on them."""
    async with connect(url, codec=codecs) as client:
        for handle in handles:
            await (await client.get(handle.id)).signal(go, "it")


async def why_parked(handle: Handle[Any], word: str) -> str:
    """The reason, when it has that word."""

    async def is_parked() -> bool:
        found = await handle.describe()
        return found.state is RunState.NEEDS_CODE and word in found.reason

    await until(is_parked)
    return (await handle.describe()).reason


async def rows_of(url: str) -> str:
    """All that lies in the database, as one text."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return "\n".join(connection.iterdump())
    database = await asyncpg.connect(url)
    try:
        found = []
        for table in await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'batuta'"):
            found += await database.fetch(f'SELECT t::text FROM batuta."{table["tablename"]}" t')
        return "\n".join(str(row[0]) for row in found)
    finally:
        await database.close()


async def activities_in_the_view(url: str) -> int:
    """People look at views with SQL: they must not fail where they cannot look."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return int(connection.execute("SELECT count(*) FROM batuta_activities").fetchone()[0])
    database = await asyncpg.connect(url)
    try:
        return int(await database.fetchval("SELECT count(*) FROM batuta.batuta_activities"))
    finally:
        await database.close()


async def do_everything(client: Batuta) -> Handle[str]:
    """Have payloads in every place that there is. Gives a run that has ended."""
    handle = await client.start(pay, SECRET, id="paid", memo={"card": SECRET}, tags={"kind": "card"})
    assert await handle.update(ask, f"is it {SECRET}?", timeout=PATIENCE) == f"is it {SECRET}? {SECRET}"
    await handle.signal(go, SECRET)
    assert await handle.result(PATIENCE) == f"charged {SECRET} for {SECRET}"
    assert await (await client.start(parent, SECRET)).result(PATIENCE) == f"charged {SECRET}"
    assert await (await client.start(twice, SECRET)).result(PATIENCE) == f"{SECRET}+"
    for failing in (await client.start(fails, SECRET, id="failed"), await client.enqueue(bounces, SECRET)):
        with pytest.raises(RunFailed, match=SECRET):
            await failing.result(PATIENCE)
    assert await (await client.enqueue(mail, SECRET, memo=SECRET)).result(PATIENCE) == f"mailed {SECRET}"
    debounced = [await client.enqueue(mail, f"{SECRET} {n}", unique="d", debounce=0.2, memo=SECRET) for n in range(3)]
    assert await debounced[-1].result(PATIENCE) == f"mailed {SECRET} 2"  # also where the others were not in time
    await do_over(client, handle)
    await client.schedules.create(Schedule("often", every(timedelta(seconds=1)), mail, SECRET))
    begun = await client.schedules.trigger("often")
    assert await begun.result(PATIENCE) == f"mailed {SECRET}"
    await client.schedules.pause("often")
    return handle


async def do_over(client: Batuta, handle: Handle[str]) -> None:
    """What operators do makes runs of others, and takes payloads of its own."""
    copied = await handle.fork("copied", at=0)
    assert await copied.result(PATIENCE) == f"charged {SECRET} for {SECRET}"
    assert (await copied.describe()).memo == {"card": SECRET}
    edited = await handle.fork("edited", output={2: f"gave {SECRET}"})
    assert await edited.result(PATIENCE) == f"gave {SECRET} for {SECRET}"
    anew = await handle.fork("anew", args=[f"{SECRET}!"])  # the signals of the first come along
    assert await anew.result(PATIENCE) == f"charged {SECRET}! for {SECRET}"
    await anew.reset(0)
    assert await anew.result(PATIENCE) == f"charged {SECRET}! for {SECRET}"
    done = await client.dead_letters.reprocess("failed", mode="start", input=[f"{SECRET}?"])
    assert done.reprocessed == 1
    with pytest.raises(RunFailed, match=SECRET):
        await (await client.get("failed")).result(PATIENCE)


async def test_nothing_of_a_payload_lies_in_the_database_in_the_clear(url: str, tmp_path: Path) -> None:
    async with working(url, Compression(least=64), Encryption(K1)) as client:
        handle = await do_everything(client)
        waits = await client.start(pay, SECRET)
        await client.enqueue(mail, SECRET, delay=3600, memo=SECRET)
        await until_charged(waits)
        assert (await handle.describe()).memo == {"card": SECRET}
        assert await handle.published("card") == SECRET
        assert [letter.message for letter in (await client.dead_letters.list()).letters if SECRET in letter.message]
        assert (await client.schedules.get("often")).arguments == [SECRET]
    found = await rows_of(url)
    assert await activities_in_the_view(url) == 0
    assert SECRET not in found
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert base64.b64encode(SECRET.encode()).decode().rstrip("=") not in found
    assert "~3:aes.k1." in found
    assert "~3:zlib+aes.k1." in found
    store = store_for(url, codec=[Compression(), Encryption(K1)])
    await store.open()
    report = await verify(store, [pay, parent, child, twice, fails], patience=0)
    await store.close()
    assert (report.violations, report.sealed) == ([], 0)


WRONG = [
    ([Encryption(K2)], "it is encrypted with key 'k1', and this process has k2"),
    ([Encryption(ANOTHER_K1)], "another key 'k1' than ours"),
    ([], "this process has no codec"),
    ([Compression()], "it went through codec 'aes', and this process has zlib"),
]


@pytest.mark.parametrize(("codecs", "why"), WRONG, ids=["other key", "same id", "no codec", "other codec"])
async def test_a_wrong_key_parks_the_run_and_the_right_one_has_it_go_on(
    url: str, codecs: list[PayloadCodec], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(url, Encryption(K1)) as client:
        begun = await client.start(pay, SECRET)
        await until_charged(begun)
    async with connect(url, codec=Encryption(K1)) as client:
        waiting, posted = await client.start(pay, SECRET), await client.enqueue(mail, SECRET)
        for handle in (begun, waiting):
            await (await client.get(handle.id)).signal(go, "it")
    with caplog.at_level(logging.DEBUG):
        async with working(url, *codecs) as client:
            for handle in (begun, waiting, posted):
                reason = await why_parked(await client.get(handle.id), why)
                assert reason.startswith("PayloadSealed: ")
                assert reason.endswith("no live worker can read it: start one with its key or codec")
    assert_no_key(caplog.text)
    async with working(url, Encryption(f"{K2},{K1}")) as client:
        for handle in (begun, waiting):
            assert await (await client.get(handle.id, pay)).result(PATIENCE) == f"charged {SECRET} for it"
        assert await (await client.get(posted.id)).result(PATIENCE) == f"mailed {SECRET}"


async def test_a_message_that_a_running_worker_cannot_read_parks_the_run_and_is_not_lost(url: str) -> None:
    async with working(url, Encryption(K1)) as client:
        handle = await client.start(pay, SECRET)
        await until_charged(handle)
        async with connect(url, codec=Encryption(f"{K2},{K1}")) as newer:
            await (await newer.get(handle.id)).signal(go, "it")
        assert "this process has k1" in await why_parked(handle, "cannot be read")
    async with working(url, Encryption(f"{K2},{K1}")) as client:
        assert await (await client.get(handle.id, pay)).result(PATIENCE) == f"charged {SECRET} for it"


async def test_a_long_journal_is_decoded_in_slices(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batuta.stores.coded.store._SLICE", 2)
    async with working(sqlite_url, Encryption(K1)) as client:
        handle = await do_everything(client)
        ended = await client.start(pay, SECRET, timeout=0.2)
        await until_state(ended, RunState.TIMED_OUT)
        for run in (handle, ended):
            lines = await run.journal()
            assert [line.ord for line in lines] == list(range(len(lines)))
            assert len(lines) > 2
    store = store_for(sqlite_url, codec=Encryption(K1))
    await store.open()
    report = await verify(store, [pay, parent, child, twice, fails], patience=0)
    await store.close()
    assert (report.violations, report.sealed) == ([], 0)


async def test_a_client_without_the_key_is_told_so_and_may_still_read_and_cancel(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(url, Encryption(K1)) as client:
        handle = await do_everything(client)
        opened = await client.start(pay, SECRET)
        await until_charged(opened)
    for codecs in ([], [Encryption(K2)]):
        async with connect(url, codec=codecs) as client:
            assert len((await client.list(limit=100)).runs) > 5
            found = await client.get(handle.id, pay)
            assert SECRET not in str(await found.describe())
            for reading in (found.result(PATIENCE), found.published("card"), found.journal()):
                with pytest.raises(PayloadSealed, match=r"cannot be read|is encrypted with key 'k1'"):
                    await reading
            with pytest.raises((QueryFailed, PayloadSealed)):
                await found.query("anything")
            with pytest.raises(InvalidSchedule, match="cannot be read"):
                await client.schedules.get("often")
            assert SECRET not in str((await client.dead_letters.list()).letters)
    async with connect(url, codec=[]) as client:
        with pytest.raises(AuditKeyMissing):  # the log is written with the key of the payloads
            await (await client.get(opened.id)).cancel("no longer wanted")
    monkeypatch.setenv("BATUTA_AUDIT_KEY", Keys.new("operators"))  # which reads no payload
    async with connect(url, codec=[]) as client:
        assert await (await client.get(opened.id)).cancel("no longer wanted")
    async with connect(url, codec=Encryption(K1)) as client:
        report = await client.verify_audit()
        assert (report.problem, report.keyed) == ("", report.rows)


async def test_a_payload_that_was_changed_or_moved_by_hand_is_found(url: str) -> None:
    async with working(url, Encryption(K1)) as client:
        handles = [await client.start(pay, f"{SECRET} {number}") for number in range(2)]
        for handle in handles:
            await until_charged(handle)
    await wake(url, *handles, codecs=[Encryption(K1)])
    await swap_first_entries(url, *handles)
    async with working(url, Encryption(K1)) as client:
        for handle in handles:
            assert (await why_parked(await client.get(handle.id), "belongs elsewhere")).startswith("PayloadDamaged: ")
    store = store_for(url, codec=Encryption(K1))
    await store.open()
    report = await verify(store, patience=0)
    await store.close()
    assert {one.id for one in report.violations if one.invariant == "I3"} == {handle.id for handle in handles}
    await swap_first_entries(url, *handles)
    async with working(url, Encryption(K1)) as client:
        for number, handle in enumerate(handles):
            found = await client.get(handle.id, pay)
            await found.retry()
            assert await found.result(PATIENCE) == f"charged {SECRET} {number} for it"


async def swap_first_entries(url: str, one: Handle[Any], other: Handle[Any]) -> None:
    """As somebody with nothing but SQL would."""
    aside = new_run_id()
    moves = [(aside, one.run_id), (one.run_id, other.run_id), (other.run_id, aside)]
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            for to, source in moves:
                connection.execute(
                    "UPDATE journal SET run_id = ? WHERE run_id = ? AND ord = 0", (to.bytes, source.bytes)
                )
        connection.close()
        return
    database = await asyncpg.connect(url)
    try:
        for to, source in moves:
            await database.execute("UPDATE batuta.journal SET run_id = $1 WHERE run_id = $2 AND ord = 0", to, source)
    finally:
        await database.close()


async def test_what_was_there_before_encryption_is_read_when_plain_stands_among_the_keys(url: str) -> None:
    async with working(url) as client:
        handle = await do_everything(client)
        opened = await client.start(pay, SECRET)
        await until_charged(opened)
    await wake(url, opened, codecs=[])
    async with working(url, Encryption(K1)) as client:
        assert "it is not encrypted" in await why_parked(await client.get(opened.id), "PayloadDamaged")
    async with working(url, Encryption(f"{K1},plain")) as client:
        assert await (await client.get(handle.id, pay)).result(PATIENCE) == f"charged {SECRET} for {SECRET}"
        assert await (await client.get(opened.id, pay)).result(PATIENCE) == f"charged {SECRET} for it"
    await rotated(url, f"{K1},plain")
    assert SECRET not in await rows_of(url)
    await reads_everything(url, K1)


async def test_a_rotation_encrypts_why_a_run_was_tried_again(url: str) -> None:
    @workflow
    async def stumbles(card: str) -> str:
        raise ValueError(f"the card {card} is bad")

    async with connect(url) as client, client.worker(workflows=[stumbles]):
        handle = await client.start(stumbles, SECRET, retry=Retry(attempts=2, first=0.01, jitter=0))
        with pytest.raises(RunFailed, match=SECRET):
            await handle.result(PATIENCE)
    assert (await rotated(url, f"{K1},plain")).rewritten == 2
    assert SECRET not in await rows_of(url)
    assert (await rotated(url, K1)).rewritten == 0
    store = store_for(url, codec=Encryption(K1))
    await store.open()
    reasons = [run.reason for run in (await store.list_runs(RunFilter(), None, 10)).runs]
    await store.close()
    assert any(SECRET in reason for reason in reasons)


async def test_a_rotation_leaves_nothing_that_needs_the_old_key(url: str) -> None:
    async with working(url, Compression(least=64), Encryption(K1)) as client:
        await do_everything(client)
        timed_out = await client.start(pay, SECRET, timeout=0.2)
        stays = await client.start(pay, SECRET)
        await until_state(timed_out, RunState.TIMED_OUT)
        await until_charged(stays)
    first = await rotated(url, f"{K2},{K1}", dry_run=True)
    assert first.rewritten > 8
    assert first.open == 1
    assert first.schedules == 1
    assert not first.sealed
    assert "aes.k2" not in await rows_of(url)
    done = await rotated(url, f"{K2},{K1}")
    assert (done.rewritten, done.schedules) == (first.rewritten, first.schedules)
    again = await rotated(url, f"{K2},{K1}")
    assert (again.rewritten, again.schedules) == (0, 0)
    async with working(url, Compression(), Encryption(f"{K2},{K1}")) as client:
        found = await client.get(stays.id, pay)
        await found.signal(go, "it")
        await found.result(PATIENCE)
    await rotated(url, f"{K2},{K1}")
    assert "aes.k1" not in await rows_of(url)
    await reads_everything(url, K2)


async def test_a_rotation_that_was_cut_off_anywhere_can_be_done_again(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(sqlite_url, Encryption(K1)) as client:
        await do_everything(client)
        timed_out = await client.start(pay, SECRET, timeout=0.2)
        await until_state(timed_out, RunState.TIMED_OUT)
    monkeypatch.setattr("batuta.stores.coded.key_rotation._AT_ONCE", 2)
    cut = 0
    while True:
        store = store_for(sqlite_url, codec=[Compression(), Encryption(f"{K2},{K1}")])
        assert isinstance(store, CodedStore)
        await store.open()
        rewrite, left = store.inner.rewrite, iter(range(3))

        async def cut_off(changed: Any, rewrite: Any = rewrite, left: Any = left) -> bool:
            if next(left, None) is None:
                raise ConnectionError("the process is killed here")
            return bool(await rewrite(changed))

        store.inner.rewrite = cut_off  # type: ignore[method-assign]  # a store that is cut off
        done = None
        with suppress(ConnectionError):
            done = await rotate(store)
        report = await verify(store, [pay, parent, child, twice, fails], patience=0)
        await store.close()
        assert (report.violations, report.sealed) == ([], 0)
        if done is not None:
            break
        cut += 1
    assert cut > 5
    assert "aes.k1" not in await rows_of(sqlite_url)
    await reads_everything(sqlite_url, K2)


async def rotated(url: str, keys: str, *, dry_run: bool = False) -> Any:
    store = store_for(url, codec=[Compression(), Encryption(keys)])
    await store.open()
    try:
        return await rotate(store, dry_run=dry_run)
    finally:
        await store.close()


async def reads_everything(url: str, keys: str) -> None:
    """With these keys alone every payload of a closed run can be read, and every journal is as it was written."""
    store = store_for(url, codec=[Compression(), Encryption(keys)])
    assert isinstance(store, CodedStore)
    await store.inner.open()
    for run in (await store.list_runs(RunFilter(), None, 1_000)).runs:
        assert run.state in CLOSED
        assert await store.journal(run.run_id) is not None
        assert "PayloadSealed" not in run.memo
        assert "PayloadDamaged" not in run.memo
        for output in (*await store.outputs(run.run_id), *await store.answers_of(run.chain_id)):
            assert "Payload" not in (output.error or "")
        assert all("Payload" not in (attempt.error or "") for attempt in await store.attempts(run.run_id))
        await store.inbox(run.chain_id)
    report = await verify(store, [pay, parent, child, twice, fails], patience=0)
    await store.inner.close()
    assert (report.violations, report.sealed) == ([], 0)
    async with connect(url, codec=[Compression(), Encryption(keys)]) as client:
        assert (await client.schedules.get("often")).arguments == [SECRET]
        assert await (await client.get("paid", pay)).result(PATIENCE) == f"charged {SECRET} for {SECRET}"


def assert_no_key(text: str) -> None:
    for key in (K1, K2, ANOTHER_K1):
        secret = key.partition(":")[2]
        assert secret.rstrip("=") not in text
        assert base64.b64decode(secret).hex() not in text
        assert repr(base64.b64decode(secret))[2:-1] not in text


async def test_no_key_is_in_any_error_or_log_line(url: str, caplog: pytest.LogCaptureFixture) -> None:
    wrong: list[Callable[[], object]] = [
        lambda: Encryption(f"{K1},{K1}"),
        lambda: Encryption(f"{K1}x"),
        lambda: Encryption(K1.partition(":")[2]),
        lambda: Keys.from_env({"BATUTA_KEYS": f"{K1},,{K2} {K1}"}),
        lambda: Keys.from_env({"BATUTA_KEYS": K1, "BATUTA_KEYS_FILE": "keys"}),
    ]
    for make in wrong:
        with pytest.raises(ValueError) as caught:
            make()
        assert_no_key(f"{caught.value!r} {caught.value.__cause__!r}")
    with caplog.at_level(logging.DEBUG):
        async with working(url, Encryption(K1)) as client:
            handle = await client.start(pay, SECRET)
            await until_charged(handle)
        await wake(url, handle, codecs=[Encryption(K1)])
        async with working(url, Encryption(ANOTHER_K1)) as client:
            found = await client.get(handle.id, pay)
            await why_parked(found, "PayloadSealed")
            with pytest.raises(PayloadSealed) as sealed:
                await found.journal()
    assert_no_key(f"{caplog.text} {sealed.value!r} {await rows_of(url)}")
    await asyncio.sleep(0)


def test_a_damaged_payload_is_a_sealed_one() -> None:
    assert issubclass(PayloadDamaged, PayloadSealed)
