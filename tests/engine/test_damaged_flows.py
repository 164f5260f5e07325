"""Whatever lies in the database in place of a flow, event, message, endpoint, secret, kept answer or API key: clients
are told with Batuta's own errors, nothing hangs, and messages beside a damaged one are delivered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from batuta import Batuta, BatutaError, connect
from batuta.bus import Message, subscribe
from batuta.codecs import PayloadCodec
from tests.engine.arena import PATIENCE, until
from tests.engine.forging import Forger
from tests.engine.test_bound_payloads import CODECS, flow_of
from tests.engine.test_damaged_rows import CANNOT_STORE
from tests.engine.test_damaged_values import damages

pytestmark = pytest.mark.usefixtures("real_time")

COLUMNS = [
    ("flows", "document", "workflow_id"),
    ("flows", "description", "workflow_id"),
    ("events", "payload", "event_id"),
    ("bus_messages", "body", "number"),
    ("partners", "doc", "name"),
    ("documents", "body", "key"),
    ("requests", "answer", "key"),
    ("api_keys", "digest", "id"),
]
FORMS = ["null", "1", "[]", "{}", '{"steps":1}', '{"url":1,"secrets":2}', '{"created_at":1e400}', '"~3::e30="']
"""Besides those of damages(): JSON of another form."""


@pytest.fixture
async def forger(url: str) -> AsyncIterator[Forger]:
    made = Forger(url)
    yield made
    await made.close()


async def furnish(client: Batuta) -> dict[str, str]:
    """Two of each, so that there is something to swap."""
    ids: dict[str, str] = {}
    for name in ("one", "other"):
        made = await client.flows.create(flow_of(name, "text"))
        await client.flows.publish(made.id)
        sent = await client.flows.events.send("unheard", {"name": name})
        await client.flows.secrets.set(name, "secret")
        await client.publish("topic", name, id=name)
        endpoint = await client.webhooks.create(f"https://example.com/{name}")
        requests = client.namespace.requests
        await requests.begin_request(name, "digest", "ann", 10**12, 10**12)
        assert await requests.finish_request(name, "ann", '"answer"')
        key = (await client.api_keys.create(name, "admin")).key
        ids = {"flow": made.id, "event": sent.event.id, "endpoint": endpoint.id, "key": key}
    return ids


def looks(client: Batuta, ids: dict[str, str]) -> list[Callable[[], Awaitable[object]]]:
    flows, hooks, keys = client.flows, client.webhooks, client.api_keys
    return [
        flows.list,
        lambda: flows.get(ids["flow"]),
        lambda: flows.document(ids["flow"]),
        lambda: flows.new_version(ids["flow"]),
        lambda: flows.activate(ids["flow"], False),
        lambda: flows.activate(ids["flow"], True),
        flows.parts,
        lambda: flows.published("other"),
        lambda: flows.events.send("overdue", {"amount": 1}),
        flows.events.list,
        lambda: flows.events.get(ids["event"]),
        lambda: flows.events.replay(ids["event"]),
        lambda: flows.runs.start(ids["flow"], ids["event"]),
        flows.secrets.names,
        hooks.list,
        lambda: hooks.get(ids["endpoint"]),
        lambda: hooks.rotate(ids["endpoint"]),
        lambda: client.namespace.requests.find_request("other"),
        lambda: client.namespace.requests.begin_request("other", "digest", "eve", 10**9, 10**9),
        keys.list,
        lambda: keys.verify(ids["key"]),
    ]


@pytest.mark.parametrize(
    ("url", "codecs"),
    [("sqlite", []), ("sqlite", CODECS), ("postgres", []), ("postgres", CODECS)],
    indirect=["url"],
    ids=["sqlite plain", "sqlite", "postgres plain", "postgres"],
)
@pytest.mark.parametrize(("table", "column", "key"), COLUMNS, ids=[f"{table} {column}" for table, column, _ in COLUMNS])
async def test_clients_are_told_with_errors_of_batuta_and_nothing_hangs(
    url: str, codecs: list[PayloadCodec], forger: Forger, table: str, column: str, key: str
) -> None:
    where = f"{forger.schema}{table}"
    async with connect(url, codec=codecs) as client:
        ids = await furnish(client)
        rows = await forger.sql(f"SELECT {column}, {key} FROM {where} WHERE {column} IS NOT NULL ORDER BY {key}")
        text, other = rows[-1][0], rows[0][0]
        for forged in [*FORMS, *damages(text, other, random.Random(5))]:
            with suppress(*CANNOT_STORE):
                await forger.sql(f"UPDATE {where} SET {column} = {forger.mark(1)}", forged)
            for look in looks(client, ids):
                async with asyncio.timeout(PATIENCE):
                    with suppress(BatutaError):
                        await look()
        await forger.sql(f"UPDATE {where} SET {column} = {forger.mark(1)}", text)


@pytest.mark.parametrize("codecs", [[], CODECS], ids=["plain", "encrypted"])
@pytest.mark.parametrize("number", range(9))
async def test_a_damaged_message_does_not_keep_others_from_being_delivered(
    url: str, forger: Forger, number: int, codecs: list[PayloadCodec]
) -> None:
    got: list[str] = []

    async def take(message: Message[Any]) -> None:
        got.append(str(message.payload))

    work: Any = {"subscriptions": [subscribe("topic", take, from_start=True)], "heartbeat": 0.1}
    async with connect(url, codec=codecs) as client:
        for name in ("damaged", "sound"):
            await client.publish("topic", name, id=name)
        [(first,), (second,)] = await forger.sql(f"SELECT body FROM {forger.schema}bus_messages ORDER BY number")
        forged = damages(first, second, random.Random(number))[number]
        with suppress(*CANNOT_STORE):
            await forger.sql(
                f"UPDATE {forger.schema}bus_messages SET body = {forger.mark(1)} WHERE id = 'damaged'", forged
            )
        async with client.worker(**work):

            async def has_come() -> bool:
                return "sound" in got

            await until(has_come)
    if codecs:
        assert set(got) <= {"sound", "damaged"}
        assert "damaged" not in got or forged == first
