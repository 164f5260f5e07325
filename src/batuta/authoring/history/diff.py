"""Two runs of the same workflow, compared step by step. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from difflib import SequenceMatcher
from itertools import takewhile, zip_longest
from operator import eq

from msgspec import Struct

from batuta.authoring.history.steps import Step, StepKind
from batuta.clock import as_datetime
from batuta.errors import InvalidInput
from batuta.ids import RunId
from batuta.journal.failures import Failure
from batuta.journal.records import Run, RunKind
from batuta.journal.states import RunState

_MANY = 500
"""Steps among which those are looked for that belong together: where steps repeat themselves, that can take the cube of
their number. Of more, what both begin and end with is taken off, and the rest is compared place by place."""


class Side(Struct, kw_only=True):
    """One of the two runs."""

    id: str
    run_id: RunId
    state: RunState
    created_at: datetime
    closed_at: datetime | None


class StepDiff(Struct, kw_only=True):
    """A step of one run, and its counterpart in the other."""

    left: Step | None
    """None if only the right run has it."""
    right: Step | None
    differs: list[str]
    """Where they differ: `step` (only one of them has it), `input`, `output`, `error`, `state`, `tries`.

    `tries` alone is no difference.
    """

    @property
    def is_same(self) -> bool:
        return _is_same(self.differs)


class Diff(Struct, kw_only=True):
    """Two runs of a workflow or job."""

    workflow: str
    kind: RunKind
    left: Side
    right: Side
    same: int
    """How many steps they begin with that are the same."""
    steps: list[StepDiff]
    """All of them; those after the first `same` are in an order that fits both."""

    @property
    def is_same(self) -> bool:
        """Whether they did the same, and it went the same way. Times and attempts do not count."""
        return all(step.is_same for step in self.steps)


def diff_of(left: tuple[Run, Sequence[Step]], right: tuple[Run, Sequence[Step]]) -> Diff:
    """Raises InvalidInput when they are of different workflows, or are the same run."""
    (one, mine), (other, its) = left, right
    if one.run_id == other.run_id:
        raise InvalidInput(f"run {one.run_id} cannot be compared with itself: give the run id of another one")
    if (one.kind, one.name) != (other.kind, other.name):
        raise InvalidInput(
            f"run {one.id!r} is of {one.kind} {one.name!r}, and run {other.id!r} of {other.kind} {other.name!r}: only "
            f"runs of the same one can be compared"
        )
    mine, its = _comparable(mine), _comparable(its)
    pairs = [StepDiff(left=a, right=b, differs=_differences(a, b)) for a, b in _aligned(mine, its)]
    same = next((place for place, pair in enumerate(pairs) if not pair.is_same), len(pairs))
    return Diff(workflow=one.name, kind=one.kind, left=_side(one), right=_side(other), same=same, steps=pairs)


def _side(run: Run) -> Side:
    return Side(
        id=run.id,
        run_id=run.run_id,
        state=run.state,
        created_at=as_datetime(run.created_at),
        closed_at=as_datetime(run.closed_at),
    )


def _comparable(steps: Sequence[Step]) -> list[Step]:
    """An entry `forked` is not a step of the code."""
    return [step for step in steps if step.kind is not StepKind.FORK]


def _aligned(mine: list[Step], its: list[Step]) -> Iterator[tuple[Step | None, Step | None]]:
    """Match steps: first those that are the same at the beginning, then by kind and name; the rest stay alone."""
    same = _how_many(_is_same(_differences(*pair)) for pair in zip(mine, its, strict=False))
    yield from zip(mine[:same], its[:same], strict=True)
    mine, its = mine[same:], its[same:]
    if max(len(mine), len(its)) <= _MANY:
        yield from _matched(mine, its)
        return
    first, last = _ends_alike(_names(mine), _names(its))
    yield from zip(mine[:first], its[:first], strict=True)
    my_rest, its_rest = mine[first : len(mine) - last], its[first : len(its) - last]
    is_much = max(len(my_rest), len(its_rest)) > _MANY
    yield from zip_longest(my_rest, its_rest) if is_much else _matched(my_rest, its_rest)
    yield from zip(mine[len(mine) - last :], its[len(its) - last :], strict=True)


def _matched(mine: list[Step], its: list[Step]) -> Iterator[tuple[Step | None, Step | None]]:
    blocks = SequenceMatcher(None, _names(mine), _names(its), autojunk=False).get_opcodes()
    for tag, begin, end, first, last in blocks:
        if tag == "equal":
            yield from zip(mine[begin:end], its[first:last], strict=True)
        else:
            yield from ((step, None) for step in mine[begin:end])
            yield from ((None, step) for step in its[first:last])


def _ends_alike(mine: Sequence[object], its: Sequence[object]) -> tuple[int, int]:
    """How many are alike at the beginning, and at the end; no step is in both, and the longer one is whole."""
    shorter = min(len(mine), len(its))
    first = _how_many(map(eq, mine, its))
    last = _how_many(map(eq, reversed(mine), reversed(its)))
    return (first, min(last, shorter - first)) if first >= last else (min(first, shorter - last), last)


def _how_many(alike: Iterable[bool]) -> int:
    """At the beginning."""
    return sum(1 for _ in takewhile(bool, alike))


def _names(steps: Sequence[Step]) -> list[tuple[StepKind, str]]:
    return [(step.kind, "" if step.kind is StepKind.END else step.name) for step in steps]


def _differences(left: Step | None, right: Step | None) -> list[str]:
    if left is None or right is None or left.kind is not right.kind:
        return ["step"]
    found = {
        "step": left.name != right.name,
        "input": left.input != right.input,
        "output": left.output != right.output,
        "error": _said(left.error) != _said(right.error),
        "state": left.state is not right.state,
        "tries": left.tries != right.tries,
    }
    return [what for what, differs in found.items() if differs]


def _is_same(differs: list[str]) -> bool:
    return not differs or differs == ["tries"]


def _said(error: Failure | None) -> tuple[str, str] | None:
    return None if error is None else (error.type, error.message)
