"""`import batuta` takes in only what every user needs."""

import subprocess
import sys

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
    "engine",
    "flows",
    "server",
    "stores",
    "sync",
    "sync_flows",
    "testing",
    "webhooks",
}
"""Rooms that are imported when they are used: with them `import batuta` takes more than 100 ms."""


def test_importing_batuta_imports_no_optional_or_command_line_package() -> None:
    assert NOT_NEEDED.isdisjoint(name.split(".")[0] for name in _imported())


def test_importing_batuta_imports_no_room_that_a_client_may_not_need() -> None:
    rooms = {name.split(".")[1] for name in _imported() if name.startswith("batuta.")}
    assert "authoring" in rooms
    assert OURS_NOT_NEEDED.isdisjoint(rooms)


def _imported() -> list[str]:
    program = "import sys, batuta; print(*sys.modules)"
    outcome = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    return outcome.stdout.split()
