"""Where the file may lie, and who may read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from batuta.errors import SchemaMismatch, StoreError
from batuta.stores.sqlite import place
from batuta.stores.sqlite.place import WorkerLocks
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.kit import beat, live_worker


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_a_new_file_is_its_owners_alone(store: SqliteStore, path: Path) -> None:
    worker = await live_worker(store)
    async with store.heart(worker.worker_id):
        assert {mode(Path(f"{path}{suffix}")) for suffix in ("", "-wal", "-shm", "-lock")} == {0o600}
        assert mode(Path(f"{path}-workers")) == 0o700
        assert [mode(file) for file in Path(f"{path}-workers").iterdir()] == [0o600]


async def test_a_heart_takes_its_lock_file_away(store: SqliteStore, path: Path) -> None:
    await beat(store, await live_worker(store))
    assert list(Path(f"{path}-workers").iterdir()) == []


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        await SqliteStore(tmp_path / "nowhere" / "batuta.db").migrate()


async def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        await SqliteStore(tmp_path).migrate()


async def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "filesystem", lambda folder: "nfs4")
    with pytest.raises(StoreError, match="network file system"):
        await SqliteStore(path).migrate()
    assert not path.exists()


async def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    path.write_text("dear diary, " * 100)
    with pytest.raises(StoreError, match="no SQLite database"):
        await SqliteStore(path).migrate()
    assert path.read_text().startswith("dear diary")


async def test_opening_what_is_not_there_makes_nothing(path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="migrate"):
        await SqliteStore(path).open()
    assert not path.exists()


async def test_a_path_with_strange_characters_works(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a b?c%20#d ç.db")
    await store.migrate()
    await store.open()
    await live_worker(store)
    await store.close()
    assert (tmp_path / "a b?c%20#d ç.db").exists()


def test_the_file_system_of_a_folder_is_known(tmp_path: Path) -> None:
    assert place.filesystem(Path("/proc")) in ("proc", "")
    assert place.filesystem(tmp_path) not in place._NETWORK


def test_a_workers_name_stays_within_the_folder(path: Path) -> None:
    locks = WorkerLocks(path)
    descriptor = locks.hold("../../etc/x")
    assert not locks.is_free("../../etc/x")
    locks.drop("../../etc/x", descriptor)
    assert locks.is_free("../../etc/x")
    assert locks.is_free("never seen")
