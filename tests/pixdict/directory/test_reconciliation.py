"""Identifiers of entries, verifiers, and changes."""

from typing import Any
from uuid import UUID

from batuta.clock import as_datetime
from pixdict.dict import messages
from pixdict.dict.cids import EMPTY_VSYNC, cid_of, content_id, vsync_of
from pixdict.directory.service import Service
from tests.pixdict.directory.kit import CPF, EMAIL, PHONE, A, B, Bank, account, create

SAMPLE = "28c06eb41c4dc9c3ae114831efcac7446c8747777fca8b145ecd31ff8480ae88"


def test_the_identifier_of_the_official_sample() -> None:
    attributes = "PHONE&+5511987654321&11122233300&João Silva&&12345678&00001&0007654321&CACC".split("&")
    assert content_id(bytes(range(1, 17)), *attributes) == SAMPLE
    assert content_id(bytes(range(1, 17)), *(one or None for one in attributes)) == SAMPLE


def test_an_identifier_is_made_from_the_entry_and_its_request_id() -> None:
    request_id = UUID(bytes=bytes(range(1, 17)))
    entry = create("+5511987654321", at=account(branch="00001", number="0007654321")).entry
    assert cid_of(entry, request_id) == SAMPLE
    assert cid_of(entry, UUID(int=1)) != SAMPLE


def test_the_verifier_of_the_official_sample_is_the_exclusive_or() -> None:
    three = [
        "28c06eb41c4dc9c3ae114831efcac7446c8747777fca8b145ecd31ff8480ae88",
        "4d4abb9168114e349672b934d16ed201a919cb49e28b7f66a240e62c92ee007f",
        "fce514f84f37934bc8aa0f861e4f7392273d71b9d18e8209d21e4192a7842058",
    ]
    value = "996fc1dd3b6b14bcf0c9fe8320eb66d7e2a3fd874ccf767b2e939641b1ea8eaf"
    assert vsync_of(three) == value
    assert vsync_of([]) == EMPTY_VSYNC == "0" * 64
    assert vsync_of([SAMPLE, SAMPLE]) == EMPTY_VSYNC


def events(bank: Bank, key_type: str = "PHONE", **parameters: Any) -> messages.ListCidSetEventsResponse:
    answer = bank.ask("listCidSetEvents", Participant=bank.ispb, KeyType=key_type, **parameters)
    assert answer.status == 200
    listed: messages.ListCidSetEventsResponse = answer.message
    return listed


def kinds(bank: Bank) -> list[str]:
    return [event.type for event in events(bank).cid_set_events]


def verified(bank: Bank, vsync: str, key_type: str = "PHONE") -> str:
    asked = messages.SyncVerification(participant=bank.ispb, key_type=key_type, participant_sync_verifier=vsync)
    message = messages.CreateSyncVerificationRequest(sync_verification=asked)
    result: str = bank.ask("createSyncVerification", message).message.sync_verification.result
    return result


def test_every_change_of_an_entry_is_an_event(a: Bank, b: Bank) -> None:
    a.create()
    assert kinds(a) == ["ADDED"]
    update = messages.UpdateEntryRequest(key=PHONE, account=account(number="9"), reason="USER_REQUESTED")
    a.ask("updateEntry", update, value=PHONE)
    assert kinds(a) == ["ADDED", "REMOVED", "ADDED"]
    claim_id = b.claim().message.claim.id
    a.act("acknowledge", claim_id)
    assert kinds(a) == ["ADDED", "REMOVED", "ADDED"]
    a.act("confirm", claim_id, "USER_REQUESTED")
    assert (kinds(a), kinds(b)) == (["ADDED", "REMOVED", "ADDED", "REMOVED"], [])
    b.act("complete", claim_id)
    assert kinds(b) == ["ADDED"]
    b.delete(PHONE)
    assert kinds(b) == ["ADDED", "REMOVED"]


def test_the_verifier_is_that_of_the_live_entries(a: Bank) -> None:
    assert verified(a, EMPTY_VSYNC) == "OK"
    made = [create(f"+556198888000{n}", at=account(number=str(n))) for n in range(4)]
    for message in made:
        a.ask("createEntry", message)
    cids = [cid_of(message.entry, message.request_id) for message in made]
    assert verified(a, vsync_of(cids)) == verified(a, vsync_of(cids).upper()) == "OK"
    assert verified(a, vsync_of(cids[1:])) == "NOK"
    a.delete("+5561988880000")
    assert verified(a, vsync_of(cids[1:])) == "OK"
    assert verified(a, EMPTY_VSYNC, "EMAIL") == "OK", "each type has its own"


def test_an_update_that_changes_nothing_is_no_event(a: Bank) -> None:
    a.create()
    update = messages.UpdateEntryRequest(key=PHONE, account=account(), reason="USER_REQUESTED")
    assert a.ask("updateEntry", update, value=PHONE).status == 200
    assert kinds(a) == ["ADDED"]


def test_events_are_told_in_windows_with_the_verifier_at_both_ends(directory: Service, a: Bank) -> None:
    for number in range(5):
        a.create(f"+556198888000{number}", at=account(number=str(number)))
        directory.advance(1)
    everything = events(a)
    cids = [event.cid for event in everything.cid_set_events]
    assert (len(cids), everything.has_more_elements) == (5, False)
    assert everything.sync_verifier_start == vsync_of(cids[:1])
    assert everything.sync_verifier_end == vsync_of(cids)
    start, end = (everything.cid_set_events[n].timestamp.isoformat() for n in (1, 3))
    window = events(a, StartTime=start, EndTime=end)
    assert [event.cid for event in window.cid_set_events] == cids[1:4]
    assert (window.sync_verifier_start, window.sync_verifier_end) == (vsync_of(cids[:2]), vsync_of(cids[:4]))
    first = events(a, Limit=2)
    assert ([event.cid for event in first.cid_set_events], first.has_more_elements) == (cids[:2], True)
    later = events(a, StartTime=first.end_time.isoformat(), Limit=200)
    assert [event.cid for event in later.cid_set_events] == cids[1:]
    nothing = events(a, StartTime=directory_time(directory))
    assert nothing.cid_set_events == []
    assert nothing.sync_verifier_start == nothing.sync_verifier_end == vsync_of(cids)


def directory_time(directory: Service) -> str:
    return as_datetime(directory.now()).isoformat()


def test_an_entry_is_found_by_its_identifier_while_it_lives(a: Bank, b: Bank) -> None:
    message = create()
    entry = a.ask("createEntry", message).message.entry
    cid = cid_of(message.entry, message.request_id)
    found = a.ask("getEntryByCid", value=cid.upper()).message
    assert (found.entry, found.cid, found.request_id) == (entry, cid, message.request_id)
    assert b.ask("getEntryByCid", value=cid).problem == "Forbidden"
    update = messages.UpdateEntryRequest(key=PHONE, account=account(number="9"), reason="USER_REQUESTED")
    a.ask("updateEntry", update, value=PHONE)
    assert a.ask("getEntryByCid", value=cid).problem == "NotFound"
    moved = events(a).cid_set_events[-1].cid
    assert a.ask("getEntryByCid", value=moved).message.request_id == message.request_id, "the creating one"


def test_wrong_questions_are_refused(a: Bank) -> None:
    assert a.ask("getEntryByCid", value="xyz").problem == "BadRequest"
    assert a.ask("listCidSetEvents", Participant=A, KeyType="IBAN").problem == "BadRequest"
    assert a.ask("listCidSetEvents", Participant=A).problem == "BadRequest"
    assert a.ask("listCidSetEvents", Participant=A, KeyType="CPF", Limit="201").problem == "BadRequest"
    assert a.ask("listCidSetEvents", Participant=B, KeyType="CPF").problem == "Forbidden"
    for key_type, vsync in (("IBAN", EMPTY_VSYNC), ("CPF", "00")):
        asked = messages.SyncVerification(participant=A, key_type=key_type, participant_sync_verifier=vsync)
        message = messages.CreateSyncVerificationRequest(sync_verification=asked)
        assert a.ask("createSyncVerification", message).problem == "BadRequest"


def test_other_types_of_keys_have_other_events(a: Bank) -> None:
    a.create(EMAIL, "EMAIL")
    a.create(CPF, "CPF")
    assert len(events(a, "EMAIL").cid_set_events) == len(events(a, "CPF").cid_set_events) == 1
    assert kinds(a) == []
