"""Between rows of the tables and records."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar
from uuid import UUID

from msgspec import Struct, json, structs

from batuta.ids import RunId, uuid_of
from batuta.journal.entries import Entry
from batuta.journal.records import (
    Attempt,
    Message,
    NewRun,
    Output,
    Run,
    WorkerInfo,
    WorkerView,
)
from batuta.stores.contract import rules, stored_values

S = TypeVar("S", bound=Struct)
Row = tuple[Any, ...]

_strings = json.Decoder(list[str])
_code = json.Decoder(dict[str, str])


EMPTY = bytearray()


def blob(run_id: RunId) -> bytearray:
    """A run id for a statement. Not bytes: for those the driver looks for an adapter and two methods, each time."""
    return EMPTY + run_id.int.to_bytes(16)  # a sum is made faster than a `bytearray(...)`


def to_json(value: object) -> str:
    return json.encode(value).decode()


def strings_of(text: str) -> list[str]:
    """A list of strings, which is empty as a rule."""
    return [] if text == "[]" else stored_values.readable_or(_strings, text, [])


def run_of(row: Row) -> Run:
    """A row of `SELECT * FROM runs`."""
    run_id = uuid_of(int.from_bytes(row[0]))
    return Run(
        run_id=run_id,
        id=row[2],
        chain_id=run_id if row[3] == row[0] else uuid_of(int.from_bytes(row[3])),
        kind=stored_values.RUN_KINDS[row[4]],
        name=row[5],
        queue=row[6],
        priority=row[7],
        state=stored_values.RUN_STATES[row[8]],
        epoch=row[9],
        head=row[10],
        owner=row[11],
        wake_at=row[12],
        created_at=row[13],
        closed_at=row[14],
        deadline=row[15],
        deaths=row[16],
        reason=row[17],
        failed_code=strings_of(row[18]),
        version=row[19],
        tags=row[20],
        memo=row[21],
        parent_run_id=None if row[22] is None else uuid_of(int.from_bytes(row[22])),
        parent_seq=row[23],
        code=row[28],
        flow_key=row[25],
        expires_at=row[29],
        awaits=row[31],
        paused_at=row[32],
        resume_at=row[33],
        forked_from=None if row[34] is None else uuid_of(int.from_bytes(row[34])),
        forked_at=row[35],
    )


OWN_OF_RUN, OWN_OF_ENTRY, OWN_OF_MESSAGE = 3, 4, 3
"""How many of the last values of a row differ where many are written together that are alike."""


def new_run_row(
    namespace: str, new: NewRun, now: int, deadline: int | None, *, epoch: int, head: int, owner: str | None
) -> Row:
    """The values of `insert_run`."""
    run_id = blob(new.run_id)
    chain_id = run_id if new.chain_id is None else blob(new.chain_id)
    return *run_in_common(namespace, new, now, deadline, epoch, head, owner), run_id, new.id, chain_id


def run_in_common(
    namespace: str, new: NewRun, now: int, deadline: int | None, epoch: int, head: int, owner: str | None
) -> Row:
    """The same without what no two runs have in common."""
    return (
        namespace,
        new.kind._value_,
        new.name,
        new.queue,
        new.priority,
        "running" if owner else "pending",
        epoch,
        head,
        owner,
        None if owner else now + new.delay,
        now,
        deadline,
        new.version,
        new.tags,
        new.memo,
        None if new.parent_run_id is None else new.parent_run_id.bytes,
        new.parent_seq,
        new.parent_policy._value_,
        new.flow_key,
        -1,
        new.code or new.name,
        None if owner else rules.expiry_of(new, now),
        None if owner else new.debounce or None,
    )


def entries_of(rows: Iterable[Row]) -> list[Entry]:
    known = stored_values.ENTRY_KINDS
    return [Entry(number, known[kind], at, crc, body) for number, kind, at, crc, body in rows]


def entry_row(namespace: str, run_id: bytes, epoch: int, entry: Entry) -> Row:
    """The values of `insert_entry`."""
    return entry.ord, namespace, entry.kind.value, epoch, run_id, entry.at, entry.crc, entry.body


def message_row(namespace: str, chain_id: RunId, message: Message, now: int) -> Row:
    """The values of `insert_message`."""
    return (
        namespace,
        message.kind.value,
        message.name,
        now,
        blob(chain_id),
        message.message_id,
        message.body,
    )


def messages_of(rows: Iterable[Row]) -> list[Message]:
    return list(map(message_of, rows))


def message_of(row: Row) -> Message:
    message_id, kind, name, body, at, number = row
    return Message(
        message_id=message_id, kind=stored_values.MESSAGE_KINDS[kind], name=name, body=body, at=at, number=number
    )


def attempt_row(namespace: str, run_id: bytearray, attempt: Attempt) -> Row:
    """The values of `upsert_attempt`."""
    return (
        run_id,
        attempt.seq,
        attempt.number,
        namespace,
        attempt.started_at,
        attempt.ended_at,
        attempt.next_at,
        attempt.error,
        attempt.details,
        attempt.outside,
        attempt.tokens,
    )


def attempts_of(rows: Iterable[Row]) -> list[Attempt]:
    return [
        Attempt(
            seq=seq,
            number=number,
            started_at=started_at,
            ended_at=ended_at,
            next_at=next_at,
            error=error,
            details=details,
            outside=bool(outside),
            tokens=tokens,
        )
        for seq, number, started_at, ended_at, next_at, error, details, outside, tokens in rows
    ]


def output_row(namespace: str, run_id: bytes, output: Output) -> Row:
    """The values of `upsert_output`."""
    kind = output.kind.value
    return run_id, kind, output.name, namespace, output.ord, output.at, output.value, output.error


def outputs_of(rows: Iterable[Row]) -> list[Output]:
    return [
        Output(kind=stored_values.OUTPUT_KINDS[kind], name=name, ord=place, at=at, value=value, error=error)
        for kind, name, place, at, value, error in rows
    ]


def worker_row(namespace: str, worker: WorkerInfo, now: int) -> Row:
    """The values of `register`."""
    return (
        namespace,
        worker.worker_id,
        worker.host,
        worker.pid,
        to_json(worker.queues),
        to_json(worker.code),
        now,
        now,
        now + worker.lease,
        worker.process,
    )


def workers_of(rows: Iterable[Row], now: int) -> list[WorkerView]:
    return [
        WorkerView(
            worker_id=worker_id,
            host=host,
            pid=pid,
            queues=stored_values.readable_or(_strings, queues, []),
            code=stored_values.readable_or(_code, code, {}),
            registered_at=registered_at,
            beat_at=beat_at,
            lease_until=lease_until,
            live=lease_until > now,
            runs=runs,
        )
        for worker_id, host, pid, queues, code, lease_until, registered_at, beat_at, runs in rows
    ]


def structs_of(kind: type[S], rows: Iterable[Row]) -> list[S]:
    """Of rows whose columns are the fields of the struct, in their order; the last ones may be left out."""
    fields = _fields_of(kind)
    return [kind(**{name: read(value) for (name, read), value in zip(fields, row, strict=False)}) for row in rows]


@cache
def _fields_of(kind: type[Struct]) -> list[tuple[str, Callable[[Any], Any]]]:
    """Names, with functions of what the columns hold. They do not fail: a damaged row must not hide the others."""
    return [(field.name, _READ.get(field.type, lambda value: value)) for field in structs.fields(kind)]


def _uuid(data: bytes | None) -> UUID | None:
    return None if data is None else uuid_of(int.from_bytes(data))


_READ: dict[object, Callable[[Any], Any]] = {bool: bool, UUID: _uuid, UUID | None: _uuid}


def one(cursor: sqlite3.Cursor) -> Row | None:
    """The first row, and the statement is done with: half-read ones would hold a snapshot."""
    rows = cursor.fetchall()
    return rows[0] if rows else None
