"""The interpreters that measure: our own, and those of the peers' environments, which are made when missing."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.plan import System

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / "requirements" / "bench.lock"
PEERS: Final = ROOT / ".venv-bench"
PEERS_VARIABLE: Final = "BENCH_PEER_PYTHON"
OBAN: Final = ROOT / ".venv-bench-oban"
OBAN_VARIABLE: Final = "BENCH_OBAN_PYTHON"
OBAN_PYTHONS: Final = ("3.13", "3.12")
"""What Oban asks for is newer than what we do: where the peers' environment is older, it gets one of its own."""


class PeerMissing(Exception):
    """A peer cannot be measured on this machine; the message says why."""


def python_of(system: System) -> str:
    """The interpreter that measures the system."""
    match system:
        case "dbos" | "procrastinate":
            return str(_peers_python())
        case "oban":
            return str(_oban_python())
        case _:
            return sys.executable


@functools.cache
def missing(system: System) -> str:
    """Why the system cannot be measured here, "" when it can."""
    try:
        python_of(system)
    except PeerMissing as error:
        return str(error)
    return ""


def version(system: System) -> str:
    """The release of a peer that is measured."""
    code = f"import importlib.metadata as m; print(m.version({system!r}))"
    return subprocess.run([python_of(system), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@functools.cache
def _peers_python() -> Path:
    named = os.environ.get(PEERS_VARIABLE)
    return Path(named).absolute() if named else _made(PEERS, sys.executable)


@functools.cache
def _oban_python() -> Path:
    if named := os.environ.get(OBAN_VARIABLE):
        return Path(named).absolute()
    if _has_oban(_peers_python()):
        return _peers_python()
    python = _made(OBAN, _new_enough())
    if not _has_oban(python):
        raise PeerMissing("its environment was made without it")
    return python


def _has_oban(python: Path) -> bool:
    return subprocess.run([python, "-c", "import oban"], capture_output=True, check=False).returncode == 0


def _new_enough() -> str:
    for number in OBAN_PYTHONS:
        found = subprocess.run([ROOT / "tools" / "find-python", number], capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout.strip()
    raise PeerMissing(f"needs Python {' or '.join(OBAN_PYTHONS)}, and there is none")


def _made(environment: Path, base: str) -> Path:
    """Its interpreter; the environment is made from the lock file first when it is not there."""
    python = environment / "bin" / "python"
    if python.exists():
        return python
    print(f"making {environment.name}", flush=True)
    try:
        subprocess.run([ROOT / "tools" / "make-env", environment, base, LOCK], cwd=ROOT, check=True)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(environment, ignore_errors=True)
        raise PeerMissing(f"{environment.name} could not be made") from error
    return python
