"""Workflows on their way into the store: what is inserted for a request. Pure, so that any transaction can carry it."""

from __future__ import annotations

from msgspec import Raw, json

from batuta.authoring.backend import StartRequest
from batuta.authoring.definitions import code_of
from batuta.clock import SECOND
from batuta.engine.headers import put_headers
from batuta.engine.rows import expiry, small
from batuta.ids import new_run_id, seed_of
from batuta.journal.entries import Body, StartInfo
from batuta.journal.records import NewRun


def new_run(request: StartRequest) -> tuple[NewRun, Body]:
    """The run of a start, and what its first turn consumes."""
    run_id = new_run_id()
    key_base = str(run_id)
    new = NewRun(
        run_id=run_id,
        id=request.id if request.id is not None else key_base,
        name=request.workflow,
        queue=request.queue,
        priority=request.priority,
        delay=round(request.delay * SECOND),
        timeout=round((request.timeout or 0) * SECOND),
        execution_timeout=round((request.execution_timeout or 0) * SECOND),
        version=request.version,
        code=code_of(request.workflow, request.version),
        tags=small(request.tags, "option 'tags'") if request.tags else "{}",
        memo=small(request.memo, "option 'memo'") if request.memo is not None else "null",
        flow_key=request.key,
        if_exists=request.if_exists,
    )
    new.expires = expiry(request.expires, new.delay)
    start = StartInfo(request.workflow, seed_of(run_id), key_base, version=request.version, timeout=new.timeout)
    start.execution_timeout = new.execution_timeout
    if request.headers:
        put_headers(start, request.headers)
    if request.retry is not None:
        start.retry = Raw(json.encode(request.retry))
    return new, Body(value=Raw(request.input), start=start)


def unowned_run(request: StartRequest) -> NewRun:
    """The run of a start, with its start message."""
    new, body = new_run(request)
    new.start = json.encode(body).decode()
    return new
