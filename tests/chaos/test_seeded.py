"""A seeded part of `make chaos`: a few points of every sweep, on both stores."""

from functools import partial

import pytest

from batuta.testing import failpoints
from chaos import (
    blips,
    bugs,
    clocks,
    deploys,
    disk,
    failover,
    letters,
    locked,
    outages,
    pauses,
    replies,
    sweep,
    work,
    zombies,
)
from chaos.places import KINDS, StoreKind
from chaos.report import Tally
from chaos.stage import Stage, each
from tests.chaos.conftest import assert_holds

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

both_stores = pytest.mark.parametrize("kind", KINDS)

KILLS, JOB_KILLS, STOPS, SENDS, LOST, DISK, BUGS = 4, 2, 2, 2, 2, 3, 2
"""How many moments of each sweep: some on every change, all of them in `make chaos`."""
APART = ("enqueue.", "checkpoint.", "schedule.", "transaction.", "fork.", "reprocess.", "idempotency.")
OF_OTHERS = {site for site in failpoints() if site.startswith(APART)}
"""Passed by jobs, schedules, transactional activities, operators and requests, which have sweeps of their own."""
NOWHERE: dict[StoreKind, set[str]] = {"sqlite": set(), "postgres": {"commit.inside"}}
"""PostgreSQL commits in one statement: there is no inside."""
ELSEWHERE: dict[StoreKind, set[str]] = {kind: sites | OF_OTHERS for kind, sites in NOWHERE.items()}


@both_stores
async def test_the_reference_workflow_reaches_every_failpoint(stage: Stage, tally: Tally, kind: StoreKind) -> None:
    counts = await sweep.count_points(stage, kind, tally)
    assert_holds(tally)
    assert set(failpoints()) - set(counts) == ELSEWHERE[kind]


@both_stores
async def test_a_worker_killed_at_a_failpoint_loses_nothing(stage: Stage, tally: Tally, kind: StoreKind) -> None:
    points = _sample(stage, KILLS, kind)
    await each(stage, tally, [partial(sweep.kill_at, stage, kind, point, tally) for point in points])
    assert_holds(tally)
    assert tally.kills >= KILLS - 2


@both_stores
async def test_a_worker_killed_at_its_jobs_loses_none_and_ends_none_twice(
    stage: Stage, tally: Tally, kind: StoreKind
) -> None:
    counts = await work.count_points(stage, kind, tally)
    assert work.MOMENTS - set(counts) == NOWHERE[kind]
    points = [(site, 1) for site in stage.chance.sample(sorted(work.MOMENTS - NOWHERE[kind]), JOB_KILLS)]
    await each(stage, tally, [partial(work.kill_at, stage, kind, point, tally) for point in points])
    assert_holds(tally)
    assert tally.kills >= JOB_KILLS - 1


@both_stores
async def test_limits_hold_while_workers_are_killed(stage: Stage, tally: Tally, kind: StoreKind) -> None:
    await work.limits_under_kills(stage, kind, 0.5, tally)
    assert_holds(tally)
    assert tally.kills > 1


@both_stores
async def test_runs_that_are_paused_and_resumed_while_workers_are_killed_lose_nothing(
    stage: Stage, tally: Tally, kind: StoreKind
) -> None:
    await pauses.under_load(stage, kind, 150, tally)
    assert_holds(tally)


@both_stores
async def test_a_worker_stopped_past_its_lease_is_refused(stage: Stage, tally: Tally, kind: StoreKind) -> None:
    points = _sample(stage, STOPS, kind)
    await each(stage, tally, [partial(zombies.stop_at, stage, kind, point, tally) for point in points])
    assert_holds(tally)
    assert tally.zombies > 0


@both_stores
async def test_a_message_or_cancel_at_any_moment_is_delivered_once_or_refused(
    stage: Stage, tally: Tally, kind: StoreKind
) -> None:
    sites = stage.chance.sample(sorted(letters.MOMENTS - ELSEWHERE[kind]), SENDS)
    thens: list[letters.Then] = ["kill", "go on"]
    cases = [
        partial(letters.send_at, stage, kind, (site, 1), "notes", thens[number % 2], tally)
        for number, site in enumerate(sites)
    ]
    cases += [partial(letters.send_at, stage, kind, (site, 1), "cancel", "kill", tally) for site in sites[:2]]
    await each(stage, tally, cases)
    assert_holds(tally)
    assert tally.messages > SENDS
    assert tally.refused > SENDS


@both_stores
async def test_nothing_follows_a_termination(stage: Stage, tally: Tally, kind: StoreKind) -> None:
    sites = stage.chance.sample(zombies.BEFORE_A_WRITE, 2)
    await each(stage, tally, [partial(zombies.terminated_meanwhile, stage, kind, site, tally) for site in sites])
    assert_holds(tally)


@both_stores
async def test_a_lost_reply_does_nothing_twice(stage: Stage, tally: Tally, kind: StoreKind) -> None:
    plans = stage.chance.sample(replies.plans(kind, long=False), LOST)
    await each(stage, tally, [partial(replies.lose, stage, kind, plan, tally) for plan in plans])
    assert_holds(tally)


async def test_any_reply_of_postgresql_may_be_lost(stage: Stage, tally: Tally) -> None:
    chosen = stage.chance.sample(range(1, 90), LOST)
    await each(stage, tally, [partial(replies.lose_request, stage, nth, tally) for nth in chosen])
    assert_holds(tally)


async def test_what_a_failing_disk_acknowledged_is_there(stage: Stage, tally: Tally) -> None:
    plans = stage.chance.sample(disk.plans(long=False), DISK)
    await each(stage, tally, [partial(disk.fail_at, stage, plan, tally) for plan in plans])
    assert_holds(tally)


@both_stores
async def test_a_drained_worker_executes_nothing_twice(stage: Stage, tally: Tally, kind: StoreKind) -> None:
    await deploys.drained(stage, kind, tally)
    assert_holds(tally)
    assert tally.again == 0


async def test_a_poison_run_is_parked_and_the_healthy_finish(stage: Stage, tally: Tally) -> None:
    await deploys.poison(stage, "sqlite", tally)
    assert_holds(tally)


async def test_changed_code_parks_and_the_right_code_goes_on(stage: Stage, tally: Tally) -> None:
    await deploys.changed_code(stage, "sqlite", tally)
    assert_holds(tally)


async def test_clocks_may_differ_and_be_set(stage: Stage, tally: Tally) -> None:
    cases = [partial(clocks.skewed, stage, "postgres", tally)]
    cases.append(partial(clocks.stepped, stage, "sqlite", (-clocks.HOUR_S,), tally))
    cases.append(partial(clocks.stepped, stage, "postgres", (clocks.HOUR_S, -clocks.HOUR_S), tally))
    await each(stage, tally, cases)
    assert_holds(tally)


async def test_recovery_survives_a_restart_of_the_database(stage: Stage, tally: Tally) -> None:
    await outages.recovery_races_restart(stage, tally, rounds=1, runs=40)
    assert_holds(tally)


def _sample(stage: Stage, count: int, kind: StoreKind) -> list[sweep.Point]:
    """Points of a worker's life, early ones: all of them are passed."""
    sites = sorted(set(failpoints()) - ELSEWHERE[kind] - zombies.EXEMPT[kind])
    return [(site, 1) for site in stage.chance.sample(sites, count)]


@both_stores
async def test_unexpected_errors_lose_nothing_and_make_no_storm(stage: Stage, tally: Tally, kind: StoreKind) -> None:
    before, after = await bugs.count_verbs(stage, kind, tally)
    plans = stage.chance.sample(bugs.passing(before, after, stage.chance, long=False), BUGS)
    cases = [partial(bugs.passes, stage, kind, plan, tally) for plan in plans]
    cases.append(partial(bugs.lasts, stage, kind, stage.chance.choice(bugs.lasting(long=False)), tally))
    cases.append(partial(bugs.begins, stage, kind, stage.chance.choice(bugs.early(before)), tally))
    await each(stage, tally, cases)
    assert_holds(tally)


async def test_no_worker_dies_of_a_blip_that_is_shorter_than_the_lease(stage: Stage, tally: Tally) -> None:
    await blips.blips(stage, tally, silent=False)
    assert_holds(tally)
    assert tally.again == 0


async def test_a_failover_that_loses_claims_and_entries(stage: Stage, tally: Tally) -> None:
    await failover.lossy(stage, tally)
    assert_holds(tally)


async def test_rows_that_another_session_has_locked(stage: Stage, tally: Tally) -> None:
    await locked.rows(stage, tally)
    assert_holds(tally)
