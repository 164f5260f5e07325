# mypy: disable-error-code="import-not-found,untyped-decorator"
# DBOS is installed in the peer's environment only.
"""The worker process of W6 on DBOS: `python -m bench.peers.dbos_w6_worker URL LEDGER RUNS STEPS start|resume`."""

import asyncio
import os
import sys
import time
from pathlib import Path

from dbos import DBOS, SetWorkflowID

from bench.ledger import Ledger, ended_count
from bench.peers.dbos_app import launch

URL, LEDGER, RUNS, STEPS, MODE = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
ledger = Ledger(LEDGER)


@DBOS.step()
def step(run: str, number: int) -> None:
    ledger.begin(f"{run}:{number}")
    time.sleep(0.02)
    ledger.end(f"{run}:{number}")


@DBOS.workflow()
def steps(run: str, count: int) -> None:
    for number in range(count):
        step(run, number)


async def start(number: int) -> None:
    with SetWorkflowID(f"w6-{number}"):
        await asyncio.to_thread(DBOS.start_workflow, steps, f"w6-{number}", STEPS)


async def all_done() -> None:
    """Wait for the ledger first: asking DBOS costs it time."""
    while ended_count(LEDGER) < RUNS * STEPS:
        await asyncio.sleep(0.02)
    while len(await DBOS.list_workflows_async(status="SUCCESS", load_input=False, load_output=False)) < RUNS:
        await asyncio.sleep(0.05)


async def main() -> None:
    launch(URL, executor="w6")
    if MODE == "start":
        await asyncio.gather(*(start(number) for number in range(RUNS)))
        ledger.all_started()
    await all_done()
    sys.stdout.write(f"done {time.monotonic()}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
