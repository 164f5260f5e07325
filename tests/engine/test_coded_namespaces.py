"""A namespace that is encrypted takes nothing from those who cannot read it; and what earlier versions wrote."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from batuta import RunState, Schedule, connect, every, sync
from batuta.codecs import Bound, Compression, Encryption, PayloadCodec
from batuta.connect import store_for
from batuta.errors import PayloadRefused, PayloadSealed
from batuta.ids import RunId
from batuta.journal.audit import Act, Verb
from batuta.journal.codec_envelope import MARK, OLD_MARK, OLDER_MARK
from batuta.journal.entries import Entry
from batuta.journal.marks import CODEC
from batuta.journal.records import Message, MessageKind, NewRun, Output, OutputKind, Run
from batuta.journal.store import Store
from batuta.stores.coded.key_rotation import Rotated, rotate
from batuta.stores.coded.payloads import Payloads, by_first_version, by_second_version
from batuta.stores.coded.record_codec import RecordCodec
from batuta.stores.coded.run_facts import Fact, fact_of
from batuta.stores.coded.store import CodedStore
from tests.engine.arena import PATIENCE, until_state
from tests.engine.test_sealed import (
    ANOTHER_K1,
    EVERYTHING,
    K1,
    K2,
    SECRET,
    do_everything,
    go,
    mail,
    pay,
    reads_everything,
    rotated,
    rows_of,
    until_charged,
    wake,
    why_parked,
    working,
)

pytestmark = pytest.mark.usefixtures("real_time")

OTHERS: list[tuple[list[PayloadCodec], str]] = [
    ([], "this process has no codec"),
    ([Compression()], "it went through codec 'aes'"),
    ([Encryption(K2)], "it is encrypted with key 'k1'"),
    ([Encryption(ANOTHER_K1)], "it is encrypted with another key 'k1' than ours"),
]
ids = ["none", "other codec", "other key", "same id"]


@asynccontextmanager
async def opened(url: str, *codecs: PayloadCodec) -> AsyncIterator[Store]:
    store = store_for(url, codec=codecs)
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def marks_of(url: str) -> dict[str, str]:
    async with opened(url) as store:
        return await store.marks()


@pytest.mark.parametrize(("codecs", "why"), OTHERS, ids=ids)
async def test_those_who_cannot_read_an_encrypted_namespace_write_nothing_into_it(
    url: str, codecs: list[PayloadCodec], why: str
) -> None:
    async with working(url, Encryption(K1)) as client:
        handle = await client.start(pay, SECRET, id="pay")
        await until_charged(handle)
    assert (await marks_of(url))[CODEC].startswith(f"{MARK}aes.k1.")
    async with connect(url, codec=codecs) as client:
        found = await client.get("pay")
        for writing in (
            client.start(pay, "theirs"),
            client.enqueue(mail, "theirs"),
            client.schedules.create(Schedule("theirs", every(60), mail, "theirs")),
            found.signal(go, "theirs"),
        ):
            with pytest.raises(PayloadRefused, match=rf"namespace 'default' is encrypted, and {why}.*BATUTA_KEYS"):
                await writing
        async with client.worker(**EVERYTHING):
            with pytest.raises(PayloadRefused):
                await client.start(pay, "theirs")
        assert len((await client.list(kind="any")).runs) == 1
        assert await found.cancel("no longer wanted")


async def test_a_worker_without_the_key_leaves_plain_runs_of_an_encrypted_namespace_alone(url: str) -> None:
    async with connect(url, codec=[]) as client:
        await client.enqueue(mail, "theirs", id="theirs")
    async with opened(url, Encryption(K1)) as store:
        await store.set_mark(CODEC, "")
    async with working(url) as client:
        assert "is encrypted" in await why_parked(await client.get("theirs"), "this process has no codec")


async def test_a_namespace_with_something_in_it_is_not_marked_by_a_process_with_a_stray_key(url: str) -> None:
    async with connect(url, codec=[]) as client:
        await client.enqueue(mail, "plain")
        async with connect(url, codec=Encryption(K1)) as stray:
            await stray.enqueue(mail, SECRET)
        assert await marks_of(url) == {}
        await client.enqueue(mail, "plain")


async def test_looking_marks_nothing(url: str) -> None:
    async with connect(url, codec=Encryption(K1)) as client:
        assert not (await client.list()).runs
    assert await marks_of(url) == {}


async def test_a_namespace_is_not_marked_while_plain_stands_among_the_keys(url: str) -> None:
    async with connect(url, codec=Encryption(f"{K1},plain")) as client:
        await client.enqueue(mail, SECRET)
    assert await marks_of(url) == {}


async def test_a_mark_is_one_of_its_namespace(url: str) -> None:
    async with connect(url, codec=Encryption(K1)) as client:
        await client.enqueue(mail, SECRET)
    async with connect(url, namespace="other", codec=[]) as client:
        await client.enqueue(mail, "plain")


async def test_a_rotation_marks_the_namespace_and_has_the_mark_follow_the_key(url: str) -> None:
    async with working(url) as client:
        await do_everything(client)
    assert not (await rotated(url, f"{K1},plain")).marked
    assert await marks_of(url) == {}
    act = Act(actor="ann", verb=Verb.ROTATE_KEYS)
    async with opened(url, Compression(), Encryption(K1)) as store:
        assert (await rotate(store, act)).marked
        assert [row.target for row in await store.audit() if row.verb == Verb.SET_MARK] == [CODEC]
        assert not (await rotate(store, act)).marked
    assert "aes.k1" in (await marks_of(url))[CODEC]
    await rotated(url, f"{K2},{K1}", dry_run=True)
    assert "aes.k1" in (await marks_of(url))[CODEC]
    await rotated(url, f"{K2},{K1}")
    assert "aes.k2" in (await marks_of(url))[CODEC]
    assert "aes.k1" not in await rows_of(url)
    await reads_everything(url, K2)


# -- what earlier versions wrote


class OlderPayloads(Payloads):
    """As the first version bound them."""

    def _encode(self, data: bytes, bound: Bound) -> str | None:
        found = super()._encode(data, by_first_version(bound))
        return found if found is None else OLDER_MARK + found.removeprefix(MARK)


class OldPayloads(Payloads):
    """As the second version bound them."""

    def _encode(self, data: bytes, bound: Bound) -> str | None:
        found = super()._encode(data, by_second_version(bound))
        return found if found is None else OLD_MARK + found.removeprefix(MARK)


SENT = (MessageKind.SIGNAL, MessageKind.UPDATE)


class OldCoding(RecordCodec):
    """As the second version wrote them. It reads what it writes: its keys are with the word `old`."""

    def entry(self, run: Fact, entry: Entry) -> Entry:
        bound = self.payloads.bound(run.run_id, "entry", entry.ord, entry.kind.value, entry.at, run.name)
        body, crc = self.payloads.encode_body(entry.body, entry.crc, bound)
        return Entry(entry.ord, entry.kind, entry.at, crc, body)

    def new_run(self, new: NewRun, instead: Run | None = None) -> NewRun:
        coded, run = super().new_run(new, instead), fact_of(new if instead is None else instead)
        return replace(coded, start=self.start_of(run, new.start))

    def start_of(self, run: Fact, start: str) -> str:
        return self.payloads.encode(start, self.payloads.bound(run.run_id, "start", run.name))

    def message(self, run: Fact, message: Message) -> Message:
        bound = self.payloads.bound(run.chain_id, message.kind.value, message.name, message.message_id)
        return replace(message, body=self.payloads.encode(message.body, bound)) if message.kind in SENT else message


class OlderCoding(RecordCodec):
    """The same of the first version."""

    def entry(self, run: Fact, entry: Entry) -> Entry:
        bound = self.payloads.bound(run.run_id, "entry", entry.ord, entry.kind.value, entry.at)
        body, crc = self.payloads.encode_body(entry.body, entry.crc, bound)
        return Entry(entry.ord, entry.kind, entry.at, crc, body)

    def new_run(self, new: NewRun, instead: Run | None = None) -> NewRun:
        owner = f"debounced {new.name}" if new.debounce else new.run_id
        memo = f"debounced {new.name}" if new.debounce else f"id {new.id}"
        return replace(
            new,
            start=self.payloads.encode(new.start, self.payloads.bound(owner, "start")),
            memo=new.memo if new.memo == "null" else self.payloads.encode(new.memo, self.payloads.bound(memo, "memo")),
        )

    def start_of(self, run: Fact, start: str) -> str:
        return self.payloads.encode(start, self.payloads.bound(run.run_id, "start"))

    def output(self, run_id: RunId, chain_id: RunId | None, output: Output) -> Output:
        owner = chain_id if output.kind is OutputKind.ANSWER else run_id
        place = (owner, output.kind.value, output.name)
        given = {"value": output.value, "error": output.error}
        coded = {name: self.encode_text(text, (*place, name)) for name, text in given.items() if text is not None}
        return replace(output, **coded)


async def old_send(self: CodedStore, run_id: RunId, message: Message, act: Act | None = None) -> bool:
    known = self._facts
    if message.kind in SENT:
        message = self.coding.message_to_id((await known.of(run_id)).id, message)
    else:
        message = self.coding.message(await known.of(run_id), message)
    return await self.inner.send(run_id, message, **({} if act is None else {"act": act}))


@pytest.fixture(params=[1, 2])
def before(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> pytest.MonkeyPatch:
    """Until it is undone: a version that bound payloads to less, and knew of no marks."""
    first = request.param == 1
    monkeypatch.setattr("batuta.stores.coded.store.RecordCodec", OlderCoding if first else OldCoding)
    monkeypatch.setattr("batuta.stores.coded.store.Payloads", OlderPayloads if first else OldPayloads)
    if first:
        monkeypatch.setattr(CodedStore, "send", old_send)
    monkeypatch.setattr("batuta.stores.coded.namespace_guard.Guard.mark", _no_mark)
    monkeypatch.setattr("tests.engine.test_sealed.do_over", _no_mark)  # forks write messages of their own
    return monkeypatch


async def _no_mark(*_: Any) -> bool:
    return False


async def fill(url: str) -> None:
    async with working(url, Compression(least=64), Encryption(f"{K1},old")) as client:
        await do_everything(client)
        opened = await client.start(pay, SECRET, id="open", memo=SECRET)
        await until_charged(opened)
        timed_out = await client.start(pay, SECRET, timeout=0.2)
        await until_state(timed_out, RunState.TIMED_OUT)
    async with connect(url, codec=[Compression(least=64), Encryption(f"{K1},old")]) as client:
        for number in range(2):
            await client.enqueue(mail, f"{SECRET} {number}", unique="d", debounce=0.2, memo=SECRET)
        await client.start(pay, SECRET, id="unbegun", memo=SECRET)
    await wake(url, opened, codecs=[Compression(), Encryption(f"{K1},old")])


async def test_what_an_earlier_version_encrypted_is_refused_with_what_to_do(
    url: str, before: pytest.MonkeyPatch
) -> None:
    await fill(url)
    before.undo()
    found = await rows_of(url)
    assert MARK.strip('"') not in found
    async with working(url, Compression(), Encryption(K1)) as client:
        reason = await why_parked(await client.get("open"), "PayloadSealed")
        assert "let the word 'old' stand among the keys, and run `batuta keys rotate`" in reason
        with pytest.raises(PayloadSealed, match="the word 'old'"):
            await (await client.get("paid", pay)).result(PATIENCE)


async def test_what_an_earlier_version_encrypted_is_bound_anew(url: str, before: pytest.MonkeyPatch) -> None:
    await fill(url)
    before.undo()
    async with working(url, Compression(), Encryption(f"{K1},old")) as client:
        assert await (await client.get("open", pay)).result(PATIENCE) == f"charged {SECRET} for it"
        unbegun = await client.get("unbegun", pay)
        assert (await unbegun.describe()).memo == SECRET
        await unbegun.signal(go, "it")
        assert await unbegun.result(PATIENCE) == f"charged {SECRET} for it"
        [debounced] = [run for run in (await client.list(job="mail", limit=20)).runs if run.memo == SECRET][:1]
        await until_state(await client.get(debounced.id), RunState.COMPLETED)
    counted: Rotated = await rotated(url, f"{K1},old", dry_run=True)
    assert counted.rewritten > 8
    assert (counted.open, counted.sealed, counted.schedules) == (0, 0, 1)
    done = await rotated(url, f"{K1},old")
    assert (done.rewritten, done.schedules, done.sealed) == (counted.rewritten, 1, 0)
    found = await rows_of(url)
    assert not [mark for mark in (OLDER_MARK, OLD_MARK) if mark.strip('"') in found]
    again = await rotated(url, K1)
    assert (again.rewritten, again.schedules, again.sealed) == (0, 0, 0)
    assert CODEC in await marks_of(url)
    await reads_everything(url, K1)


def test_what_is_started_in_a_transaction_that_locks_the_database_marks_it_with_the_next_write(
    sqlite_url: str, tmp_path: Path
) -> None:
    with (
        sync.connect(sqlite_url, codec=Encryption(K1)) as client,
        closing(sqlite3.connect(tmp_path / "batuta.db")) as raw,
    ):
        with client.transaction(raw):
            client.start(pay, SECRET, id="first", transaction=raw)
        assert asyncio.run(marks_of(sqlite_url)) == {}
        client.start(pay, SECRET, id="second")
        assert CODEC in asyncio.run(marks_of(sqlite_url))
