"""A claim under limits chooses by one of two statements: the shorter one, for queues without rates, chooses alike."""

import json
import random

import pytest

from batuta.journal.queues import QueueLimits
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance.kit import live_worker, new_run
from tests.stores.postgres.raw import connection

KEYS = ["", "a", "b", "c", "d"]
SAME = """
SELECT a.ids, a.last_turn, a.deeper, b.ids AS ids_too, b.last_turn AS last_turn_too, b.deeper AS deeper_too
FROM batuta.queues q,
     batuta.choose('default', q, 0, batuta.batuta_now(), $1, $2, NULL, $3::jsonb, $4, NULL, $5::jsonb, $6, $7, $8) a,
     batuta.choose_places('default', q, 0, batuta.batuta_now(), $1, $2, NULL, $3::jsonb, $4, $5::jsonb, $6, $7, $8) b
WHERE q.name = 'default'
"""


@pytest.mark.parametrize("seed", range(4))
async def test_both_ways_to_choose_under_limits_choose_the_same(
    store: PostgresStore, postgres_url: str, seed: int
) -> None:
    chance = random.Random(seed)
    worker = await live_worker(store)
    await store.limit_queue("default", QueueLimits(concurrency=50, key_concurrency=chance.choice([None, 1, 2])))
    await store.start_many([new_run(flow_key=chance.choice(KEYS)) for _ in range(30)])
    codes = list(worker.code), list(worker.code.values())
    chosen = 0
    async with connection(postgres_url) as raw:
        await raw.fetch(store._sql["shift"], str(store._shift.micros))
        for _ in range(25):
            busy = {key: chance.randint(0, 2) for key in chance.sample(KEYS[1:], 2)}
            had = {key: chance.randint(0, 5) for key in chance.sample(KEYS, 2)}
            room, turn, step = chance.randint(1, 20), chance.choice(KEYS), chance.randint(0, 3)
            depth = chance.choice([1, 8, None])
            row = await raw.fetchrow(SAME, *codes, json.dumps(busy), room, json.dumps(had), turn, step, depth)
            assert row is not None
            assert tuple(row)[:3] == tuple(row)[3:]
            chosen += len(row["ids"])
    assert chosen > 25
