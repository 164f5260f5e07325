"""What somebody changes in the audit log with SQL is found, in both databases."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from batuta import Batuta
from batuta.codecs import Keys
from batuta.engine.backend.actor import Actor, AuditKeys
from batuta.engine.backend.native import NativeBackend
from batuta.errors import AuditKeyMissing
from batuta.journal.audit import Recorded, Verb, chained
from batuta.journal.store import Store
from tests.stores.postgres.raw import connection


@pytest.fixture
async def client(store: Store) -> Batuta:
    """With a log of five rows."""
    client = Batuta(NativeBackend(store, actor="ada"), store.open, store.close)
    for number in range(5):
        await client.pause_queue(f"q{number}", "why")
    return client


async def by_hand(url: str, *statements: str) -> None:
    """As somebody who may write to the database, and knows how to get rid of a trigger."""
    if url.startswith("sqlite"):
        file = sqlite3.connect(Path(url.removeprefix("sqlite:///")))
        with file:
            triggers = file.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE 'audit%'")
            for (name,) in triggers.fetchall():
                file.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                file.execute(statement)
        file.close()
        return
    async with connection(url) as raw:
        await raw.execute("SET search_path = batuta")
        await raw.execute("ALTER TABLE audit DISABLE TRIGGER ALL")
        await raw.execute("ALTER TABLE audit_heads DISABLE TRIGGER ALL")
        for statement in statements:
            await raw.execute(statement)


async def problem(client: Batuta, expected: str | None = None) -> str:
    return (await client.verify_audit(expected)).problem


async def test_a_sound_log_is_sound(client: Batuta) -> None:
    report = await client.verify_audit()
    assert (report.rows, report.problem) == (5, "")
    await client.resume_queue("q1")
    assert await problem(client, report.head) == ""


@pytest.mark.parametrize("column", ["at", "actor", "verb", "target", "run_id", "reason", "detail", "before", "after"])
async def test_a_value_that_was_changed_is_found(client: Batuta, url: str, column: str) -> None:
    value = "at + 1" if column == "at" else f"{column} || 'x'"
    await by_hand(url, f"UPDATE audit SET {column} = {value} WHERE number = 3")
    assert await problem(client) == "row 3 differs from what was written"


async def test_a_row_that_was_removed_is_found(client: Batuta, url: str) -> None:
    await by_hand(url, "DELETE FROM audit WHERE number = 2")
    assert await problem(client) == "row 2 is missing"


async def test_rows_that_were_removed_at_the_end_are_found(client: Batuta, url: str) -> None:
    await by_hand(url, "DELETE FROM audit WHERE number > 3")
    assert await problem(client) == "row 4 is missing, and all after it: there were 5"


async def test_a_last_row_that_was_written_anew_is_found(client: Batuta, store: Store, url: str) -> None:
    rows = await store.audit()
    rows[-1].actor = "bob"
    _chain_anew(store.namespace, rows)
    await by_hand(url, f"UPDATE audit SET actor = 'bob', hash = '{rows[-1].hash}' WHERE number = 5")
    assert await problem(client) == "row 5 differs from the recorded end of the log: its last rows were rewritten"


async def test_a_row_that_was_put_in_is_found(client: Batuta, url: str) -> None:
    columns = "namespace, at, actor, verb, target, run_id, reason, detail, before, after, hash"
    await by_hand(
        url,
        f"INSERT INTO audit (number, {columns}) SELECT 6, {columns} FROM audit WHERE number = 5",
    )
    assert await problem(client) == "row 6 differs from what was written"


async def test_rows_that_changed_places_are_found(client: Batuta, url: str) -> None:
    swap = [f"UPDATE audit SET number = {new} WHERE number = {old}" for old, new in ((2, 99), (3, 2), (99, 3))]
    await by_hand(url, *swap)
    assert await problem(client) == "row 2 differs from what was written"


async def test_a_log_that_was_emptied_is_found(client: Batuta, url: str) -> None:
    await by_hand(url, "DELETE FROM audit")
    assert await problem(client) == "row 1 is missing, and all after it: there were 5"


async def test_a_log_that_was_written_anew_is_found_by_who_kept_its_end(client: Batuta, store: Store, url: str) -> None:
    head = (await client.verify_audit()).head
    rows = await store.audit()
    rows[1].actor = "bob"
    _chain_anew(store.namespace, rows)
    await by_hand(
        url,
        *(f"UPDATE audit SET actor = '{row.actor}', hash = '{row.hash}' WHERE number = {row.number}" for row in rows),
        f"UPDATE audit_heads SET hash = '{rows[-1].hash}'",
    )
    assert await problem(client) == ""
    assert await problem(client, head) == ("row 5 differs from the row with that hash: the log was rewritten")


def _chain_anew(namespace: str, rows: list[Recorded]) -> None:
    previous = ""
    for row in rows:
        row.hash = previous = chained(namespace, previous, row)


REFUSED = (
    "UPDATE audit SET actor = 'bob'",
    "DELETE FROM audit",
    "DELETE FROM audit_heads",
    "UPDATE audit_heads SET number = 3",
    "UPDATE audit_heads SET namespace = 'other', number = number + 1",
)


async def test_the_database_itself_refuses_changes(client: Batuta, url: str) -> None:
    others = ("TRUNCATE audit", "TRUNCATE audit_heads") if url.startswith("postgres") else ()
    for statement in REFUSED + others:
        with pytest.raises(Exception, match="only added to"):
            await _plainly(url, statement)
    assert await problem(client) == ""


async def _plainly(url: str, statement: str) -> None:
    if url.startswith("sqlite"):
        file = sqlite3.connect(Path(url.removeprefix("sqlite:///")))
        try:
            file.execute(statement)
        finally:
            file.close()
        return
    async with connection(url) as raw:
        await raw.execute("SET search_path = batuta")
        await raw.execute(statement)


COLUMNS = "namespace, at, actor, verb, target, run_id, reason, detail, before, after"
KEY, OTHER_KEY = Keys.parse(Keys.new("march")), Keys.parse(Keys.new("april"))


def with_key(store: Store, *keys: Keys) -> Batuta:
    return Batuta(NativeBackend(store, actor=Actor("ada", AuditKeys(*keys))), store.open, store.close)


async def forged_tail(store: Store, number: int = 6) -> str:
    """A statement that puts a row behind the last one, with a hash as anybody can compute it."""
    last = (await store.audit())[-1]
    row = Recorded(number=number, at=last.at, actor="eve", verb="cancel", target="t")
    digest = chained(store.namespace, last.hash, row)
    values = f"SELECT {number}, namespace, at, 'eve', 'cancel', 't', '', '', 'null', 'null', 'null', '{digest}'"
    return f"INSERT INTO audit (number, {COLUMNS}, hash) {values} FROM audit WHERE number = 5"


async def test_who_can_insert_alone_can_put_nothing_behind_the_end(client: Batuta, store: Store, url: str) -> None:
    other = "INSERT INTO audit_heads (namespace, number, hash) VALUES ('new', 9, 'x')"
    for statement in (await forged_tail(store), await forged_tail(store, 2**63 - 1), other):
        with pytest.raises(Exception, match="the audit log"):
            await _plainly(url, statement)
    await client.resume_queue("q1")
    assert await problem(client) == ""


async def test_no_row_is_replaced(client: Batuta, store: Store, url: str) -> None:
    if url.startswith("sqlite"):
        forged = (await forged_tail(store, 5)).replace("INSERT", "INSERT OR REPLACE")
        heads = "INSERT OR REPLACE INTO audit_heads (namespace, number, hash) VALUES ('default', 0, '')"
        for statement in (forged, heads):
            with pytest.raises(sqlite3.IntegrityError, match="audit log"):
                await _plainly(url, statement)
    assert await problem(client) == ""


async def test_a_forged_tail_is_found_and_blocks_nothing(client: Batuta, store: Store, url: str) -> None:
    await by_hand(url, await forged_tail(store))
    assert await problem(client) == "row 6 follows the end of the log: it was inserted by hand"
    await client.resume_queue("q1")
    assert (await client.audit(limit=1)).rows[0].number == 7
    assert await problem(client) == "row 7 differs from what was written"  # 6 fits, and so 7 does not follow it


async def test_who_has_no_key_cannot_forge_a_row_that_passes(store: Store, url: str, client: Batuta) -> None:
    keyed = with_key(store, KEY)
    report = await keyed.verify_audit()
    assert (report.rows, report.keyed, report.problem) == (5, 0, "")
    await keyed.resume_queue("q1")
    report = await keyed.verify_audit()
    assert (report.rows, report.keyed, report.problem) == (6, 1, "")
    [last] = (await keyed.audit(limit=1)).rows
    head = "UPDATE audit_heads SET number = 7, hash = (SELECT hash FROM audit WHERE number = 7)"
    forged = (await forged_tail(store, 7)).replace("number = 5", "number = 6")
    await by_hand(url, forged, head)
    assert await problem(keyed) == "row 7 has no key, but the row before it has one"
    with_salt = f"UPDATE audit SET salt = '{last.salt}' WHERE number = 7"
    await by_hand(url, with_salt)
    assert await problem(keyed) == "row 7 differs from what was written"
    await keyed.pause_queue("q1")
    assert (await keyed.audit(limit=1)).rows[0].number == 8


async def test_rows_with_a_key_hold_for_every_verb_and_text(store: Store) -> None:
    keyed = with_key(store, KEY)
    for text in ("", "\x01\x7f", '"|\\/\n', "é漢😀"):
        await keyed.pause_queue("q", text)
    await keyed.limit_queue("q", concurrency=3)
    report = await keyed.verify_audit()
    assert (report.rows, report.keyed, report.problem) == (5, 5, "")


async def test_who_has_no_key_cannot_act_where_others_have_one(store: Store) -> None:
    await with_key(store, KEY).pause_queue("q", "why")
    with pytest.raises(AuditKeyMissing, match="BATUTA_AUDIT_KEY") as raised:
        await with_key(store).resume_queue("q")
    assert raised.value.namespace == store.namespace
    [queue] = await with_key(store).queues()
    assert queue.paused
    await with_key(store, OTHER_KEY, KEY).resume_queue("q")
    assert await problem(with_key(store, KEY, OTHER_KEY)) == ""


async def test_rows_whose_key_is_not_here_are_not_called_sound(store: Store) -> None:
    await with_key(store, KEY).pause_queue("q")
    for client in (with_key(store), with_key(store, OTHER_KEY)):
        report = await client.verify_audit()
        assert report.rows == 0
        assert report.problem.startswith(f"row 1 cannot be checked without key '{KEY.first.label}'")


async def test_the_key_of_an_act_is_kept_nowhere_and_good_for_no_other(store: Store) -> None:
    actor = Actor("ada", AuditKeys(KEY))
    act, other = actor.act(Verb.CANCEL, "why"), actor.act(Verb.CANCEL, "why")
    assert act.secret != other.secret
    assert repr(act) == "<cancel by ada>"
    await store.note_act("t", act)
    [row] = await store.audit()
    assert actor.keys.secret_of(row) == act.secret
    row.reason = "another"
    assert actor.keys.secret_of(row) != act.secret


async def test_rows_that_are_added_while_the_log_is_read_are_no_forged_tail(
    client: Batuta, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = store.audit
    acts = iter(range(3))

    async def audit(after: int = 0, limit: int = 1_000) -> list[Recorded]:
        rows = await read(after, limit)
        for number in acts:
            await client.pause_queue(f"new{number}")
            break
        return rows

    monkeypatch.setattr(store, "audit", audit)
    report = await client.verify_audit()
    assert (report.problem, report.rows) == ("", 8)
