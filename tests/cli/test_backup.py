"""`batuta backup`: a copy of one moment, of a database that others write to."""

import json
import sqlite3
from pathlib import Path

import pytest

from batuta.stores.sqlite.database import backup
from tests.cli.conftest import SHOP, Cli, Spawn, lines, wait_for

OK, FAILED, USAGE, NO_DATABASE = 0, 1, 2, 4


def left_beside(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir() if path.name.startswith((".", target.name)))


def test_a_copy_made_while_a_worker_writes_opens_verifies_and_goes_on(
    cli: Cli, spawn: Spawn, sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "copies").mkdir()
    target, url = tmp_path / "copies" / "shop.db", f"sqlite:///{tmp_path / 'copies' / 'shop.db'}"
    first = spawn("worker", "--app", SHOP)
    for number in range(5):
        cli("runs", "start", "walk", "--input", "[200, 0.01]", "--id", f"w-{number}")
    wait_for(lambda: len(lines(tmp_path / "ledger")) > 50, "the worker to be in the middle of it")
    result = cli("backup", sqlite_url, str(target), "--json")
    assert result.exit_code == OK, result.stderr
    document = json.loads(result.stdout)
    assert (document["runs"], document["holds"], document["bytes"]) == (5, True, target.stat().st_size)
    assert left_beside(target) == ["shop.db"]
    assert target.stat().st_mode & 0o777 == 0o600
    entries = json.loads(cli("runs", "show", "w-0", "--url", url, "--json").stdout)["entries"]
    assert 0 < entries < 201
    first.kill()
    first.wait()
    spawn("worker", "--app", SHOP, "--url", url)

    def over() -> bool:
        return len(json.loads(cli("runs", "list", "--url", url, "--state", "completed", "--json").stdout)["runs"]) == 5

    wait_for(over, "the runs of the copy to go on to their end")
    assert cli("verify", "--url", url, "--app", SHOP).exit_code == OK


def test_many_copies_under_load_are_each_of_one_moment(cli: Cli, spawn: Spawn, sqlite_url: str, tmp_path: Path) -> None:
    spawn("worker", "--app", SHOP)
    for number in range(20):
        cli("runs", "start", "walk", "--input", "[300, 0.0]", "--id", f"w-{number}")
    for number in range(5):
        result = cli("backup", sqlite_url, str(tmp_path / f"copy-{number}.db"))
        assert result.exit_code == OK, result.output
        assert result.stdout.startswith("copied 20 runs (")


def test_a_backup_writes_over_nothing(cli: Cli, sqlite_url: str, tmp_path: Path) -> None:
    cli("migrate")
    target = tmp_path / "copy.db"
    for there in (target, tmp_path / "copy.db-wal"):
        there.write_text("mine")
        result = cli("backup", sqlite_url, str(target))
        assert result.exit_code == USAGE
        assert f"{there} exists already" in result.stderr
        assert there.read_text() == "mine"
        there.unlink()
    assert cli("backup", sqlite_url, str(tmp_path / "batuta.db")).exit_code == USAGE
    assert cli("backup", sqlite_url, str(tmp_path / "nowhere" / "copy.db")).exit_code == USAGE


def test_a_file_that_appears_meanwhile_stays_as_it_is(
    cli: Cli, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("migrate")
    target = tmp_path / "copy.db"
    monkeypatch.setattr(backup, "_refuse_if_there", lambda _target: None)
    target.write_text("mine")
    assert cli("backup", sqlite_url, str(target)).exit_code == USAGE
    assert target.read_text() == "mine"
    assert left_beside(target) == ["copy.db"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://shop@db/shop", "pg_dump"),
        ("memory://", "not a file"),
        ("mysql://shop", "names no store"),
    ],
)
def test_a_file_that_is_not_sqlite_is_refused_with_advice(cli: Cli, tmp_path: Path, url: str, says: str) -> None:
    result = cli("backup", url, str(tmp_path / "copy.db"))
    assert result.exit_code == USAGE
    assert says in result.stderr
    assert not (tmp_path / "copy.db").exists()


def test_a_database_that_is_not_there_is_not_made(cli: Cli, tmp_path: Path) -> None:
    result = cli("backup", f"sqlite:///{tmp_path}/none.db", str(tmp_path / "copy.db"), "--json")
    assert result.exit_code == NO_DATABASE
    assert json.loads(result.stderr)["error"]["type"] == "SchemaMismatch"
    assert left_beside(tmp_path / "copy.db") == []
    assert not (tmp_path / "none.db").exists()


def test_what_does_not_hold_in_the_source_is_found_in_the_copy(
    cli: Cli, spawn: Spawn, sqlite_url: str, tmp_path: Path
) -> None:
    spawn("worker", "--app", SHOP)
    cli("runs", "start", "total", "--input", "[[1, 2]]", "--wait", "--namespace", "default")
    with sqlite3.connect(tmp_path / "batuta.db") as raw:
        raw.execute("UPDATE journal SET body = replace(body, '3', '4') WHERE ord = 2")
    raw.close()
    result = cli("backup", sqlite_url, str(tmp_path / "copy.db"), "--json")
    assert result.exit_code == FAILED
    assert json.loads(result.stdout)["namespaces"]["default"]["found"]["I3"] == 1


def test_every_namespace_is_verified(cli: Cli, sqlite_url: str, tmp_path: Path) -> None:
    for namespace in ("here", "there"):
        cli("runs", "start", "total", "--namespace", namespace)
    document = json.loads(cli("backup", sqlite_url, str(tmp_path / "copy.db"), "--json").stdout)
    assert {name: one["runs"] for name, one in document["namespaces"].items()} == {"here": 1, "there": 1}


def test_runs_of_a_worker_that_has_just_died_do_not_count_against_the_copy(
    cli: Cli, spawn: Spawn, sqlite_url: str, tmp_path: Path
) -> None:
    first = spawn("worker", "--app", SHOP)
    cli("runs", "start", "walk", "--input", "[2, 60]", "--id", "w")
    wait_for(lambda: lines(tmp_path / "ledger"), "the activity to begin")
    first.kill()
    first.wait()
    raw = sqlite3.connect(tmp_path / "batuta.db", isolation_level=None)
    raw.execute(
        "INSERT INTO workers (namespace, worker_id, host, pid, queues, code, registered_at, beat_at, lease_until) "
        "SELECT namespace, 'alive', host, pid, queues, code, 0, 0, (unixepoch() + 3600) * 1000000 FROM workers"
    )
    raw.execute("UPDATE workers SET lease_until = 0 WHERE worker_id <> 'alive'")
    raw.close()
    result = cli("backup", sqlite_url, str(tmp_path / "copy.db"))
    assert result.exit_code == OK, result.output
