"""Builds the rows for start requests. Pure, so that any transaction can carry them."""

from __future__ import annotations

from msgspec import Raw, json

from batuta.authoring.backend import StartRequest
from batuta.authoring.definitions import code_of
from batuta.clock import SECOND
from batuta.engine.machine.headers import put_headers
from batuta.engine.machine.row_values import expiry, small
from batuta.ids import new_run_id, new_seed, text_of
from batuta.journal.entries import Body, StartInfo
from batuta.journal.records import NewRun


def new_run(request: StartRequest) -> tuple[NewRun, Body]:
    """The run of a start, and the input of its first turn."""
    run_id = new_run_id()
    key_base = text_of(run_id)
    start = StartInfo(request.workflow, new_seed(), key_base)
    new = NewRun(
        run_id=run_id,
        id=key_base if request.id is None else request.id,
        name=request.workflow,
        code=request.workflow,
        own_id=request.id is None,
    )
    # What few starts give is set apart: a keyword costs more than the question.
    if request.queue != new.queue:
        new.queue = request.queue
    if request.priority:
        new.priority = request.priority
    if request.key:
        new.flow_key = request.key
    if request.if_exists is not new.if_exists:
        new.if_exists = request.if_exists
    if request.delay:
        new.delay = start.delay = round(request.delay * SECOND)
    if request.timeout is not None:
        new.timeout = start.timeout = round(request.timeout * SECOND)
    if request.execution_timeout is not None:
        new.execution_timeout = start.execution_timeout = round(request.execution_timeout * SECOND)
    if request.version:
        new.version = start.version = request.version
        new.code = code_of(request.workflow, request.version)
    if request.tags:
        new.tags = small(request.tags, "option 'tags'")
    if request.memo is not None:
        new.memo = small(request.memo, "option 'memo'")
    if request.expires is not None:
        new.expires = expiry(request.expires, new.delay)
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
