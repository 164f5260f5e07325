"""pixdict under kills and in an outage: small ones of what `make chaos` does."""

from pathlib import Path

import pytest

from chaos.pix.books import Books, compare
from chaos.pix.customers import Book
from chaos.pix.kills import Size, sweep
from chaos.pix.outage import Drill, drill
from chaos.report import Tally

pytestmark = pytest.mark.chaos


@pytest.mark.timeout(240)
async def test_keys_and_claims_outlive_the_death_of_each_part(new_postgres_url: str, tmp_path: Path) -> None:
    tally = Tally("kills")
    size = Size(creations=25, claims=8, rounds=1, pause=0.5, at_once=4)
    book = await sweep(tmp_path, new_postgres_url, size, tally)
    assert tally.holds, tally.violations
    assert (tally.kills > 0, len(book.ids) > 0, tally.messages) == (True, True, 33)


@pytest.mark.timeout(180)
async def test_accepted_keys_are_done_soon_after_an_outage(new_postgres_url: str, tmp_path: Path) -> None:
    tally = Tally("outage")
    given = Drill(before=1.0, away=3.0, after=3.0, wait=1.0, open_for=2.0)
    found = await drill(tmp_path, new_postgres_url, given, tally)
    assert tally.holds, tally.violations
    assert found.statuses["away"][503] > 0


def test_the_books_complain_of_what_is_lost_and_of_what_is_there_twice() -> None:
    row = {"id": "e-1", "status": "ACTIVE", "key_value": "+5511900000000", "cid": "a" * 64}
    ours = {"entries": [row], "claims": []}
    told = Book(ids={"keys-0": {"e-1"}})
    wrong = {
        "lost there": Books(ours, {}, [row["cid"]], []),
        "made twice": Books(ours, {row["key_value"]: row["cid"]}, [row["cid"], "b" * 64], []),
        "pending": Books(
            {**ours, "entries": [{**row, "status": "PENDING"}]}, {row["key_value"]: "a" * 64}, ["a" * 64], []
        ),
        "another id": Books({**ours, "entries": [{**row, "id": "e-2"}]}, {row["key_value"]: "a" * 64}, ["a" * 64], []),
    }
    good = Tally("good")
    compare(Books(ours, {row["key_value"]: row["cid"]}, [row["cid"]], []), told, good, creations=1, claimed=0)
    assert good.holds, good.violations
    for what, books in wrong.items():
        tally = Tally(what)
        compare(books, told, tally, creations=1, claimed=0)
        assert not tally.holds, what
