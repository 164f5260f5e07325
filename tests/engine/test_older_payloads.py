"""Databases of an earlier version, plain and encrypted: runs go on, and tokens are refused with what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from batuta import Batuta, RunFailed, RunState, connect
from batuta.cli import root
from batuta.codecs import Compression, Encryption, PayloadCodec
from batuta.connect import store_for
from batuta.errors import InvalidToken, PayloadSealed
from batuta.journal.codec_envelope import OLDER_MARK
from batuta.journal.store import Store
from batuta.verify import verify
from tests.engine.arena import PATIENCE, until, until_state
from tests.engine.test_bound_payloads import asking, asks, tokens
from tests.engine.test_sealed import EVERYTHING, K1, SECRET, go, pay, rows_of, until_charged, why_parked
from tests.stores.older_databases import make_older_postgres, make_older_sqlite

pytestmark = pytest.mark.usefixtures("real_time")

TOKENS = {
    "sqlite": {
        "plain": "t.LY4n5ZWlcGxhaW7EEAGh7WiBo3aUuFe4Uur4h3cBAQA",
        "sealed": "t.dFC2pJWmc2VhbGVkxBABoe1oh251iId6NEQmuvE2AQEA",
    },
    "postgres": {
        "plain": "t.W5Ybi5WlcGxhaW7EEAGh7Wivs3SorMY4JmKdSV0BAQA",
        "sealed": "t.RE2lwpWmc2VhbGVkxBABoe1ouCBxvJAEw9ddxJ06AQEA",
    },
}
"""What its activities handed out."""

CODECS: dict[str, list[PayloadCodec]] = {"plain": [], "sealed": [Compression(), Encryption(f"{K1},old")]}
NEW: list[PayloadCodec] = [Compression(), Encryption(K1)]
WORK: dict[str, Any] = EVERYTHING | {
    "workflows": [*EVERYTHING["workflows"], asking],
    "activities": [*EVERYTHING["activities"], asks],
}


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def older_url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    if kind == "sqlite":
        make_older_sqlite(tmp_path / "batuta.db", "9b058beb", runs="namespaces.sql")
        return f"sqlite:///{tmp_path / 'batuta.db'}"
    url = str(request.getfixturevalue("empty_postgres_url"))
    await make_older_postgres(url, "9b058beb", runs="namespaces.sql")
    return url


@asynccontextmanager
async def working(url: str, namespace: str, codecs: list[PayloadCodec]) -> AsyncIterator[Batuta]:
    async with connect(url, namespace=namespace, codec=codecs) as client, client.worker(**WORK):
        yield client


@asynccontextmanager
async def opened(url: str, namespace: str, codecs: list[PayloadCodec]) -> AsyncIterator[Store]:
    store = store_for(url, namespace=namespace, codec=codecs)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("namespace", CODECS)
async def test_runs_of_before_are_read_and_go_on(older_url: str, namespace: str) -> None:
    async with working(older_url, namespace, CODECS[namespace]) as client:
        assert await (await client.get("paid", pay)).result(PATIENCE) == f"charged {SECRET} for {SECRET}"
        assert await (await client.get("open", pay)).result(PATIENCE) == f"charged {SECRET} for it"
        with pytest.raises(RunFailed, match=SECRET):
            await (await client.get("failed")).result(PATIENCE)
        unbegun = await client.get("unbegun", pay)
        assert (await unbegun.describe()).memo == SECRET
        await until_charged(unbegun)
        await unbegun.signal(go, "it")
        assert await unbegun.result(PATIENCE) == f"charged {SECRET} for it"
        for run in (await client.list(job="mail", limit=50)).runs:
            await until_state(await client.get_run(run.run_id), RunState.COMPLETED)
        assert (await client.schedules.get("often")).arguments == [SECRET]
        assert await (await client.schedules.trigger("often")).result(PATIENCE) == f"mailed {SECRET}"
        assert SECRET in (await client.dead_letters.get("failed")).message
        assert (await client.verify_audit()).problem == ""
    async with opened(older_url, namespace, CODECS[namespace]) as store:
        assert (await verify(store, [pay, asking])).violations == []


@pytest.mark.parametrize("namespace", CODECS)
async def test_a_token_of_before_is_refused_and_a_reset_gives_another(
    older_url: str, kind: str, namespace: str
) -> None:
    tokens.clear()
    async with working(older_url, namespace, CODECS[namespace]) as client:
        asked = await client.get("asked", asking)
        with pytest.raises(InvalidToken, match=r"older version .* reset run .* hands out another token") as refused:
            await client.complete(TOKENS[kind][namespace], "forged")
        assert TOKENS[kind][namespace] not in str(refused.value)
        await asked.reset(-1)
        await until(_has_token)
        await client.complete(tokens[0], "done")
        assert await asked.result(PATIENCE) == "done"


async def test_what_was_encrypted_before_is_refused_until_the_word_old_stands_among_the_keys(older_url: str) -> None:
    async with working(older_url, "sealed", NEW) as client:
        reason = await why_parked(await client.get("open"), "PayloadSealed")
        assert "let the word 'old' stand among the keys, and run `batuta keys rotate`" in reason
        with pytest.raises(PayloadSealed, match="the word 'old'"):
            await (await client.get("paid", pay)).result(PATIENCE)
    async with working(older_url, "sealed", CODECS["sealed"]) as client:
        assert await (await client.get("open", pay)).result(PATIENCE) == f"charged {SECRET} for it"


async def test_a_rotation_binds_what_was_encrypted_before_anew(older_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with working(older_url, "sealed", CODECS["sealed"]) as client:
        await (await client.get("unbegun")).signal(go, "it")
        for id in ("unbegun", "open"):
            await (await client.get(id)).result(PATIENCE)
        await (await client.get("asked")).terminate("its token is of before")
        for run in (await client.list(job="mail", limit=50)).runs:
            await until_state(await client.get_run(run.run_id), RunState.COMPLETED)
    monkeypatch.setenv("BATUTA_DATABASE_URL", older_url)
    monkeypatch.setenv("BATUTA_NAMESPACE", "sealed")
    monkeypatch.setenv("BATUTA_COMPRESS", "1")
    monkeypatch.setenv("BATUTA_KEYS", f"{K1},old")
    done = await rotate_by_command()
    assert (done["left"], done["open"], done["sealed"], done["schedules"]) == (0, 0, 0, 1)
    assert done["rewritten"] >= 15
    assert OLDER_MARK.strip('"') not in await rows_of(older_url)
    monkeypatch.setenv("BATUTA_KEYS", K1)
    again = await rotate_by_command()
    assert (again["left"], again["rewritten"], again["schedules"]) == (0, 0, 0)
    async with connect(older_url, namespace="sealed", codec=NEW) as client:
        assert await (await client.get("paid", pay)).result(PATIENCE) == f"charged {SECRET} for {SECRET}"
        assert (await (await client.get("paid")).describe()).memo == {"card": SECRET}
        assert (await client.schedules.get("often")).arguments == [SECRET]
        assert SECRET in (await client.dead_letters.get("failed")).message


async def rotate_by_command() -> dict[str, int]:
    result = await asyncio.to_thread(CliRunner().invoke, root, ["keys", "rotate", "--json"])
    assert (result.exit_code, result.exception) == (0, None), result.output
    return dict(json.loads(result.output))


async def _has_token() -> bool:
    return bool(tokens)
