"""A replay before anything is written: does the code take what a fork would give it?"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from msgspec import UNSET, Raw

from batuta.authoring.backend import Code
from batuta.authoring.definitions import Workflow
from batuta.authoring.jobs import Job
from batuta.engine.machine.children import PendingChild
from batuta.engine.machine.core import PendingActivity
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.replay import Replay
from batuta.engine.machine.routing import RoutedCall
from batuta.engine.run.jobs import JobWorkflow
from batuta.errors import InvalidFork, InvalidInput, WorkflowBroken, told
from batuta.journal.entries import Entry, decode_body
from batuta.journal.forks import Fork
from batuta.journal.records import Run
from batuta.serde import decode

T = TypeVar("T")

CodeHere = Callable[[str], Workflow[..., Any] | None]
"""Gives the code that a run is of, if that is here."""


def code_of_run(run: Run, given: Code | None, here: CodeHere) -> Workflow[..., Any] | None:
    """The code that is given, or that is here. Raises InvalidFork when it is of something else."""
    if given is not None and given.name != run.name:
        raise InvalidFork(f"run {run.id!r} is of {run.kind} {run.name!r}, not of {given.name!r}")
    code = given or here(run.code or run.name)
    return JobWorkflow(code) if isinstance(code, Job) else code


async def dry_run(
    workflow: Workflow[..., Any],
    run: Run,
    fork: Fork,
    kept: Sequence[Entry],
    outputs: Mapping[int, Raw],
    start: Raw | None,
    namespace: str,
) -> None:
    """Raises InvalidFork when the code does not replay the kept entries, or an edit does not fit its annotation."""
    try:
        if start is not None:
            _codec_of(workflow).decode_args(start)
        if fork.keep >= 0:
            identity = RunIdentity(fork.new.run_id, fork.id or run.id, run.queue, namespace, run.chain_id)
            await in_callbacks(_steps(workflow, identity, fork, kept, outputs))
    except WorkflowBroken as error:
        raise InvalidFork(f"today's code of {run.name!r} does not replay the entries to keep: {error}") from error
    except InvalidInput as error:
        raise InvalidFork(f"an edit does not fit: {error}") from error


def _codec_of(workflow: Workflow[..., Any]) -> Any:
    return workflow.activity.codec if isinstance(workflow, RoutedCall) else workflow.codec


def _steps(
    workflow: Workflow[..., Any], identity: RunIdentity, fork: Fork, kept: Sequence[Entry], outputs: Mapping[int, Raw]
) -> Iterator[bool | None]:
    """Replays in slices, then looks at the edits; the last thing given is True."""
    machine = Machine(workflow, identity)
    try:
        yield from Replay(machine, [*kept, *fork.entries]).slices()
        forked = decode_body(fork.entries[-1]).forked
        for seq, value in (forked.inputs if forked is not UNSET else {}).items():
            _check_input(workflow, _pending(machine, seq), value)
        for seq, value in outputs.items():
            _check_output(workflow, _pending(machine, seq), value)
        yield True
    finally:
        machine.tear_down()


def _pending(machine: Machine, seq: int) -> PendingActivity | PendingChild:
    found: PendingActivity | PendingChild | None = machine.activities.get(seq)
    if found is None and machine.related is not None:
        route = machine.related.routed.get(seq)
        found = machine.related.children.get(seq) if route is None else route.pending
    if found is None:
        raise InvalidFork(f"call {seq} is not awaited by the code at that point: it cannot be edited")
    return found


def _check_input(workflow: Workflow[..., Any], pending: PendingActivity | PendingChild, value: Raw) -> None:
    codec = _codec_of(workflow) if isinstance(workflow, RoutedCall) else pending.codec
    if codec is None:
        raise InvalidFork(f"{pending.name!r} is called by its name, so that what it takes is not known here")
    codec.decode_args(value)


def _check_output(workflow: Workflow[..., Any], pending: PendingActivity | PendingChild, value: Raw) -> None:
    if isinstance(workflow, RoutedCall):
        _codec_of(workflow).decode_result(value)
    elif isinstance(pending, PendingActivity) and pending.codec is not None:
        pending.codec.decode_result(value)
    else:
        decode(value, cast(Any, pending.decoder), f"the result of {pending.name!r}")


def _in_a_future(error: BaseException) -> BaseException:
    """An error that a future takes, and that does not look like the cancellation of the task that awaits it."""
    if not isinstance(error, StopIteration | asyncio.CancelledError):
        return error
    raised = RuntimeError(told(error))
    raised.__cause__ = error
    return raised


async def in_callbacks(steps: Iterator[T | None]) -> T:
    """The first thing that the steps give. Each is a callback of its own: turns must not run inside a task."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.Context()

    def step() -> None:
        if future.done():
            steps.close()  # type: ignore[attr-defined]  # they are a generator
            return
        try:
            found = next(steps)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(_in_a_future(error))
            return
        if found is not None:
            future.set_result(found)
        loop.call_soon(step, context=context)

    loop.call_soon(step, context=context)
    return await future
