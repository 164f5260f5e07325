"""What is measured, how much of it, and in which order."""

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from bench.places import STORES, StoreKind

System = Literal["limit", "batuta", "dbos", "procrastinate", "oban"]
SYSTEMS: Final[tuple[System, ...]] = get_args(System)

ROUNDS: Final = 5
DBOS_MINIMUM: Final = 1


@dataclass(frozen=True)
class Part:
    """One system on one workload. `measure` names what the measuring process does, when that is not the workload."""

    workload: str
    system: System
    rounds: int = ROUNDS
    runs: int = 1
    steps: int = 1
    seconds: float = 0.0
    measure: str = ""
    also: str = ""
    """A second workload that has the same figures, or is measured by the same process."""
    stores: tuple[StoreKind, ...] = STORES
    finished_runs: int = 0
    """How many finished runs the database holds before."""
    patience: float = 0.0
    """Seconds that it takes by its nature: more than others have."""


Group = tuple[Part, ...]
"""Parts that are compared with each other: in each round, on each store, they run one right after another."""


def plan(full: bool) -> list[Group]:
    """The groups in order: what is held against something else in several rounds first, what is measured once last.

    `full` is for the long ones: all repetitions of the peer, and the large sizes.
    """
    return [
        _latency(full),
        _throughput(full),
        _pruning(full),
        _sleep(full),
        _recovery(full),
        *_jobs(full),
        *_kin(),
        _around(full),
        *_kit(),
        _long(full),
        *_big(),
        _health(full),
        *_once(),
    ]


def _latency(full: bool) -> Group:
    """W1 and W3 of a system are one process; ours has the bare commit's turns in it, too."""
    return (
        Part("W1", "batuta", measure="beside", also="W3", runs=200, steps=1000, seconds=1.2),
        Part("W1-once", "batuta", steps=500, seconds=1.5, rounds=ROUNDS if full else 3),
        Part("W1", "dbos", measure="one_by_one", also="W3", runs=200 if full else 100, steps=1000 if full else 200),
    )


def _throughput(full: bool) -> Group:
    """W2 in an empty database is also what W2 among finished runs is held against."""
    ours = Part("W2", "batuta", runs=1000, steps=5, seconds=1.5, also="W2-empty")
    many = Part("W2-10000", "batuta", measure="W2", runs=10_000, steps=5, rounds=ROUNDS if full else 3)
    group = (
        Part("W2", "limit", seconds=1.0, also="W2-10000"),
        ours,
        replace(many, workload="W2-finished", runs=1000, seconds=1.5, finished_runs=finished(full)),
        many,
        Part("W2", "dbos", runs=1000 if full else 96, steps=5),
    )
    return (*group, replace(many, system="dbos", rounds=DBOS_MINIMUM)) if full else group


def finished(full: bool) -> int:
    """How many finished runs there are."""
    return 1_000_000 if full else 100_000


def _pruning(full: bool) -> Group:
    """For some seconds, or with `full` until all are gone. Of those that W2 ran among: this is their end."""
    seconds, patience = (0.0, 7_200.0) if full else (6.0, 0.0)
    return (Part("W14", "batuta", 1, 1000, 5, seconds, finished_runs=finished(full), patience=patience),)


def _sleep(full: bool) -> Group:
    return (
        Part("W4", "batuta", runs=500),
        Part("W4", "dbos", runs=500, rounds=ROUNDS if full else DBOS_MINIMUM),
    )


def _recovery(full: bool) -> Group:
    return (
        Part("W6", "batuta", runs=200, steps=20),
        Part("W6", "dbos", runs=200, steps=20, rounds=ROUNDS if full else DBOS_MINIMUM),
    )


def _around(full: bool) -> Group:
    around = Part("W2-around", "batuta", steps=5, seconds=10.0, rounds=3 if full else 2)
    served = Part("W2-served", "batuta", steps=5, seconds=10.0, rounds=2)
    once = Part("idempotent", "batuta", seconds=4.0, rounds=1)
    bridge = Part("bridge", "batuta", seconds=16.0, rounds=1, stores=("sqlite",))
    bus = Part("bus", "batuta", runs=400, rounds=1)
    cache = Part("cache", "batuta", seconds=4.0, rounds=1, stores=("sqlite",))
    keys = Part("keys", "batuta", seconds=24.0, rounds=1, stores=("pg",))
    gates = Part("W2-gates", "batuta", steps=5, seconds=4.0, rounds=1)
    parts = (around, served, once, gates, bridge, keys, bus, cache)
    return (*parts, Part("W2-codec", "batuta", steps=5, seconds=4.0, rounds=1)) if full else parts


def _big() -> list[Group]:
    """Each once: they are long, and large enough to be steady."""
    asleep = Part("W5", "batuta", runs=100_000, rounds=1)
    shared = [Part(f"W8-{count}", "batuta", runs=3_000, steps=5, rounds=1, stores=("pg",)) for count in (1, 2, 4)]
    return [(asleep,), tuple(shared)]


def _kin() -> list[Group]:
    return [
        (Part("W12", "batuta", runs=10_000, rounds=2),),
        (Part("W13", "batuta", runs=1_000, steps=10, rounds=1),),
    ]


def _jobs(full: bool) -> list[Group]:
    """Where a peer is slow it gets fewer jobs: its rate is what counts, and does not depend on how many there are."""
    rounds = ROUNDS if full else 3
    fair = Part("W10", "batuta", runs=20_000, rounds=rounds)
    return [
        (
            Part("W9", "batuta", runs=10_000, rounds=rounds),
            Part("W9", "procrastinate", runs=10_000 if full else 1_000, rounds=rounds, stores=("pg",)),
            Part("W9", "oban", runs=10_000 if full else 3_000, rounds=rounds, stores=("pg",)),
            Part("W11", "batuta", runs=10_000, rounds=rounds, stores=("pg",)),
        ),
        (fair, replace(fair, workload="W10-busy", rounds=1)) if full else (fair,),
    ]


def _health(full: bool) -> Group:
    """Normally five minutes' worth of jobs, quickly. With `full` the minutes pass: `steps` times the seconds before."""
    seconds, runs, steps = (10.0, 0, 30) if full else (6.0, 60_000, 1)
    patience = seconds * steps
    return (Part("health", "batuta", 1, runs, steps, seconds, stores=("pg",), patience=patience),)


def _once() -> list[Group]:
    """Each once: they are long by their nature, the last one for the rate that it keeps."""
    return [
        (Part("slots", "batuta", runs=1_000, rounds=1),),
        (Part("letters", "batuta", runs=100_000, rounds=1, patience=120.0),),
        (Part("reprocess", "batuta", runs=10_000, rounds=1, patience=60.0),),
    ]


def _kit() -> list[Group]:
    """The test kit. The sweep measures both of its stores by itself."""
    return [
        (Part("K1", "batuta", rounds=1, stores=("sqlite",)),),
        (Part("K2", "batuta", rounds=1, stores=("sqlite",)),),
        (Part("K3", "batuta", rounds=1, stores=("sqlite",)),),
    ]


def _long(full: bool) -> Group:
    return (Part("long", "batuta", steps=10_000, rounds=3 if full else 1),)
