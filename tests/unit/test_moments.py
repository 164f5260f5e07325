"""The time on a tape as workflow code sees it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

from batuta.clock import as_datetime


def test_a_moment_is_exact_to_the_microsecond() -> None:
    drawn = Random(7)
    edges = [-1, 0, 1, 999_999, 1_000_000, 1_794_810_547_850_135, (1 << 52) - 1, 1 << 52, (1 << 52) + 1, 1 << 57]
    for micros in edges + [drawn.getrandbits(drawn.randint(1, 53)) for _ in range(20_000)]:
        moment = as_datetime(micros)
        assert moment - datetime(1970, 1, 1, tzinfo=UTC) == timedelta(microseconds=micros)
        assert moment.tzinfo is UTC
