"""Timelines and differences for people. It imports rich, so nothing imports this at its top."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from batuta.authoring.history.diff import Diff, StepDiff
from batuta.authoring.history.steps import Segment, SegmentKind, Step, StepKind, StepState
from batuta.authoring.history.timeline import Timeline
from batuta.cli.common.redaction import shown_json
from batuta.cli.output.tables import error_text, failure_text, short, state_text, table, tracebacks, when
from batuta.printable import number_of

_LOOKS = {
    SegmentKind.RUNNING: ("█", "#", "green"),
    SegmentKind.QUEUED: ("░", ".", "yellow"),
    SegmentKind.LOST: ("╳", "!", "bold red"),
    SegmentKind.BACKOFF: ("▒", "~", "red"),
    SegmentKind.OUTSIDE: ("◇", "o", "magenta"),
    SegmentKind.CHILD: ("▓", "%", "cyan"),
    SegmentKind.ASLEEP: ("─", "-", "blue"),
    SegmentKind.WAITING: ("·", ":", "bright_black"),
    SegmentKind.DELAYED: ("┄", "_", "bright_black"),
    SegmentKind.PAUSED: ("=", "=", "bold yellow"),
    SegmentKind.PARKED: ("×", "x", "bold red"),
}
"""A sign, one for terminals that know no others, and a colour."""
_STATES = {StepState.DONE: "green", StepState.FAILED: "red", StepState.OPEN: "cyan"}
_UNTIMED = (StepKind.PUBLISH, StepKind.SIDE_EFFECT, StepKind.PATCH, StepKind.SEND, StepKind.START, StepKind.FORK)
"""Steps that take no time: they are not drawn."""
_ANSWERED = (StepKind.ACTIVITY, StepKind.CHILD, StepKind.TIMER, StepKind.UPDATE, StepKind.UNDO)
_MOST = 200
"""Rows of a table, unless all are asked for."""
_NARROWEST, _WIDEST = 10, 100
_BESIDE = 39
"""Columns that are no bar, but for the names of steps."""


class _Scale:
    """Turns times into columns."""

    def __init__(self, start: datetime, end: datetime, width: int, ascii_only: bool) -> None:
        self._start, self.width, self._place = start, width, 1 if ascii_only else 0
        self._seconds = max((end - start).total_seconds(), 1e-6)
        self._end = end

    def bar(self, segments: Sequence[Segment]) -> Text:
        """Every segment has a column at least; of several in one column the last is seen."""
        cells: list[tuple[str, str]] = [(" ", "")] * self.width
        for one in segments:
            first = min(self._column(one.start), self.width - 1)
            last = max(self._column(one.end or self._end), first + 1)
            look = _LOOKS[one.kind]
            cells[first:last] = [(look[self._place], look[2])] * (last - first)
        made = Text()
        for (sign, style), same in groupby(cells[: self.width]):
            made.append(sign * len(list(same)), style)
        return made

    def _column(self, at: datetime) -> int:
        share = (at - self._start).total_seconds() / self._seconds
        return min(self.width, max(0, round(share * self.width)))

    def legend(self, kinds: Sequence[tuple[SegmentKind, float]]) -> Text:
        made = Text()
        for kind, seconds in kinds:
            look = _LOOKS[kind]
            made.append(look[self._place] * 2, look[2]).append(f" {kind} {duration(seconds)}   ")
        return made


def timeline_view(found: Timeline, console: Console, *, everything: bool = False) -> RenderableType:
    """The run and its steps, one under the other, with bars on one scale. Of very many, the first and the last."""
    lines: list[RenderableType] = [_headline(found)]
    if found.sealed:
        return Group(*lines, Text(f"its journal cannot be read here: {found.sealed}", "bold red"))
    if not found.segments:
        return Group(*lines)
    start = found.segments[0].start
    end = found.segments[-1].end or found.as_of
    most = sys.maxsize if everything else _MOST
    timed = [step for step in found.steps if step.kind not in _UNTIMED]
    drawn = [*timed[: most // 2], *timed[most // 2 :][-most // 2 :]]
    names = [short(step_text(step), 36 if console.width >= 120 else 24) for step in drawn]
    width = max(_NARROWEST, min(_WIDEST, console.width - _BESIDE - max(map(len, ["step", *names]))))
    scale = _Scale(start, end, width, ascii_only=console.options.ascii_only)
    made = table("step", "state", "tries", "after", "took", duration((end - start).total_seconds()).rjust(width))
    made.add_row(Text("run", "bold"), state_text(found.state), "", "", _took(start, end), scale.bar(found.segments))
    for common, (name, step) in enumerate(zip(names, drawn, strict=True)):
        if common == most // 2 and len(drawn) < len(timed):
            made.add_row("...")
        made.add_row(name, *_step_cells(step, start, end, scale))
    lines += [made, *_left_out(len(timed) - len(drawn), "steps between")]
    lines.append(scale.legend(sorted(found.seconds.items(), key=lambda one: -one[1])))
    ends = [step.error for step in found.steps if step.kind is StepKind.END and step.error is not None]
    return Group(*lines, *_errors(found.steps, start, most), *tracebacks(ends))


def _left_out(number: int, what: str) -> Iterator[RenderableType]:
    if number > 0:
        yield Text(f"{number:,} {what} are not shown: use --all, or --json", "bright_black")


def _headline(found: Timeline) -> Text:
    made = Text(f"{found.kind} {found.workflow}", "bold").append(f"  run {found.id} ({found.run_id})", "not bold")
    made.append(f"  created {when(found.created_at)} UTC", "not bold")
    if found.reason:
        made.append(f"\n{found.reason}", "not bold")
    if found.forked_from is not None:
        made.append(f"\nmade from run {found.forked_from}: what that one did is kept", "not bold")
    if found.continued_as is not None:
        made.append(f"\ncontinued as run {found.continued_as}", "not bold")
    return made


def _step_cells(step: Step, start: datetime, end: datetime, scale: _Scale) -> Iterator[RenderableType]:
    yield Text(str(step.state), _STATES.get(step.state, ""))
    yield str(step.tries or "")
    if step.kept:
        yield from ("", "", Text("kept", "bright_black"))
        return
    yield duration((step.began_at - start).total_seconds())
    yield _took(step.segments[0].start, step.ended_at or end) if step.segments else ""
    yield scale.bar(step.segments)


def _errors(steps: Sequence[Step], start: datetime, most: int) -> Iterator[RenderableType]:
    """Failed attempts: when, with which arguments, and why. Of very many, the last."""
    rows = [(step, one) for step in steps for one in step.attempts if one.error is not None]
    if rows:
        made = table("step", "attempt", "after", "took", "again in", "error", title="failed attempts")
        for step, one in rows[-most:]:
            after = "kept" if step.kept else _between(start, one.started_at)
            times = (after, _between(one.started_at, one.ended_at), _between(one.ended_at, one.next_at))
            called = f"{step_text(step)} {_json(step.input, step)}"
            made.add_row(short(called), str(one.number), *times, failure_text(one.error))
        yield from (Text(), made, *_left_out(len(rows) - most, "before these"))


def step_text(step: Step) -> str:
    """Number and kind: `2 charge`, `3 timer 5s`, `signal stop`, `7 end complete`."""
    what = "" if step.kind is StepKind.ACTIVITY else str(step.kind)
    said = duration(step.input).replace(".000s", "s") if step.kind is StepKind.TIMER else ""
    return " ".join(filter(None, (str(step.seq or ""), what, step.name, said)))


def diff_view(found: Diff, *, everything: bool = False) -> RenderableType:
    """One line for the common steps; then each differing step, or the first of very many."""
    head = table("", found.workflow, "state", "created (UTC)", "took")
    for name, side in (("left", found.left), ("right", found.right)):
        times = (when(side.created_at), _between(side.created_at, side.closed_at))
        head.add_row(name, f"{side.id} ({side.run_id})", state_text(side.state), *times)
    if found.is_same:
        return Group(head, Text(f"\nno difference in {number_of(found.same, 'step')}", "green"))
    same = (
        f"the first {number_of(found.same, 'step is', 'steps are')} the same, then:"
        if found.same
        else "they differ from the first step on:"
    )
    made = table("step", "differs in", "left", "right", "tries", "took")
    pairs = found.steps[found.same :]
    most = len(pairs) if everything else _MOST
    for pair in pairs[:most]:
        made.add_row(*_pair_cells(pair))
    different = sum(not pair.is_same for pair in pairs[most:])
    left_out = _left_out(len(pairs) - most, f"steps more, of which {different:,} differ,")
    return Group(head, Text(f"\n{same}"), made, *left_out)


def _pair_cells(pair: StepDiff) -> Iterator[RenderableType]:
    left, right = pair.left, pair.right
    steps = [step for step in (left, right) if step is not None]
    named = steps if "step" in pair.differs else steps[:1]
    yield " / ".join(short(step_text(step), 36) for step in named)
    only = "only left" if right is None else "only right" if left is None else ""
    yield Text(only or ", ".join(pair.differs) or "same", "bright_black" if pair.is_same else "bold yellow")
    yield "" if left is None else _outcome(left, with_input="input" in pair.differs or bool(only))
    yield "" if right is None else _outcome(right, with_input="input" in pair.differs or bool(only))
    yield _both([str(step.tries) if step.tries else "" for step in steps])
    yield _both(["" if step.seconds is None else duration(step.seconds) for step in steps])


def _both(said: Sequence[str]) -> str:
    return said[0] if len(set(said)) == 1 else " / ".join(one or "-" for one in said)


def _outcome(step: Step, *, with_input: bool) -> str:
    given = _json(step.input, step) if with_input else ""
    if step.error is not None:
        said = error_text(step.error)
    elif step.output is not None:
        said = _json(step.output, step)
    else:
        said = str(step.state) if step.kind in _ANSWERED else ""
    return " -> ".join(filter(None, (given, step.name if step.kind is StepKind.END else "", said)))


def _took(start: datetime, end: datetime) -> str:
    return duration((end - start).total_seconds())


def _between(start: datetime | None, end: datetime | None) -> str:
    return "" if start is None or end is None else _took(start, end)


def _json(value: Any, step: Step) -> str:
    return "" if value is None else short(shown_json(value, step.name))


def duration(seconds: float) -> str:
    """To three digits or so: `0.012s`, `3.4s`, `2m05s`, `4h10m`, `3d02h`."""
    if seconds < 10:
        return f"{seconds:.3f}s"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for large, small, size in (("m", "s", 60), ("h", "m", 3_600), ("d", "h", 86_400)):
        if whole < size * (60 if size < 3_600 else 24) or large == "d":
            rest = whole % size // (size // (60 if size < 86_400 else 24))
            return f"{whole // size}{large}{rest:02d}{small}"
    raise AssertionError("days are not limited")
