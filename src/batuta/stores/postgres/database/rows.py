"""Rows of the database as records, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

from asyncpg import Record
from msgspec import json

from batuta.errors import told
from batuta.ids import RunId, uuid_of
from batuta.journal.entries import Entry
from batuta.journal.records import (
    Attempt,
    Message,
    MessageKind,
    NewRun,
    Output,
    Run,
    StoredRun,
    WorkerView,
)
from batuta.journal.states import RunState
from batuta.stores.contract import stored_values
from batuta.stores.contract.claimed_run import Rare

T = TypeVar("T")

_code = json.Decoder(dict[str, str])
_RUNNING = RunState.RUNNING
_rare = json.Decoder(Rare).decode
_run_columns = itemgetter(*Run.__struct_fields__)
_PARENT = Run.__struct_fields__.index("parent_run_id")
_FORKED = Run.__struct_fields__.index("forked_from")


def standard(value: UUID) -> RunId:
    """A UUID of the standard library: the driver's own looks like one, but other libraries refuse it."""
    return uuid_of(value.int)


def run_ids(values: Iterable[UUID] | None) -> list[RunId]:
    """The same for an array, which may be null."""
    return [uuid_of(value.int) for value in values or ()]


def run_of(row: Record | Mapping[str, Any]) -> Run:
    """A row of `runs`. By place: a claim makes hundreds of them, and naming each field costs several times as much."""
    values: list[Any] = list(_run_columns(row))
    run, chain, parent = values[0], values[2], values[_PARENT]
    values[0] = run_id = uuid_of(run.int)
    values[2] = run_id if chain == run else uuid_of(chain.int)
    values[3], values[7] = stored_values.RUN_KINDS[values[3]], stored_values.RUN_STATES[values[7]]
    if parent is not None:
        values[_PARENT] = uuid_of(parent.int)
    if values[_FORKED] is not None:
        values[_FORKED] = uuid_of(values[_FORKED].int)
    return Run(*values)


def claimed_run_of(row: Record, owner: str) -> tuple[StoredRun, bool]:
    """The result of a claim for an owned run, and whether there is more to read: entries, messages."""
    run, id, kind, name, queue, priority, epoch, head, created_at, code, flow_key, rare, start, first, more, _news = row
    run_id = uuid_of(run.int)
    claimed = Run(
        run_id,
        id,
        run_id,
        stored_values.RUN_KINDS[kind],
        name,
        queue,
        priority,
        _RUNNING,
        epoch,
        head,
        owner,
        None,
        created_at,
        None,
        None,
        0,
        "",
        [],
        "",
        "{}",
        "null",
        code,
        None,
        0,
        flow_key,
    )
    if rare is not None:
        _rare(rare).put_into(claimed)
    if kind not in stored_values.RUN_KINDS:
        return StoredRun(claimed, [], [], [], told(stored_values.RUN_KINDS.unknown(kind))), False
    messages = [] if start is None else [start_in_row(run, name, start, created_at)]
    if more or first is None:
        return StoredRun(claimed, [], messages, []), more or head >= 0
    entry_kind, at, crc, body = first.split(" ", 3)
    if entry_kind not in stored_values.ENTRY_KINDS:
        return StoredRun(claimed, [], messages, []), True
    return StoredRun(
        claimed, [Entry(0, stored_values.ENTRY_KINDS[entry_kind], int(at), int(crc), body)], messages, []
    ), False


def start_in_row(run_id: UUID, name: str, start: str, at: int) -> Message:
    """The start message in the row of its run. Those of the inbox come after it."""
    return Message(message_id=f"start:{run_id}", kind=MessageKind.START, name=name, body=start, at=at)


def run_of_start(start: NewRun, created_at: int, ends_at: int | None, due_at: int | None) -> Run:
    """The run that an unowned start made, from what insert_runs returns."""
    run_id = start.run_id
    return Run(
        run_id,
        start.id,
        start.chain_id or run_id,
        start.kind,
        start.name,
        start.queue,
        start.priority,
        RunState.PENDING,
        0,
        -1,
        None,
        due_at,
        created_at,
        None,
        ends_at,
        0,
        "",
        [],
        start.version,
        start.tags,
        start.memo,
        start.code or start.name,
        start.parent_run_id,
        start.parent_seq,
        start.flow_key,
        created_at + start.expires if start.expires else None,
    )


def entry_of(row: Record, prefix: str = "") -> Entry:
    """A row of `journal`."""
    kind = stored_values.ENTRY_KINDS[row[f"{prefix}kind"]]
    return Entry(row[f"{prefix}ord"], kind, row[f"{prefix}at"], row[f"{prefix}crc"], row[f"{prefix}body"])


def fill_journals(stored_runs: Sequence[StoredRun], rows: Iterable[Record]) -> list[tuple[StoredRun, bool, bool]]:
    """Assign rows of `journals` to their runs. Returns those that have more: attempts, and unread messages."""
    more: list[tuple[StoredRun, bool, bool]] = []
    known = stored_values.ENTRY_KINDS
    for place, number, kind, at, crc, body in rows:
        if number < 0:
            more.append((stored_runs[place - 1], bool(at), bool(crc)))
        else:
            stored_runs[place - 1].entries.append(Entry(number, known[kind], at, crc, body))
    return more


def message_of(row: Record) -> Message:
    """A row of `inbox`."""
    return Message(
        message_id=row["message_id"],
        kind=stored_values.MESSAGE_KINDS[row["kind"]],
        name=row["name"],
        body=row["body"],
        at=row["at"],
        number=row["number"],
    )


def attempt_of(row: Record) -> Attempt:
    """A row of `attempts`."""
    return Attempt(
        seq=row["seq"],
        number=row["number"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        next_at=row["next_at"],
        error=row["error"],
        details=row["details"],
        outside=row["outside"],
        tokens=row["tokens"],
    )


def output_of(row: Record) -> Output:
    """A row of `outputs`."""
    return Output(
        kind=stored_values.OUTPUT_KINDS[row["kind"]],
        name=row["name"],
        ord=row["ord"],
        at=row["at"],
        value=row["value"],
        error=row["error"],
    )


def record_of(kind: Callable[..., T]) -> Callable[[Record], T]:
    """Reads rows whose columns have the names of a record's fields."""
    return lambda row: kind(**dict(row))


def worker_of(row: Record) -> WorkerView:
    """A row of `workers`."""
    return WorkerView(
        worker_id=row["worker_id"],
        host=row["host"],
        pid=row["pid"],
        queues=row["queues"],
        code=stored_values.readable_or(_code, row["code"], {}),
        registered_at=row["registered_at"],
        beat_at=row["beat_at"],
        lease_until=row["lease_until"],
        live=row["live"],
        runs=row["runs"],
    )
