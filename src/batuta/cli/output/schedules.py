"""Tables of schedules. Imports rich, so nothing imports this at its top."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from batuta.authoring.client.schedules import ScheduleView
from batuta.cli.common.redaction import shown_json
from batuta.cli.output.tables import fields_table, table, when
from batuta.durations import human_duration


def schedules_table(found: Iterable[ScheduleView]) -> Table:
    made = table("id", "when", "starts", "next (UTC)", "last (UTC)", "overlap", "")
    for view in found:
        state = (
            Text(f"paused {view.reason}".strip(), "yellow") if view.paused else Text("running" if view.running else "")
        )
        times = (when(view.next_at)[:-4], when(view.last_at)[:-4])
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
