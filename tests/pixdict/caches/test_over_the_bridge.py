"""Look-ups over gRPC and HTTP: the directory's Cache-Control comes through the Bridge and is obeyed."""

from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from batuta import connect
from batuta.cache import Cache, MemoryCache
from batuta.clock import ManualClock
from pixdict.bridge import BridgeClient, BridgeSettings, serve
from pixdict.caches import Lookups
from pixdict.dict import messages, xml
from pixdict.dict.entries import Entry
from pixdict.directory import Directory, DirectorySettings
from pixdict.errors import BridgeUnavailable, NotFound
from tests.pixdict.bridge.kit import ENTRY, ENVELOPE, EXTENDED, ISPB, KEY, OTHER, REQUEST, Raw, stand
from tests.pixdict.caches.kit import ASK, COMPANY

PATH = f"/api/v2/entries/{KEY.replace('+', '%2B')}"
BODY = xml.to_bytes(messages.GetEntryResponse(entry=replace(EXTENDED, owner=COMPANY), **ENVELOPE))


# covers C-11
async def test_a_company_is_kept_and_a_person_is_not() -> None:
    clock = ManualClock()
    async with (
        Directory.serve(DirectorySettings()) as directory,
        connect("memory://") as batuta,
        Cache(MemoryCache(clock=clock), clock=clock) as cache,
    ):
        given = [BridgeSettings(directory=directory.url, participant=one) for one in (ISPB, "87654321")]
        async with serve(given[1], batuta, grace=0.0) as theirs, BridgeClient(theirs.address) as they:
            for entry, request in ((replace(ENTRY, owner=COMPANY), REQUEST), (email(), OTHER)):
                entry = replace(entry, account=replace(entry.account, participant="87654321"))
                await they.create_entry(entry, reason="USER_REQUESTED", request_id=request)
        async with AsyncExitStack() as serving:
            ours = await serving.enter_async_context(serve(given[0], batuta, grace=0.0))
            we = await serving.enter_async_context(BridgeClient(ours.address, timeout=3))
            lookups = Lookups(cache, we)
            found = [await lookups.find(KEY, **ASK) for _ in range(2)]
            assert [one.source for one in found] == ["bridge", "cache"]
            assert found[0].entry == found[1].entry
            assert [(await lookups.find("joao@example.com", **ASK)).source for _ in range(2)] == ["bridge", "bridge"]
            with pytest.raises(NotFound):
                await lookups.find("+5511900000000", **ASK)
        clock.advance(179)
        away = await lookups.find(KEY, **ASK)
        assert (away.source, away.age) == ("cache", 179)
        clock.advance(1)
        async with BridgeClient(ours.address, timeout=3) as nobody:
            lookups = Lookups(cache, nobody)
            for key in (KEY, "joao@example.com"):
                with pytest.raises(BridgeUnavailable):
                    await lookups.find(key, **ASK)


def email() -> Entry:
    return replace(ENTRY, key="joao@example.com", key_type="EMAIL")


@pytest.mark.parametrize(
    ("headers", "max_age"),
    [
        ("Cache-Control: private, max-age=180", 180),
        ("Cache-Control: Max-Age=60", 60),
        ("Cache-Control: private, max-age=180\r\nAge: 30", 150),
        ("Cache-Control: private, max-age=180\r\nAge: 300", 0),
        ("Cache-Control: private, max-age=180\r\nAge: soon", 0),
        ("Cache-Control: private\r\nCache-Control: max-age=20", 20),
        ("Cache-Control: max-age=180, no-store", 0),
        ("Cache-Control: max-age=180\r\nCache-Control: no-cache", 0),
        ("Cache-Control: max-age=1, max-age=180", 0),
        ("Cache-Control: max-age=-1", 0),
        ("Cache-Control: max-age=", 0),
        ("Cache-Control: max-age=99999999999999999999", 0),
        ("Cache-Control: s-maxage=180", 0),
        ("Cache-Control: private", 0),
        ("X-Nothing: said", 0),
    ],
)
async def test_the_bridge_tells_how_long_a_look_up_may_be_kept(headers: str, max_age: int) -> None:
    async with stand() as world:
        world.directory.on("GET", PATH, Raw(200, BODY, f"{headers}\r\n"))
        found = await world.client.get_entry(KEY, **ASK)
        assert (found.max_age, found.entry.owner) == (max_age, COMPANY)
