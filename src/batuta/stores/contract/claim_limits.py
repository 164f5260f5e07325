"""How much a queue may give, and to which keys first: decisions over counts of a store. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Generic, TypeVar

from msgspec import Struct, field

from batuta.journal.queues import QueueLimits, Rate
from batuta.journal.resilience.rates import Begun, rate_allows, window_end

T = TypeVar("T")


class Allowance:
    """The runs that one queue may still give at this moment.

    `owned` counts its owned runs by flow key ("" for those without). `begun` gives what began under a key; "" is the
    queue's own count.
    """

    def __init__(self, limits: QueueLimits, now: int, owned: Mapping[str, int], begun: Callable[[str], Begun]) -> None:
        self._limits = limits
        self._now = now
        self._owned = dict(owned)
        self._all = sum(owned.values())
        self._begun = begun
        self._counts: dict[str, list[tuple[int, int]]] = {}
        self._allowed: dict[str, int] = {}
        self.begins: Counter[str] = Counter()
        """Runs that were taken for the first time, by flow key, with "" for all of them."""

    @property
    def is_full(self) -> bool:
        """Whether it can give nothing at all."""
        return self._limits.concurrency is not None and self._all >= self._limits.concurrency

    def is_key_full(self, key: str) -> bool:
        limit = self._limits.key_concurrency
        return bool(key) and limit is not None and self._owned.get(key, 0) >= limit

    def when(self, key: str, first: bool) -> int | None:
        """When a run may be taken, for the `first` time or again: now, or later. None: not by time alone."""
        if self.is_full or self.is_key_full(key):
            return None
        if not first:
            return self._now
        queue = self._may_begin("", self._limits.rate)
        if not key or self._limits.key_rate is None:
            return queue
        own = self._may_begin(key, self._limits.key_rate)
        return max(queue, own)

    @property
    def is_worn(self) -> bool:
        """Whether its rate lets nothing more begin now, for any key."""
        return self._may_begin("", self._limits.rate) != self._now

    def _may_begin(self, key: str, rate: Rate | None) -> int:
        if rate is None:
            return self._now
        if key not in self._allowed:
            self._allowed[key] = rate_allows(rate, self._count(key), self._now)
        return self._allowed[key]

    def take(self, key: str, first: bool) -> None:
        self._all += 1
        self._owned[key] = self._owned.get(key, 0) + 1
        if not first:
            return
        self._note("", self._limits.rate)
        if key:
            self._note(key, self._limits.key_rate)

    def _note(self, key: str, rate: Rate | None) -> None:
        if rate is not None:
            self._count(key).append((window_end(rate, self._now), 1))
            self._allowed.pop(key, None)
            self.begins[key] += 1

    def _count(self, key: str) -> list[tuple[int, int]]:
        if key not in self._counts:
            self._counts[key] = list(self._begun(key))
        return self._counts[key]


class Due(Struct, Generic[T], gc=False):
    """A run that may be taken, as the choice sees it."""

    row: T
    run_id: bytes
    priority: int
    wake_at: int
    flow_key: str
    first: bool
    """It was never claimed."""
    suspect: bool


LAP = 4
"""Of this many claims one is the longest due. The others rotate over flow keys."""
MOST_HAD = 256
"""How far a flow key can be ahead of others: this many of theirs come before its next turn."""
MOST_REMEMBERED = 32
"""Flow keys of which is known how much they have had. Only those ahead of others matter, and they are few."""


class Rotation(Struct):
    """The rotation of a queue at one priority."""

    key: str = ""
    """The flow key that had its turn last."""
    step: int = 0
    """How much of the lap is over: at 0 the longest due is next."""
    had: dict[str, int] = field(default_factory=dict)
    """How many runs of each flow key were taken of late."""

    def count(self, key: str) -> None:
        """A run of the flow key was claimed. Older claims count less and less."""
        had = self.had.get(key, 0) + 1
        if had == 1 and len(self.had) >= MOST_REMEMBERED:
            self.had = {other: had - 1 for other, had in self.had.items() if had > 1}
            return
        self.had[key] = had
        if had > MOST_HAD:
            self.had = {other: had // 2 for other, had in self.had.items() if had > 1}


class Level(Struct, Generic[T]):
    """The due runs of a queue at one priority."""

    ordered: Iterator[Due[T]]
    """By wake_at."""
    keys: Callable[[str], Iterator[str]]
    """Its flow keys with due runs, in rotation, from behind the given one; each once.

    Runs without a key count as one key, before all others.
    """
    of_key: Callable[[str], Iterator[Due[T]]]
    """Of a flow key, by wake_at."""
    begun: Iterator[Due[T]]
    """Begun runs by wake_at, which a rate does not limit. May be empty where there is no rate."""
    rotation: Rotation


class Pick(Struct, Generic[T]):
    """The next run of a queue, and how it came to be that."""

    due: Due[T]
    place: int
    rotation: Rotation
    in_turn: bool


class Suspects(Struct):
    """How many suspects may still be taken, in all queues together."""

    left: int


class Line(Generic[T]):
    """The runs of one queue in the order in which they are to be taken, as far as its limits allow."""

    def __init__(
        self,
        levels: Iterable[Level[T]],
        suspects: Suspects,
        allowance: Allowance | None,
        now: int,
        room: int | None = None,
    ) -> None:
        self.allowance = allowance
        self.held = False
        """A due run was left because of a limit."""
        self.again_at: int | None = None
        """When time allows the next of that."""
        self._suspects = suspects
        self._now = now
        self._room = room
        self._seen: set[bytes] = set()
        self._given: Counter[str] = Counter()
        self._picks = self._all(levels)
        self._head: Pick[T] | None = None

    def peek(self) -> tuple[int, int] | None:
        """The rank of its next run among those of other queues; None when it has no more."""
        if self._room is not None and self._room <= 0:
            return None
        while self._head is None or (self._head.due.suspect and not self._suspects.left):
            self._head = next(self._picks, None)
            if self._head is None:
                return None
        return -self._head.due.priority, self._head.place

    def take(self) -> Due[T]:
        """Its next run, which is owned from now on. Only after a `peek` that found one."""
        pick, self._head = self._head, None
        assert pick is not None  # noqa: S101
        due = pick.due
        if pick.in_turn:
            pick.rotation.key = due.flow_key
        self._given[due.flow_key] += 1
        pick.rotation.count(due.flow_key)
        pick.rotation.step = (pick.rotation.step + 1) % LAP
        if self.allowance is not None:
            self.allowance.take(due.flow_key, due.first)
        if due.suspect:
            self._suspects.left -= 1
        if self._room is not None:
            self._room -= 1
        return due

    def _all(self, levels: Iterable[Level[T]]) -> Iterator[Pick[T]]:
        for level in levels:
            yield from self._level(level)
            if self.allowance is not None and self.allowance.is_full and self.held:
                return

    def _level(self, level: Level[T]) -> Iterator[Pick[T]]:
        """The longest due, then some of the least recently served flow keys, and again.

        A run that comes by its key takes the rank of the longest due, so that long waits in other queues do not push
        in.
        """
        first = next(level.ordered, None)
        if first is None:
            return
        self._given = Counter(level.rotation.had)
        ordered = self._in_order(chain([first], level.ordered), level.begun)
        by_key = self._in_turn(level)
        place = first.wake_at
        while True:
            in_turn = level.rotation.step > 0
            due = next(by_key if in_turn else ordered, None)
            if due is None:
                in_turn = not in_turn
                due = next(by_key if in_turn else ordered, None)
            if due is None:
                return
            self._seen.add(due.run_id)
            place = place if in_turn else due.wake_at
            yield Pick(due, place, level.rotation, in_turn)

    def _in_order(self, ordered: Iterator[Due[T]], begun: Iterator[Due[T]]) -> Iterator[Due[T]]:
        for due in ordered:
            if self._fits(due):
                yield due
            elif self._nothing_begins():
                break
        for due in begun:
            if self._fits(due):
                yield due
            elif self.allowance is not None and self.allowance.is_full:
                return

    def _nothing_begins(self) -> bool:
        return self.allowance is not None and (self.allowance.is_full or self.allowance.is_worn)

    def _in_turn(self, level: Level[T]) -> Iterator[Due[T]]:
        """One run of each flow key, and again; keys that have had more than others recently skip their turn.

        A key that a limit holds back is skipped: its begun runs come in order, if at all.
        """
        streams: Iterator[tuple[str, Iterator[Due[T]]]] = (
            (key, level.of_key(key)) for key in self._giving(level.keys(level.rotation.key))
        )
        number = 0
        while True:
            going: list[tuple[str, Iterator[Due[T]]]] = []
            for key, stream in streams:
                if self._given[key] > number:
                    going.append((key, stream))
                    continue
                due = self._first_of(stream)
                if due is not None:
                    going.append((key, stream))
                    yield due
                elif self._nothing_begins():
                    return
            if not going:
                return
            streams = iter(going)
            number = max(number + 1, min(self._given[key] for key, _ in going))

    def _giving(self, keys: Iterator[str]) -> Iterator[str]:
        for key in keys:
            if self._may_give(key, first=True):
                yield key
            elif self._nothing_begins():
                return

    def _first_of(self, stream: Iterator[Due[T]]) -> Due[T] | None:
        for due in stream:
            if self._fits(due):
                return due
            if due.run_id not in self._seen and not due.suspect:
                return None
        return None

    def _fits(self, due: Due[T]) -> bool:
        if due.run_id in self._seen or (due.suspect and not self._suspects.left):
            return False
        return self._may_give(due.flow_key, due.first)

    def _may_give(self, key: str, first: bool) -> bool:
        if self.allowance is None:
            return True
        at = self.allowance.when(key, first)
        if at is not None and at <= self._now:
            return True
        self.held = True
        if at is not None:
            self.again_at = at if self.again_at is None else min(at, self.again_at)
        return False


def choose(lines: Sequence[Line[T]], limit: int) -> list[Due[T]]:
    """Claim up to `limit` runs from several queues; by priority, then by the longest due."""
    chosen: list[Due[T]] = []
    while len(chosen) < limit:
        heads = [(place, number) for number, line in enumerate(lines) if (place := line.peek()) is not None]
        if not heads:
            break
        chosen.append(lines[min(heads)[1]].take())
    return sorted(chosen, key=lambda due: (-due.priority, due.wake_at, due.run_id))
