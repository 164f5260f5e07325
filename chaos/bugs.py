"""Errors that nobody expects, at every verb of the store that a worker and its clients use."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime

from batuta import Schedule, every
from batuta.clock import SECOND
from chaos import errands, sweep
from chaos.case import PATIENCE_S, Case, reference_begin, reference_tail
from chaos.faults import FOREVER
from chaos.places import StoreKind
from chaos.process import TooSlow, WorkerProcess
from chaos.report import Tally
from chaos.stage import Stage, finish
from chaos.sweep import CANCEL

WRITES = ("claim", "commit", "beat", "send", "start_many", "end_unbegun", "fire", "hand_over", "retire")
"""May have been done when they fail."""
OFTEN = ("claim", "commit", "beat")
NOT_OURS = ("open", "close")
"""Not asked by a worker at work. An error there is told to the program."""
TOGETHER = 4
"""Errors in a row: more than a batch is tried before it is asked whose fault it is."""
MINE = "mine"
TICKING_S = 2.2


async def _prepare(case: Case) -> list[str]:
    """What a worker finds, and a schedule with a few slots. The ids of all that must end."""
    await sweep.prepare(case)
    until = datetime.fromtimestamp((await case.store.now()) / SECOND + TICKING_S, UTC)
    await case.client.schedules.create(Schedule("clock", every(1.0), "slot", "clock", overlap="allow", end_at=until))
    return [*sweep.ids(), *errands.ids_of(MINE)]


def _worker(case: Case, faults: str = "") -> WorkerProcess:
    return case.worker(begin=reference_begin(), cancel=CANCEL, errands=MINE, faults=faults)


# -- which verbs there are


async def count_verbs(stage: Stage, kind: StoreKind, tally: Tally) -> tuple[Counter[str], Counter[str]]:
    """How often each verb is asked for until a worker is ready, and afterwards, when nothing goes wrong."""
    case = Case(f"{kind}-bugs-dry", await stage.places.fresh(kind), stage.crew)
    path = stage.crew.directory / f"{kind}-bugs-dry.verbs"
    async with case:
        wanted = await _prepare(case)
        worker = case.worker(
            begin=reference_begin(), cancel=CANCEL, errands=MINE, tail=reference_tail(), leave=True, verbs=str(path)
        )
        if code := await worker.ended(PATIENCE_S):
            raise TooSlow(f"a worker that nobody disturbed ended with {code}:\n{worker.log()}")
        after = case.worker()
        await case.settled(wanted)
        await after.stop()
        await finish(case, tally)
    verbs = path.read_text().split()
    ready = verbs.index("ready")
    return Counter(verbs[:ready]), Counter(verbs[ready + 1 :])


def early(before: Counter[str]) -> list[str]:
    """An error at each verb that the start of a worker asks for."""
    return [f"{verb}:before:1:BUG" for verb in before if verb not in NOT_OURS]


def passing(before: Counter[str], after: Counter[str], chance: random.Random, *, long: bool) -> list[str]:
    """Errors that pass, at every verb that a worker or its clients ask for: one, and some in a row."""

    def nths(verb: str, count: int) -> list[int]:
        """Some of the first half: the second may not come, for each run is another one."""
        places = range(before[verb] + 1, before[verb] + 1 + (after[verb] + 1) // 2)
        return sorted(chance.sample(places, min(count, len(places))))

    some = 12 if long else 1
    made: list[str] = []
    for verb in sorted(set(after) - {*NOT_OURS}):
        count = 3 * some if verb in OFTEN else some
        made += [f"{verb}:before:{nth}:BUG" for nth in nths(verb, count)]
        made += [f"{verb}:before:{nth}:BUG:{TOGETHER}" for nth in nths(verb, 1) if after[verb] >= TOGETHER]
        if verb in WRITES:
            made += [f"{verb}:after:{nth}:BUG" for nth in nths(verb, count)]
    return made


def lasting(*, long: bool) -> list[str]:
    """Errors that stay, at what a worker cannot do without."""
    nths = (1, 2, 3, 5, 8, 13, 21) if long else (2, 9)
    steps = ("before", "after")
    return [f"{verb}:{step}:{nth}:BUG:{FOREVER}" for verb in ("commit", "beat") for step in steps for nth in nths]


# -- what becomes of them


def _case(stage: Stage, kind: StoreKind, plan: str) -> str:
    return f"{kind}-bug-{stage.number()}-{plan.replace(':', '-')}"


def _met(worker: WorkerProcess, plan: str, tally: Tally) -> None:
    if not worker.says("fault"):
        tally.unreached[plan.partition(":")[0]] += 1


async def begins(stage: Stage, kind: StoreKind, plan: str, tally: Tally) -> None:
    """The worker that meets one as it begins ends, or begins all the same; its supervisor begins it again."""
    async with Case(_case(stage, kind, plan), await stage.places.fresh(kind), stage.crew) as case:
        wanted = await _prepare(case)
        broken = case.worker(faults=plan)
        await broken.ready_or_ended(PATIENCE_S)
        _met(broken, plan, tally)
        case.processes.remove(broken)  # which may have ended
        if broken.code is None and (code := await broken.stop()) != 0:
            tally.violate(case.name, f"the worker began, and ended with {code}:\n{broken.log()}")
        sound = _worker(case)
        await case.settled(wanted, CANCEL)
        if (code := await sound.stop()) != 0:
            tally.violate(case.name, f"a worker did not survive: {code}\n{sound.log()}")
        await finish(case, tally)


async def passes(stage: Stage, kind: StoreKind, plan: str, tally: Tally) -> None:
    """The worker that meets them finishes everything by itself: nobody died, and nothing is executed again."""
    async with Case(_case(stage, kind, plan), await stage.places.fresh(kind), stage.crew) as case:
        wanted = await _prepare(case)
        worker = _worker(case, faults=plan)
        await case.settled(wanted, CANCEL)
        code = await worker.stop()
        _met(worker, plan, tally)
        if code != 0:
            tally.violate(case.name, f"the worker did not survive: {code}\n{worker.log()}")
        await finish(case, tally)


async def lasts(stage: Stage, kind: StoreKind, plan: str, tally: Tally) -> None:
    """The worker that meets them gives its runs up, once; another one finishes them."""
    async with Case(_case(stage, kind, plan), await stage.places.fresh(kind), stage.crew) as case:
        wanted = await _prepare(case)
        broken = _worker(case, faults=plan)
        await broken.ready()
        sound = _worker(case)
        await sound.ready()
        await case.settled(wanted, CANCEL)
        for worker in (broken, sound):
            code = await worker.stop()
            if code != 0:
                tally.violate(case.name, f"a worker did not survive: {code}\n{worker.log()}")
        _met(broken, plan, tally)
        await finish(case, tally, deaths=1)  # it gives up
