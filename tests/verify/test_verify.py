"""`verify` on a SQLite database that somebody has tampered with, and on ones that nobody has."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from batuta import (
    Retry,
    RunCancelled,
    RunFailed,
    Signal,
    Update,
    UpdateRejected,
    activity,
    connect,
    continue_as_new,
    job,
    workflow,
)
from batuta.cli import root
from batuta.connect import store_for
from batuta.verify import Report, verify


@activity
async def add(a: int, b: int) -> int:
    return a + b


@workflow
async def total(numbers: list[int]) -> int:
    found = 0
    for number in numbers:
        found = await add(found, number)
    return found


@workflow
async def nap(seconds: float) -> None:
    await asyncio.sleep(0.001)
    await asyncio.sleep(seconds)


@workflow
async def stuck() -> None:
    await asyncio.Event().wait()


async def check(url: str, *workflows: object) -> Report:
    store = store_for(url)
    await store.open()
    try:
        return await verify(store, workflows)  # type: ignore[arg-type]  # only workflows are given
    finally:
        await store.close()


@pytest.fixture
async def shop(sqlite_url: str) -> str:
    """A database with a run in each kind of state."""
    await fill(sqlite_url)
    return sqlite_url


async def fill(url: str) -> None:
    async with connect(url) as batuta:
        async with batuta.worker(workflows=[total, nap, stuck], activities=[add]):
            await (await batuta.start(total, [1], id="again")).result(30)
            await (await batuta.start(total, [1, 2], id="again", if_exists="restart")).result(30)
            await (await batuta.start(total, [1, 2, 3], id="done")).result(30)
            sleeper = await batuta.start(nap, 9_000, id="asleep")
            parked = await batuta.start(stuck, id="parked")
            doomed = await batuta.start(nap, 9_000, id="doomed")
            async with asyncio.timeout(30):
                while (await sleeper.describe()).entries < 2 or (await parked.describe()).state != "needs_code":
                    await asyncio.sleep(0.01)
            await doomed.terminate("enough")
        async with batuta.worker(jobs=[give_up]):
            for number in range(2):
                handle = await batuta.enqueue(give_up, id=f"dead {number}")
                with pytest.raises(RunFailed):
                    await handle.result(30)
            await batuta.dead_letters.discard("dead 1", reason="seen")
        await batuta.start(total, [9], id="new")


@job(retry=Retry(attempts=1))
async def give_up() -> None:
    raise ValueError("no")


def tamper(url: str, statement: str) -> None:
    connection = sqlite3.connect(Path(url.removeprefix("sqlite:///")))
    with connection:
        changed = connection.execute(statement).rowcount
    connection.close()
    assert changed > 0


async def test_a_healthy_database_holds(shop: str) -> None:
    report = await check(shop, total, nap, stuck)
    assert report.holds, report.violations
    assert report.runs == 9
    assert report.checked["I7"] == 8  # the parked one is known not to replay
    assert report.checked["I9"] >= 1


async def test_a_healthy_postgres_database_holds(postgres_url: str) -> None:
    await fill(postgres_url)
    report = await check(postgres_url, total, nap, stuck)
    assert report.holds, report.violations
    assert report.runs == 9


async def test_runs_that_no_live_worker_may_take_are_named(shop: str) -> None:
    assert (await check(shop)).stranded == []  # without a worker all of them wait
    async with connect(shop) as batuta, batuta.worker(workflows=[nap, stuck]):
        report = await check(shop)
    assert report.holds, report.violations
    assert {one.id: one.why.partition(":")[0] for one in report.stranded} == {
        "new": "no live worker of this queue has workflow 'total' (they have",
        "parked": "needs code",
    }


DONE = "(SELECT run_id FROM runs WHERE id = 'done')"
COLUMNS = "run_id, namespace, kind, at, crc, epoch, body"
ASLEEP = "(SELECT run_id FROM runs WHERE id = 'asleep')"
UNREAD = (
    "INSERT INTO inbox (namespace, chain_id, message_id, kind, name, body, at) "
    "SELECT namespace, chain_id, 'm', 'signal', '', 'null', 1 FROM runs WHERE id = 'done'"
)
READ = UNREAD.replace("body, at)", "body, at, consumed_at)").replace("'null', 1 ", "'null', 1, 1 ")
READ_CANCEL = READ.replace("'m', 'signal'", "'cancel:1', 'cancel'")


@pytest.mark.parametrize(
    ("statement", "invariant"),
    [
        ("UPDATE runs SET state = 'failed' WHERE id = 'done'", "I1"),
        ("UPDATE runs SET closed_at = NULL WHERE id = 'done'", "I1"),
        ("UPDATE runs SET name = 'other' WHERE id = 'done'", "I1"),
        ("DELETE FROM inbox WHERE chain_id = (SELECT run_id FROM runs WHERE id = 'new')", "I1"),
        (f"DELETE FROM journal WHERE run_id = {DONE} AND ord = 3", "I1"),
        ("UPDATE runs SET current = 0 WHERE id = 'done'", "I2"),
        ("UPDATE runs SET current = 0 WHERE id = 'asleep'", "I2"),
        (f"UPDATE journal SET body = replace(body, '3', '4') WHERE run_id = {DONE}", "I3"),
        (f"UPDATE journal SET body = '{{' WHERE run_id = {DONE} AND ord = 1", "I3"),
        (f"DELETE FROM journal WHERE run_id = {DONE} AND ord = 1", "I4"),
        ("UPDATE runs SET head = 7 WHERE id = 'done'", "I4"),
        (
            f"INSERT INTO journal ({COLUMNS}, ord) SELECT {COLUMNS}, 4 FROM journal WHERE run_id = {DONE} AND ord = 3",
            "I5",
        ),
        (f"UPDATE journal SET epoch = 7 WHERE run_id = {DONE} AND ord = 1", "I6"),
        (f"UPDATE journal SET epoch = 7 WHERE run_id = {DONE} AND ord = 3", "I6"),
        (
            f"UPDATE journal SET at = (SELECT min(at) FROM journal WHERE run_id = {ASLEEP}) WHERE run_id = {ASLEEP}",
            "I9",
        ),
        ("UPDATE runs SET parent_run_id = zeroblob(16) WHERE id = 'done'", "I1"),
        ("UPDATE runs SET chain_id = zeroblob(16) WHERE id = 'done'", "I1"),
        (f"UPDATE runs SET chain_id = {DONE} WHERE id = 'asleep'", "I1"),
        ("UPDATE runs SET state = 'continued' WHERE id = 'done'", "I2"),
        ("UPDATE inbox SET consumed_at = NULL WHERE kind = 'start'", "I10"),
        (UNREAD, "I10"),
        (UNREAD.replace("signal", "cancel"), "I10"),
        (READ, "I10"),
        (READ_CANCEL, "I10"),
        (READ_CANCEL.replace("'done'", "'asleep'"), "I10"),
        ("UPDATE runs SET wake_at = NULL WHERE id = 'new'", "I12"),
        ("UPDATE runs SET wake_at = NULL WHERE id = 'asleep'", "I12"),
        ("UPDATE runs SET state = 'running' WHERE id = 'asleep'", "I12"),
        ("UPDATE runs SET owner = 'ghost' WHERE id = 'asleep'", "I12"),
        ("UPDATE runs SET reason = '' WHERE id = 'parked'", "I12"),
        ("UPDATE runs SET wake_at = 1 WHERE id = 'done'", "I12"),
        ("UPDATE runs SET state = 'completed' WHERE id = 'dead 0'", "I15"),
        ("DELETE FROM runs WHERE id = 'dead 0'", "I15"),
        ("UPDATE dead_letters SET state = 'reprocessed' WHERE id = 'dead 0'", "I15"),
        ("UPDATE dead_letters SET state = 'discarded' WHERE id = 'dead 0'", "I15"),
        ("UPDATE letter_groups SET count = 7 WHERE state = 'open'", "I15"),
        ("DELETE FROM letter_groups WHERE state = 'discarded'", "I15"),
        ("DELETE FROM dead_letters WHERE id = 'dead 0'", "I15"),
    ],
)
async def test_a_tampered_audit_row_is_found(shop: str, statement: str, invariant: str) -> None:
    tamper(shop, statement)
    report = await check(shop, total, nap, stuck)
    assert report.found[invariant] > 0, report.found


async def test_the_newer_of_two_runs_with_one_id_must_be_the_current_one(shop: str) -> None:
    tamper(shop, "UPDATE runs SET current = 0 WHERE id = 'again'")
    tamper(shop, "UPDATE runs SET current = 1 WHERE run_id = (SELECT min(run_id) FROM runs WHERE id = 'again')")
    report = await check(shop)
    assert [one.invariant for one in report.violations] == ["I2"]


async def test_a_message_without_a_reader_is_found(shop: str) -> None:
    tamper(
        shop,
        "INSERT INTO inbox (namespace, chain_id, message_id, kind, name, body, at) "
        "SELECT namespace, chain_id, 'm', 'cancel', '', 'null', 1 FROM runs WHERE id = 'asleep'",
    )
    tamper(shop, "UPDATE runs SET wake_at = NULL WHERE id = 'asleep'")
    report = await check(shop)
    assert [(one.invariant, one.id) for one in report.violations] == [("I12", "asleep")]


async def test_code_that_does_not_replay_is_shown_with_both_sides(shop: str) -> None:
    @workflow(name="total")
    async def other(numbers: list[int]) -> int:
        await asyncio.sleep(1)
        return await add(*numbers[:2])

    report = await check(shop, other)
    assert report.found["I7"] == 3
    assert "recorded: activity add" in report.violations[0].what
    assert "today's code: timer" in report.violations[0].what


async def test_a_database_under_work_gives_no_false_alarm(sqlite_url: str) -> None:
    async with connect(sqlite_url) as batuta:
        async with batuta.worker(workflows=[total, nap], activities=[add]):
            handles = [await batuta.start(total, list(range(30))) for _ in range(40)]
            reports = [await check(sqlite_url, total) for _ in range(4)]
            for handle in handles:
                await handle.result(30)
    assert all(report.holds for report in reports), [report.violations[:3] for report in reports]


def test_the_command_prints_the_invariants_and_exits_by_what_it_found(sqlite_url: str) -> None:
    from click.testing import CliRunner

    asyncio.run(fill(sqlite_url))
    good = CliRunner().invoke(root, ["verify", "--url", sqlite_url])
    assert good.exit_code == 0, good.output
    assert "I12" in good.stdout
    tamper(sqlite_url, "UPDATE runs SET reason = '' WHERE id = 'parked'")
    bad = CliRunner().invoke(root, ["verify", "--url", sqlite_url])
    assert bad.exit_code == 1
    assert "run parked" in bad.stdout
    document = CliRunner().invoke(root, ["verify", "--url", sqlite_url, "--json"])
    assert document.exit_code == 1
    assert '"holds": false' in document.stdout


kept, ask = Signal("kept", int), Update("ask", int)


@workflow
async def chain(left: int) -> int:
    def refuse(number: int) -> None:
        if number < 0:
            raise ValueError("negative")

    ask.handle(lambda number: number, validator=refuse)
    total = await kept.wait()
    if left:
        continue_as_new(left - 1)
    await asyncio.sleep(3_600)
    return total


async def talk_to_chains(url: str) -> None:
    """Chains that read signals, an update, rejected ones and cancels: each run another one."""
    async with connect(url) as batuta, batuta.worker(workflows=[chain]):
        for id, end in (("cancelled", "cancel"), ("ended", "terminate"), ("open", "")):
            handle = await batuta.start(chain, 2, id=id)
            for number in range(3):
                await handle.signal(kept, number)
            with pytest.raises(UpdateRejected):
                await handle.update(ask, -1)
            assert await handle.update(ask, 1) == 1
            if end == "cancel":
                await handle.cancel("enough")
                with pytest.raises(RunCancelled):
                    await handle.result(30)
            elif end:
                await handle.terminate("enough")


async def test_messages_that_other_runs_of_a_chain_have_read_are_no_violation(url: str) -> None:
    await talk_to_chains(url)
    report = await check(url, chain)
    assert report.holds, report.violations
    assert report.runs == 9


async def test_a_message_that_no_run_of_a_chain_has_read_is_found(sqlite_url: str) -> None:
    await talk_to_chains(sqlite_url)
    tamper(sqlite_url, READ.replace("'done'", "'open' AND current = 1"))
    tamper(
        sqlite_url, READ.replace("'m', 'signal'", "'cancel:1', 'cancel'").replace("'done'", "'open' AND current = 1")
    )
    report = await check(sqlite_url, chain)
    assert [(one.invariant, one.id) for one in report.violations] == [("I10", "open")]
    assert "message cancel:1 (and 1 more) is marked as read" in report.violations[0].what
