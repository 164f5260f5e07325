"""The demo's output: lines as things happen, a bar for each order on a terminal, and tables at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from batuta.cli.demo.judge import Step
from batuta.cli.demo.ledger import Event
from batuta.cli.output.tables import table
from batuta.clock import SECOND, Clock
from batuta.journal.entries import EntryKind

STEPS = {"order-1001": 4, "order-1002": 2}
"""How many activities of each order will finish."""

_STYLE = {"began": "cyan", "finished": "green", "failed": "yellow"}


class Show:
    """Tells about the ledger while it grows. A context manager."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console, self._clock, self._began_at = console, clock, clock.now()
        self._seen = 0
        self._workers: list[int] = []
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("activities done"))
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bars = {id: self._progress.add_task(id, total=total) for id, total in STEPS.items()}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, sentence: str, style: str = "bold") -> None:
        self._console.print(Text.assemble(self._time(self._clock.now()), (sentence, style)))

    def update(self, events: Sequence[Event]) -> None:
        """Print new lines of the ledger."""
        for event in events[self._seen :]:
            who = f"worker {self.number(event.pid)}"
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            what = (event.what + again, _STYLE[event.what])
            self._console.print(Text.assemble(self._time(event.at), f"{who}  {event.order}  {event.name:<8} ", what))
        self._seen = len(events)
        for id, bar in self._bars.items():
            finished = {event.key for event in events if event.order == id and event.what == "finished"}
            self._progress.update(bar, completed=len(finished))

    def number(self, pid: int) -> int:
        """Workers are numbered as they appear."""
        if pid not in self._workers:
            self._workers.append(pid)
        return self._workers.index(pid) + 1

    def since(self, at: int) -> str:
        """A time, from the beginning of the show."""
        return f"{(at - self._began_at) / SECOND:.2f} s"

    def _time(self, at: int) -> tuple[str, str]:
        return f"{self.since(at):>9}  ", "dim"


def steps_table(steps: Sequence[Step], order: str, ending: str, show: Show) -> Table:
    """The journal of one order, with the ledger's facts about each entry."""
    columns = ("entry", "activity", "outcome", "at", "took", "attempts", "begun", "finished", "by worker", "")
    made = table(*columns, title=f"{order}  {ending}")
    for step in steps:
        if step.order == order:
            made.add_row(*_journal_cells(step, show), *_ledger_cells(step, show), _remark(step))
    return made


def _journal_cells(step: Step, show: Show) -> tuple[str, str, Text, str, str, str]:
    line = step.line
    if line is None:
        return "", step.name, Text("missing", "bold red"), "", "", ""
    good = line.kind is EntryKind.ACTIVITY_DONE
    outcome = Text("done" if good else "failed", "green" if good else "yellow")
    at = round(line.at.timestamp() * SECOND)
    took = f"{(at - line.body.started_at) / SECOND:.2f} s"
    return str(line.ord), step.name, outcome, show.since(at), took, str(line.body.attempts)


def _ledger_cells(step: Step, show: Show) -> tuple[str, str, str]:
    return str(step.began), str(step.finished), " and ".join(str(show.number(pid)) for pid in step.pids)


def _remark(step: Step) -> str:
    if step.answered_before:
        return "before the kill: replayed, not run again"
    return "in flight at the kill: begun again, same key" if step.begun_before else ""
