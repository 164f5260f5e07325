"""Worker processes: started, watched, stopped, killed, and all of them ended when the tester ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from chaos.ledger import LedgerClient
from chaos.worker import Job

ROOT = Path(__file__).parents[1]
LOOK_EVERY_S = 0.01


class TooSlow(Exception):
    """Something did not happen within its deadline."""


async def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Look until the condition holds. Raises TooSlow."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TooSlow(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(LOOK_EVERY_S)


class WorkerProcess:
    """One process of `chaos.worker`."""

    def __init__(self, job: Job, env: Mapping[str, str], log: Path, under: Sequence[str] = ()) -> None:
        self.job = job
        self._is_trapped = any(word in env.get("BATUTA_FAILPOINT", "") for word in (":stop", ":sleep"))
        self._pauses = 0
        self._log = log
        self._out = log.with_suffix(".out")
        with log.open("ab") as errors, self._out.open("ab") as output:
            self._process = subprocess.Popen(
                [*under, sys.executable, "-m", "chaos.worker", msgspec.json.encode(job).decode()],
                cwd=ROOT,
                env=_environment() | dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """How it ended; -9 when it was killed; None while it lives."""
        return self._process.poll()

    @property
    def deaths(self) -> int:
        """How often others may have taken it for dead: it was killed, or stood still."""
        return (self.code == -signal.SIGKILL) + self._is_trapped + self._pauses

    def log(self, lines: int = 12) -> str:
        """The last lines it logged."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def says(self, word: str) -> bool:
        return word in self._out.read_text().split()

    async def ended(self, seconds: float) -> int:
        """Its exit code, within the deadline."""
        await until(lambda: self.code is not None, seconds, f"the end of worker {self.pid} ({self._log.name})")
        return int(self._process.returncode)

    async def ready_or_ended(self, seconds: float = 60.0) -> None:
        await until(lambda: self.says("ready") or self.code is not None, seconds, f"worker {self.pid} ready")

    async def ready(self, seconds: float = 60.0) -> None:
        await self.ready_or_ended(seconds)
        if not self.says("ready"):
            raise TooSlow(f"worker {self.pid} ended with {self.code} before it was ready:\n{self.log()}")

    async def stopped_or_ended(self, seconds: float) -> bool:
        """Whether it stopped itself; False when it ended."""
        await until(lambda: self.is_stopped() or self.code is not None, seconds, f"worker {self.pid} at its failpoint")
        return self.code is None

    def is_stopped(self) -> bool:
        """Whether a signal holds it."""
        found = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) if self.code is None else None
        return found is not None and found.si_pid == self.pid

    def pause(self) -> None:
        self._pauses += 1
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def set_clock(self, seconds: float) -> None:
        """Set the store's clock, as it sees it, by an hour forward or back."""
        self._process.send_signal(signal.SIGUSR1 if seconds > 0 else signal.SIGUSR2)

    def cpu_seconds(self) -> float:
        """What it has used."""
        used = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")

    def terminate(self) -> None:
        self._process.terminate()

    async def stop(self, seconds: float = 40.0) -> int:
        """A graceful stop. It listens to signals when it is ready, and would die of them before."""
        await self.ready_or_ended()
        self.terminate()
        return await self.ended(seconds)

    def kill(self) -> None:
        """End it now, stopped or not."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("BATUTA_")} | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])
    }


class Crew:
    """All processes of one tester, the ledger among them. A context manager: nobody outlives it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.books = directory / "ledger"
        self.books.mkdir()
        self._workers: list[WorkerProcess] = []
        self._ledger = subprocess.Popen(
            [sys.executable, "-m", "chaos.ledger", str(self.books)],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._ledger.stdout is not None
        self.port = int(self._ledger.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()
        assert self._ledger.stdin is not None
        self._ledger.stdin.close()
        try:
            self._ledger.wait(5)
        except subprocess.TimeoutExpired:
            self._ledger.kill()
            self._ledger.wait()
        assert self._ledger.stdout is not None
        self._ledger.stdout.close()

    def client(self, case: str) -> LedgerClient:
        return LedgerClient(self.port, case)

    def worker(self, job: Job, env: Mapping[str, str], under: Sequence[str] = ()) -> WorkerProcess:
        number = len(self._workers) + 1
        process = WorkerProcess(job, env, self.directory / f"{job.case}-{number}.log", under)
        self._workers.append(process)
        return process
