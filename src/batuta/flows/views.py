"""A flow's run as its users know it, read from the journal: Run, StepRun, RunLog and AuditLog. Pure functions.

There are no tables of these: what a run did is in its journal alone, and these are ways to look at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct

from batuta.authoring.backend import AttemptView, Description, JournalLine
from batuta.errors import BatutaError
from batuta.flows.host import Mark
from batuta.flows.interpreter import LONG_LIST
from batuta.flows.meaning import OF_RUNS
from batuta.flows.models import (
    EVENT_TAG,
    NAME_TAG,
    VERSION_TAG,
    WORKFLOW_TAG,
    AuditLog,
    DispatchStatus,
    FlowStart,
    LogLevel,
    Run,
    RunLog,
    RunStatus,
    StepRun,
    StepStatus,
    derived_id,
    step_run_id_of,
)
from batuta.flows.program import Prepared, Program, program_of
from batuta.ids import text_of
from batuta.journal.entries import Body, Command, CommandKind
from batuta.journal.failures import Failure
from batuta.journal.kinds import FAILURES
from batuta.journal.states import CLOSED, RunState

MOST: Final = 5_000
"""Steps, lines and changes that are kept, the last ones."""
STATES: Final[dict[RunStatus, tuple[RunState, ...]]] = {
    RunStatus.PENDING: (RunState.PENDING,),
    RunStatus.RUNNING: (
        RunState.RUNNING,
        RunState.WAITING,
        RunState.PAUSED,
        RunState.NEEDS_CODE,
        RunState.POISONED,
    ),
    RunStatus.COMPLETED: (RunState.COMPLETED,),
    RunStatus.FAILED: (RunState.FAILED, RunState.TIMED_OUT),
    RunStatus.CANCELLED: (RunState.CANCELLED, RunState.TERMINATED),
}
_STATUS: Final = {state: status for status, states in STATES.items() for state in states}
"""A run that continued as another one is in no list, and RUNNING where it is looked at."""
_UNSERVED: Final = ("no live worker", "needs code")
_CALLS: Final = frozenset({CommandKind.ACTIVITY, CommandKind.TIMER, CommandKind.CHILD})
_UNKNOWN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SETTLED: Final = frozenset({StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED})


_Dated = TypeVar("_Dated", RunLog, AuditLog)


class Link(Struct):
    """One run of a chain: as it is, its journal, and the attempts of its activities."""

    description: Description
    journal: Sequence[JournalLine] = ()
    attempts: Sequence[AttemptView] = ()


class FlowRun(Struct):
    """All that there is to know about a run."""

    run: Run
    steps: list[StepRun]
    logs: list[RunLog]
    audit: list[AuditLog]
    start: FlowStart | None
    """Its start; None: it has not begun."""
    places: dict[str, tuple[str, int]] = {}
    """By the ids of its steps: the run that does the step, and its number there."""


def flow_run_id(description: Description) -> str:
    """The id of a flow's run. Runs that others have begun, for a `sub_flow` or a long list, have none of their own."""
    try:
        return str(UUID(description.id))
    except ValueError:
        return str(description.run_id)


def run_view(description: Description) -> Run:
    """A run of a list: without what only its journal says."""
    dispatch, error = _dispatch(description)
    created = description.created_at or _UNKNOWN
    status = _STATUS.get(description.state, RunStatus.RUNNING)
    if description.state is RunState.TIMED_OUT:
        error = description.reason or "the run was over its time"
    return Run(
        id=flow_run_id(description),
        workflow_id=description.tags.get(WORKFLOW_TAG, ""),
        event_id=description.tags.get(EVENT_TAG, ""),
        status=status,
        dispatch_status=dispatch,
        context={},
        error=error,
        reason=(description.reason or str(description.state)) if status is RunStatus.RUNNING else None,
        started_at=None if description.entries == 0 else created,
        finished_at=description.closed_at,
        created_at=created,
        updated_at=description.closed_at or created,
    )


def _dispatch(description: Description) -> tuple[DispatchStatus, str | None]:
    if description.state in CLOSED:
        return DispatchStatus.DISPATCHED, None
    if any(word in description.reason for word in _UNSERVED):
        return DispatchStatus.FAILED, f"Dispatch to queue failed: {description.reason}"
    begun = description.state is not RunState.PENDING and description.entries > 0
    held = description.paused_at is not None or (
        description.wake_at is not None
        and description.created_at is not None
        and description.wake_at > description.created_at
    )
    return DispatchStatus.PENDING if held and not begun else DispatchStatus.DISPATCHED, None


def flow_run(links: Sequence[Link], awaited: FlowStart | None = None) -> FlowRun:
    """The run, from all runs of its chain, the first one first. `awaited`: what one begins with that has not begun."""
    reader = _Reader(links)
    for link in links:
        reader.read(link)
    reader.expect(awaited)
    return reader.finish()


def has_begun(journal: Iterable[JournalLine]) -> bool:
    return any(line.body.start is not UNSET for line in journal)


def is_long(step: StepRun) -> bool:
    """Whether runs of their own do its items."""
    given = step.input if step.step_type == "for_each" and isinstance(step.input, dict) else {}
    return int(given.get("count", 0)) > LONG_LIST


def joined(view: FlowRun, parts: Mapping[tuple[str, int], FlowRun]) -> FlowRun:
    """With the steps of these parts of long lists, after the step that they are of, and what was said about them.
    `parts`: by the key of that step, and by the place of the first item."""
    done: dict[str, list[StepRun]] = {}
    for step_key, offset in sorted(parts):
        done.setdefault(step_key, []).extend(parts[step_key, offset].steps)
    steps: list[StepRun] = []
    for step in view.steps:
        steps += [step, *(done.pop(step.step_key, ()) if is_long(step) else ())]
    own, views = view.run.id, [view, *parts.values()]
    logs = (one for each in views for one in each.logs if one.run_id == own or one.context)
    audit = (one for each in views for one in each.audit if one.entity != "run" or one.entity_id == own)
    return FlowRun(
        view.run,
        [msgspec.structs.replace(step, run_id=own) for step in steps[-MOST:]],
        [msgspec.structs.replace(one, run_id=own) for one in _in_order(logs)[-MOST:]],
        _in_order(audit)[-MOST:],
        view.start,
        {id: place for one in views for id, place in one.places.items()},
    )


def told_in_order(tries: Sequence[FlowRun]) -> FlowRun:
    """The last of these tries with the logs and the audit of all: each repeats the journal of the one before it, and
    tells something new after the end of that one."""
    view = tries[-1]
    logs: list[RunLog] = []
    audit: list[AuditLog] = []
    for number, one in enumerate(tries):
        _tell(logs, one.logs, view.run.id, number)
        _tell(audit, one.audit, view.run.id, number)
    run = msgspec.structs.replace(view.run, created_at=tries[0].run.created_at)
    return msgspec.structs.replace(view, run=run, logs=logs[-MOST:], audit=audit[-MOST:])


def _tell(told: list[_Dated], more: Sequence[_Dated], run_id: str, number: int) -> None:
    after = told[-1].created_at if told else None
    for one in more:
        if after is None:
            told.append(one)
        elif one.created_at > after:
            told.append(msgspec.structs.replace(one, id=derived_id("try", run_id, str(number), one.id)))


def _in_order(found: Iterable[_Dated]) -> list[_Dated]:
    return sorted(found, key=lambda one: one.created_at)


class _Step(Struct):
    view: StepRun
    mark: Mark
    seq: int = 0
    """Of the command that does it, once that is known."""
    retries: int = 3


class _Reader:
    """Goes through the journals of a chain."""

    def __init__(self, links: Sequence[Link]) -> None:
        first, last = links[0].description, links[-1].description
        self._run = run_view(last)
        self._run.created_at = first.created_at or self._run.created_at
        if not any(has_begun(link.journal) for link in links):  # it may have ended all the same
            self._run.started_at = None
        self._last = last
        self._start: FlowStart | None = None
        self._program: Program | None = None
        self._steps: dict[int, _Step] = {}
        self._calls: dict[int, _Step] = {}
        self._open: list[_Step] = []
        """They have begun, and their command is to come."""
        self._bases: list[tuple[int, str]] = []
        """From which command on keys begin with what."""
        self._logs: list[RunLog] = []
        self._audit: list[AuditLog] = []
        self._outputs: dict[str, Any] = {}
        """By the keys of steps."""
        self._failed: _Step | None = None
        """The step that the run fails with, unless a `try` goes on after it."""
        name, version = first.tags.get(NAME_TAG, ""), first.tags.get(VERSION_TAG, "")
        self._log(self._run.created_at, f'Run created for workflow "{name}" v{version}', {})
        self._change("run", self._run.id, "created", self._run.created_at, {"status": RunStatus.PENDING})

    def read(self, link: Link) -> None:
        self._calls.clear()
        self._open.clear()
        self._bases.clear()
        rows: dict[int, list[AttemptView]] = {}
        for row in link.attempts:
            if row.seq > 0 and row.number > 0:
                rows.setdefault(row.seq, []).append(row)
        for line in link.journal:
            self._input(line, rows)
            for command in line.body.commands:
                self._command(command, line)
        for seq, waiting in rows.items():  # of calls that have no answer yet
            step = self._calls.get(seq)
            if step is not None and step.view.status not in _SETTLED:
                self._attempts(step, waiting)

    def expect(self, awaited: FlowStart | None) -> None:
        """The first step, while none has begun: with the id that it will have."""
        start = self._start or awaited
        if start is None or self._steps or not start.is_first:
            return
        if self._start is None:
            self._program = program_of(bytes(start.steps))
            self._bases.append((0, text_of(self._last.run_id)))
        if self._program is None:
            return
        payload, at = start.event.payload, self._run.created_at
        one = self._program.block.steps[0]
        number = 1 if start.room is UNSET else 2  # it asks for its room first
        skipped = one.guard is not None and not one.guard({"event": {"payload": payload}, "context": {}, "steps": {}})
        step = self._create(Mark("started", 1, one.key, one.type, input=payload, call="?"), number, at)
        self._open.clear()
        if not skipped and (activity := _activity(one)):
            timed = one.type == "approval" and one.timeout is not None  # its timer comes first
            self._name(step, number + (2 if timed else 1), activity)
        self._tell_created(step, at)

    # -- entries

    def _input(self, line: JournalLine, rows: dict[int, list[AttemptView]]) -> None:
        body = line.body
        if body.start is not UNSET:
            self._begin(body, line.at)
        if body.forked is not UNSET and body.forked.key_base:
            self._bases.append((body.forked.seq, body.forked.key_base))
        step = self._calls.get(body.seq) if body.seq else None
        if step is None or step.view.status in _SETTLED:
            return
        step.view.updated_at = line.at
        self._attempts(step, rows.get(body.seq, ()), before=body.attempts or 1)
        if body.attempts:
            step.view.attempt = body.attempts
        if line.kind in FAILURES:
            return  # the mark of the failure follows
        if step.mark.call in ("flow.action", "flow.ai_task") or step.view.step_type == "python":
            self._answer(step, body, line.at)

    def _begin(self, body: Body, at: datetime) -> None:
        self._bases.append((0, body.start.key_base if body.start is not UNSET else ""))
        if body.value is UNSET:
            return
        try:
            start = msgspec.json.decode(body.value, type=tuple[FlowStart])[0]
            program = program_of(bytes(start.steps))
        except (msgspec.MsgspecError, RecursionError, BatutaError):
            return
        if start.state is not UNSET:  # also what was done in runs that are not read
            self._run.context.update(start.state.context)
            self._outputs.update(start.state.steps)
        if self._start is not None:
            return
        self._start, self._program = start, program
        self._run.started_at = at
        if at < self._run.created_at:  # its first turn ran while its start was written
            self._run.created_at = self._logs[0].created_at = self._audit[0].created_at = at
        self._change("run", self._run.id, "status_changed", at, {"from": RunStatus.PENDING, "to": RunStatus.RUNNING})

    def _answer(self, step: _Step, body: Body, at: datetime) -> None:
        output = _plain(body.value)
        if step.mark.call == "flow.action":
            found = output if isinstance(output, dict) else {}
            step.view.provider_ref = found.get("ref") or self._intent(step)
            output = found.get("output")
        self._complete(step, output, at)

    def _command(self, command: Command, line: JournalLine) -> None:
        if command.kind is CommandKind.SIDE_EFFECT and command.value is not UNSET:
            try:
                mark = msgspec.json.decode(command.value, type=Mark)
            except (msgspec.MsgspecError, RecursionError):
                return
            self._mark(mark, command.seq, line.at)
        elif command.kind in _CALLS:
            step = next((one for one in self._open if _fits(command, one.mark.call)), None)
            if step is None:
                return
            self._open.remove(step)
            step.seq = command.seq
            self._calls[command.seq] = step
            if command.kind is CommandKind.ACTIVITY:
                self._name(step, command.seq, command.name)
            self._intend(step, line.at)

    # -- marks

    def _mark(self, mark: Mark, seq: int, at: datetime) -> None:
        step = self._steps.get(mark.n)
        if step is None:
            step = self._create(mark, seq, at)
        if mark.context is not UNSET and mark.index is None:
            self._run.context.update(mark.context)
        if mark.type == "try" and mark.flow == "wrote":
            self._failed = None
        if mark.flow == "started":
            if step not in self._open:
                self._run_step(step, at)
        elif mark.flow == "completed":
            self._completed(step, mark, at)
        elif mark.flow == "skipped":
            self._settle(step, StepStatus.SKIPPED, at)
        elif mark.flow == "failed":
            self._fail(step, mark.error, at)
        elif mark.flow == "cancelled" and step.view.status not in _SETTLED:
            step.view.error = "cancelled"
            self._settle(step, StepStatus.SKIPPED, at)

    def _create(self, mark: Mark, seq: int, at: datetime) -> _Step:
        given = self._start.event.payload if self._start is not None else None
        view = StepRun(
            id=step_run_id_of(f"{self._base(seq)}:{seq}:{mark.type}"),
            run_id=self._run.id,
            step_key=mark.step,
            step_type=mark.type,
            index=mark.index,
            status=StepStatus.PENDING,
            input=given if mark.input is UNSET else mark.input,
            created_at=at,
            updated_at=at,
        )
        step = self._steps[mark.n] = _Step(view, mark, seq)
        if self._program is not None and (known := self._program.by_key.get(mark.step)) is not None:
            step.retries = known.retry.attempts
        if mark.call and mark.flow == "started":
            self._open.append(step)  # told of once its command gives it its id
        else:
            self._tell_created(step, at)
        return step

    def _tell_created(self, step: _Step, at: datetime) -> None:
        view = step.view
        self._say(step, at, f'Step "{view.step_key}" ({view.step_type}) created as PENDING')
        self._change("step_run", view.id, "created", at, {"stepKey": view.step_key, "status": StepStatus.PENDING})

    def _name(self, step: _Step, seq: int, activity: str) -> None:
        step.view.id = step_run_id_of(f"{self._base(seq)}:{seq}:{activity}")

    def _base(self, seq: int) -> str:
        return next((base for after, base in reversed(self._bases) if seq > after), "")

    def _run_step(self, step: _Step, at: datetime) -> None:
        step.view.started_at = at
        self._settle(step, StepStatus.RUNNING, at)

    def _intend(self, step: _Step, at: datetime) -> None:
        self._tell_created(step, at)
        self._run_step(step, at)
        if step.mark.call == "flow.action":
            step.view.provider_ref = self._intent(step)
            self._say(step, at, f'Action "{step.view.step_key}" intent persisted before execution', with_ref=True)

    def _intent(self, step: _Step) -> str:
        return f"intent-{step.view.id}-attempt-{step.view.attempt}"

    def _completed(self, step: _Step, mark: Mark, at: datetime) -> None:
        if step.view.started_at is None:
            self._run_step(step, at)
        self._complete(step, None if mark.output is UNSET else mark.output, at)
        if mark.branch is not None:
            words = "true" if mark.branch else "false"
            self._say(step, at, f'Condition routed: "{mark.step}" → "{mark.to}" (branch: {words})')

    def _complete(self, step: _Step, output: Any, at: datetime) -> None:
        step.view.output = output
        if step.mark.index is None:
            self._outputs[step.view.step_key] = {"output": output}
        self._settle(step, StepStatus.COMPLETED, at)

    def _settle(self, step: _Step, status: StepStatus, at: datetime) -> None:
        view = step.view
        before, view.status, view.updated_at = view.status, status, at
        if status in _SETTLED:
            view.finished_at = at
        if status is not StepStatus.FAILED:
            self._say(step, at, f'Step "{view.step_key}" ({view.step_type}) → {status}', with_ref=status in _SETTLED)
        self._change("step_run", view.id, "status_changed", at, {"from": before, "to": status})

    # -- attempts and failures

    def _attempts(self, step: _Step, rows: Iterable[AttemptView], before: int | None = None) -> None:
        """Attempts that failed and were tried again: those `before` the last one, or all if there is no answer yet."""
        view = step.view
        for row in sorted(rows, key=lambda one: one.number):
            if before is not None and row.number >= before:
                break
            if view.status is StepStatus.RETRYING:
                self._retried(step, row.started_at or view.updated_at)
            view.attempt = row.number
            if row.error is not None and row.ended_at is not None:
                self._failed_once(step, row.number, _message(row.error), row.ended_at)
        if before is not None and view.status is StepStatus.RETRYING:
            self._retried(step, view.updated_at)
        if view.provider_ref is not None:
            view.provider_ref = self._intent(step)

    def _failed_once(self, step: _Step, number: int, error: str, at: datetime) -> None:
        view = step.view
        words = f'Step "{view.step_key}" failed (attempt {number}/{step.retries}), will retry: {error}'
        self._say(step, at, words, LogLevel.WARN, error=error, attempt=number)
        self._change("step_run", view.id, "status_changed", at, {"from": view.status, "to": StepStatus.RETRYING})
        view.status, view.error, view.updated_at = StepStatus.RETRYING, error, at

    def _retried(self, step: _Step, at: datetime) -> None:
        step.view.status, step.view.error = StepStatus.RUNNING, None
        details = {"from": StepStatus.RETRYING, "to": StepStatus.RUNNING}
        self._change("step_run", step.view.id, "status_changed", at, details)

    def _fail(self, step: _Step, error: str, at: datetime) -> None:
        view = step.view
        if view.started_at is None:
            self._run_step(step, at)
        view.error = error
        if view.provider_ref is not None:
            view.provider_ref = self._intent(step)
        self._settle(step, StepStatus.FAILED, at)
        self._say(step, at, _failed(view), LogLevel.ERROR, error=error)
        self._change("step_run", view.id, "failed", at, {"error": error, "attempt": view.attempt})
        if self._failed is None:
            self._failed = step

    # -- the end

    def finish(self) -> FlowRun:
        run, last = self._run, self._last
        if self._outputs:
            run.context["steps"] = self._outputs
        at = last.closed_at
        if at is not None:  # by another clock than that of its journal
            at = max([at, *(line.created_at for line in self._logs)])
            self._end(at)
        run.updated_at = max([run.created_at, *(line.created_at for line in self._logs), *([at] if at else [])])
        logs = _in_order(self._logs)[-MOST:]
        found = list(self._steps.values())[-MOST:]
        places = {step.view.id: (run.id, step.mark.n) for step in found}
        return FlowRun(run, [step.view for step in found], logs, self._audit[-MOST:], self._start, places)

    def _end(self, at: datetime) -> None:
        run = self._run
        run.finished_at = at
        for step in self._steps.values():
            if step.view.status not in _SETTLED:
                if step in self._open:
                    self._tell_created(step, at)
                step.view.error = step.view.error or f"the run ended: {run.status}"
                self._settle(step, StepStatus.SKIPPED, at)
        before = RunStatus.PENDING if run.started_at is None else RunStatus.RUNNING
        self._change("run", run.id, "status_changed", at, {"from": before, "to": run.status})
        if run.status is RunStatus.COMPLETED:
            self._log(at, "Run completed successfully", {})
        elif run.status is RunStatus.CANCELLED:
            self._log(at, "Run cancelled", {"reason": self._last.reason})
        elif run.status is RunStatus.FAILED:
            if self._failed is not None:
                run.error = _failed(self._failed.view)
            run.error = run.error or self._last.reason or "the run failed"
            self._log(at, f"Run failed: {run.error}", {"error": run.error}, LogLevel.ERROR)
            self._change("run", run.id, "failed", at, {"error": run.error})

    # -- lines

    def _say(
        self,
        step: _Step,
        at: datetime,
        message: str,
        level: LogLevel = LogLevel.INFO,
        *,
        with_ref: bool = False,
        **more: Any,
    ) -> None:
        view = step.view
        context = {"stepKey": view.step_key, "stepRunId": view.id, **more}
        if step.mark.index is not None:
            context["index"] = step.mark.index
        if with_ref and view.provider_ref is not None:
            context["providerRef"] = view.provider_ref
        self._log(at, message, context, level)

    def _log(self, at: datetime, message: str, context: dict[str, Any], level: LogLevel = LogLevel.INFO) -> None:
        self._logs.append(
            RunLog(
                id=derived_id("log", self._run.id, str(len(self._logs)), message),
                run_id=self._run.id,
                level=level,
                message=message,
                context=context,
                created_at=at,
            )
        )

    def _change(self, entity: str, id: str, action: str, at: datetime, details: dict[str, Any]) -> None:
        self._audit.append(
            AuditLog(
                id=derived_id("audit", id, str(len(self._audit)), action),
                entity=entity,
                entity_id=id,
                action=action,
                details={name: str(value) if isinstance(value, str) else value for name, value in details.items()},
                created_at=at,
            )
        )


def _failed(view: StepRun) -> str:
    return f'Step "{view.step_key}" failed after {view.attempt} attempt(s): {view.error}'


def _activity(one: Prepared) -> str:
    """The activity of this process that does a step; empty: none does."""
    config = one.step.config
    if one.type == "action":
        return "" if config.action_type in OF_RUNS else "flow.action"
    if one.type == "python":
        return "" if config.queue else str(config.activity)
    return {"ai_task": "flow.ai_task", "approval": "flow.approval"}.get(one.type, "")


def _fits(command: Command, call: str) -> bool:
    """Whether this is the call that a mark has told of. An activity of another queue is a child."""
    if command.kind is CommandKind.TIMER:
        return call == "timer"
    return command.name.removeprefix("activity:") == call


def _plain(value: Raw | msgspec.UnsetType) -> Any:
    if value is UNSET:
        return None
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _message(error: str) -> str:
    """Of an attempt: a Failure as JSON, or its words."""
    try:
        return msgspec.json.decode(error, type=Failure).message
    except (msgspec.MsgspecError, RecursionError):
        return error
