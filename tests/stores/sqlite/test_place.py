"""Where the file may lie, and who may read it."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from batuta.errors import SchemaMismatch, StoreError, StoreUnavailable
from batuta.stores.sqlite.database import files, writer
from batuta.stores.sqlite.database.files import LockFile, WorkerLocks
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.kit import beat, live_worker, new_run, start_owned


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_a_new_file_is_its_owners_alone(store: SqliteStore, path: Path) -> None:
    worker = await live_worker(store)
    async with store.heartbeat(worker.worker_id):
        assert {mode(Path(f"{path}{suffix}")) for suffix in ("", "-wal", "-shm", "-lock")} == {0o600}
        assert mode(Path(f"{path}-workers")) == 0o700
        assert [mode(file) for file in Path(f"{path}-workers").iterdir()] == [0o600]


async def test_a_worker_that_signs_off_takes_its_lock_file_away(store: SqliteStore, path: Path) -> None:
    worker = await live_worker(store)
    await beat(store, worker)
    await store.retire(worker.worker_id)
    assert list(Path(f"{path}-workers").iterdir()) == []


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        await SqliteStore(tmp_path / "nowhere" / "batuta.db").migrate()


async def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        await SqliteStore(tmp_path).migrate()


async def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "filesystem", lambda folder: "nfs4")
    with pytest.raises(StoreError, match="network file system"):
        await SqliteStore(path).migrate()
    assert not path.exists()


async def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    path.write_text("dear diary, " * 100)
    with pytest.raises(StoreError, match=f"{path.name}' is not a SQLite database: give another file"):
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
    assert files.filesystem(Path("/proc")) in ("proc", "")
    assert files.filesystem(tmp_path) not in files._NETWORK


def test_a_workers_name_stays_within_the_folder(path: Path) -> None:
    locks = WorkerLocks(path)
    lock = locks.hold("../../etc/x")
    assert not locks.is_free("../../etc/x")
    lock.close()
    assert locks.is_free("../../etc/x")
    locks.remove("../../etc/x")
    assert list(Path(f"{path}-workers").iterdir()) == []


# -- something deletes the lock files, as cleaners of temporary files do


def test_a_worker_without_a_lock_file_is_not_known_to_be_dead(path: Path) -> None:
    assert not WorkerLocks(path).is_free("never seen")


@pytest.mark.parametrize("also_the_folder", [False, True])
async def test_a_live_worker_whose_lock_file_was_deleted_is_not_buried(
    store: SqliteStore, path: Path, also_the_folder: bool
) -> None:
    worker, peer = await live_worker(store), await live_worker(store)
    pen = await start_owned(store, worker)
    async with store.heartbeat(worker.worker_id) as heartbeat, store.heartbeat(peer.worker_id) as other:
        folder = Path(f"{path}-workers")
        for file in folder.iterdir():
            file.unlink()
        if also_the_folder:
            folder.rmdir()
        assert (await other.beat(peer, reap=True)).peers == []
        assert await other.reap([worker.worker_id]) == 0
        assert (await heartbeat.beat(worker, reap=True)).peers == []
        assert len(list(folder.iterdir())) == 2  # made again, and locked
        assert (await other.beat(peer, reap=True)).peers == []
        assert await other.reap([worker.worker_id]) == 0
        assert await pen.write(store, worker) is None
    async with store.heartbeat(peer.worker_id) as other:
        assert (await other.beat(peer, reap=True)).peers == [worker.worker_id]  # it lets go, and is known to be dead


async def test_a_worker_that_cannot_make_its_lock_file_again_goes_on(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await live_worker(store)
    async with store.heartbeat(worker.worker_id) as heartbeat:
        folder = Path(f"{path}-workers")
        next(folder.iterdir()).unlink()
        folder.rmdir()
        folder.write_text("in the way")
        assert (await heartbeat.beat(worker, reap=True)).alive


def test_a_lock_file_that_was_deleted_is_made_again_and_locks_out_others(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    one, other = LockFile(file), LockFile(file)
    one.open()
    assert one.try_take()
    one.release()
    file.unlink()
    other.open()
    assert other.try_take()
    assert not one.try_take()  # of the file that is there, not of the deleted one
    other.close()
    assert one.try_take()
    one.close()


def test_a_lock_file_that_was_replaced_is_not_the_lock(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    one, other = LockFile(file), LockFile(file)
    one.open()
    assert one.try_take()
    file.rename(tmp_path / "aside")
    other.open()
    assert other.try_take()
    one.release()
    assert not one.try_take()
    one.close()
    other.close()


async def test_writers_take_turns_when_the_lock_file_is_deleted_between_their_transactions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_LONG_SECONDS", 0.0)
    stores = [SqliteStore(path), SqliteStore(path)]
    await stores[0].migrate()
    for store in stores:
        await store.open()
    lock = Path(f"{path}-lock")
    for _ in range(5):
        lock.unlink()
        await asyncio.gather(*(store.start(new_run()) for store in stores))
        assert all(store._writer._lock.is_in_place() for store in stores)
    held = stores[0]._writer
    assert held.try_begin()
    lock.unlink()
    writing = asyncio.create_task(stores[1].start(new_run("b")))
    await held.commit()  # under the lock that the others take, too
    assert (await writing)[1]
    for store in stores:
        await store.close()


async def test_a_commit_waits_for_the_lock_that_replaced_its_own(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(writer, "_LONG_SECONDS", 0.0)
    held = store._writer
    assert held.try_begin()
    file = Path(f"{path}-lock")
    file.unlink()
    another = LockFile(file)
    another.open()
    assert another.try_take()
    with pytest.raises(StoreUnavailable, match="another process"):
        await held.commit()
    another.close()
    assert (await store.start(new_run("a")))[1]


async def test_a_lock_file_that_is_a_link_is_refused(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (path.parent / f"{path.name}-lock").symlink_to(elsewhere)
    with pytest.raises(StoreUnavailable, match="is a symbolic link: remove it"):
        await SqliteStore(path).migrate()
    assert not elsewhere.exists()


def test_a_workers_lock_file_that_is_a_link_is_refused(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    locks = WorkerLocks(path)
    folder = path.with_name(path.name + "-workers")
    folder.mkdir()
    (folder / "w.lock").symlink_to(elsewhere)
    with pytest.raises(StoreUnavailable, match="is a symbolic link"):
        locks.hold("w")
    assert not locks.is_free("w")
    locks.remove("w")
    assert elsewhere.exists()


def test_a_folder_of_lock_files_that_is_a_link_is_refused(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "w.lock").touch()
    path.with_name(path.name + "-workers").symlink_to(elsewhere)
    locks = WorkerLocks(path)
    with pytest.raises(StoreUnavailable, match="is a symbolic link"):
        locks.hold("v")
    assert not locks.is_free("w")
    locks.remove("w")
    assert [one.name for one in elsewhere.iterdir()] == ["w.lock"]


def test_a_lock_file_that_was_replaced_by_a_link_to_it_is_not_the_lock(tmp_path: Path) -> None:
    file, moved = tmp_path / "lock", tmp_path / "moved"
    lock = LockFile(file)
    lock.open()
    assert lock.try_take()
    file.rename(moved)
    file.symlink_to(moved)
    assert not lock.is_in_place()
    lock.close()
