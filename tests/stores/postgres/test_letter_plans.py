"""Pages of dead letters and of their groups are read from an index, on tables of any size."""

from __future__ import annotations

from typing import Any

import pytest

from batuta.stores.postgres import PostgresStore
from tests.stores.postgres.raw import plan_of, scans_of

pytestmark = pytest.mark.usefixtures("new_postgres_url")

FILL = """
    INSERT INTO batuta.dead_letters (
        run_id, at, seq, attempts, keep, namespace, fingerprint, id, kind, name, queue, flow_key, reason, error,
        activity, trace, message)
    SELECT gen_random_uuid(), n, 1, 1, 0, 'default', (n % 1000)::text, n::text, 'job', 'send', 'default', '',
           'exhausted', 'Down', 'send', '', 'no'
    FROM generate_series(1, 20000) n;
    INSERT INTO batuta.letter_groups (
        count, first_at, last_at, namespace, fingerprint, state, name, reason, error, activity)
    SELECT 50, n, n, 'default', n::text, 'open', 'send', 'exhausted', 'Down', 'send' FROM generate_series(1, 1000) n;
"""
FILLED = "batuta.dead_letters, batuta.letter_groups"

NEWEST, ALIKE, GROUPS = "dead_letters_newest", "dead_letters_alike", "letter_groups_newest"


def used(plan: dict[str, Any], table: str) -> list[tuple[str, str]]:
    return sorted((scan.get("Index Name", "none"), scan.get("Scan Direction", "")) for scan in scans_of(plan, table))


@pytest.mark.usefixtures("filled")
async def test_a_page_is_read_from_its_index(store: PostgresStore) -> None:
    session = await store._commit_session.connect()
    for name, index in (("list_letters", NEWEST), ("list_alike", ALIKE)):
        plan = await plan_of(session, store._sql[name])
        assert used(plan, "dead_letters") == [(index, "Backward")], name


@pytest.mark.usefixtures("filled")
async def test_a_page_of_groups_does_not_look_at_their_letters(store: PostgresStore) -> None:
    session = await store._commit_session.connect()
    plan = await plan_of(session, store._sql["letter_groups"])
    key = ("letter_groups_pkey", "Forward")
    assert used(plan, "letter_groups") == [(GROUPS, "Backward"), key, key]
    assert used(plan, "dead_letters") == [(ALIKE, "Backward")]
