"""`import batuta` takes in only what every user needs."""

import subprocess
import sys
from pathlib import Path

import pytest

import batuta
from batuta.client import Batuta

NOT_NEEDED = {
    "asyncpg",
    "click",
    "cryptography",
    "hypothesis",
    "opentelemetry",
    "pydantic",
    "pytest",
    "rich",
    "starlette",
    "uvloop",
}


OURS_NOT_NEEDED = {
    "cache",
    "check",
    "cli",
    "client",
    "codecs",
    "engine",
    "flows",
    "resilience",
    "server",
    "settings",
    "stores",
    "sync",
    "sync_flows",
    "testing",
    "webhooks",
}
"""Rooms that are imported when they are used: with them `import batuta` takes more than 100 ms."""


def test_importing_batuta_imports_no_optional_or_command_line_package() -> None:
    assert NOT_NEEDED.isdisjoint(name.split(".")[0] for name in _imported())


def test_importing_batuta_imports_no_room_that_workflows_do_without() -> None:
    rooms = {name.split(".")[1] for name in _imported() if name.startswith("batuta.")}
    assert "authoring" in rooms
    assert OURS_NOT_NEEDED.isdisjoint(rooms)


def test_importing_batuta_imports_no_store_contract() -> None:
    assert "batuta.journal.store" not in _imported()


def test_the_client_is_imported_by_its_first_use() -> None:
    assert batuta.Batuta is Batuta
    with pytest.raises(AttributeError, match="module 'batuta' has no attribute 'Baton'"):
        _ = batuta.Baton  # type: ignore[attr-defined]


def _imported() -> list[str]:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(batuta.__file__).parents[1])!r}); import batuta; print(*sys.modules)"
    )
    outcome = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    return outcome.stdout.split()
