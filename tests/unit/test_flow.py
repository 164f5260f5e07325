"""What a queue may give, and to whom first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from batuta.clock import SECOND
from batuta.journal.queues import QueueLimits, Rate
from batuta.journal.resilience import rates
from batuta.stores.contract import claim_limits

NOW = 1_000_000


def due(*keys: str, priority: int = 0, begun: bool = False) -> list[claim_limits.Due[str]]:
    """Runs that became due one after another."""
    return [
        claim_limits.Due(key, f"{priority} {number} {key}".encode(), priority, number, key, not begun, False)
        for number, key in enumerate(keys)
    ]


def level(runs: list[claim_limits.Due[str]], rotation: claim_limits.Rotation) -> claim_limits.Level[str]:
    keys = sorted({run.flow_key for run in runs})

    def in_turn(last: str) -> Iterator[str]:
        return iter([key for key in keys if key > last] + [key for key in keys if key <= last])

    def of_key(key: str) -> Iterator[claim_limits.Due[str]]:
        return iter([run for run in runs if run.flow_key == key])

    begun = iter([run for run in runs if not run.first])
    return claim_limits.Level(iter(runs), in_turn, of_key, begun, rotation)


def taken(
    runs: list[claim_limits.Due[str]],
    limit: int,
    rotation: claim_limits.Rotation | None = None,
    rate: Rate | None = None,
) -> Counter[str]:
    """How many of each key a claim takes."""
    allowance = claim_limits.Allowance(QueueLimits(rate=rate), NOW, {}, lambda _key: [])
    line = claim_limits.Line(
        [level(runs, rotation or claim_limits.Rotation())], claim_limits.Suspects(1), allowance, NOW
    )
    return Counter(each.row for each in claim_limits.choose([line], limit))


def test_two_keys_have_the_same_share_of_a_claim() -> None:
    assert taken(due(*["a"] * 50, *["b"] * 50), 20) == {"a": 10, "b": 10}


def test_a_key_that_has_little_leaves_the_rest_to_others() -> None:
    assert taken(due(*["a"] * 50, *["b"] * 3), 20) == {"a": 17, "b": 3}


def test_two_keys_have_the_same_share_of_claims_of_one() -> None:
    rotation, runs = claim_limits.Rotation(), due(*["a"] * 50, *["b"] * 50)
    counts: Counter[str] = Counter()
    for _ in range(12):
        counts.update(found := taken(runs, 1, rotation))
        runs.remove(next(run for run in runs if run.flow_key in found))
    assert counts == {"a": 6, "b": 6}


def test_many_keys_have_their_turns_after_the_one_that_came_last() -> None:
    rotation, runs = claim_limits.Rotation(), due(*["z"] * 100, "a", "b", "c", "d", "e", "f")
    assert taken(runs, 4, rotation) == {"z": 1, "a": 1, "b": 1, "c": 1}
    assert rotation.key == "c"
    assert taken(runs, 4, rotation) == {"z": 1, "d": 1, "e": 1, "f": 1}


def test_a_key_that_had_many_of_late_waits_for_those_that_had_none() -> None:
    rotation = claim_limits.Rotation()
    assert taken(due(*["a"] * 100), 40, rotation) == {"a": 40}
    assert taken(due(*["a"] * 100, *["b"] * 50), 40, rotation) == {"a": 10, "b": 30}
    assert taken(due(*["a"] * 100, *["b"] * 50), 40, rotation) == {"a": 10, "b": 30}
    assert taken(due(*["a"] * 100, *["b"] * 50), 40, rotation) == {"a": 20, "b": 20}


def test_a_key_is_not_ahead_for_ever() -> None:
    rotation = claim_limits.Rotation()
    for _ in range(100):
        taken(due(*["a"] * 100), 100, rotation)
    assert 0 < rotation.had["a"] <= claim_limits.MOST_HAD


def test_of_many_keys_those_that_have_most_are_remembered() -> None:
    rotation = claim_limits.Rotation()
    for number in range(1_000):
        rotation.count(f"{number}")
        rotation.count("a")
        assert len(rotation.had) <= claim_limits.MOST_REMEMBERED
    assert max(rotation.had, key=lambda key: rotation.had[key]) == "a"


def test_jobs_without_a_key_take_turns_as_one_key() -> None:
    assert taken(due(*[""] * 50, *["a"] * 50), 20) == {"": 10, "a": 10}


def test_begun_work_is_claimed_although_the_rate_is_used_up() -> None:
    runs = due(*["a"] * 5) + due("b", priority=0, begun=True)
    assert taken(runs, 10, rate=Rate(2, 60)) == {"a": 2, "b": 1}


@pytest.mark.parametrize("count", [1, 3])
def test_a_rate_allows_the_next_when_the_oldest_are_a_period_ago(count: int) -> None:
    rate, end = Rate(count, 600), 1_010 * SECOND
    assert rates.window_end(rate, end - 5 * SECOND) == end
    begun, later = [(end, count)], end + 600 * SECOND
    assert rates.rate_allows(rate, begun, later - 1) == later
    assert rates.rate_allows(rate, begun, later) == later
    assert rates.rate_allows(rate, [(end, 1), *begun], end + 90 * SECOND) == later
    assert rates.rate_allows(None, begun, 5) == 5


def test_a_queue_that_was_chosen_from_tells_what_it_had_to_leave() -> None:
    limits = QueueLimits(concurrency=3, key_concurrency=1)
    allowance = claim_limits.Allowance(limits, NOW, {"a": 1}, lambda _key: [])
    line = claim_limits.Line(
        [level(due("a", "b", "b"), claim_limits.Rotation())], claim_limits.Suspects(1), allowance, NOW
    )
    assert [each.row for each in claim_limits.choose([line], 10)] == ["b"]
    assert (line.held, line.again_at) == (True, None)


def test_queues_give_by_priority_and_then_by_who_is_longest_due() -> None:
    lines = [
        claim_limits.Line(
            [level(due(*["a"] * 3, priority=high), claim_limits.Rotation())], claim_limits.Suspects(1), None, NOW, room
        )
        for high, room in ((0, None), (1, 2))
    ]
    assert [each.priority for each in claim_limits.choose(lines, 4)] == [1, 1, 0, 0]
