"""Flows made ready to run: conditions are functions, templates are parsed. Kept by the text of the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from batuta.authoring.retry import Retry
from batuta.durations import parse_duration
from batuta.errors import BatutaError, Failed
from batuta.flows.conditions import Condition, compile_condition
from batuta.flows.document import (
    ActionConfig,
    ActionStep,
    AiStep,
    ApprovalStep,
    CallBase,
    CompensateStep,
    ConditionStep,
    ForEachStep,
    Step,
    StepBase,
    SwitchStep,
    WaitBase,
    WaitEventStep,
    blocks_of,
    is_given,
)
from batuta.flows.expressions import Value, compile_template
from batuta.flows.secrets import Gap, compile_gaps

KEPT: Final = 256
"""Programs in memory."""
_NEVER: Final = ("AddressRefused", "InvalidInput", "NonRetryable")
"""Trying again does not help."""
ACTION_RETRY: Final = Retry(attempts=3, first=1.0, factor=2.0, longest=30.0, jitter=0.0, never=_NEVER)
_EVENT: Final[Value] = lambda scope: scope["event"]["payload"]  # noqa: E731 - a template like the others
_decoder = msgspec.json.Decoder(list[Step])


class FlowFailed(Failed):
    """A flow failed because of what it is told, not because of an outside call."""


class Prepared(Struct, eq=False):
    """One step."""

    step: Any
    """Of STEP_TYPES."""
    key: str
    type: str
    next: str
    guard: Condition | None
    writes: Value | None
    """Gives names in `context`, with their values."""
    values: dict[str, Value]
    """The templates of the config, by field."""
    rules: list[Condition]
    gaps: Callable[[Mapping[str, Any]], list[Gap]] | None
    blocks: list[Block]
    timeout: float | None
    retry: Retry


class Block(Struct, eq=False):
    """Steps that follow each other."""

    steps: list[Prepared]
    places: dict[str, int]


class Program(Struct, eq=False):
    """A whole flow."""

    block: Block
    by_key: dict[str, Prepared]
    undoes: bool
    """It has compensations."""
    asks: bool
    """It has approvals."""


@lru_cache(maxsize=KEPT)
def program_of(steps: bytes) -> Program:
    """The program of these steps, as JSON. Raises FlowFailed: they were not checked, or are of another version."""
    try:
        return prepare(_decoder.decode(steps))
    except (msgspec.MsgspecError, BatutaError, RecursionError) as error:
        raise FlowFailed(f"the flow cannot be run, its steps were not checked: {error}"[:1_000]) from None


def prepare(steps: Sequence[StepBase]) -> Program:
    """Raises InvalidInput for steps that `validation` refuses."""
    by_key: dict[str, Prepared] = {}
    block = _block(steps, by_key)
    found = [one.step for one in by_key.values()]
    return Program(
        block,
        by_key,
        any(isinstance(step, CompensateStep) for step in found),
        any(isinstance(step, ApprovalStep) for step in found),
    )


def _block(steps: Sequence[StepBase], by_key: dict[str, Prepared]) -> Block:
    made = [_prepare(step, by_key) for step in steps]
    return Block(made, {one.key: place for place, one in enumerate(made)})


def _prepare(step: StepBase, by_key: dict[str, Prepared]) -> Prepared:
    values, gaps = _values(step)
    made = Prepared(
        step,
        step.key,
        str(type(step).__struct_config__.tag),
        step.next,
        None if step.if_ is None else compile_condition(step.if_),
        compile_template(step.output) if step.output else None,
        values,
        _rules(step),
        gaps,
        [],
        seconds_of(step.timeout) if isinstance(step, CallBase | WaitBase) else None,
        _retry(step),
    )
    by_key[step.key] = made
    made.blocks = [_block(block, by_key) for _, block in blocks_of(step)]
    return made


def _rules(step: StepBase) -> list[Condition]:
    if isinstance(step, ConditionStep):
        return [compile_condition(step.config.rule)]
    if isinstance(step, SwitchStep):
        return [compile_condition(case.when) for case in step.config.cases]
    return []


def _values(step: StepBase) -> tuple[dict[str, Value], Callable[[Mapping[str, Any]], list[Gap]] | None]:
    config: Any = getattr(step, "config", None)
    if isinstance(step, ActionStep | CompensateStep):
        return _request(config)
    if isinstance(step, ApprovalStep):
        found, gaps = {"title": compile_template(config.title), "data": compile_template(config.data)}, None
        if config.notify is not None:
            found["notify"], gaps = compile_gaps({"url": config.notify.url, "headers": config.notify.headers})
        return found, gaps
    if isinstance(step, AiStep):
        _, gaps = compile_gaps({"api_key": config.api_key})
        fields = {"prompt": config.prompt, "system": config.system}
        return {"input": _or_event(config.input), "message": compile_template(fields)}, gaps
    if isinstance(step, WaitEventStep):
        correlation = config.correlation
        return {"value": compile_template(None if correlation is None else correlation.value)}, None
    names = [
        name
        for name in ("args", "seconds", "until", "items", "payload", "values", "message", "result")
        if hasattr(config, name)
    ]
    found = {name: _or_event(getattr(config, name)) for name in names}
    if isinstance(step, ForEachStep) and is_given(config.collect):
        found["collect"] = compile_template(config.collect)
    return found, None


def _or_event(template: Any) -> Value:
    return compile_template(template) if is_given(template) else _EVENT


def _request(config: ActionConfig) -> tuple[dict[str, Value], Callable[[Mapping[str, Any]], list[Gap]]]:
    """The parts of an action: `request` has what may hold secrets."""
    parts: dict[str, Any] = {"url": config.url, "headers": dict(config.headers), "sign": config.sign}
    if is_given(config.body):
        parts["body"] = config.body
    request, gaps = compile_gaps(parts)
    rest: dict[str, Any] = {"topic": config.topic, "messageKey": config.message_key, "messageType": config.message_type}
    rest |= {"args": config.args, "id": config.id}
    return {"request": request, "rest": compile_template(rest)}, gaps


def _retry(step: StepBase) -> Retry:
    policy = step.retry if isinstance(step, CallBase) else None
    if policy is None:
        return ACTION_RETRY
    first, longest = seconds_of(policy.first) or 0.0, seconds_of(policy.longest) or 0.0
    return Retry(policy.attempts, first, policy.factor, max(first, longest), 0.0, _NEVER)


def seconds_of(value: float | str | None) -> float | None:
    """A time of a document in seconds. Raises FlowFailed."""
    if value is None:
        return None
    found = parse_duration(value) if isinstance(value, str) else float(value)
    if found is None:
        raise FlowFailed(f"{value!r} is not a time: write a number of seconds, or a text such as '5min'")
    return found
