"""What a queue may give, and to whom first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from batuta.journal.queues import QueueLimits, Rate
from batuta.stores import flow

NOW = 1_000_000


def due(*keys: str, priority: int = 0, begun: bool = False) -> list[flow.Due[str]]:
    """Runs that became due one after another."""
    return [
        flow.Due(key, f"{priority} {number} {key}".encode(), priority, number, key, not begun, False)
        for number, key in enumerate(keys)
    ]


def level(runs: list[flow.Due[str]], hand: flow.Hand) -> flow.Level[str]:
    keys = sorted({run.flow_key for run in runs})

    def in_turn(last: str) -> Iterator[str]:
        return iter([key for key in keys if key > last] + [key for key in keys if key <= last])

    def of_key(key: str) -> Iterator[flow.Due[str]]:
        return iter([run for run in runs if run.flow_key == key])

    begun = iter([run for run in runs if not run.first])
    return flow.Level(iter(runs), in_turn, of_key, begun, hand)


def taken(
    runs: list[flow.Due[str]], limit: int, hand: flow.Hand | None = None, rate: Rate | None = None
) -> Counter[str]:
    """How many of each key a claim takes."""
    allowance = flow.Allowance(QueueLimits(rate=rate), NOW, {}, lambda _key: [])
    line = flow.Line([level(runs, hand or flow.Hand())], flow.Suspects(1), allowance, NOW)
    return Counter(each.row for each in flow.choose([line], limit))


def test_two_keys_have_the_same_share_of_a_claim() -> None:
    assert taken(due(*["a"] * 50, *["b"] * 50), 20) == {"a": 10, "b": 10}


def test_a_key_that_has_little_leaves_the_rest_to_others() -> None:
    assert taken(due(*["a"] * 50, *["b"] * 3), 20) == {"a": 17, "b": 3}


def test_two_keys_have_the_same_share_of_claims_of_one() -> None:
    hand, runs = flow.Hand(), due(*["a"] * 50, *["b"] * 50)
    counts: Counter[str] = Counter()
    for _ in range(12):
        counts.update(found := taken(runs, 1, hand))
        runs.remove(next(run for run in runs if run.flow_key in found))
    assert counts == {"a": 6, "b": 6}


def test_many_keys_have_their_turns_after_the_one_that_came_last() -> None:
    hand, runs = flow.Hand(), due(*["z"] * 100, "a", "b", "c", "d", "e", "f")
    assert taken(runs, 4, hand) == {"z": 1, "a": 1, "b": 1, "c": 1}
    assert hand.key == "c"
    assert taken(runs, 4, hand) == {"z": 1, "d": 1, "e": 1, "f": 1}


def test_a_key_that_had_many_of_late_waits_for_those_that_had_none() -> None:
    hand = flow.Hand()
    assert taken(due(*["a"] * 100), 40, hand) == {"a": 40}
    assert taken(due(*["a"] * 100, *["b"] * 50), 40, hand) == {"a": 10, "b": 30}
    assert taken(due(*["a"] * 100, *["b"] * 50), 40, hand) == {"a": 10, "b": 30}
    assert taken(due(*["a"] * 100, *["b"] * 50), 40, hand) == {"a": 20, "b": 20}


def test_a_key_is_not_ahead_for_ever() -> None:
    hand = flow.Hand()
    for _ in range(100):
        taken(due(*["a"] * 100), 100, hand)
    assert 0 < hand.had["a"] <= flow.MOST_HAD


def test_of_many_keys_those_that_have_most_are_remembered() -> None:
    hand = flow.Hand()
    for number in range(1_000):
        hand.count(f"{number}")
        hand.count("a")
        assert len(hand.had) <= flow.MOST_REMEMBERED
    assert max(hand.had, key=lambda key: hand.had[key]) == "a"


def test_what_has_no_key_takes_its_turn_as_one_key() -> None:
    assert taken(due(*[""] * 50, *["a"] * 50), 20) == {"": 10, "a": 10}


def test_what_has_begun_comes_although_a_rate_is_used_up() -> None:
    runs = due(*["a"] * 5) + due("b", priority=0, begun=True)
    assert taken(runs, 10, rate=Rate(2, 60)) == {"a": 2, "b": 1}


@pytest.mark.parametrize("count", [1, 3])
def test_a_rate_allows_the_next_when_the_oldest_are_a_period_ago(count: int) -> None:
    rate = Rate(count, 600)
    assert flow.window_end(rate, 1_005) == 1_010
    begun = [(1_010, count)]
    assert flow.rate_allows(rate, begun, 1_609) == 1_610
    assert flow.rate_allows(rate, begun, 1_610) == 1_610
    assert flow.rate_allows(rate, [(1_010, 1), *begun], 1_100) == 1_610
    assert flow.rate_allows(Rate(0, 600), [], 5) is None
    assert flow.rate_allows(None, begun, 5) == 5


def test_a_queue_that_was_chosen_from_tells_what_it_had_to_leave() -> None:
    limits = QueueLimits(concurrency=3, key_concurrency=1)
    allowance = flow.Allowance(limits, NOW, {"a": 1}, lambda _key: [])
    line = flow.Line([level(due("a", "b", "b"), flow.Hand())], flow.Suspects(1), allowance, NOW)
    assert [each.row for each in flow.choose([line], 10)] == ["b"]
    assert (line.held, line.again_at) == (True, None)


def test_queues_give_by_priority_and_then_by_who_is_longest_due() -> None:
    lines = [
        flow.Line([level(due(*["a"] * 3, priority=high), flow.Hand())], flow.Suspects(1), None, NOW, room)
        for high, room in ((0, None), (1, 2))
    ]
    assert [each.priority for each in flow.choose(lines, 4)] == [1, 1, 0, 0]
