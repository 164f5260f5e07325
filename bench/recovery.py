"""W6: kill -9 a worker process halfway, start a new one, and look in the outside ledger what was done again."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.child import Figures
from bench.ledger import Account, all_started, ended_count

DEADLINE_S: Final = 90.0
LOOK_EVERY_S: Final = 0.002

Durable = Callable[[], Mapping[str, int]]
"""How many activities of each run, by its id, are durable right now; activities of a run come one after another."""


class Stuck(Exception):
    """A W6 worker did not get where it should within the deadline."""


def recover(command: Sequence[str], ledger: Path, runs: int, steps: int, durable: Durable) -> Figures:
    """Start, kill halfway, start again; returns what it cost. `command` lacks only its last word."""
    _kill_halfway([*command, "start"], ledger, runs * steps // 2)
    before, saved = Account.read(ledger), durable()
    took = _resume([*command, "resume"])
    after = Account.read(ledger)
    missing = runs * steps - len(after.ended)
    if missing:
        raise Stuck(f"all runs are done, but {missing} activities never ended")
    return {
        "recovery_s": took,
        "executed_again": len(after.begun_twice()),
        "finished_again": len(after.ended_twice()),
        "in_flight_at_kill": len(before.in_flight()),
        "durable_done_again": len(_durable_done_again(after, saved)),
        "neither_in_flight_nor_lost": len(_unexplained(before, after, saved)),
    }


def _durable_done_again(after: Account, saved: Mapping[str, int]) -> set[str]:
    return {key for key in after.begun_twice() if _is_saved(key, saved)}


def _unexplained(before: Account, after: Account, saved: Mapping[str, int]) -> set[str]:
    """Begun again although it had neither been in flight nor ended without being durable."""
    lost = {key for key in before.ended if not _is_saved(key, saved)}
    return after.begun_twice() - before.in_flight() - lost


def _is_saved(key: str, saved: Mapping[str, int]) -> bool:
    run, number = key.rsplit(":", 1)
    return int(number) < saved.get(run, 0)


def _kill_halfway(command: Sequence[str], ledger: Path, half: int) -> None:
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + DEADLINE_S
    try:
        while ended_count(ledger) < half or not all_started(ledger):
            if worker.poll() is not None or time.monotonic() > deadline:
                raise Stuck(f"the first worker got no further than {ended_count(ledger)} of {half} activities")
            time.sleep(LOOK_EVERY_S)
    finally:
        worker.kill()
        worker.wait()


def _resume(command: Sequence[str]) -> float:
    """Seconds from the start of the new process until it says that all runs are done."""
    begun = time.monotonic()
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        output, _ = worker.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise Stuck(f"not all runs were done {DEADLINE_S:.0f} s after the new worker started") from error
    finally:
        worker.kill()
        worker.wait()
    said = [line for line in output.splitlines() if line.startswith("done ")]
    if not said:
        raise Stuck(f"the new worker ended with {worker.returncode} and did not say that all runs are done")
    return float(said[-1].removeprefix("done ")) - begun
