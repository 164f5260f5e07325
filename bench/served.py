"""W2-served: W2 with `batuta server` beside it, idle and with one stream of events open, against the same while that
process is stopped (SIGSTOP), in turns."""

import asyncio
import os
import re
import signal
import statistics
import sys
import time
from typing import Final

from batuta import connect
from bench.around import BURST, burst
from bench.batuta_run import WARM_UP_RUNS, step, steps
from bench.child import Figures, Task

LEAST: Final = 8
"""Pairs of bursts."""


async def served(task: Task) -> Figures:
    """Each burst with the server is compared with one without it, which comes before it in one round and after it in
    the next."""
    spent: dict[bool, list[float]] = {True: [], False: []}
    ratios: list[float] = []
    async with connect(task.url) as client, client.worker(workflows=[steps], activities=[step]):
        server = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "batuta", "server", "--url", task.url, "--port", "0", stdout=asyncio.subprocess.PIPE
        )
        try:
            listening = asyncio.create_task(_listen(await _port(server)))
            await burst(client, WARM_UP_RUNS, task.steps)
            end = time.perf_counter() + task.seconds
            while time.perf_counter() < end or len(ratios) < LEAST:
                for beside in (True, False) if len(ratios) % 2 else (False, True):
                    server.send_signal(signal.SIGCONT if beside else signal.SIGSTOP)
                    spent[beside].append(await burst(client, BURST, task.steps))
                ratios.append(spent[False][-1] / spent[True][-1])
            assert not listening.done(), "the stream has ended"
            listening.cancel()
        finally:
            server.send_signal(signal.SIGCONT)
            server.terminate()
            await server.wait()
    rates = {name: BURST * task.steps / statistics.median(spent[which]) for name, which in _NAMES.items()}
    return rates | {"served_over_alone": statistics.median(ratios)}


_NAMES: Final = {"served_steps_per_s": True, "alone_steps_per_s": False}


async def _port(server: asyncio.subprocess.Process) -> int:
    assert server.stdout is not None
    while line := (await server.stdout.readline()).decode():
        if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
            return int(found[1])
    raise RuntimeError(f"the server has ended: {os.waitstatus_to_exitcode(server.returncode or 0)}")


async def _listen(port: int) -> None:
    """One stream of events, read as it comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    assert b"200" in await reader.readline()
    while await reader.read(65_536):
        pass
