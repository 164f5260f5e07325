"""Secrets of endpoints are encrypted where payloads are."""

import base64
import sqlite3
from pathlib import Path

import pytest

import batuta
from batuta.codecs import Encryption
from batuta.connect import store_for
from batuta.errors import PayloadRefused, PayloadSealed
from batuta.stores.coded.key_rotation import rotate

K1, K2 = (f"k{number}:{base64.b64encode(bytes([number]) * 32).decode()}" for number in (1, 2))
HERE = "https://example.com/"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/hooks.db"


def rows(url: str) -> str:
    """All that the database holds of endpoints."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        return repr(database.execute("SELECT * FROM partners WHERE kind = 'webhook'").fetchall())


async def test_a_secret_is_in_no_row_and_signs_all_the_same(url: str) -> None:
    async with batuta.connect(url, codec=Encryption(K1)) as client:
        made = await client.webhooks.create(HERE, description="of the shop")
        assert made.secret not in rows(url)
        assert "of the shop" not in rows(url)
        assert [one.text for one in (await client.webhooks.read(made.id)).signing(0)] == [made.secret]
        await client.webhooks.disable(made.id)
        assert not (await client.webhooks.get(made.id)).enabled
        assert (await client.webhooks.list())[0].description == "of the shop"
        before = rows(url)
        await client.webhooks.disable(made.id, "by hand")
        assert rows(url) == before, "what does not change is not written again"


async def test_without_the_key_endpoints_are_neither_read_nor_written(url: str) -> None:
    async with batuta.connect(url, codec=Encryption(K1)) as client:
        made = await client.webhooks.create(HERE)
        await client.start("w", id="marks the namespace")
    before = rows(url)
    async with batuta.connect(url, codec=[]) as client:
        with pytest.raises(PayloadSealed, match=made.id):
            await client.webhooks.list()
        for refused in (client.webhooks.create(HERE), client.webhooks.delete(made.id)):
            with pytest.raises(PayloadRefused):
                await refused
        assert await client.breakers.list() == []
    async with batuta.connect(url, codec=Encryption(K2)) as client:
        with pytest.raises((PayloadSealed, PayloadRefused)):
            await client.webhooks.list()
        assert await client.limits.list() == []
    assert rows(url) == before


async def test_rotated_keys_encrypt_endpoints_anew(url: str) -> None:
    async with batuta.connect(url, codec=Encryption(K1)) as client:
        made = await client.webhooks.create(HERE)
    store = store_for(url, codec=Encryption(f"{K2},{K1}"))
    await store.open()
    assert (await rotate(store, dry_run=True)).webhooks == 1
    assert (await rotate(store)).webhooks == 1
    assert (await rotate(store)).webhooks == 0
    await store.close()
    async with batuta.connect(url, codec=Encryption(K2)) as client:
        assert [one.text for one in (await client.webhooks.read(made.id)).signing(0)] == [made.secret]
