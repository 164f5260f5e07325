"""Once a night: our entries and the directory's, compared by their verifiers and repaired by the directory's events."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta

from batuta import Schedule, cron, info, logger, now, uuid, workflow
from pixdict.connect.reconciliation.activities import ReconciliationActivities
from pixdict.connect.reconciliation.models import (
    AGREES,
    BUSY,
    DIFFERS,
    FAILED,
    HERE,
    THERE,
    Difference,
    Found,
    Limits,
    Options,
    Report,
    Snapshot,
    Walked,
)
from pixdict.dict.keys import KeyType
from pixdict.errors import PASSING

QUEUE = "dict-reconciliation"
SCHEDULE_ID = "reconcile-keys"
ZONE = "America/Sao_Paulo"
_SAMPLE = 10
"""Differences that an alert names."""
BRAKED = "nothing was repaired, for the directory lacks more than"


@workflow(fails=PASSING)
async def reconcile_keys(options: Options = Options()) -> list[Report]:
    """Every type of keys, one after the other. A type that fails does not keep the others from being reconciled."""
    reports: list[Report] = []
    failure: Exception | None = None
    for key_type in KeyType:
        try:
            reports.append(await _reconcile(str(key_type), options))
        except PASSING as error:
            logger.error("keys of type %s are not reconciled: %s", key_type, error)
            failure = failure or error
            reports.append(await _closed(str(key_type), FAILED, detail=str(error)))
    if failure is not None:
        raise failure
    return reports


async def _reconcile(key_type: str, options: Options) -> Report:
    rounds, before = 0, ""
    while True:
        seen = await ReconciliationActivities.snapshot(key_type)
        if await ReconciliationActivities.verify(key_type, seen.verifier, uuid()):
            return await _closed(key_type, AGREES, seen, rounds=rounds)
        is_last = rounds == options.rounds
        walked = await _walk(key_type)
        most = max(options.retire_most, int(options.retire_share * seen.entries))
        found = await _differences(key_type, _limits(seen, walked, options), None if is_last else most)
        if is_last or found.is_braked or (rounds > 0 and walked.adds_up and not found.repaired and found.young):
            break
        rounds, before = rounds + 1, seen.verifier
        if not found.repaired:
            await asyncio.sleep(options.pause)
    is_changing = found.young > 0 or seen.verifier != before
    if walked.adds_up and is_changing and not found.left:
        return await _closed(key_type, BUSY, seen, rounds=rounds, young=found.young)
    detail = f"{BRAKED} {most} of our {seen.entries} keys" if found.is_braked else _why(seen, walked, found)
    report = await _closed(
        key_type, DIFFERS, seen, rounds=rounds, young=found.young, left_over=found.left, detail=detail
    )
    await ReconciliationActivities.alert(report, found.sample)
    return report


def _why(seen: Snapshot, walked: Walked, found: Found) -> str:
    """What a person should know besides the differences."""
    if not walked.adds_up:
        return "the directory's events do not add up to its verifier"
    if found.left:
        return ""
    if walked.verifier.lower() == seen.verifier:
        return "the directory says NOK, and its events agree with our entries"
    return "no identifier differs, but the verifiers do: one of ours is there twice"


async def _walk(key_type: str) -> Walked:
    """All events that are not known yet. If they do not add up to the directory's verifier, all there are."""
    is_first = is_whole = True
    while True:
        walked = await ReconciliationActivities.walk(key_type, is_first)
        is_first = False
        if walked.is_more:
            await asyncio.sleep(walked.wait)
        elif walked.adds_up or not is_whole:
            return walked
        else:
            logger.warning("the known events of type %s do not add up: all are read again", key_type)
            await ReconciliationActivities.start_over(key_type)
            is_whole = False


async def _differences(key_type: str, limits: Limits, most: int | None) -> Found:
    """First what the directory has: an entry that changed is then in place before its old identifier is looked at.
    `most`: rows of ours that a repair may end; None to repair nothing."""
    is_braked = most is not None and await _would_end_more(most, key_type, limits)
    repair = most is not None and not is_braked
    sides = [await _differences_of(side, key_type, limits, repair=repair) for side in (THERE, HERE)]
    return Found(
        repaired=sum(one.repaired for one in sides),
        young=sum(one.young for one in sides),
        left=sum(one.left for one in sides),
        sample=[difference for one in sides for difference in one.sample][:_SAMPLE],
        is_braked=is_braked,
    )


async def _would_end_more(most: int, key_type: str, limits: Limits) -> bool:
    """Whether a repair would end more rows of ours, as when the Bridge speaks to another directory."""
    ours = await _differences_of(HERE, key_type, limits, repair=False)
    if ours.left <= most:
        return False
    most += await _asked(THERE, key_type, limits)  # rows that changed have an identifier on either side
    return await _asked(HERE, key_type, limits, most) > most


async def _asked(side: str, key_type: str, limits: Limits, most: float = math.inf) -> int:
    """What `ask` counts of all differences of a side, until there are more than `most`."""
    count = 0
    after: str | None = ""
    while after is not None and count <= most:
        compared = await ReconciliationActivities.compare(key_type, side, after, limits)
        waiting, after = compared.differences, compared.after
        while waiting:
            asked = await ReconciliationActivities.ask(key_type, waiting, limits)
            count, waiting = count + asked.count, waiting[asked.done :]
            if waiting:
                await asyncio.sleep(asked.wait)
    return count


async def _differences_of(side: str, key_type: str, limits: Limits, *, repair: bool) -> Found:
    repaired = young = left = 0
    sample: list[Difference] = []
    after: str | None = ""
    while after is not None:
        compared = await ReconciliationActivities.compare(key_type, side, after, limits)
        young, after = young + compared.young, compared.after
        if not repair:
            left += len(compared.differences)
            sample += compared.differences[: _SAMPLE - len(sample)]
        elif compared.differences:
            done = await ReconciliationActivities.repair(info().id, key_type, compared.differences, limits)
            while done.wait:
                repaired += done.repaired
                await asyncio.sleep(done.wait)
                done = await ReconciliationActivities.repair(info().id, key_type, compared.differences, limits)
            repaired, young = repaired + done.repaired, young + done.young
    return Found(repaired=repaired, young=young, left=left, sample=sample)


def _limits(seen: Snapshot, walked: Walked, options: Options) -> Limits:
    """What changed after these times may belong to an open request."""
    settle = timedelta(seconds=options.settle)
    return Limits(here=seen.taken_at - settle, there=(walked.now or now()) - settle)


async def _closed(
    key_type: str,
    outcome: str,
    seen: Snapshot | None = None,
    *,
    rounds: int = 0,
    young: int = 0,
    left_over: int = 0,
    detail: str = "",
) -> Report:
    report = Report(
        run_id=info().id,
        key_type=key_type,
        outcome=outcome,
        entries=0 if seen is None else seen.entries,
        verifier="" if seen is None else seen.verifier,
        rounds=rounds,
        young=young,
        left_over=left_over,
        detail=detail,
        ended_at=now(),
    )
    return await ReconciliationActivities.close(report)


def schedule(options: Options = Options(), *, at: str = "0 3 * * *") -> Schedule:
    """Every night at three. A slot that comes while a reconciliation is open is left out."""
    return Schedule(
        SCHEDULE_ID,
        cron(at, zone=ZONE),
        reconcile_keys,
        options,
        queue=QUEUE,
        overlap="skip",
        execution_timeout=timedelta(hours=12),
    )
