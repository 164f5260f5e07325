"""What the database says is durable: how many activities of each run. Read right after a kill -9."""

import asyncio
import sqlite3
from collections.abc import Mapping
from typing import Final

from bench.plan import System

OURS: Final = (
    "SELECT r.id, count(*) FROM {schema}journal j JOIN {schema}runs r ON r.run_id = j.run_id "
    "WHERE j.kind = 'activity_done' GROUP BY r.id"
)
DBOS: Final = "SELECT workflow_uuid, count(*) FROM {schema}operation_outputs GROUP BY workflow_uuid"


def durable_steps(system: System, url: str) -> Mapping[str, int]:
    """Durable activities by the run's id."""
    query = OURS if system == "batuta" else DBOS
    if url.startswith("sqlite:///"):
        return _sqlite(url.removeprefix("sqlite:///"), query.format(schema=""))
    return asyncio.run(_postgres(url, query.format(schema=f"{system}.")))


def _sqlite(path: str, query: str) -> Mapping[str, int]:
    file = sqlite3.connect(path)
    try:
        return dict(file.execute(query).fetchall())
    finally:
        file.close()


async def _postgres(url: str, query: str) -> Mapping[str, int]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(query)
        return {str(row[0]): int(row[1]) for row in rows}
    finally:
        await connection.close()
