"""Workers of flows in processes of their own, which tests kill."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


@asynccontextmanager
async def worker_process(url: str, app: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker, killed at the end of the block."""
    command = [sys.executable, "-m", "batuta", "worker", "--app", app, "--url", url]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=ENVIRONMENT, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()
