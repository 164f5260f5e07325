"""A process that passes a shared gate and writes a line for each pass: `partner_worker.py limit|probe URL FILE`."""

import asyncio
import sys
import time
from pathlib import Path

from batuta import BreakerOpen, connect
from batuta.resilience import breaker, partner_limit

SECONDS = 5
LIMIT = partner_limit("shared", rate="1000/s")
BREAKER = breaker("shared", failures=1, open_for=0.2, longest_open=0.2, probes=3, probe_lease=3, on_refusal="fail")


async def limited(url: str, file: str) -> None:
    times: list[float] = []
    async with connect(url, migrate=False) as client:
        await begun()
        end = time.monotonic() + SECONDS

        async def caller() -> None:
            while time.monotonic() < end:
                async with client.gates(LIMIT):
                    times.append(time.time())

        await asyncio.gather(*(caller() for _ in range(200)))
    Path(file).write_text("\n".join(map(str, times)))


async def probing(url: str, file: str) -> None:
    """Each probe that is let in stays for ever."""
    async with connect(url, migrate=False) as client:
        await begun()

        async def caller() -> None:
            while True:
                try:
                    async with client.gates(BREAKER):
                        with open(file, "a") as log:
                            log.write("in\n")
                        await asyncio.Event().wait()
                except BreakerOpen:
                    await asyncio.sleep(0.02)

        await asyncio.gather(*(caller() for _ in range(10)))


async def begun() -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run({"limit": limited, "probe": probing}[sys.argv[1]](sys.argv[2], sys.argv[3]))
