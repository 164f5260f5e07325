"""Secrets of flows in the store: written, used by calls, never given back; encrypted where the store has keys."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from batuta import connect
from batuta.codecs import Encryption, Keys
from batuta.connect import store_for
from batuta.errors import InvalidInput
from batuta.flows.stored_secrets import stored_secret
from batuta.flows.workflow import Flows, flow
from batuta.stores.coded.key_rotation import rotate
from batuta.stores.coded.store import CodedStore
from batuta.webhooks.addresses import AddressPolicy
from tests.flows.http import orkestr
from tests.flows.kit import DONE, ended, failure_of, outputs, start, step
from tests.flows.server import serving
from tests.server.web import Response

TOKEN = "s3cr3t-t0ken-value"
LOCAL = AddressPolicy(allow=["127.0.0.1"])


async def test_a_secret_of_the_store_reaches_the_receiver() -> None:
    async with serving() as server, connect("memory://") as client, client.worker(**Flows(policy=LOCAL).parts()):
        await client.flows.secrets.set("crm", TOKEN)
        headers = {"Authorization": "Bearer secret://store/crm"}
        steps = [step("act", "action", url=server.url, headers=headers), DONE]
        found = await ended(await client.start(flow, start(steps), id="run"))
        assert found.run.status == "COMPLETED"
        assert server.received[0].headers["authorization"] == f"Bearer {TOKEN}"
        assert await client.flows.secrets.names() == ["crm"]
        assert await client.flows.secrets.remove("crm")
        assert not await client.flows.secrets.remove("crm")
        assert await client.flows.secrets.names() == []
        lost = await ended(await client.start(flow, start(steps), id="again"))
        assert "secret://store/crm is not there: set secret 'crm' of the store" in failure_of(lost.run)


async def test_a_secret_lies_encrypted_in_a_store_with_keys(tmp_path: Path) -> None:
    file = tmp_path / "kept.db"
    codec = Encryption(Keys({"k1": b"k" * 32}))
    async with connect(f"sqlite:///{file}", codec=codec) as client:
        await client.flows.secrets.set("crm", TOKEN)
        assert await client.flows.secrets.names() == ["crm"]
    assert not any(TOKEN.encode() in one.read_bytes() for one in tmp_path.glob("kept.db*") if one.is_file())
    with sqlite3.connect(file) as database:
        assert database.execute("SELECT count(*) FROM documents WHERE kind = 'flow_secrets'").fetchone() == (1,)


async def test_secrets_are_encrypted_again_with_a_new_key(tmp_path: Path) -> None:
    url, old, new = f"sqlite:///{tmp_path / 'kept.db'}", {"k1": b"k" * 32}, {"k2": b"n" * 32}
    async with connect(url, codec=Encryption(Keys(old))) as client:
        await client.flows.secrets.set("crm", TOKEN)
    store = store_for(url, codec=Encryption(Keys([*new.items(), *old.items()])))
    await store.open()
    assert (await rotate(store)).secrets == 1
    assert (await rotate(store)).secrets == 0
    await store.close()
    async with connect(url, codec=Encryption(Keys(new))) as client:
        assert await client.flows.secrets.names() == ["crm"]


async def test_a_secret_that_is_changed_while_keys_rotate_stays_changed(tmp_path: Path) -> None:
    url, old, new = f"sqlite:///{tmp_path / 'kept.db'}", {"k1": b"k" * 32}, {"k2": b"n" * 32}
    both = Encryption(Keys([*new.items(), *old.items()]))
    store = store_for(url, codec=both)
    assert isinstance(store, CodedStore)
    async with connect(url, codec=Encryption(Keys(old))) as client:
        for name in ("changed", "removed", "left"):
            await client.flows.secrets.set(name, TOKEN)
        await store.open()
        documents = store.inner.documents

        async def overtaken(kind: str, limit: int = 1_000) -> Any:
            found = await documents(kind, limit)
            await client.flows.secrets.set("changed", "newer")
            await client.flows.secrets.remove("removed")
            return found

        store.inner.documents = overtaken  # type: ignore[method-assign]  # somebody is quicker
        assert (await rotate(store)).secrets == 1
        assert [await stored_secret(store, name) for name in ("changed", "removed", "left")] == ["newer", None, TOKEN]
        await store.close()


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("../x", "x"), ("a b", "x"), ("ok", ""), ("ok", "x" * 70_000)])
async def test_bad_secrets_are_refused_without_quoting_them(name: str, value: str) -> None:
    async with connect("memory://") as client:
        with pytest.raises(InvalidInput, match="secret") as caught:
            await client.flows.secrets.set(name, value)
        assert not value or value not in str(caught.value) or value == "x"


async def test_a_sub_flow_is_found_in_the_store_of_the_worker() -> None:
    async with connect("memory://") as client, client.worker(**Flows().parts()):
        inner = {"name": "inner", "steps": [step("a", "set", values={"n": "{{ add(event.payload.n, 1) }}"}), DONE]}
        draft = await client.flows.create(inner)
        steps = [step("sub", "sub_flow", workflow="inner", payload={"n": 1}), DONE]
        early = await ended(await client.start(flow, start(steps), id="early"))
        assert "there is no published flow 'inner'" in failure_of(early.run)
        await client.flows.publish(draft.id)
        found = await ended(await client.start(flow, start(steps), id="run"))
        assert outputs(found)["sub"] == {"n": 2}
        exact = [step("sub", "sub_flow", workflow="inner", version=2, payload={"n": 1}), DONE]
        missing = await ended(await client.start(flow, start(exact), id="exact"))
        assert "'inner' version 2" in failure_of(missing.run)


async def test_an_error_about_a_name_that_is_too_long_is_short() -> None:
    async with connect("memory://") as client:
        with pytest.raises(InvalidInput, match="the name of a secret") as caught:
            await client.flows.secrets.set("n" * 1_000_000, TOKEN)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("store", ["sqlite_url", "postgres_url"])
async def test_setting_and_deleting_a_secret_is_in_the_audit_log_without_its_value(
    store: str, request: pytest.FixtureRequest
) -> None:
    async with connect(request.getfixturevalue(store), actor="ann") as client:
        await client.flows.secrets.set("crm", TOKEN, reason="rotated")
        assert await client.flows.secrets.remove("crm", reason="gone")
        assert not await client.flows.secrets.remove("crm")
        rows = (await client.audit()).rows
        assert [(row.verb, row.target, row.actor, row.reason) for row in reversed(rows)] == [
            ("set secret", "crm", "ann", "rotated"),
            ("delete secret", "crm", "ann", "gone"),
        ]
        assert TOKEN not in str(rows)


async def test_secrets_are_set_listed_and_deleted_over_http(postgres_url: str) -> None:
    async with orkestr(postgres_url, working=False) as api:
        kept = _checked(await api.web.ask("PUT", "/api/secrets/crm", {"value": TOKEN, "reason": "new"}))
        assert kept == {"name": "crm", "reference": "secret://store/crm"}
        assert await api.get("/api/secrets") == {"secrets": ["crm"]}
        for name, value in (("crm", ""), ("a b", TOKEN), ("crm", 5), ("crm", "x" * 70_000)):
            refused = await api.web.ask("PUT", f"/api/secrets/{name.replace(' ', '%20')}", {"value": value})
            assert (refused.status, refused.json["code"]) == (400, "invalid_input")
            assert TOKEN not in str(refused.json)
        assert _checked(await api.web.ask("DELETE", "/api/secrets/crm?reason=old"))["deleted"] is True
        assert _checked(await api.web.ask("DELETE", "/api/secrets/crm"))["deleted"] is False
        rows = (await api.get("/api/v1/audit", target="crm"))["rows"]
        assert [(row["verb"], row["reason"]) for row in rows] == [("delete secret", "old"), ("set secret", "new")]
        assert TOKEN not in str(rows)


async def test_a_secret_of_another_namespace_is_not_there(sqlite_url: str) -> None:
    async with connect(sqlite_url) as mine, connect(sqlite_url, namespace="other") as other:
        await mine.flows.secrets.set("crm", TOKEN)
        assert await other.flows.secrets.names() == []
        assert not await other.flows.secrets.remove("crm")


def _checked(answer: Response) -> Any:
    assert answer.status == 200, answer
    return answer.json
