"""What a measuring process is told and what it answers.

Each measurement is one process of its own on a fresh database: it gets a `Task` as JSON in its only argument
and prints its figures as JSON in its last line. Only the standard library is imported here, since peers run
in environments of their own.
"""

import asyncio
import faulthandler
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

Figures = Mapping[str, float]
Measure = Callable[["Task"], Coroutine[Any, Any, Figures]]


@dataclass(frozen=True)
class Task:
    """One measurement: `runs` workflows of `steps` activities, repeated until `seconds` have passed."""

    workload: str
    url: str
    runs: int = 1
    steps: int = 1
    seconds: float = 0.0
    deadline: float = 0.0
    """After so many seconds the process says where it stands, on stderr; 0 is never."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Task":
        return cls(**json.loads(text))


def answer(measures: Mapping[str, Measure]) -> NoReturn:
    """Do the task of this process's argument, print the figures, and end without waiting for anything."""
    task = Task.from_json(sys.argv[1])
    if task.deadline:
        faulthandler.dump_traceback_later(task.deadline)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        answer_now(runner.run(measures[task.workload](task)))


def answer_now(figures: Figures) -> NoReturn:
    """Print the figures and end, whatever is under way."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
    os._exit(0)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed, as `batuta worker` does; so the bare limit has it, too."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def repeat(seconds: float, once: Callable[[], Awaitable[None]]) -> tuple[int, float]:
    """Do it at least once and until `seconds` have passed; returns how often and how long it took."""
    times = 0
    begun = time.perf_counter()
    while True:
        await once()
        times += 1
        took = time.perf_counter() - begun
        if took >= seconds:
            return times, took


async def sample(seconds: float, at_least: int, once: Callable[[], Awaitable[None]]) -> list[float]:
    """The milliseconds of each of at least `at_least` calls, going on until `seconds` have passed."""
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < at_least or time.perf_counter() < end:
        begun = time.perf_counter()
        await once()
        samples.append((time.perf_counter() - begun) * 1000)
    return samples


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of them do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def latency(samples: Sequence[float]) -> Figures:
    """The two figures of a latency."""
    return {"p50_ms": percentile(samples, 0.5), "p99_ms": percentile(samples, 0.99)}


class Countdown:
    """Tells when the last job of a burst was executed: nobody asks the database before, which would cost it time."""

    def __init__(self) -> None:
        self.left, self._done = 0, asyncio.Event()

    def begin(self, jobs: int) -> None:
        self.left = jobs
        self._done.clear()

    def one(self) -> None:
        """A job was executed."""
        self.left -= 1
        if self.left == 0:
            self._done.set()

    async def wait(self) -> None:
        await self._done.wait()
