"""Keys and claims when their worker dies, at any point, and answers are lost: one entry, one claim."""

from pathlib import Path
from typing import Any

import pytest

from batuta.clock import ManualClock
from batuta.testing import Environment, crash_sweep
from pixdict.connect.keys import KeyActivities, KeyTables, NewClaim, cancel_claim, claim_key, create_entry
from pixdict.dict.cids import vsync_of
from pixdict.directory.service import Service
from pixdict.directory.settings import DirectorySettings
from pixdict.directory.storage import Storage
from tests.long import LONG
from tests.pixdict.directory.kit import PHONE, START, A, B, Bank, account, claim, person
from tests.pixdict.keys.kit import DirectBridge, FailingDatabase, new_entry


class Sweep:
    """A directory and tables of their own for each run of a sweep."""

    def __init__(self, path: Path, *, lost: str) -> None:
        self.path, self.lost = path, lost
        self.made: list[tuple[DirectBridge, FailingDatabase]] = []

    def activities(self) -> list[object]:
        service = Service(DirectorySettings(), Storage(":memory:"), ManualClock(START))
        bridge = DirectBridge(Bank(service, A))
        bridge.lost = [self.lost]
        Bank(service, B).create("+5561900000000", at=account(B))
        database = FailingDatabase(self.path / f"{len(self.made)}.db")
        self.made.append((bridge, database))

        async def publish(*_: Any, **__: Any) -> None:
            pass

        return [KeyActivities(bridge, KeyTables(database), publish, participant=A)]


@pytest.mark.chaos
def test_a_worker_that_dies_while_it_creates_a_key_makes_one_entry(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, lost="createEntry")
    swept = crash_sweep(create_entry, new_entry(), activities=sweep.activities, most=None if LONG else 12)
    assert swept.ending == PHONE
    assert len(sweep.made) > 12
    for bridge, _ in sweep.made:
        storage = bridge.bank.service.storage
        stored = storage.entry(PHONE)
        assert stored is not None
        assert storage.vsync(A, "PHONE") == vsync_of([stored.cid]), "one event, one identifier"


async def give_up(env: Environment, handle: Any) -> None:
    await env.advance(60)
    await handle.update(cancel_claim, "USER_REQUESTED", update_id="1")


@pytest.mark.chaos
def test_a_worker_that_dies_while_it_opens_and_cancels_a_claim_leaves_one_that_is_cancelled(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, lost="createClaim")
    wanted = claim("PORTABILITY", "+5561900000000", at=account(A), claimer=person()).claim
    swept = crash_sweep(
        claim_key,
        NewClaim(id="1", claim=wanted),
        activities=sweep.activities,
        script=give_up,
        most=None if LONG else 12,
    )
    assert swept.ending == "CANCELLED"
    for bridge, _ in sweep.made:
        listed = bridge.bank.ask("listClaims", Participant=A).message.claims
        assert [one.status for one in listed] == ["CANCELLED"]
