"""Keys: created, changed and removed at the directory and in our own table, or in neither."""

from datetime import timedelta
from pathlib import Path

import pytest

from batuta import RunFailed
from batuta.testing import in_virtual_time
from pixdict.connect.keys import EntryChange, create_entry, delete_entry, update_entry
from pixdict.dict.cids import cid_of, vsync_of
from pixdict.dict.entries import Entry
from tests.pixdict.directory.kit import PHONE, A, account, person
from tests.pixdict.keys.kit import World, new_entry, world


@in_virtual_time
async def test_a_key_is_active_here_and_registered_there(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        assert await w.env.run(create_entry, new_entry()) == PHONE
        row = await w.tables.entry("e-1")
        assert row is not None
        stored = w.directory.storage.entry(PHONE)
        assert stored is not None
        assert (row.status, row.cid, row.request_id) == ("ACTIVE", stored.cid, str(stored.request_id))
        assert w.directory.storage.vsync(A, "PHONE") == vsync_of([row.cid])


@in_virtual_time
async def test_a_random_key_is_made_by_the_directory_and_kept_here(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        key = await w.env.run(create_entry, new_entry("e-1", None, "EVP"))
        row = await w.tables.active_entry(key)
        stored = w.directory.storage.entry(key)
        assert row is not None
        assert stored is not None
        assert row.cid == stored.cid
        assert row.entry.key == key


@in_virtual_time
async def test_a_refused_key_has_failed_and_says_why(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.b.create(owner=person("99988877766", "Maria"))
        with pytest.raises(RunFailed, match="EntryKeyOwnedByDifferentPerson"):
            await w.env.run(create_entry, new_entry())
        row = await w.tables.entry("e-1")
        assert row is not None
        assert row.status == "FAILED"
        assert row.problem.startswith("EntryKeyOwnedByDifferentPerson")
        assert w.bridge.calls == ["createEntry"], "a refusal is not asked again"
        assert not (await w.env.client.dead_letters.list()).letters, "it is an answer"


@in_virtual_time
async def test_a_lost_answer_makes_one_entry(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.bridge.lost = ["createEntry"]
        await w.env.run(create_entry, new_entry())
        assert w.bridge.calls == ["createEntry"] * 2
        assert await w.status() == "ACTIVE"
        counts = w.directory.storage.counts()
        assert (counts["entries"], counts["cid_events"]) == (1, 1)


@in_virtual_time
async def test_a_directory_that_stays_away_leaves_the_entry_pending_and_a_dead_letter(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.bridge.away = ["createEntry"] * 2
        w.bridge.lost = ["createEntry"]
        handle = await w.env.start(create_entry, new_entry(), id="create-1")
        with pytest.raises(RunFailed, match="no answer in time"):
            await handle.result()
        assert await w.status() == "PENDING"
        assert w.bridge.calls == ["createEntry"] * 3, "nothing is undone: it may have been done"
        [letter] = (await w.env.client.dead_letters.list()).letters
        await w.env.client.dead_letters.reprocess(letter.id)
        await w.env.settle()
        assert await w.status() == "ACTIVE"
        counts = w.directory.storage.counts()
        assert (counts["entries"], counts["cid_events"]) == (1, 1), "the same request id"


@in_virtual_time
async def test_a_bucket_without_tokens_uses_up_no_attempt(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.bridge.tokens["createEntry"] = 0
        handle = await w.env.start(create_entry, new_entry(), id="create-1")
        began = w.env.now
        await w.later(10 * 60)
        assert await w.status() == "PENDING"
        assert 9 <= len(w.bridge.calls) <= 11, "once a minute, as the directory says"
        w.bridge.tokens.clear()
        assert await handle.result() == PHONE
        assert w.env.now - began < timedelta(minutes=12)
        assert not w.alerts


@in_virtual_time
async def test_a_directory_that_is_busy_when_a_key_is_undone_is_asked_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.database.fail("key_value = ?, cid", 3)
        w.bridge.tokens["deleteEntry"] = 0
        handle = await w.env.start(create_entry, new_entry(), id="create-1")
        await w.later(5 * 60)
        w.bridge.tokens.clear()
        with pytest.raises(RunFailed, match="Failed to create entry"):
            await handle.result()
        assert w.directory.storage.counts()["entries"] == 0
        assert not (await w.env.client.dead_letters.list()).letters


@in_virtual_time
async def test_a_table_that_stays_away_undoes_what_the_directory_did(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.database.fail("key_value = ?, cid", 3)
        with pytest.raises(RunFailed, match="Failed to create entry"):
            await w.env.run(create_entry, new_entry())
        row = await w.tables.entry("e-1")
        assert row is not None
        assert (row.status, row.problem) == ("FAILED", "Failed to create entry. Compensating transaction executed.")
        assert w.directory.storage.counts()["entries"] == 0


@in_virtual_time
async def test_an_undoing_takes_longer_than_a_call_and_is_told_when_it_is_done(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.database.fail("key_value = ?, cid", 3)
        w.bridge.away = ["deleteEntry"] * 5
        handle = await w.env.start(create_entry, new_entry(), id="create-1")
        await w.later(10)
        assert await w.status() == "PENDING", "the directory still has it"
        with pytest.raises(RunFailed, match="Compensating transaction executed"):
            await handle.result()
        assert await w.status() == "FAILED"
        assert w.directory.storage.counts()["entries"] == 0


async def letters(w: World) -> list[str]:
    return [letter.reason for letter in (await w.env.client.dead_letters.list()).letters]


@in_virtual_time
async def test_a_key_that_could_not_be_undone_stays_pending_until_its_dead_letter_is_processed(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.database.fail("key_value = ?, cid", 3)
        w.bridge.away = ["deleteEntry"] * 20
        with pytest.raises(RunFailed, match="could not be undone"):
            await w.env.run(create_entry, new_entry())
        assert await w.status() == "PENDING"
        assert len(w.alerts) == 1
        assert await letters(w) == ["compensation_failed"]
        w.bridge.away.clear()
        await w.env.client.dead_letters.reprocess(everything=True)
        await w.later(60)
        assert await w.status() == "FAILED"
        assert w.directory.storage.counts()["entries"] == 0
        assert await letters(w) == []


@in_virtual_time
async def test_a_key_that_is_undone_late_stays_when_it_has_become_active(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.database.fail("key_value = ?, cid", 3)
        w.bridge.away = ["deleteEntry"] * 20
        with pytest.raises(RunFailed, match="could not be undone"):
            await w.env.run(create_entry, new_entry())
        w.bridge.away.clear()
        await w.tables.store_entry("e-1", new_entry().entry, "c" * 64)  # as the reconciliation does
        await w.env.client.dead_letters.reprocess(everything=True)
        await w.later(60)
        assert await letters(w) == []
        assert await w.status() == "ACTIVE"
        assert w.directory.storage.counts()["entries"] == 1


async def created(w: World) -> None:
    await w.env.run(create_entry, new_entry())
    w.bridge.calls.clear()


@in_virtual_time
async def test_an_outage_of_our_table_outlasts_the_undoing_and_ends_it_in_order(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.database.fail("UPDATE dict_entries", 8)
        with pytest.raises(RunFailed, match="Failed to create entry"):
            await w.env.run(create_entry, new_entry())
        assert await w.status() == "FAILED"
        assert w.directory.storage.counts()["entries"] == 0
        assert not (await w.env.client.dead_letters.list()).letters


@in_virtual_time
async def test_an_update_changes_both(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await created(w)
        w.bridge.lost = ["updateEntry"]
        await w.env.run(update_entry, "e-1", EntryChange(account=account(number="9")))
        row = await w.tables.entry("e-1")
        stored = w.directory.storage.entry(PHONE)
        assert row is not None
        assert stored is not None
        assert row.entry.account == stored.entry.account == account(number="9")
        assert row.cid == stored.cid == cid_of(row.entry, stored.request_id)


@in_virtual_time
async def test_an_update_that_cannot_be_kept_here_is_undone_there(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await created(w)
        w.database.fail("key_value = ?, cid", 3)
        with pytest.raises(RunFailed, match="Failed to update entry"):
            await w.env.run(update_entry, "e-1", EntryChange(account=account(number="9")))
        stored = w.directory.storage.entry(PHONE)
        row = await w.tables.entry("e-1")
        assert stored is not None
        assert row is not None
        assert stored.entry.account == row.entry.account == account()
        assert stored.cid == row.cid
        assert row.problem == "Failed to update entry. Compensating transaction executed."


async def update_that_could_not_be_undone(w: World) -> None:
    await created(w)
    w.database.fail("key_value = ?, cid", 3)
    handle = await w.env.start(update_entry, "e-1", EntryChange(account=account(number="9")), id="update-1")
    await w.later(0.1)
    w.bridge.away = ["updateEntry"] * 20
    with pytest.raises(RunFailed, match="could not be undone"):
        await handle.result()


@in_virtual_time
async def test_an_update_that_could_not_be_undone_is_not_said_to_be(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await update_that_could_not_be_undone(w)
        assert await letters(w) == ["compensation_failed"]
        w.bridge.away.clear()
        await w.env.client.dead_letters.reprocess(everything=True)
        await w.later(60)
        stored, row = w.directory.storage.entry(PHONE), await w.tables.entry("e-1")
        assert stored is not None
        assert row is not None
        assert stored.entry.account == row.entry.account == account()


@in_virtual_time
async def test_an_update_that_is_undone_late_takes_nothing_back_that_came_after_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await update_that_could_not_be_undone(w)
        w.bridge.away.clear()
        await w.env.run(update_entry, "e-1", EntryChange(account=account(number="7")))
        await w.env.client.dead_letters.reprocess(everything=True)
        await w.later(60)
        assert await letters(w) == []
        stored, row = w.directory.storage.entry(PHONE), await w.tables.entry("e-1")
        assert stored is not None
        assert row is not None
        assert stored.entry.account == row.entry.account == account(number="7")
        assert (row.status, row.problem) == ("ACTIVE", "")


@in_virtual_time
async def test_a_refused_update_changes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await created(w)
        with pytest.raises(RunFailed, match="EntryInvalid"):
            await w.env.run(update_entry, "e-1", EntryChange(owner=person(name="1")))
        with pytest.raises(RunFailed, match="there is no entry e-2"):
            await w.env.run(update_entry, "e-2", EntryChange(owner=person()))
        assert await w.status() == "ACTIVE"


@in_virtual_time
async def test_a_deleted_key_is_gone_from_both(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await created(w)
        w.bridge.lost = ["deleteEntry"]
        await w.env.run(delete_entry, "e-1", "ACCOUNT_CLOSURE")
        assert await w.status() == "DELETED"
        assert w.directory.storage.counts()["entries"] == 0
        with pytest.raises(RunFailed, match="entry e-1 is DELETED"):
            await w.env.run(delete_entry, "e-1")


@in_virtual_time
async def test_a_key_that_the_directory_has_not_is_deleted(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await created(w)
        w.a.delete(PHONE)  # by an attempt before a crash
        await w.env.run(delete_entry, "e-1")
        assert await w.status() == "DELETED"


@in_virtual_time
async def test_a_deletion_goes_on_until_our_own_table_has_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await created(w)
        w.database.fail("'DELETED'", 50)
        await w.env.run(delete_entry, "e-1")
        assert await w.status() == "DELETED"


@in_virtual_time
async def test_a_key_with_a_claim_is_not_deleted(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await created(w)
        w.b.claim("PORTABILITY")
        with pytest.raises(RunFailed, match="EntryLockedByClaim"):
            await w.env.run(delete_entry, "e-1")
        assert await w.status() == "ACTIVE"


@in_virtual_time
async def test_an_entry_of_another_id_is_another_request(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await created(w)
        with pytest.raises(RunFailed, match="EntryAlreadyExists"):
            await w.env.run(create_entry, new_entry("e-2"))
        assert isinstance(new_entry().entry, Entry)
        assert await w.status("e-2") == "FAILED"
