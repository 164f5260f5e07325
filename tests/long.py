"""How much of what could be tried is tried: `make test LONG=1` tries all of it."""

import os
from collections.abc import Sequence

LONG = bool(os.environ.get("BATUTA_TEST_LONG"))


def some_of(sites: Sequence[str]) -> list[int]:
    """At which passages something is to happen, counted from one: the first and the last of each site."""
    if LONG:
        return list(range(1, len(sites) + 1))
    last = {site: number for number, site in enumerate(sites, 1)}
    return sorted({*last.values(), *(sites.index(site) + 1 for site in last)})


def examples(number: int) -> int:
    """How many examples a property has: ten times as many where there is time."""
    return 10 * number if LONG else number
