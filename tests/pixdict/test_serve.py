"""Options of `pixdict serve` that are wrong are refused before anything begins."""

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from pixdict.cli import root
from pixdict.connect.database import open_database
from pixdict.directory import Directory
from pixdict.serve import Options, bridge_settings, limits_of


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("CreateEntry", "OPERATION=RATE"),
        ("DropTables=1/min", "CreateEntry, CreateClaim, GetEntry"),
        ("CreateEntry=often", "often"),
        ("CreateEntry=", "rate"),
    ],
)
def test_a_limit_that_is_wrong_is_refused(limit: str, words: str) -> None:
    said = CliRunner().invoke(root, ["serve", "--role", "core", "--store", "memory://", "--limit", limit])
    assert said.exit_code != 0
    assert words in said.output, said.output
    assert "Traceback" not in said.output


@pytest.mark.parametrize("role", ["bridge", "core", "directory"])
@pytest.mark.parametrize("listen", ["127.0.0.1:65536", "127.0.0.1", "here:there"])
def test_an_address_that_is_none_is_refused(role: str, listen: str) -> None:
    said = CliRunner().invoke(root, ["serve", "--role", role, "--store", "memory://", "--listen", listen])
    assert said.exit_code == 2
    assert f"--listen '{listen}': give HOST:PORT" in said.output


def test_a_limit_replaces_that_of_document_c_and_may_have_more_than_one_rate() -> None:
    found = limits_of(("CreateEntry=5/min", "CreateEntry=9/h"))
    assert found["CreateEntry"] == ("5/min", "9/h")
    assert found["CreateClaim"] == ("50/min", "500/h")


def test_a_bridge_makes_one_call_of_five_seconds_unless_it_is_told_otherwise() -> None:
    options = Options(
        role="bridge", store="", participant="12345678", directory="http://directory", bridge="", database=""
    )
    usual = bridge_settings(options)
    assert (usual.attempts, usual.timeout, usual.call_timeout) == (1, 5.0, 20.0)
    slow = bridge_settings(replace(options, attempts=3, timeout=60.0))
    assert (slow.attempts, slow.timeout, slow.call_timeout) == (3, 60.0, 60.0)


async def test_files_of_pixdict_are_for_the_eyes_of_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        database = await open_database(f"sqlite:///{tmp_path}/pixdict.db")
        await database.script(["CREATE TABLE kept (one TEXT)"])
        directory = Directory(path=tmp_path / "directory.db")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        directory.close()
        await database.close()
    finally:
        os.umask(before)
    assert {"pixdict.db", "pixdict.db-wal", "directory.db"} <= set(modes)
    assert set(modes.values()) == {0o600}
