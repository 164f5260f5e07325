"""The checker on messages, children and chains: it must complain when something is wrong."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batuta.journal.entries import CommandKind
from chaos.calls import Begin
from chaos.case import Case
from chaos.checker import read_journals
from chaos.report import Tally
from chaos.stage import verify
from tests.chaos.conftest import copied_case, finished_case, judged, tamper

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chain of two runs that were talked to, with a child and a routed activity."""
    return finished_case(tmp_path_factory.mktemp("finished"), [Begin("trade", "one", ["one"])])


@pytest.fixture
async def case(finished: Path, tmp_path: Path) -> AsyncIterator[Case]:
    """A copy of that case, to be tampered with."""
    async with copied_case(finished, tmp_path) as case:
        yield case


def complains(tally: Tally, words: str) -> bool:
    return any(words in violation for violation in tally.violations)


async def test_the_checker_finds_no_violation_in_a_good_history(case: Case) -> None:
    tally = await judged(case)
    assert tally.holds, tally.violations
    assert tally.messages == 3 + 2 + 1 + 2  # notes, updates, an answer from outside, words of the child
    assert tally.refused == 1
    assert await verify(case) == []


async def test_an_acknowledged_signal_without_a_reader_is_lost(case: Case) -> None:
    case.ledger.write("ok", op="signal", key="one", message="one-note-4")
    assert (await judged(case)).lost == 1


async def test_a_signal_that_was_read_twice_is_committed_twice(case: Case) -> None:
    tamper(
        case,
        """UPDATE journal SET body = replace(body, 'signal:note:one-note-2', 'signal:note:one-note-1')
           WHERE body LIKE '%signal:note:one-note-2%'""",
    )
    tally = await judged(case)
    assert tally.twice >= 1
    assert tally.lost >= 1


async def test_a_signal_that_was_refused_and_delivered_is_noticed(case: Case) -> None:
    path = case.crew.books / "checked.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(
        "".join(
            line.replace('"what":"ok"', '"what":"fail"') if '"message":"one-note-2"' in line else line for line in lines
        )
    )
    assert complains(await judged(case), "was refused, and delivered")


async def test_an_update_that_got_another_answer_is_noticed(case: Case) -> None:
    case.ledger.write("ok", op="update", key="one", message="one-add-5", text="51")
    assert complains(await judged(case), "was answered with")


async def test_a_rejected_update_leaves_no_trace(case: Case) -> None:
    case.ledger.write("rejected", op="update", key="one", message="one-add-5")
    assert complains(await judged(case), "left a trace")


async def test_an_acknowledged_answer_from_outside_that_was_not_used_is_lost(case: Case) -> None:
    case.ledger.write("ok", op="complete", key="one", message="another key")
    assert (await judged(case)).lost == 1


async def test_messages_of_a_run_in_another_order_are_noticed(case: Case) -> None:
    journals = (await read_journals(case)).values()
    sender = next(journal for journal in journals if journal.run.name == "parcel")
    first, second = (f"{sender.key_base}:{command.seq}" for command in sender.commands(CommandKind.SEND))
    for old, new in ((first, "-"), (second, first), ("-", second)):
        tamper(
            case,
            f"""UPDATE journal SET body = replace(body, '"message_id":"{old}"', '"message_id":"{new}"')
                WHERE body LIKE '%"message_id":"{old}"%'""",
        )
    assert complains(await judged(case), "got the messages of")


async def test_a_child_whose_result_never_came_is_lost(case: Case) -> None:
    tamper(case, "UPDATE journal SET body = replace(body, 'one parcel', 'other') WHERE kind = 'child_done'")
    assert (await judged(case)).lost >= 1


async def test_a_missing_child_is_lost(case: Case) -> None:
    tamper(case, "UPDATE runs SET parent_seq = 99 WHERE kind = 'activity'")
    assert (await judged(case)).lost >= 1


async def test_a_chain_with_two_current_runs_is_committed_twice(case: Case) -> None:
    tamper(case, "UPDATE runs SET state = 'completed' WHERE state = 'continued'")
    assert (await judged(case)).twice >= 1


async def test_an_attempt_under_a_key_that_no_journal_has_is_noticed(case: Case) -> None:
    begun = next(record for record in case.account.effects("begin") if record.name == "render")
    case.ledger.write("begin", key=f"{begun.key}:1:render", name="render", run=begun.run, attempt=2)
    assert complains(await judged(case), "no journal has asked for it")


async def test_a_job_that_was_ended_from_outside_while_it_was_at_work_was_asked_for_by_its_enqueue(case: Case) -> None:
    job = await case.client.enqueue("close_up", "one", id="cut short")
    case.ledger.write("begin", key=str(job.run_id), name="close_up", run=job.id, attempt=1)
    assert complains(await judged(case), "no journal has asked for it")
    await job.terminate("enough")
    assert not complains(await judged(case), "no journal has asked for it")
