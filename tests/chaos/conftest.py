"""A stage for chaos cases: the ledger's process, and places on both stores."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.places import Places
from chaos.process import Crew
from chaos.report import Tally
from chaos.stage import Stage

JOBS = 6
SEED = 20


@pytest.fixture
def stage(tmp_path: Path, postgres_url: str) -> Iterator[Stage]:
    with Crew(tmp_path) as crew, Places(tmp_path, postgres_url) as places:
        yield Stage(crew, places, JOBS, chance=random.Random(SEED))


@pytest.fixture
def tally() -> Tally:
    return Tally("a seeded part")


def assert_holds(tally: Tally) -> None:
    """Nothing was lost, committed twice or otherwise wrong, and `verify` agreed after every case."""
    assert not tally.violations, "\n".join(tally.violations)
    assert (tally.lost, tally.twice, tally.unverified) == (0, 0, 0)
    assert tally.verified == tally.cases > 0
