"""Claims of both sides over weeks, in virtual time, against the real rules of the directory."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from batuta import Handle, RunFailed, UpdateRejected
from batuta.testing import in_virtual_time
from bench.claims import thirty_days
from pixdict.connect.keys import (
    NewClaim,
    activities,
    cancel_claim,
    claim_key,
    confirm_claim,
    create_entry,
    prove_possession,
)
from pixdict.connect.keys.claims import act_on_claim
from pixdict.connect.keys.models import ClaimAct
from tests.pixdict.directory.kit import CNPJ, PHONE, A, account, claim, person
from tests.pixdict.keys.kit import EVERY, World, new_entry, world

MARIA = person("99988877766", "Maria Souza")
DAY = timedelta(days=1)


async def begin(w: World, kind: str, id: str = "1") -> Handle[str]:
    """Our claim for a key of B."""
    w.b.create(at=account(w.b.ispb))
    wanted = claim(kind, at=account(A), claimer=person() if kind == "PORTABILITY" else MARIA).claim
    handle = await w.env.start(claim_key, NewClaim(id=id, claim=wanted), id=f"claim-{id}")
    await w.env.settle()
    return handle


def opened(w: World) -> Any:
    """The only claim there is."""
    [found] = w.b.ask("listClaims", Participant=w.b.ispb).message.claims
    return found


async def state(w: World, id: str = "1") -> tuple[str, str]:
    row = await w.tables.claim(id)
    assert row is not None
    return row.status, row.problem


# The claimer's side


@in_virtual_time
async def test_of_two_requests_for_one_claim_the_second_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        first = await begin(w, "PORTABILITY")
        wanted = claim("PORTABILITY", at=account(A), claimer=person()).claim
        second = await w.env.start(claim_key, NewClaim(id="2", claim=wanted), id="claim-2")
        with pytest.raises(RunFailed, match="ClaimAlreadyExistsForKey"):
            await second.result()
        assert (await state(w), (await state(w, "2"))[0]) == (("OPEN", ""), "FAILED")
        assert opened(w).status == "OPEN"
        await first.cancel("the test is over")


@in_virtual_time
async def test_a_claim_that_two_requests_find_at_once_is_the_first_ones_that_stores_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.b.create(at=account(w.b.ispb))
        w.bridge.lost = ["createClaim"] * 2
        wanted = claim("PORTABILITY", at=account(A), claimer=person()).claim
        for id in ("1", "2"):
            await w.env.start(claim_key, NewClaim(id=id, claim=wanted), id=f"claim-{id}")
        await w.later(timedelta(minutes=1))
        assert sorted([(await state(w, id))[0] for id in ("1", "2")]) == ["FAILED", "OPEN"]
        assert opened(w).status == "OPEN", "nobody has cancelled it"


@in_virtual_time
async def test_a_portability_is_completed_once_it_is_confirmed(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle = await begin(w, "PORTABILITY")
        assert await state(w) == ("OPEN", "")
        claim_id = opened(w).id
        w.b.act("acknowledge", claim_id)
        await w.later(DAY)
        w.b.act("confirm", claim_id, "USER_REQUESTED")
        assert await handle.result() == "COMPLETED"
        assert await state(w) == ("COMPLETED", "")
        assert w.b.look_up(PHONE).message.entry.account.participant == A


@in_virtual_time
async def test_an_ownership_is_completed_after_proof_and_fourteen_days(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle = await begin(w, "OWNERSHIP")
        began, claim_id = w.env.now, opened(w).id
        w.b.act("acknowledge", claim_id)
        await w.later(8 * DAY)
        w.b.act("confirm", claim_id, "DEFAULT_OPERATION")
        await handle.signal(prove_possession)
        assert await handle.result() == "COMPLETED"
        assert 14 * DAY <= w.env.now - began < 15 * DAY
        assert w.reminders == ["possession is not proved"]


@in_virtual_time
async def test_an_ownership_that_the_donor_confirms_is_completed_at_once(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle = await begin(w, "OWNERSHIP")
        await handle.signal(prove_possession)
        claim_id = opened(w).id
        w.b.act("acknowledge", claim_id)
        w.b.act("confirm", claim_id, "USER_REQUESTED")
        began = w.env.now
        assert await handle.result() == "COMPLETED"
        assert w.env.now - began < DAY


@in_virtual_time
async def test_an_ownership_without_proof_is_given_up_after_thirty_days(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle = await begin(w, "OWNERSHIP")
        began, claim_id = w.env.now, opened(w).id
        w.b.act("acknowledge", claim_id)
        w.b.act("confirm", claim_id, "USER_REQUESTED")
        assert await handle.result() == "CANCELLED"
        assert 30 * DAY <= w.env.now - began < 31 * DAY
        assert w.reminders == ["possession is not proved"] * 4
        ended = opened(w)
        assert (ended.cancel_reason, ended.cancelled_by) == ("DEFAULT_OPERATION", "CLAIMER")


@in_virtual_time
async def test_a_claim_that_the_donor_cancels_ends(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle = await begin(w, "PORTABILITY")
        w.b.act("cancel", opened(w).id, "FRAUD")
        assert await handle.result() == "CANCELLED"


@in_virtual_time
async def test_the_claimer_may_cancel_and_only_while_the_claim_is_open(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        handle = await begin(w, "PORTABILITY")
        assert await handle.update(cancel_claim, "USER_REQUESTED") == "CANCELLED"
        assert await handle.result() == "CANCELLED"
        assert opened(w).cancelled_by == "CLAIMER"
        assert w.b.look_up(PHONE).problem == "EntryCannotBeQueriedForBookTransfer", "it stays where it was"


@in_virtual_time
async def test_a_lost_answer_opens_one_claim(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.bridge.lost = ["createClaim"]
        await begin(w, "PORTABILITY")
        await w.later(5)
        assert w.bridge.calls == ["createClaim", "listClaims"], "claims are read before another attempt"
        assert await state(w) == ("OPEN", "")
        assert w.directory.storage.counts()["claims"] == 1


@in_virtual_time
async def test_a_claim_that_was_not_opened_is_opened_by_the_next_attempt(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.bridge.away = ["createClaim"]
        await begin(w, "PORTABILITY")
        await w.later(5)
        assert w.bridge.calls == ["createClaim", "listClaims", "createClaim"]
        assert await state(w) == ("OPEN", "")


@in_virtual_time
async def test_a_claim_of_our_own_that_is_there_already_is_taken_and_one_of_others_is_not(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.b.create(at=account(w.b.ispb))
        wanted = claim("PORTABILITY", at=account(A), claimer=person())
        w.a.ask("createClaim", wanted)  # by an attempt that a crash interrupted
        await w.env.start(claim_key, NewClaim(id="1", claim=wanted.claim), id="claim-1")
        await w.env.settle()
        assert await state(w) == ("OPEN", "")
        other = claim("PORTABILITY", at=account(A, "other"), claimer=person()).claim
        with pytest.raises(RunFailed, match="ClaimAlreadyExistsForKey"):
            await w.env.run(claim_key, NewClaim(id="2", claim=other))
        assert (await state(w, "2"))[0] == "FAILED"


@in_virtual_time
async def test_a_claim_of_our_own_is_known_again_although_the_directory_spells_it_otherwise(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        precise = account(A, opening_date=datetime(2010, 1, 10, 3, 4, 5, 678_901, tzinfo=UTC))
        wanted = claim("PORTABILITY", CNPJ, "CNPJ", at=precise, claimer=person(CNPJ, "Padaria")).claim
        w.b.create(CNPJ, "CNPJ", at=account(w.b.ispb), owner=person(CNPJ, "Padaria"))
        w.bridge.lost = ["createClaim"]
        await w.env.start(claim_key, NewClaim(id="1", claim=wanted), id="claim-1")
        await w.later(5)
        assert w.bridge.calls == ["createClaim", "listClaims"]
        assert await state(w) == ("OPEN", "")


@in_virtual_time
async def test_a_claim_that_cannot_be_stored_here_is_cancelled_there(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.database.fail("'OPEN'", 3)
        handle = await begin(w, "PORTABILITY")
        with pytest.raises(RunFailed, match=r"Failed to create claim\. Compensating transaction executed\."):
            await handle.result()
        assert (opened(w).status, opened(w).cancel_reason) == ("CANCELLED", "USER_REQUESTED")
        assert await state(w) == ("FAILED", "Failed to create claim. Compensating transaction executed.")


@in_virtual_time
async def test_a_claim_that_could_not_be_cancelled_there_stays_pending_until_its_dead_letter_is_processed(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        w.database.fail("'OPEN'", 3)
        w.bridge.away = ["cancelClaim"] * 20
        w.b.create(at=account(w.b.ispb))
        wanted = claim("PORTABILITY", at=account(A), claimer=person()).claim
        with pytest.raises(RunFailed, match="could not be undone"):
            await w.env.run(claim_key, NewClaim(id="1", claim=wanted))
        assert (await state(w), opened(w).status) == (("PENDING", ""), "OPEN")
        w.bridge.away.clear()
        await w.env.client.dead_letters.reprocess(everything=True)
        await w.later(60)
        assert ((await state(w))[0], opened(w).status) == ("FAILED", "CANCELLED")


@in_virtual_time
async def test_a_claim_that_is_undone_late_stays_when_another_request_has_it_by_then(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.b.create(at=account(w.b.ispb))
        w.database.fail("'OPEN'", 3)
        w.bridge.away = ["cancelClaim"] * 20
        wanted = claim("PORTABILITY", at=account(A), claimer=person()).claim
        with pytest.raises(RunFailed, match="could not be undone"):
            await w.env.run(claim_key, NewClaim(id="1", claim=wanted))
        w.bridge.away.clear()
        second = await w.env.start(claim_key, NewClaim(id="2", claim=wanted), id="claim-2")
        await w.later(60)
        assert await state(w, "2") == ("OPEN", "")
        await w.env.client.dead_letters.reprocess(everything=True)
        await w.later(60)
        assert ((await state(w))[0], await state(w, "2")) == ("FAILED", ("OPEN", ""))
        assert opened(w).status == "OPEN"
        await second.cancel("the test is over")


@in_virtual_time
async def test_a_refused_claim_has_failed(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        wanted = claim("OWNERSHIP", at=account(A), claimer=MARIA).claim
        with pytest.raises(RunFailed, match="ClaimKeyNotFound"):
            await w.env.run(claim_key, NewClaim(id="1", claim=wanted))
        assert await state(w) == ("FAILED", "ClaimKeyNotFound")


# The donor's side


async def asked(w: World, kind: str) -> tuple[Handle[Any], UUID]:
    """A claim of B for a key of ours, found by asking."""
    await w.env.run(create_entry, new_entry())
    answer = w.b.claim(kind, claimer=person() if kind == "PORTABILITY" else MARIA)
    assert answer.status == 201
    await w.later(timedelta(hours=7))
    claim_id: UUID = answer.message.claim.id
    assert opened(w).status == "WAITING_RESOLUTION", "seen and acknowledged"
    return await w.env.get(f"answer-{claim_id}"), claim_id


@in_virtual_time
async def test_a_silent_owner_loses_the_key_by_ownership(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        began = w.env.now
        handle, claim_id = await asked(w, "OWNERSHIP")
        await w.later(began + 7 * DAY - w.env.now)
        assert opened(w).status == "WAITING_RESOLUTION"
        await w.later(timedelta(hours=1))
        assert (opened(w).status, opened(w).confirm_reason) == ("CONFIRMED", "DEFAULT_OPERATION")
        assert await w.status() == "TRANSFERRED"
        assert w.reminders == ["the owner has not answered"] * 3
        await w.later(7 * DAY)
        assert w.b.act("complete", claim_id).status == 200
        assert await handle.result() == "COMPLETED"


@in_virtual_time
async def test_a_silent_owner_keeps_the_key_by_portability(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle, _ = await asked(w, "PORTABILITY")
        assert await handle.result() == "CANCELLED"
        assert (opened(w).cancel_reason, opened(w).cancelled_by) == ("DEFAULT_OPERATION", "DONOR")
        assert await w.status() == "ACTIVE"


@in_virtual_time
async def test_an_owner_who_agrees_gives_the_key_away_at_once(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle, claim_id = await asked(w, "PORTABILITY")
        assert await handle.update(confirm_claim, "USER_REQUESTED") == "CONFIRMED"
        assert await w.status() == "TRANSFERRED"
        with pytest.raises(UpdateRejected):
            await handle.update(confirm_claim, "USER_REQUESTED")
        w.b.act("complete", claim_id)
        assert await handle.result() == "COMPLETED"


@in_virtual_time
async def test_an_owner_who_refuses_keeps_the_key(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle, _ = await asked(w, "PORTABILITY")
        assert await handle.update(cancel_claim, "USER_REQUESTED") == "CANCELLED"
        assert await handle.result() == "CANCELLED"
        assert await w.status() == "ACTIVE"


@in_virtual_time
async def test_a_claim_that_the_claimer_cancels_ends_on_our_side_too(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle, claim_id = await asked(w, "OWNERSHIP")
        w.b.act("cancel", claim_id, "USER_REQUESTED")
        assert await handle.result() == "CANCELLED"
        assert await w.status() == "ACTIVE"


@in_virtual_time
async def test_a_directory_that_is_away_for_a_poll_is_asked_again_at_the_next(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        w.bridge.away = ["listClaims"] * 3
        await w.env.run(create_entry, new_entry())
        claim_id = w.b.claim("PORTABILITY", claimer=person()).message.claim.id
        await w.later(timedelta(hours=7))
        assert opened(w).status == "OPEN"
        await w.later(timedelta(hours=7))
        assert opened(w).status == "WAITING_RESOLUTION"
        assert not (await w.env.client.dead_letters.list()).letters, "the next poll does what this one did not"
        assert (await (await w.env.get(f"answer-{claim_id}")).describe()).id == f"answer-{claim_id}"


# A directory whose clock is behind ours


@in_virtual_time
async def test_a_completion_that_comes_too_early_is_tried_again(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle = await begin(w, "OWNERSHIP")
        await handle.signal(prove_possession)
        claim_id = opened(w).id
        w.b.act("acknowledge", claim_id)
        await w.later(8 * DAY)
        w.b.act("confirm", claim_id, "DEFAULT_OPERATION")
        w.time.behind = timedelta(minutes=25)
        assert await handle.result() == "COMPLETED"
        assert w.bridge.calls.count("completeClaim") == 4


@in_virtual_time
async def test_an_act_of_silence_that_comes_too_early_is_tried_again(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle, _ = await asked(w, "PORTABILITY")
        w.time.behind = timedelta(minutes=25)
        assert await handle.result() == "CANCELLED"
        assert w.bridge.calls.count("cancelClaim") == 4


@in_virtual_time
async def test_a_key_that_a_claim_took_is_ours_at_once(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle = await begin(w, "PORTABILITY")
        claim_id = opened(w).id
        w.b.act("acknowledge", claim_id)
        w.b.act("confirm", claim_id, "USER_REQUESTED")
        w.bridge.lost = ["completeClaim"]
        assert await handle.result() == "COMPLETED"
        row = await w.tables.active_entry(PHONE)
        there = w.directory.storage.entry(PHONE)
        assert row is not None
        assert there is not None
        assert (row.cid, row.entry.account) == (there.cid, account(A))


@in_virtual_time
@pytest.mark.parametrize("times", [3, 7])
async def test_a_key_that_a_claim_took_is_ours_although_no_answer_came(tmp_path: Path, times: int) -> None:
    async with world(tmp_path, polls=True) as w:
        handle = await begin(w, "PORTABILITY")
        claim_id = opened(w).id
        w.b.act("acknowledge", claim_id)
        w.b.act("confirm", claim_id, "USER_REQUESTED")
        w.bridge.lost = ["completeClaim"] * times
        assert await handle.result() == "COMPLETED"
        row, there = await w.tables.active_entry(PHONE), w.directory.storage.entry(PHONE)
        assert row is not None
        assert there is not None
        assert (row.cid, row.request_id) == (there.cid, str(there.request_id))


@in_virtual_time
@pytest.mark.parametrize("kind", ["silence", "person"])
async def test_a_key_that_was_given_away_is_ours_no_more_although_no_answer_came(tmp_path: Path, kind: str) -> None:
    async with world(tmp_path, polls=True) as w:
        handle, claim_id = await asked(w, "OWNERSHIP")
        w.bridge.lost = ["confirmClaim"] * 3
        if kind == "person":
            await handle.signal(act_on_claim, ClaimAct(action="confirm"))
        await w.later(8 * DAY)
        assert opened(w).status == "CONFIRMED"
        assert await w.status() == "TRANSFERRED"
        await w.later(7 * DAY)
        w.b.act("complete", claim_id)
        assert await handle.result() == "COMPLETED"


@in_virtual_time
async def test_a_key_that_moves_within_our_institution_belongs_to_its_new_owner(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        await w.env.run(create_entry, new_entry())
        wanted = claim("OWNERSHIP", at=account(A, "99"), claimer=MARIA).claim
        claiming = await w.env.start(claim_key, NewClaim(id="1", claim=wanted), id="claim-1")
        await w.later(DAY)
        found = w.directory.storage.unfinished_claim(PHONE)
        assert found is not None
        answering = await w.env.get(f"answer-{found.claim.id}")
        await claiming.signal(prove_possession)
        assert await answering.update(confirm_claim, "USER_REQUESTED") == "CONFIRMED"
        assert await claiming.result() == "COMPLETED"
        assert await answering.result() == "COMPLETED"
        assert await w.status() == "TRANSFERRED"
        row = await w.tables.active_entry(PHONE)
        assert row is not None
        assert row.entry.owner == MARIA


@in_virtual_time
async def test_a_table_that_is_away_for_a_while_ends_no_claim(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle, claim_id = await asked(w, "OWNERSHIP")
        w.database.fail("TRANSFERRED", 5)
        await handle.signal(act_on_claim, ClaimAct(action="confirm"))
        await w.later(60)
        assert (w.database.times, await w.status()) == (0, "TRANSFERRED")
        w.b.act("complete", claim_id)
        w.database.fail("COMPLETED", 5)
        assert await handle.result() == "COMPLETED"
        assert (await state(w, f"donor-{claim_id}"))[0] == "COMPLETED"


@in_virtual_time
async def test_a_duty_that_a_change_has_overtaken_ends_with_the_claim(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        await w.env.run(create_entry, new_entry(), id="create-e-1")
        claim_id = w.b.claim("PORTABILITY").message.claim.id
        act = w.bridge.acknowledge_claim

        async def too_late(*given: Any, **fields: Any) -> Any:
            w.b.act("cancel", claim_id, "USER_REQUESTED")
            return await act(*given, **fields)

        w.bridge.acknowledge_claim = too_late  # type: ignore[method-assign]
        await w.later(DAY)
        handle = await w.env.client.get(f"answer-{claim_id}")
        assert await handle.result() == "CANCELLED"
        assert (await state(w, f"donor-{claim_id}"))[0] == "CANCELLED"


@in_virtual_time
async def test_a_duty_is_not_given_up_while_the_directory_is_away_and_a_person_is_told_once(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        handle = await begin(w, "PORTABILITY")
        claim_id = opened(w).id
        w.b.act("acknowledge", claim_id)
        w.b.act("confirm", claim_id, "USER_REQUESTED")
        w.bridge.away = ["completeClaim"] * 7
        assert await handle.result() == "COMPLETED"
        assert [one for one in w.alerts if "3 attempts" in one] == w.alerts
        assert len(w.alerts) == 1


@in_virtual_time
async def test_a_claim_whose_run_was_ended_from_outside_does_not_keep_others_from_theirs(tmp_path: Path) -> None:
    async with world(tmp_path, polls=True) as w:
        await w.env.run(create_entry, new_entry(), id="create-e-1")
        first = w.b.claim("PORTABILITY").message.claim.id
        await w.later(DAY)
        handle = await w.env.client.get(f"answer-{first}")
        await handle.terminate("by a person")
        await w.env.run(create_entry, new_entry("e-2", "+5511900000002"), id="create-e-2")
        second = w.b.claim("PORTABILITY", "+5511900000002").message.claim.id
        await w.later(DAY)
        assert await state(w, f"donor-{second}") == ("WAITING_RESOLUTION", "")


async def claimed(w: World, number: int) -> None:
    """A key of ours that B claims."""
    key, owner = f"+55119000000{number:02}", person(f"{number:011}", "Ana")
    await w.env.run(create_entry, new_entry(f"e-{number}", key, owner=owner, at=account(A, str(number))))
    w.b.claim("PORTABILITY", key, at=account(w.b.ispb, str(number)), claimer=owner)


async def acknowledged(w: World) -> int:
    return len([row for row in await w.tables.claims() if row.status == "WAITING_RESOLUTION"])


@in_virtual_time
async def test_a_long_list_of_claims_is_read_in_several_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activities, "_PAGE", 2)
    async with world(tmp_path, polls=True) as w:
        for number in range(9):
            await claimed(w, number)
            await w.later(120)
        for _ in range(6):
            w.bridge.tokens["listClaims"] = 3
            await w.later(EVERY)
        assert await acknowledged(w) == 9
        assert not (await w.env.client.dead_letters.list()).letters


@in_virtual_time
async def test_more_claims_of_one_moment_than_a_page_has_do_not_keep_later_ones_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activities, "_PAGE", 2)
    async with world(tmp_path, polls=True) as w:
        for number in range(3):
            await claimed(w, number)
        await w.later(120)
        await claimed(w, 3)
        await w.later(2 * EVERY)
        last = w.directory.storage.unfinished_claim("+5511900000003")
        assert last is not None
        assert await state(w, f"donor-{last.claim.id}") == ("WAITING_RESOLUTION", "")


def test_thirty_days_of_a_claim_pass_in_virtual_time_with_doubles_alone() -> None:
    _, result, reminders, took = thirty_days()
    assert (result, reminders) == ("CANCELLED", 4)
    assert took == 30 * DAY + timedelta(minutes=1)
