"""`batuta retention` and `batuta prune` against SQLite."""

import asyncio
import json
from typing import Any

import pytest

from batuta.connect import store_for
from batuta.testing.conformance.kit import live_worker
from batuta.testing.conformance.operators.deleting import closed_run
from tests.cli.conftest import Cli

OK, USAGE = 0, 2


def document(cli: Cli, *words: str) -> Any:
    result = cli(*words, "--json")
    assert result.exit_code == OK, result.stderr
    return json.loads(result.stdout)


def make_old_runs(url: str, count: int) -> None:
    """Runs that closed an hour ago."""

    async def make() -> None:
        store = store_for(url)
        await store.open()
        store.shift_clock(-3_600)
        worker = await live_worker(store)
        for _ in range(count):
            await closed_run(store, worker)
        await store.close()

    asyncio.run(make())


def test_rules_are_set_listed_and_deleted(cli: Cli) -> None:
    cli("migrate")
    assert document(cli, "retention", "list") == {"retention": []}
    assert "for ever" in cli("retention", "list").stderr
    document(cli, "retention", "set", "30d")
    found = document(cli, "retention", "set", "forever", "--name", "order", "--state", "failed")
    assert found["retention"] == [
        {"workflow": None, "state": None, "keep": "30d"},
        {"workflow": "order", "state": "failed", "keep": "forever"},
    ]
    assert "30 days" in cli("retention", "list").stdout
    assert len(document(cli, "retention", "delete")["retention"]) == 1
    assert "no such rule" in cli("retention", "delete").stderr


@pytest.mark.parametrize("words", [("soon",), ("1s",), ("1d", "--state", "running"), ("-1d",), ("",)])
def test_a_rule_that_makes_no_sense_changes_nothing(cli: Cli, words: tuple[str, ...]) -> None:
    cli("migrate")
    assert cli("retention", "set", *words).exit_code == USAGE
    assert document(cli, "retention", "list") == {"retention": []}


def test_pruning_counts_first_and_deletes_then(cli: Cli, sqlite_url: str) -> None:
    cli("migrate")
    make_old_runs(sqlite_url, 7)
    assert document(cli, "prune") == {"runs": 0, "dry_run": False}
    cli("retention", "set", "10min", "--state", "completed")
    assert document(cli, "prune", "--dry-run") == {"runs": 7, "dry_run": True}
    assert "7 runs would be deleted" in cli("prune", "--dry-run").stdout
    asked = cli("prune")
    assert (asked.exit_code, asked.stdout) == (USAGE, "")
    assert "7 runs would be deleted: add --yes" in asked.stderr
    assert "7 runs were deleted" in cli("prune", "--yes", "--reason", "the disk is full").stdout
    assert document(cli, "audit", "list", "--verb", "prune", "--limit", "1")["rows"][0]["reason"] == "the disk is full"
    assert document(cli, "runs", "list")["runs"] == []
