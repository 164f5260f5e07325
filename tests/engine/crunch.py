"""Activities for processes: another process imports this module by its name."""

import os
import signal
import time
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path

from batuta import (
    CompleteLater,
    NonRetryable,
    Retry,
    RetryLater,
    activity,
    activity_info,
    batch_info,
    checkpoint,
    heartbeat,
    job,
    last_checkpoint,
    progress,
    workflow,
)
from batuta.bus import publish


@dataclass
class Numbers:
    """Typed arguments cross the pipe as JSON."""

    values: list[int]


class Refused(Exception):
    """An error of the module's own."""


def note(folder: str, what: str) -> None:
    """Leave a mark that other processes see."""
    (Path(folder) / f"{what}.{time.monotonic_ns()}").write_text(str(os.getpid()))


@activity(process=True, retry=Retry(attempts=1))
def crunch(numbers: Numbers) -> Numbers:
    info = activity_info()
    assert info.name == "crunch"
    return Numbers([number * number for number in numbers.values] + [info.attempt, int(info.key.split(":")[1])])


@activity(process=True, retry=Retry(attempts=2, first=0.01))
def tells(kind: str) -> list[str]:
    """Publishes; the first attempt fails after that."""
    if kind == "unfit":
        return [publish.sync("orders", object())]
    if kind == "long":
        return [publish.sync("orders", "x" * 3_000_000)]
    if kind == "nowhere":
        return [publish.sync("", 1)]
    ids = [publish.sync("orders", Numbers([1]), key="k"), publish.sync("orders", 2), publish.sync("orders", 3, id="3")]
    if activity_info().attempt == 1:
        raise ConnectionError("after publishing")
    return ids


@activity(process=True, retry=Retry(attempts=1))
def whoami() -> int:
    return os.getpid()


@activity(process=True, retry=Retry(attempts=1))
def refuses(kind: str) -> None:
    if kind == "never":
        raise NonRetryable("never")
    if kind == "exits":
        raise SystemExit(3)
    raise Refused(kind)


class Late(Decimal, Enum):
    """A type that an error holds."""

    FEE = "0.10"


@activity(process=True, retry=Retry(attempts=2, first=60, never=[LookupError]))
def is_throttled(kind: str) -> str:
    """Says when it is to be tried again; or raises an error of a module that the worker has not loaded."""
    if kind == "late":
        import wave

        raise wave.Error(str(activity_info().attempt)) from KeyError(Late.FEE)
    if kind == "key":
        raise KeyError(Late.FEE, activity_info().attempt)
    if activity_info().attempt == 1:
        raise RetryLater(0.01)
    return "done"


@activity(process=True, retry=Retry(attempts=2, first=0.01))
def dies(folder: str, how: str) -> str:
    note(folder, "died")
    if activity_info().attempt == 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(7)
    return "alive"


@activity(process=True, retry=Retry(attempts=2, first=0.01))
def copies(folder: str) -> list[int]:
    done = activity_info().details or 0
    for page in range(done, 3):
        heartbeat(page + 1)
        if activity_info().attempt == 1 and page == 1:
            raise ConnectionError("reset")
    return [done, activity_info().details]


@activity(process=True, retry=Retry(attempts=1))
def spins(folder: str, name: str) -> str:
    """Busy until a file says that it may end."""
    note(folder, name)
    until = Path(folder) / f"{name}-may-end"
    while not until.exists():
        time.sleep(0.005)
    return name


@activity(process=True, retry=Retry(attempts=1))
def asks(folder: str) -> str:
    (Path(folder) / "token").write_text(activity_info().token)
    raise CompleteLater


@activity(process=True, retry=Retry(attempts=1))
def lies() -> int:
    return object()  # type: ignore[return-value]  # that is the point


@workflow
async def crunching(numbers: Numbers) -> Numbers:
    return await crunch(numbers)


@job(process=True, retry=Retry(attempts=2, first=0.01))
def copies_rows() -> int:
    """A job that goes on from its checkpoint, though its process died."""
    at = last_checkpoint(int, 0)
    if not at:
        progress("half")
        checkpoint.sync(7)
        assert last_checkpoint(int) == 7
        os.kill(os.getpid(), signal.SIGKILL)
    return at


@job(process=True, retry=Retry(attempts=1))
def sums_up() -> list[int]:
    found = batch_info.sync()
    return [found.total, found.completed]


@activity(process=True, retry=Retry(attempts=1))
def begets(folder: str, how: str) -> str:
    """Begins a process of its own, which inherits the pipe, and dies or hangs."""
    if os.fork() == 0:
        note(folder, "begotten")
        time.sleep(3600)
    while not any(mark.read_text() for mark in Path(folder).glob("begotten.*")):
        time.sleep(0.005)
    note(folder, "begets")
    if how == "dies":
        os._exit(7)
    time.sleep(3600)
    return how
