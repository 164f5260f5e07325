"""The checker itself: it must complain when something is wrong."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chaos.calls import Begin
from chaos.case import Case
from chaos.report import Tally
from chaos.stage import finish, verify
from tests.chaos.conftest import copied_case, finished_case, judged, tamper

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a case in which nothing went wrong: one run, ended."""
    return finished_case(tmp_path_factory.mktemp("finished"), [Begin("order", "one", ["one"])])


@pytest.fixture
async def case(finished: Path, tmp_path: Path) -> AsyncIterator[Case]:
    """A copy of that case, to be tampered with."""
    async with copied_case(finished, tmp_path) as case:
        yield case


async def test_the_checker_finds_no_violation_in_a_good_history(case: Case) -> None:
    assert (await judged(case)).holds
    assert await verify(case) == []


async def test_an_acknowledged_start_without_a_run_is_lost(case: Case) -> None:
    case.ledger.write("ok", op="start", key="two")
    assert (await judged(case)).lost == 1


async def test_an_acknowledged_cancel_that_never_came_is_lost(case: Case) -> None:
    case.ledger.write("ok", op="cancel", key="one")
    assert (await judged(case)).lost == 1


async def test_a_missing_entry_is_lost(case: Case) -> None:
    tamper(case, "DELETE FROM journal WHERE ord = 3")
    assert (await judged(case)).lost >= 1


async def test_an_answer_given_twice_is_committed_twice(case: Case) -> None:
    tamper(
        case,
        "UPDATE journal SET body = (SELECT body FROM journal WHERE ord = 1), kind = 'activity_done' WHERE ord = 2",
    )
    assert (await judged(case)).twice >= 1


async def test_an_entry_after_the_end_is_committed_twice(case: Case) -> None:
    tamper(case, "UPDATE runs SET state = 'terminated'")
    assert (await judged(case)).twice == 1


async def test_a_run_that_is_still_open_is_lost(case: Case) -> None:
    tamper(case, "UPDATE runs SET state = 'waiting'")
    assert (await judged(case)).lost == 1


async def test_an_activity_begun_more_often_than_its_attempts_and_deaths_allow_is_a_storm(case: Case) -> None:
    assert case.account.storms(0) == {}
    begun = next(record for record in case.account.effects("begin") if not record.once)
    for _ in range(2):
        case.ledger.write("begin", key=begun.key, name=begun.name, run=begun.run, attempt=1)
    assert case.account.storms(2) == {}
    assert case.account.storms(1) == {begun.key: 3}
    tally = Tally("judged")
    await finish(case, tally, deaths=1)
    assert not tally.holds
    assert tally.storms == 1


async def test_a_storm_is_found_without_being_told_how_many_died(case: Case) -> None:
    """Of those that were killed or stopped, the case knows: nobody was."""
    begun = next(record for record in case.account.effects("begin") if not record.once)
    case.ledger.write("begin", key=begun.key, name=begun.name, run=begun.run, attempt=1)
    tally = Tally("judged")
    await finish(case, tally)
    assert tally.storms == 1


async def test_a_once_activity_begun_again_is_committed_twice(case: Case) -> None:
    begun = next(record for record in case.account.effects("begin") if record.once)
    case.ledger.write("begin", key=begun.key, name=begun.name, run=begun.run, attempt=1, once=True)
    assert (await judged(case)).twice == 1


async def test_what_was_begun_after_its_answer_is_noticed(case: Case) -> None:
    begun = case.account.effects("begin")[0]
    case.ledger.write("begin", key=begun.key, name=begun.name, run=begun.run, attempt=1)
    tally = await judged(case)
    assert tally.again == 1
    assert any("after its answer" in violation for violation in tally.violations)


async def test_a_journaled_success_that_never_happened_is_lost(case: Case) -> None:
    path = case.crew.books / "checked.jsonl"
    kept = [line for line in path.read_text().splitlines(keepends=True) if '"name":"pack"' not in line]
    path.write_text("".join(kept))
    assert (await judged(case)).lost == 1
