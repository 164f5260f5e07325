"""Who can write to the database, and has no key of payloads, makes no key for the server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import batuta
from batuta.codecs import Encryption, Keys
from batuta.connect import store_for
from batuta.errors import PayloadRefused
from batuta.journal.server.api_keys import StoredKey, digest_of, new_key
from batuta.server import Server
from batuta.server.access import sign_in
from batuta.stores.coded.key_rotation import rotate
from batuta.stores.coded.store import coded
from batuta.stores.memory import MemoryStore
from tests.engine.forging import Forger
from tests.server.web import Web

K1, K2 = (str(Keys.new(id)) for id in ("k1", "k2"))


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken as known from a moment ago."""
    monkeypatch.setattr(sign_in, "KNOWN_SECONDS", -1.0)


@pytest.fixture
async def forger(url: str) -> AsyncIterator[Forger]:
    made = Forger(url)
    yield made
    await made.close()


@pytest.fixture
async def client(url: str) -> AsyncIterator[batuta.Batuta]:
    async with batuta.connect(url, codec=Encryption(K1)) as opened:
        yield opened


@pytest.fixture
async def web(client: batuta.Batuta, url: str) -> AsyncIterator[Web]:
    server = Server(client, connect=lambda name: batuta.connect(url, namespace=name, codec=Encryption(K1)))
    yield Web(server.serve)
    await server.close()


async def status(web: Web, key: str) -> int:
    return (await web.with_headers(authorization=f"Bearer {key}").get("/api/v1/runs")).status


async def forge(forger: Forger, **changes: Any) -> None:
    for name, value in changes.items():
        await forger.sql(f"UPDATE {forger.schema}api_keys SET {name} = {forger.mark(1)}", value)


@pytest.mark.parametrize("namespace", ["default", "*"])
async def test_a_key_that_was_put_there_is_refused(
    web: Web, client: batuta.Batuta, forger: Forger, namespace: str
) -> None:
    good = (await client.api_keys.create("ann", "admin")).key
    key, id = new_key()
    row = {"id": id, "namespace": namespace, "name": "eve", "scope": "admin", "digest": digest_of(key)}
    await forger.insert("api_keys", **row, created_by="eve", created_at=1)
    assert await status(web, key) == 401
    assert await status(web, good) == 200


@pytest.mark.parametrize(
    "change", [{"scope": "admin"}, {"namespace": "*"}, {"name": "root"}, {"expires_at": 4 * 10**15}], ids=str
)
async def test_a_key_whose_row_was_changed_is_refused_and_so_is_its_session(
    web: Web, client: batuta.Batuta, forger: Forger, change: dict[str, Any]
) -> None:
    key = (await client.api_keys.create("eve", "viewer", expires=3600)).key
    signed = await web.post("/api/v1/session", {"key": key})
    session = web.with_headers(cookie=signed.cookies[0].partition(";")[0])
    assert (await session.get("/api/v1/runs")).status == 200
    await forge(forger, **change)
    assert await status(web, key) == 401
    assert (await session.get("/api/v1/runs")).status == 401
    assert await client.api_keys.verify(key) is None


async def test_a_hash_of_another_key_is_refused(web: Web, client: batuta.Batuta, forger: Forger) -> None:
    key = (await client.api_keys.create("eve", "viewer")).key
    await client.api_keys.create("ann", "admin")
    [(mine,)] = await forger.sql(f"SELECT digest FROM {forger.schema}api_keys WHERE name = 'eve'")
    await forger.sql(f"UPDATE {forger.schema}api_keys SET digest = {forger.mark(1)} WHERE name = 'ann'", mine)
    assert await status(web, key) == 200
    for junk in ("", "junk", '"~3:aes.k1:AAAA"', digest_of(key), "é"):
        await forge(forger, digest=junk)
        assert await status(web, key) == 401


async def test_rotated_keys_of_payloads_keep_keys_of_the_server(url: str, web: Web, client: batuta.Batuta) -> None:
    key = (await client.api_keys.create("ann", "admin")).key
    for expected in ({"api_keys": 1}, {}):
        store = store_for(url, codec=Encryption(f"{K2},{K1}"))
        await store.open()
        assert (await rotate(store)).written == expected
        await store.close()
    async with batuta.connect(url, codec=Encryption(K2)) as later:
        assert await later.api_keys.verify(key) is not None
        server = Server(later)
        assert await status(Web(server.serve), key) == 200
        await server.close()
    assert await status(web, key) == 401


async def test_a_key_from_before_the_encryption_is_refused_until_it_is_encrypted(url: str, web: Web) -> None:
    async with batuta.connect(url, codec=[]) as plain:
        key = (await plain.api_keys.create("ann", "admin")).key
    assert await status(web, key) == 401
    store = store_for(url, codec=Encryption(f"{K1},plain"))
    await store.open()
    assert (await rotate(store)).written == {"api_keys": 1}
    await store.close()
    assert await status(web, key) == 200


async def test_who_cannot_read_the_namespace_makes_no_key_for_it(url: str, client: batuta.Batuta) -> None:
    await client.api_keys.create("ann", "admin")
    for codec in ([], [Encryption(K2)]):
        async with batuta.connect(url, codec=codec) as other:
            with pytest.raises(PayloadRefused):
                await other.api_keys.create("eve", "admin")


async def test_a_key_without_a_hash_is_left_alone_when_unencrypted_ones_are_encrypted() -> None:
    store = MemoryStore()
    row = StoredKey(id="k", namespace="default", name="eve", scope="admin", digest="")
    await store.put_api_key(row)
    done = await rotate(coded(store, [Encryption(Keys.parse(f"{K1}, plain"))]))
    assert (done.sealed, done.api_keys) == (1, 0)
    assert [key.digest for key in await store.api_keys()] == [""]
