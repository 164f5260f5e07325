"""PostgreSQL databases that many tests use one after the other, each of them as if it were new."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import asyncpg

from batuta.testing.databases import DatabaseMaker

T = TypeVar("T")

END_OTHERS = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""

CATALOG = """
    WITH own AS (SELECT oid FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'),
    tables AS (SELECT oid FROM pg_class WHERE relnamespace IN (SELECT * FROM own))
    SELECT md5(string_agg(told, ' ' ORDER BY told)) FROM (
        SELECT format('%s %s %s %s %s', oid, relname, relnamespace, reloptions, relacl) told
        FROM pg_class WHERE oid IN (SELECT * FROM tables)
        UNION ALL SELECT format('%s %s', xmin, attnum) FROM pg_attribute WHERE attrelid IN (SELECT * FROM tables)
        UNION ALL SELECT format('%s %s', xmin, oid) FROM pg_proc WHERE pronamespace IN (SELECT * FROM own)
        UNION ALL SELECT format('%s %s', xmin, oid) FROM pg_namespace WHERE oid IN (SELECT * FROM own)
        UNION ALL SELECT format('%s %s', xmin, oid) FROM pg_constraint
        UNION ALL SELECT format('%s %s', xmin, oid) FROM pg_trigger
        UNION ALL SELECT format('%s %s', xmin, oid) FROM pg_event_trigger
        UNION ALL SELECT format('%s %s', xmin, oid) FROM pg_extension
        UNION ALL SELECT format('%s %s', xmin, oid) FROM pg_largeobject_metadata
        UNION ALL SELECT 'statistics' FROM pg_statistic WHERE starelid IN (SELECT * FROM tables)
        UNION ALL SELECT s::text FROM pg_db_role_setting s JOIN pg_database d ON d.oid = setdatabase
        WHERE datname = current_database()
        UNION ALL SELECT format('%s %s %s', datacl, datallowconn, datconnlimit) FROM pg_database
        WHERE datname = current_database()
        UNION ALL SELECT gid FROM pg_prepared_xacts WHERE database = current_database()
        UNION ALL SELECT m::text FROM batuta.migrations m
        UNION ALL SELECT v::text FROM batuta.schema_version v
    ) all_of_them
"""
"""One word for all in a database that a test may have changed, but for rows of batuta's tables. A copy of a database
has the same word."""

EMPTY = """
    DO $$
    DECLARE
        one regclass;
    BEGIN
        SET LOCAL session_replication_role = replica;  -- the audit log refuses it otherwise
        FOR one IN
            SELECT format('%I.%I', schemaname, tablename)::regclass FROM pg_tables
            WHERE schemaname = 'batuta' AND tablename NOT IN ('migrations', 'schema_version')
        LOOP
            IF pg_relation_size(one) > 65536 THEN
                EXECUTE format('TRUNCATE %s', one);
            ELSIF pg_relation_size(one) > 0 THEN
                EXECUTE format('DELETE FROM %s', one);
            END IF;
        END LOOP;
        PERFORM setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) FROM pg_sequences
        WHERE schemaname = 'batuta' AND last_value IS NOT NULL;
        PERFORM pg_stat_reset();
    END
    $$
"""
"""To truncate a table makes files, for its indexes too: a few rows are deleted in less than half of the time."""


class Databases:
    """Migrated, empty databases for one test each. One that is given back is emptied and used again, which takes a
    half of the time of a new one. It is dropped where more than rows has changed."""

    def __init__(self, server: DatabaseMaker, template: str) -> None:
        self._server, self._template = server, template
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="databases-of-tests", daemon=True)
        self._thread.start()
        self._sessions: dict[str, asyncpg.Connection] = {}
        self._unused: list[str] = []
        self._catalog = self._do(self._look(template))

    def take(self) -> str:
        return self._unused.pop() if self._unused else self._server.create_database(template=self._template)

    def give_back(self, url: str) -> None:
        if self._do(self._is_emptied(url)):
            self._unused.append(url)
        else:
            self._server.drop_database(url)

    def close(self) -> None:
        for url in self._unused:
            self._do(self._leave(url))
            self._server.drop_database(url)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """In a thread: a test that is given a database may have an event loop running."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _look(self, url: str) -> str:
        connection = await asyncpg.connect(url)
        try:
            return str(await connection.fetchval(CATALOG))
        finally:
            await connection.close()

    async def _is_emptied(self, url: str) -> bool:
        """Sessions that are left over end, as those of a killed process. Our own stays: it knows the catalog by now."""
        try:
            if url not in self._sessions:
                self._sessions[url] = await asyncpg.connect(url)
            session = self._sessions[url]
            await session.execute(END_OTHERS)
            if await session.fetchval(CATALOG) == self._catalog:
                await session.execute(EMPTY)
                return True
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):  # such as a table that is gone
            pass
        await self._leave(url)
        return False

    async def _leave(self, url: str) -> None:
        session = self._sessions.pop(url, None)
        if session is not None:
            session.terminate()


def aside(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in a thread: the first test to ask for a fixture may be an async one, with a loop running."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
