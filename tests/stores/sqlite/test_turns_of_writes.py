"""Large writes of one event loop wait for each other on it, not in a thread."""

import asyncio
import threading
from pathlib import Path

from batuta.stores.sqlite.database.writer import Writer
from batuta.stores.sqlite.store import SqliteStore


async def test_a_large_write_that_comes_during_another_ones_sync_still_runs_on_the_event_loops_thread(
    tmp_path: Path,
) -> None:
    await SqliteStore(tmp_path / "x.db").migrate()
    writer = Writer(tmp_path / "x.db")
    await asyncio.to_thread(writer.open)
    try:
        threads = await asyncio.gather(*(writer.write(lambda _cursor: threading.get_ident()) for _ in range(5)))
        assert set(threads) == {threading.get_ident()}
    finally:
        await asyncio.to_thread(writer.close)
