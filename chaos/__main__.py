"""`python -m chaos`: every scenario, then a table. Exits 1 when anything was lost, committed twice or otherwise wrong.

A few minutes; `--long` takes every occurrence of every failpoint, and more of everything else. A violation keeps the
directory with the logs of all workers and the ledger, and names it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chaos.campaign import Scenario, scenarios
from chaos.places import KINDS, Places
from chaos.process import Crew
from chaos.report import Tally, full
from chaos.stage import Stage

JOBS = 6
SHOWN = 10
SEED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _parser().parse_args(arguments)
    kinds = [kind for kind in KINDS if options.store in (None, kind)]
    chosen = {
        name: scenario
        for name, scenario in scenarios(kinds).items()
        if not options.only or any(word in name for word in options.only)
    }
    if options.list or not chosen:
        print("\n".join(scenarios(kinds)))
        return 0 if options.list else 2
    directory = Path(tempfile.mkdtemp(prefix="batuta-chaos-"))
    tallies = asyncio.run(_run(chosen, directory, options))
    print(f"\n{full(tallies)}")
    if all(tally.holds for tally in tallies):
        shutil.rmtree(directory)
        print("\nNothing was lost, nothing was committed twice.")
        return 0
    print(f"\nThe logs of all workers and the ledger are in {directory}")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--long", action="store_true", help="everything, which takes an hour or so")
    parser.add_argument("--only", action="append", metavar="WORD", help="scenarios with this in their name")
    parser.add_argument("--store", choices=KINDS, help="on this store alone")
    parser.add_argument("--seed", type=int, default=SEED, help="what chance grows from")
    parser.add_argument("--jobs", type=int, default=JOBS, help="cases at once")
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    return parser


async def _run(chosen: dict[str, Scenario], directory: Path, options: argparse.Namespace) -> list[Tally]:
    tallies = []
    with Crew(directory) as crew, Places(directory) as places:
        for name, scenario in chosen.items():
            stage = Stage(crew, places, options.jobs, options.long, random.Random(f"{options.seed} {name}"))
            tally = Tally(name)
            tallies.append(tally)
            try:
                await scenario(stage, tally)
            except Exception as error:  # noqa: BLE001 - one scenario must not end the campaign
                tally.violate("the scenario itself", f"{type(error).__name__}: {error}")
            tally.close()
            print(f"{'holds' if tally.holds else 'VIOLATED':<9} {tally.seconds:5.0f} s  {name}", flush=True)
            for violation in tally.violations[:SHOWN]:  # all of them are in the report
                print(f"  {violation}", flush=True)
    return tallies


if __name__ == "__main__":
    sys.exit(main())
