"""Tables for people. Everything here imports rich, so nothing imports this at its top."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import UNSET, Raw, json
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from batuta.authoring.backend import AttemptView, Description, JournalLine
from batuta.authoring.client.bulk_operations import AuditRow
from batuta.authoring.client.schedules import ScheduleView
from batuta.cli.common.redaction import shown_json, shown_text
from batuta.clock import SECOND
from batuta.durations import human_duration
from batuta.journal.dead_letters import DeadLetter, DeadLetterGroup
from batuta.journal.entries import Command, CommandKind, EntryKind
from batuta.journal.failures import Failure
from batuta.journal.queues import LIMITS, QueueInfo
from batuta.journal.states import RunState
from batuta.journal.tracebacks import place_of, traceback_of
from batuta.printable import paragraph

_STYLE = {
    RunState.COMPLETED: "green",
    RunState.RUNNING: "cyan",
    RunState.WAITING: "blue",
    RunState.FAILED: "red",
    RunState.TIMED_OUT: "red",
    RunState.NEEDS_CODE: "bold red",
    RunState.POISONED: "bold red",
}
_KIND_STYLE = {EntryKind.ACTIVITY_DONE: "green", EntryKind.ACTIVITY_FAILED: "red"}
_CALLS = (CommandKind.ACTIVITY, CommandKind.CHILD)
_LONGEST = 60


class Paper(Console):
    """A console whose texts are redacted."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*map(_line, objects), **how)


class _Shown(Table):
    """A table whose cells are redacted, before they are folded."""

    def add_row(self, *cells: Any, **how: Any) -> None:
        super().add_row(*map(_shown, cells), **how)


def _shown(part: Any) -> Any:
    if isinstance(part, Group):
        return Group(*map(_shown, part.renderables))
    if isinstance(part, Text) and (text := shown_text(part.plain)) != part.plain:
        return Text(text, part.style)
    return shown_text(part) if isinstance(part, str) else part


def _line(part: Any) -> Any:
    """The same for text outside a cell: its newlines begin no new line."""
    if isinstance(part, Group):
        return Group(*map(_line, part.renderables))
    found = _shown(part)
    if isinstance(found, Text) and "\n" in found.plain:
        return Text(paragraph(found.plain), found.style)
    return paragraph(found) if isinstance(found, str) else found


def table(*columns: str, title: str = "", rows: Iterable[Iterable[str | Text]] = ()) -> Table:
    """A table in the style of them all. Long cells are folded, never cut."""
    made = _Shown(title=shown_text(title) or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def fields_table(fields: Mapping[str, str | Text]) -> Table:
    """One line for each field that says something."""
    rows = [(Text(name, "bold"), value) for name, value in fields.items() if value]
    made = table("", "", rows=rows)
    made.show_header = False
    return made


def when(moment: datetime | None) -> str:
    """UTC, to the millisecond."""
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def to_second(moment: datetime | None) -> str:
    """UTC, to the second."""
    return when(moment)[:-4]


def state_text(state: RunState) -> Text:
    return Text(str(state), _STYLE.get(state, ""))


def runs_table(runs: Iterable[Description]) -> Table:
    rows = [
        (
            run.id,
            run.workflow,
            state_text(run.state),
            str(run.entries),
            to_second(run.created_at),
            to_second(run.closed_at),
            short(run.reason),
        )
        for run in runs
    ]
    return table("id", "workflow", "state", "entries", "created (UTC)", "closed (UTC)", "reason", rows=rows)


def jobs_table(runs: Iterable[Description]) -> Table:
    columns = ("id", "job", "state", "queue", "priority", "created (UTC)", "due (UTC)", "closed (UTC)", "reason")
    rows = [
        (
            run.id,
            run.workflow,
            state_text(run.state),
            run.queue,
            str(run.priority or ""),
            to_second(run.created_at),
            to_second(run.wake_at),
            to_second(run.closed_at),
            short(run.reason),
        )
        for run in runs
    ]
    return table(*columns, rows=rows)


def audit_table(rows: Iterable[AuditRow]) -> Table:
    made = table("number", "at (UTC)", "actor", "verb", "target", "before", "after", "detail", "reason")
    for row in rows:
        said = (short(shown_json(each)) if each is not None else "" for each in (row.before, row.after))
        detail = "" if row.detail is None else short(shown_json(row.detail))
        cells = (when(row.at), row.actor, row.verb, row.target, *said, detail, short(row.reason))
        made.add_row(str(row.number), *cells)
    return made


def queues_table(queues: Iterable[QueueInfo]) -> Table:
    columns = ("queue", "state", "ready", "delayed", "running", "workers", "oldest (UTC)", "limits", "reason")
    rows = [
        (
            queue.name,
            _queue_state(queue),
            str(queue.ready),
            str(queue.delayed),
            str(queue.running),
            str(queue.workers),
            to_second(queue.oldest),
            limits_text(queue),
            queue.reason,
        )
        for queue in queues
    ]
    return table(*columns, rows=rows)


def queue_table(queue: QueueInfo) -> Table:
    return fields_table(
        {
            "queue": queue.name,
            "state": _queue_state(queue),
            "reason": queue.reason,
            "ready": str(queue.ready),
            "delayed": str(queue.delayed),
            "running": str(queue.running),
            "workers": str(queue.workers),
            "oldest": when(queue.oldest),
            "limits": limits_text(queue) or "none",
        }
    )


def letters_table(letters: Iterable[DeadLetter]) -> Table:
    columns = ("id", "name", "state", "given up (UTC)", "reason", "error", "message", "tries", "fingerprint")
    rows = [
        (
            letter.id,
            letter.name,
            str(letter.state),
            to_second(letter.at),
            str(letter.reason),
            letter.error,
            short(letter.message),
            str(letter.attempts),
            letter.fingerprint,
        )
        for letter in letters
    ]
    return table(*columns, rows=rows)


def letter_groups_table(groups: Iterable[DeadLetterGroup]) -> Table:
    columns = ("letters", "fingerprint", "name", "error", "the newest says", "first (UTC)", "last (UTC)")
    rows = [
        (
            f"{group.count:,}",
            group.fingerprint,
            group.example.name,
            group.example.error,
            short(group.example.message),
            to_second(group.first_at),
            to_second(group.last_at),
        )
        for group in groups
    ]
    return table(*columns, rows=rows)


def letter_table(letter: DeadLetter, traceback: str = "") -> Table:
    return fields_table(
        {
            "id": letter.id,
            "run id": str(letter.run_id),
            str(letter.kind): letter.name,
            "state": str(letter.state),
            "note": letter.note,
            "queue": letter.queue,
            "key": letter.key,
            "given up": when(letter.at),
            "reason": str(letter.reason),
            "activity": letter.activity,
            "attempts": str(letter.attempts or ""),
            "error": letter.error,
            "message": letter.message,
            "traceback": traceback,
            "fingerprint": letter.fingerprint,
            "trace": letter.trace,
            "resolved": when(letter.resolved_at),
            "reprocessed by": str(letter.successor or ""),
        }
    )


def _queue_state(queue: QueueInfo) -> Text:
    return Text("paused", "bold red") if queue.paused else Text("open", "green")


def limits_text(queue: QueueInfo) -> str:
    limits = {name.replace("_", " "): getattr(queue, name) for name in LIMITS}
    return ", ".join(f"{name} {value}" for name, value in limits.items() if value is not None)


def schedules_table(found: Iterable[ScheduleView]) -> Table:
    made = table("id", "when", "starts", "next (UTC)", "last (UTC)", "overlap", "")
    for view in found:
        state = (
            Text(f"paused {view.reason}".strip(), "yellow") if view.paused else Text("running" if view.running else "")
        )
        times = (to_second(view.next_at), to_second(view.last_at))
        made.add_row(view.id, view.when, view.workflow, *times, str(view.overlap), state)
    return made


def schedule_table(view: ScheduleView) -> Table:
    fields: dict[str, str | Text] = {
        "id": view.id,
        "when": view.when,
        "starts": f"{view.kind} {view.workflow}",
        "arguments": shown_json(view.arguments),
        "state": Text("paused", "yellow") if view.paused else "",
        "reason": view.reason,
        "next": when(view.next_at),
        "last": when(view.last_at),
        "last run": f"{view.last_id} (running)" if view.running else view.last_id,
        "waiting": when(view.waiting),
        "overlap": str(view.overlap),
        "catch up": human_duration(view.catch_up),
        "jitter": human_duration(view.jitter) if view.jitter else "",
        "not before": when(view.start_at),
        "not after": when(view.end_at),
        "queue": view.queue,
        "priority": str(view.priority or ""),
        "key": view.key,
        "version": view.version,
        "timeout": human_duration(view.timeout) if view.timeout else "",
        "execution timeout": human_duration(view.execution_timeout) if view.execution_timeout else "",
        "expires": human_duration(view.expires) if view.expires else "",
        "tags": " ".join(f"{key}={value}" for key, value in view.tags.items()),
        "memo": "" if view.memo is None else shown_json(view.memo),
        "created": when(view.created_at),
        "changed": when(view.updated_at),
    }
    return fields_table(fields)


def run_view(run: Description, more: Mapping[str, Any], what: str) -> Group:
    """The run, and the attempts that it keeps."""
    attempts = [attempts_table(run.attempts, is_open=run.closed_at is None)] if run.attempts else []
    return Group(_run_table(run, more, what), *attempts)


def _run_table(run: Description, more: Mapping[str, Any], what: str) -> Table:
    fields = {
        "id": run.id,
        "run id": str(run.run_id),
        what: run.workflow,
        "state": state_text(run.state),
        "reason": run.reason,
        "input": shown_json(more["input"]) if more.get("input") is not None else "",
        "waits for": "\n".join(map(_waits, more.get("waiting_for", ()))),
        "queue": run.queue,
        "entries": str(run.entries),
        "worker": run.worker,
        "created": when(run.created_at),
        "closed": when(run.closed_at),
        "due": when(run.wake_at),
        "paused": when(run.paused_at),
        "deadline": when(run.deadline),
        "deaths": str(run.deaths or ""),
        "made from": _lineage(run),
        "version": run.version,
        "tags": " ".join(f"{key}={value}" for key, value in run.tags.items()),
        "memo": "" if run.memo is None else shown_json(run.memo),
        "progress": shown_json(more["progress"]) if "progress" in more else "",
        "published": "\n".join(
            f"{name}: {shown_json(value, name)}" for name, value in more.get("published", {}).items()
        ),
        "result": shown_json(more["result"]) if "result" in more else "",
        "error": more.get("error", ""),
        "traceback": more.get("traceback", ""),
    }
    return fields_table(fields)


def _waits(call: dict[str, Any]) -> str:
    """`activity charge, try 3, since 2031-05-17 10:00:00`."""
    tries = f", try {call['tries']}" if call["tries"] > 1 else ""
    return f"{call['kind']} {call['name']}".strip() + f"{tries}, since {to_second(call['since'])}"


def _lineage(run: Description) -> str:
    if run.forked_from is None:
        return ""
    point = "from its start" if run.forked_at == -1 else f"after its entry {run.forked_at}"
    return f"run {run.forked_from}, {point}"


def attempts_table(attempts: Iterable[AttemptView], *, is_open: bool) -> Table:
    made = table("command", "attempt", "began (UTC)", "ended (UTC)", "next (UTC)", "details", "error", title="attempts")
    for one in attempts:
        times = (when(one.started_at), when(one.ended_at), when(one.next_at))
        waits = "waits for an answer from outside" if is_open else "waited for an answer from outside"
        said = waits if one.outside else "its worker died" if one.lost else failure_text(one.error)
        made.add_row(str(one.seq), str(one.number), *times, one.details or "", said)
    return made


def journal_view(lines: Sequence[JournalLine], *, full: bool) -> Group:
    """Entries with the time since the start, how long an activity took, and what each turn issued. Calls are numbered:
    a fork names them so. Below: the traceback of the error which the run ended with, if it did."""
    made = table("ord", "after", "entry", "call", "activity", "tries", "took", "value", "then issued")
    start = lines[0].at if lines else None
    for line in lines:
        body = line.body
        made.add_row(
            str(line.ord),
            f"{(line.at - start).total_seconds():.3f} s" if start else "",
            Text(str(line.kind), _KIND_STYLE.get(line.kind, "")),
            str(body.seq or ""),
            body.name,
            str(body.attempts or ""),
            f"{(line.at.timestamp() * SECOND - body.started_at) / SECOND:.3f} s" if body.started_at else "",
            _value(line, full=full),
            ("\n" if full else "  ").join(command_text(command, full=full) for command in body.commands),
        )
    ends = lines[-1].body.commands[-1:] if lines else []
    return Group(made, *tracebacks(command.error for command in ends if command.error is not UNSET))


def command_text(command: Command, *, full: bool = False) -> str:
    """Number, kind and arguments: `2 activity charge ["ada",10]`, `3 timer 0.5 s`, `4 complete`."""
    numbered = f"{command.seq} {command.kind}"
    if command.kind == "timer" and isinstance(command.value, Raw):
        return f"{numbered} {human_duration(json.decode(command.value) / SECOND)}"
    if command.error is not UNSET:
        return f"{numbered} {error_text(command.error, full=full)}"
    called = command.kind in _CALLS and isinstance(command.value, Raw)
    value = shown_json(command.value) if called else ""
    return " ".join(filter(None, (numbered, command.name, value if full else short(value))))


def _value(line: JournalLine, *, full: bool = False) -> str:
    body = line.body
    if body.error is not UNSET:
        return error_text(body.error, full=full)
    if body.value is not UNSET:
        value = shown_json(body.value, body.name)
        return value if full else short(value)
    return body.reason if full else short(body.reason)


def error_text(failure: Failure, *, full: bool = False) -> str:
    """Class, message and place of an error. Only the message is cut, unless it is asked for in full."""
    common = place_of(failure)
    said = f"{failure.kind}: {failure.message}"
    return (said if full else short(said)) + (f" ({common})" if common else "")


def tracebacks(failures: Iterable[Failure]) -> Iterator[Text]:
    """Of the errors that runs ended with, each with an empty line before it."""
    for failure in failures:
        yield Text("\n" + traceback_of(failure), "red")


def failure_text(text: str | None) -> str:
    """An attempt's error. Says so if it went through a codec that is missing here."""
    if text is None:
        return ""
    failure = json.decode(text)
    if not isinstance(failure, dict):
        return "it cannot be read here: it went through a codec"
    return short(f"{failure.get('type', '').rpartition(':')[2]}: {failure.get('message', '')}")


def short(text: str, longest: int = _LONGEST) -> str:
    """The first line of it, redacted and cut."""
    first = shown_text(text).splitlines()[0] if text else ""  # a number that is cut is no longer recognised
    return first if len(first) <= longest else first[: longest - 1] + "…"
