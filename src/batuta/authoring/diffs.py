"""Two runs of the same workflow, compared step by step. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from difflib import SequenceMatcher
from itertools import zip_longest

from msgspec import Struct

from batuta.authoring.backend import as_datetime
from batuta.authoring.steps import Step, StepKind
from batuta.errors import InvalidInput
from batuta.ids import RunId
from batuta.journal.failures import Failure
from batuta.journal.records import Run, RunKind
from batuta.journal.states import RunState

_MANY = 2_000
"""Steps after the first difference: of more than that, each is held against the one in the same place."""


class Side(Struct, kw_only=True):
    """One of the two."""

    id: str
    run_id: RunId
    state: RunState
    created_at: datetime
    closed_at: datetime | None


class StepDiff(Struct, kw_only=True):
    """A step of one, and what stands in its place in the other."""

    left: Step | None
    """None: only the right one has it."""
    right: Step | None
    differs: list[str]
    """In what: `step` (only one of them has it), `input`, `output`, `error`, `state`, `tries`. The last alone is no
    difference."""

    @property
    def is_same(self) -> bool:
        return not self.differs or self.differs == ["tries"]


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
    """That one was made from the other is no step of its code."""
    return [step for step in steps if step.kind is not StepKind.FORK]


def _aligned(mine: list[Step], its: list[Step]) -> Iterator[tuple[Step | None, Step | None]]:
    """Steps that belong together, by what they are; others alone."""
    same = 0
    while same < min(len(mine), len(its)) and not _differences(mine[same], its[same]):
        yield mine[same], its[same]
        same += 1
    mine, its = mine[same:], its[same:]
    if max(len(mine), len(its)) > _MANY:
        yield from zip_longest(mine, its)
        return
    blocks = SequenceMatcher(None, _names(mine), _names(its), autojunk=False).get_opcodes()
    for tag, begin, end, first, last in blocks:
        if tag == "equal":
            yield from zip(mine[begin:end], its[first:last], strict=True)
        else:
            yield from ((step, None) for step in mine[begin:end])
            yield from ((None, step) for step in its[first:last])


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


def _said(error: Failure | None) -> tuple[str, str] | None:
    return None if error is None else (error.type, error.message)
