"""`python -m bench [--check] [--full] [--only W1,W2] [--systems batuta,limit]`: measure, write latest.json, show."""

import argparse
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Final, TypeVar

from bench import results as reports
from bench.bars import read_bars
from bench.child import Figures
from bench.environments import missing, version
from bench.finished import fill
from bench.imports import import_time
from bench.places import STORES, Places, StoreKind
from bench.plan import ROUNDS, SYSTEMS, Group, Part, System, plan
from bench.recovery import Stuck
from bench.results import Results
from bench.systems import MeasurementFailed, measure

T = TypeVar("T", bound=str)

LIMIT_S: Final = 360.0
"""A run that is not FULL repeats nothing after this: what is measured once takes the rest of ten minutes."""

BUSY: Final = 0.5
PEERS: Final[tuple[System, ...]] = ("dbos", "procrastinate", "oban")


class Bench:
    """Measures group after group; within a group the systems take turns."""

    def __init__(self, places: Places, options: argparse.Namespace) -> None:
        self.results = Results()
        self._places = places
        self._systems = options.systems
        self._stores: list[StoreKind] = options.stores
        self._deadline = None if options.full else time.monotonic() + LIMIT_S
        self._filled: dict[tuple[int, StoreKind], str] = {}
        """Databases that hold so many finished runs: they serve all rounds, and whoever asks for as many."""

    def run(self, group: Group) -> None:
        self._fill(group)
        rounds = max(part.rounds for part in group)
        for number in range(rounds):
            for store in self._stores:
                for part in group:
                    if self._wanted(part, store, number, rounds):
                        self._measure(part, store)

    def _measure(self, part: Part, store: StoreKind) -> None:
        name = f"{part.system}-{store}"
        kept = self._filled.get((part.finished_runs, store))
        url = kept or self._places.fresh(store)
        self._places.settle()
        begun = time.monotonic()
        try:
            figures = measure(part, self._places, url)
        except (MeasurementFailed, Stuck) as error:
            print(f"  {part.workload:<12} {name:<15} FAILED: {error}", flush=True)
            self.results.fail(part.workload, name, error)
            return
        took = f"  ({time.monotonic() - begun:.1f} s)"
        for workload, system, own in sorted_out(part, figures):
            self.results.add(workload, f"{system}-{store}", own)
            shown = "  ".join(f"{figure} {value:,.4g}" for figure, value in own.items())
            print(f"  {workload:<12} {system + '-' + store:<15} {shown}{took}", flush=True)
            took = ""  # said once for all that one process has measured
        if not kept:
            self._places.let_go(url)

    def _wanted(self, part: Part, store: StoreKind, number: int, rounds: int) -> bool:
        """Who has fewer rounds than others of the group has them spread over theirs."""
        due = number * part.rounds % rounds < part.rounds
        there = part.system in self._systems and store in part.stores
        return due and there and not self._late(part, store)

    def _late(self, part: Part, store: StoreKind) -> bool:
        """When time is up, what was measured at least once is not measured again."""
        if self._deadline is None or time.monotonic() < self._deadline:
            return False
        return self.results.count(part.workload, f"{part.system}-{store}") > 0

    def _fill(self, group: Group) -> None:
        """Make the databases with finished runs that the group needs; this is not measured."""
        for part in group:
            for store in self._stores if part.finished_runs and part.system in self._systems else ():
                if (part.finished_runs, store) not in self._filled:
                    url = self._filled[part.finished_runs, store] = self._places.fresh(store)
                    took = fill(url, part.finished_runs)
                    print(f"  {part.finished_runs:,} finished runs in {store} ({took:.1f} s)", flush=True)


def sorted_out(part: Part, figures: Figures) -> Iterator[tuple[str, str, Figures]]:
    """Whose they are. A process that measures several things says it in the names: "W3/limit/p50_ms"."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for name, value in figures.items():
        *owner, figure = name.split("/")
        workloads = owner[:1] or filter(None, (part.workload, part.also))
        for workload in workloads:
            found.setdefault((workload, owner[1] if owner else part.system), {})[figure] = value
    for (workload, system), own in found.items():
        yield workload, system, own


def machine(places: Places, systems: list[System]) -> dict[str, object]:
    """What the figures depend on, and nothing that names this machine."""
    here: dict[str, object] = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "postgresql": places.postgres_setting("server_version"),
        "fsync": places.postgres_setting("fsync"),
        "synchronous_commit": places.postgres_setting("synchronous_commit"),
        "sqlite": sqlite3.sqlite_version,
    }
    return here | {system: version(system) for system in systems if system in PEERS}


def load_before() -> float:
    """Others on the machine make every figure worse, and not all by the same factor: say so."""
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"the machine is busy (load {load:.1f} before anything was measured): do not trust these figures")
    return round(load, 2)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure batuta, peers and the bare limits.")
    parser.add_argument("--check", action="store_true", help="compare with bars.toml; exit 1 on a miss")
    parser.add_argument("--full", action="store_true", help="all repetitions of the peer and the large sizes")
    parser.add_argument("--only", default="", help="workloads, such as W1,W2 (latest.json is not written)")
    parser.add_argument("--stores", default="pg,sqlite", help="which stores (latest.json is not written)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="which systems (latest.json is not written)")
    options = parser.parse_args()
    options.systems = chosen(parser, "--systems", options.systems, SYSTEMS)
    options.stores = chosen(parser, "--stores", options.stores, STORES)
    options.only = set(chosen(parser, "--only", options.only, workloads(options.full))) if options.only else set()
    return options


def chosen(parser: argparse.ArgumentParser, option: str, given: str, known: Iterable[T]) -> list[T]:
    """Those of the known ones that are named, in their order. A name that nobody has ends the program."""
    known = list(known)
    names = set(given.split(","))
    if unknown := names.difference(map(str, known)):
        parser.error(f"{option}: {', '.join(sorted(unknown))}: not one of {', '.join(map(str, known))}")
    return [one for one in known if one in names]


def workloads(full: bool) -> list[str]:
    """All that can be measured."""
    parts = [part for group in plan(full) for part in group]
    return [*dict.fromkeys(filter(None, (name for part in parts for name in (part.workload, part.also)))), "import"]


def without_missing(systems: list[System]) -> list[System]:
    """Those that can be measured here; of the others it is said why not."""
    for system in systems:
        if why := missing(system):
            print(f"{system} is not measured: {why}", flush=True)
    return [system for system in systems if not missing(system)]


def main() -> int:
    options = arguments()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is started here has its bytecode, as for every user
    only = options.only
    whole = not only and len(options.systems) == len(SYSTEMS) and len(options.stores) == len(STORES)
    options.systems = without_missing(options.systems)
    begun = time.monotonic()
    load = load_before()
    with closing(Places()) as places:
        bench = Bench(places, options)
        for group in plan(options.full):
            if parts := tuple(part for part in group if not only or only & {part.workload, part.also}):
                bench.run(parts)
        if not only or "import" in only:
            for _ in range(ROUNDS + 1):
                bench.results.add("import", "batuta", import_time())
        here = machine(places, options.systems) | {"load_before": load}
    bars = read_bars()
    print(f"\n{reports.table(bench.results)}\n\n{here}\nmeasured in {time.monotonic() - begun:.0f} s")
    if whole:
        reports.write(bench.results, here, bars)
    return check(bench.results, only) if options.check else 0


def check(results: Results, only: set[str]) -> int:
    bars = [bar for bar in read_bars() if not only or bar.value.split("/")[0] in only]
    bars = [bar for bar in bars if not any(missing(peer) and f"/{peer}-" in bar.over for peer in PEERS)]
    text, all_hold = reports.checked(results, bars)
    print(f"\n{text}")
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
