"""The screens of `batuta status` and `batuta workers`. Imports rich, so nothing imports this at its top."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from batuta.authoring.client.documents import Status
from batuta.authoring.client.workers import WorkerRow
from batuta.cli.output.tables import limits_text, short, table
from batuta.clock import SECOND, SystemClock
from batuta.durations import short_duration
from batuta.journal.queues import QueueInfo

_NAMES = 3
_SHORT_ID = 8
_ACTIVITY = "activity:"


def workers_table(found: Iterable[WorkerRow], *, everything: bool = False) -> Table:
    rows = [
        (
            worker.worker_id if everything else worker.worker_id[-_SHORT_ID:],
            Text("live", "green") if worker.live else Text("silent", "bold red"),
            str(worker.runs),
            worker.host,
            str(worker.pid),
            ", ".join(worker.queues),
            f"{short_duration(worker.silent)} ago",
            short_duration((worker.beat_at - worker.started_at).total_seconds() + worker.silent),
            _code(worker, everything=everything),
        )
        for worker in found
    ]
    return table("worker", "state", "runs", "host", "pid", "queues", "last beat", "up", "code", rows=rows)


def _code(worker: WorkerRow, *, everything: bool) -> str:
    """Workflows and jobs, then activities, and last Batuta's own workflows, which every worker has."""
    names = sorted(worker.code, key=lambda name: (name.startswith("batuta."), name.startswith(_ACTIVITY), name))
    names = [name.removeprefix(_ACTIVITY) for name in names]
    if everything:
        return ", ".join(names)
    rest = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def status_view(found: Status, namespace: str | None) -> RenderableType:
    """Workers, queues and what needs a person. It fits on one screen unless there are many of the first two."""
    live = sum(worker.live for worker in found.workers)
    lines: list[RenderableType] = [_heading(f"workers: {live} live", f"namespace {namespace}" if namespace else "")]
    if found.workers:
        lines.append(workers_table(found.workers))
    else:
        lines.append(Text("none: no work is executed", "bold red"))
    lines += [Text(), _heading(f"queues: {len(found.queues)}")]
    if found.queues:
        lines.append(_queues(found.queues))
    return Group(*lines, Text(), _heading("needs a person"), _needs(found))


def _heading(text: str, more: str = "") -> Text:
    return Text(text, "bold").append(f"  {more}" if more else "", "not bold")


def _queues(found: Iterable[QueueInfo]) -> Table:
    now = datetime.fromtimestamp(SystemClock().now() / SECOND, UTC)
    made = table("queue", "state", "ready", "oldest waits", "delayed", "running", "workers", "limits")
    for queue in found:
        if queue.paused:
            state = Text(f"paused {short(queue.reason, 30)}".strip(), "bold red")
        else:
            state = Text("open", "green") if queue.workers else Text("no worker", "bold red")
        age = "" if queue.oldest is None else short_duration((now - queue.oldest).total_seconds())
        counts = (str(count) for count in (queue.delayed, queue.running, queue.workers))
        made.add_row(queue.name, state, str(queue.ready), age, *counts, limits_text(queue))
    return made


def _needs(found: Status) -> Table:
    made = table("", "", "")
    made.show_header = False
    more = "+" if found.more_stopped else ""
    for state, count in found.stopped.items():
        made.add_row(*_row(f"{count:,}{more}", state, f"batuta runs list --kind any --state {state}", bad=count))
    made.add_row(*_row(f"{found.retrying:,}", "retrying", "batuta runs list --kind any --retrying", bad=0))
    often = f"retrying after more than {found.tries} failures"
    look = f"batuta runs list --kind any --tries {found.tries + 1}"
    made.add_row(*_row(f"{found.retrying_often:,}", often, look, bad=found.retrying_often))
    made.add_row(*_row(f"{found.dead_letters:,}", "dead letters", "batuta dead-letters groups", bad=found.dead_letters))
    return made


def _row(count: str, what: str, look: str, *, bad: int) -> tuple[Text, str, Text]:
    shown = look if count.strip("+0") else ""
    return Text(count, "bold red" if bad else "", justify="right"), what, Text(shown, "bright_black")
