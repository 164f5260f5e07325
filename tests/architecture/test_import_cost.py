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


def test_importing_batuta_imports_no_optional_or_command_line_package() -> None:
    program = "import sys, batuta; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    outcome = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert NOT_NEEDED.isdisjoint(outcome.stdout.split())
