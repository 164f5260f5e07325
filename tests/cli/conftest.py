"""The command line as a function, and as processes that are ended by their own pid."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from batuta import connect
from batuta.cli import root
from batuta.cli.common.app_loading import load_app

ROOT = Path(__file__).parents[2]
SHOP = "tests.cli.shop"
DEADLINE = 40.0

Cli = Callable[..., Result]
Spawn = Callable[..., subprocess.Popen[str]]
Work = Callable[..., None]


@pytest.fixture
def cli(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call a command in this process, on a SQLite file of the test's own."""
    monkeypatch.setenv("BATUTA_DATABASE_URL", sqlite_url)
    monkeypatch.delenv("BATUTA_NAMESPACE", raising=False)

    def call(*words: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(root, [*words], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A command sets up logging for its process; here that is the tests'."""
    handlers, level = logging.root.handlers[:], logging.root.level
    last = [logging.lastResort] if logging.lastResort is not None else []
    filters = [(handler, handler.filters[:]) for handler in (*handlers, *last)]
    yield
    logging.root.handlers[:] = handlers
    for handler, before in filters:
        handler.filters[:] = before
    logging.root.setLevel(level)


@pytest.fixture
def spawn(sqlite_url: str, tmp_path: Path) -> Iterator[Spawn]:
    """Start a command as a process; what is still there at the end is killed."""
    started: list[subprocess.Popen[str]] = []
    logs = tmp_path / "stderr.log"

    def call(*words: str, cwd: Path = ROOT, **more: str) -> subprocess.Popen[str]:
        env = {**os.environ, "BATUTA_DATABASE_URL": sqlite_url, "SHOP_LEDGER": str(tmp_path / "ledger"), **more}
        with logs.open("a") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "batuta", *words],
                cwd=cwd,
                env=env,
                text=True,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def work(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    """Have a worker in a thread run an app. It takes a tenth of the time of a process, as `spawn` starts one."""
    monkeypatch.setenv("SHOP_LEDGER", str(tmp_path / "ledger"))
    stops: list[Callable[[], None]] = []

    def begin(target: str = SHOP) -> None:
        loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

        async def run() -> None:
            async with AsyncExitStack() as stack:
                app = await load_app(target, stack)
                client = await stack.enter_async_context(connect(sqlite_url))
                await stack.enter_async_context(client.worker(**structs.asdict(app), grace=0.1))
                ready.set()
                await stop.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=[run()], daemon=True)
        thread.start()
        assert ready.wait(DEADLINE)

        def end() -> None:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()

        stops.append(end)

    yield begin
    for end in stops:
        end()


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Until it is so, or the test has waited long enough."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for: {what}"
        time.sleep(0.02)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
