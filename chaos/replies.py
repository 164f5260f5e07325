"""Done, but the caller was told that it failed: the most valuable fault there is."""

from __future__ import annotations

from chaos.case import Case, reference_begin
from chaos.places import Place, StoreKind
from chaos.proxy import Proxy
from chaos.report import Tally
from chaos.stage import Stage, finish
from chaos.sweep import CANCEL, ids, prepare


def plans(kind: StoreKind, *, long: bool) -> list[str]:
    """Lost replies of commits and claims: one, and three in a row."""
    step, fault = ("committed", "UNKNOWN") if kind == "sqlite" else ("reply", "LOST")
    commits = range(1, 40) if long else (1, 2, 4, 8, 16, 25)
    made = [f"commit:{step}:{nth}:{fault}" for nth in commits]
    made += [f"claim:{step}:{nth}:{fault}" for nth in range(1, 9 if long else 4)]
    made += [f"commit:{step}:{nth}:{fault}:3" for nth in (1, 5, 12)]
    return made


async def lose(stage: Stage, kind: StoreKind, plan: str, tally: Tally) -> None:
    """The store does it, and its caller hears of an error. Nothing is done twice, nothing is forgotten."""
    case = Case(f"{kind}-lost-{plan.replace(':', '-')}", await stage.places.fresh(kind), stage.crew)
    async with case:
        await prepare(case)
        await _one_worker_does_all(case, tally, faults=plan)
        await finish(case, tally)
        if again := case.account.executed_again():
            tally.violate(case.name, f"nobody died, yet executed again: {dict(again)}")


async def _one_worker_does_all(case: Case, tally: Tally, faults: str = "", url: str = "") -> None:
    """The worker whose replies are lost finishes everything itself: nobody takes over from the living."""
    place = case.place
    if url:
        case.place = Place(place.kind, url, place.namespace)
    worker = case.worker(begin=reference_begin(), cancel=CANCEL, faults=faults)
    case.place = place
    await case.settled(ids(), CANCEL)
    code = await worker.stop()
    if code != 0:
        tally.violate(case.name, f"the worker did not survive: {code}\n{worker.log()}")


async def count_requests(stage: Stage, tally: Tally) -> int:
    """How many requests a worker makes when no reply is lost."""
    return await lose_request(stage, 0, tally)


async def lose_request(stage: Stage, nth: int, tally: Tally) -> int:
    """The reply to the nth request of any kind is lost on its way from PostgreSQL, for real."""
    case = Case(f"postgres-request-{nth}", await stage.places.fresh("postgres"), stage.crew)
    async with case, Proxy(case.place.url, nth) as proxy:
        await prepare(case)
        await _one_worker_does_all(case, tally, url=proxy.url)
        await finish(case, tally)
        if nth and not proxy.lost:
            tally.unreached["request"] += 1
        if again := case.account.executed_again():
            tally.violate(case.name, f"nobody died, yet executed again: {dict(again)}")
        return proxy.requests
