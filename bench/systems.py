"""How a measurement of each system is started, and what went wrong when it was not."""

import json
import subprocess
from dataclasses import replace
from typing import Final

from bench.child import Figures, Task
from bench.durable import durable_steps
from bench.environments import ROOT, python_of
from bench.places import Places
from bench.plan import Part, System
from bench.recovery import recover

DEADLINE_S: Final = {"limit": 60.0, "batuta": 120.0, "dbos": 600.0, "procrastinate": 120.0, "oban": 120.0}
MODULES: Final = {
    "limit": "bench.limits",
    "batuta": "bench.batuta_run",
    "dbos": "bench.peers.dbos_run",
    "procrastinate": "bench.peers.procrastinate_run",
    "oban": "bench.peers.oban_run",
}

STACKS_BEFORE_S: Final = 5.0


class MeasurementFailed(Exception):
    """A measuring process ended badly; the message holds the end of what it said."""


def measure(part: Part, places: Places, url: str) -> Figures:
    """One measurement on the database at `url`."""
    if part.workload == "W6":
        return _recovery(part, places, url)
    task = Task(part.measure or part.workload, url, part.runs, part.steps, part.seconds)
    return _ask(part.system, task, part.patience)


def run_once(task: Task) -> Figures:
    """One task on batuta that is no measurement of its own."""
    return _ask("batuta", task)


def _recovery(part: Part, places: Places, url: str) -> Figures:
    module = "bench.peers.dbos_w6_worker" if part.system == "dbos" else "bench.w6_worker"
    ledger = places.file(".ledger")
    command = [python_of(part.system), "-m", module, url, str(ledger), str(part.runs), str(part.steps)]
    try:
        return recover(command, ledger, part.runs, part.steps, lambda: durable_steps(part.system, url))
    finally:
        ledger.unlink(missing_ok=True)


def _module(system: System) -> list[str]:
    return [python_of(system), "-m", MODULES[system]]


def _ask(system: System, task: Task, patience: float = 0.0) -> Figures:
    deadline = DEADLINE_S[system] + patience
    command = [*_module(system), replace(task, deadline=deadline - STACKS_BEFORE_S).to_json()]
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=deadline, check=False)
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")[-6000:]
        raise MeasurementFailed(f"{' '.join(command[1:])} took longer than {deadline:.0f} s:\n{said}") from error
    lines = process.stdout.splitlines()
    if process.returncode != 0 or not lines:
        said = process.stderr[-3000:]
        raise MeasurementFailed(f"{' '.join(command[1:])} ended with {process.returncode}:\n{said}")
    return _figures(lines[-1])


def _figures(line: str) -> Figures:
    return {str(name): float(value) for name, value in json.loads(line).items()}
