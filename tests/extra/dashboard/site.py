"""A server with its dashboard, and workers, as processes of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import Request, urlopen

APP = "tests.extra.dashboard.shop:APP"
PATIENCE = 30.0


class Process:
    """`python -m ...` in the background, with its output in a file."""

    def __init__(self, log: Path, *words: str, **env: str) -> None:
        self._log = log
        with log.open("wb") as output:
            command = [sys.executable, "-m", *words]
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, "PYTHONUNBUFFERED": "1", **env}
            )

    def wait_for(self, pattern: str) -> re.Match[str]:
        """What its output says."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._process.poll() is None:
            if hit := re.search(pattern, self._log.read_text()):
                return hit
            time.sleep(0.05)
        raise AssertionError(f"it never said {pattern!r}:\n{self._log.read_text()}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()


class Site:
    """A database, and what runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"sqlite:///{folder}/shop.db"
        self.address = ""
        self._processes: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.end()

    def begin(self, *words: str) -> Process:
        made = Process(self.folder / f"{len(self._processes)}-{words[0]}.log", "batuta", *words, "--url", self.url)
        self._processes.append(made)
        return made

    def serve_mounted(self, app: str, path: str) -> None:
        """An application of a user, with the dashboard below a path of it."""
        made = Process(self.folder / "app.log", "uvicorn", app, "--port", "0", BATUTA_DATABASE_URL=self.url)
        self._processes.append(made)
        self.address = made.wait_for(r"http://127\.0\.0\.1:\d+").group() + path

    def serve_pixdict(self, *words: str) -> None:
        """`pixdict dev`, with its files in this folder."""
        told = ("dev", "--port", "0", "--folder", str(self.folder / "pixdict"), *words)
        made = Process(self.folder / "pixdict.log", "pixdict", *told)
        self._processes.append(made)
        self.address = made.wait_for(r"dashboard +(http://127\.0\.0\.1:\d+)").group(1)
        made.wait_for("Ctrl-C ends it")

    def serve(self, *words: str) -> None:
        """`dev` (with a worker) or `server` (without), on a port that is free."""
        self.address = self.begin(*words, "--port", "0").wait_for(r"http://127\.0\.0\.1:\d+").group()

    def run(self, *words: str) -> str:
        """A command that ends; what it printed."""
        command = [sys.executable, "-m", "batuta", *words, "--url", self.url]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout

    def ask(self, path: str, body: dict[str, Any] | None = None, method: str | None = None) -> Any:
        """Of the REST API, without a browser. A path with a slash at its start is one of the server."""
        path = path if path.startswith("/") else f"/api/v1/{path}"
        headers = {"Accept": "application/json"}
        if body is not None:
            token = self.ask("session")["csrf_token"]
            headers |= {"Content-Type": "application/json", "X-CSRF-Token": token}
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(f"{self.address}{path}", data, headers, method=method), timeout=PATIENCE) as answer:
            return json.load(answer)

    def start(self, name: str, *args: Any, **more: Any) -> str:
        """Start a run; its run id."""
        return str(self.ask("runs", {"name": name, "input": list(args), **more})["run_id"])

    def wait_for_state(self, run_id: str, *states: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while (state := self.ask(f"runs/{run_id}")["state"]) not in states:
            assert time.monotonic() < deadline, f"run {run_id} is {state}, not {' or '.join(states)}"
            time.sleep(0.05)
