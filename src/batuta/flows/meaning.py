"""What a step needs beyond the types of its fields."""

from __future__ import annotations

import re
from typing import Any

from batuta.durations import parse_duration
from batuta.errors import BatutaError
from batuta.flows.document import ActionConfig, ActionStep, AiStep, CompensateStep, DelayStep, StepBase, is_given
from batuta.flows.faults import Fault
from batuta.flows.secrets import MARK
from batuta.flows.values import is_number, parse_path
from batuta.webhooks.urls import parse_target

_WHOLE_HOST = re.compile(r"(https?://[^/?#{}@]+[/?#])|(secret://[^{}]*/)")
_NEEDS = {
    "http_request": {"url": "url"},
    "publish": {"topic": "topic"},
    "start_run": {"workflow": "workflow"},
    "signal_run": {"id": "id", "signal": "signal"},
}
"""By type of action: the fields that it cannot do without."""


def check_meaning(step: StepBase, path: str, faults: list[Fault]) -> None:
    """Adds the faults of one step, without those of steps in its blocks."""
    if isinstance(step, ActionStep | CompensateStep):
        _check_action(step.config, f"{path}.config", faults)
    elif isinstance(step, AiStep):
        _check_ai(step, f"{path}.config", faults)
    elif isinstance(step, DelayStep):
        _check_delay(step, f"{path}.config", faults)


def _check_action(config: ActionConfig, path: str, faults: list[Fault]) -> None:
    for name, field in _NEEDS.get(config.action_type, {}).items():
        if not getattr(config, field):
            faults.append(Fault(path, f"the field {name!r} is missing", f"{config.action_type} needs it"))
    _check_url(config.url, f"{path}.url", faults)
    _check_host(config, f"{path}.url", faults)
    for name, where in config.response.items():
        try:
            root = parse_path(where)[0]
        except BatutaError as error:
            faults.append(Fault(f"{path}.response.{name}", str(error)))
            continue
        if root not in ("status", "headers", "body"):
            hint = "such as 'body.order.id'"
            faults.append(Fault(f"{path}.response.{name}", f"{where!r} must begin with status, headers or body", hint))


def _check_url(url: str, path: str, faults: list[Fault]) -> None:
    if not url or "{{" in url or MARK in url:
        return
    try:
        parse_target(url)
    except BatutaError as error:
        faults.append(Fault(path, str(error)))


def _check_host(config: ActionConfig, path: str, faults: list[Fault]) -> None:
    """A value of an event must not decide where secrets go, nor add to a host that the document names."""
    before, expression, _ = config.url.partition("{{")
    if not expression or _WHOLE_HOST.match(before):
        return
    if before not in ("", "http://", "https://"):
        hint = "put a / between the host and the expression"
        faults.append(Fault(path, "an expression must not stand in the host, beside other text", hint))
    elif MARK in str([config.url, config.headers, config.body, config.sign]):
        faults.append(Fault(path, "an event must not choose the host of a request with secrets", "write the host"))


def _check_ai(step: AiStep, path: str, faults: list[Fault]) -> None:
    config = step.config
    if config.fallback is None:
        faults.append(Fault(f"{path}.fallback", "must not be null", "say what is done without a usable answer"))
    _check_url(config.url, f"{path}.url", faults)
    if config.schema is not None and (fault := schema_fault(config.schema)):
        faults.append(Fault(f"{path}.schema", fault, "it must be a JSON Schema, draft 2020-12"))


def schema_fault(schema: dict[str, Any]) -> str:
    """Faults of a JSON Schema; empty: none. Not checked where the extra `flows` is not installed."""
    try:
        import jsonschema
    except ImportError:
        return ""
    if "$ref" in str(schema) and any(not ref.startswith("#") for ref in _refs(schema)):
        return "references to other documents are not followed"
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        return str(error.message)[:200]
    except (RecursionError, ValueError) as error:
        return f"it cannot be used: {error}"[:200]
    return ""


def _refs(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for part in value.values() for ref in _refs(part)]
    if isinstance(value, list):
        return [ref for part in value for ref in _refs(part)]
    return []


def _check_delay(step: DelayStep, path: str, faults: list[Fault]) -> None:
    config = step.config
    given = [
        name
        for name in ("seconds", "duration", "until")
        if is_given(getattr(config, name)) and getattr(config, name) != ""
    ]
    if len(given) != 1:
        faults.append(Fault(path, f"needs one of seconds, duration, until; it has {', '.join(given) or 'none'}"))
        return
    seconds = config.seconds
    if given == ["seconds"] and not isinstance(seconds, str) and not (is_number(seconds) and 0 <= seconds <= 1e9):
        faults.append(Fault(f"{path}.seconds", "must be a number of seconds, not negative, or a template"))
    if given == ["duration"] and parse_duration(config.duration) is None:
        faults.append(Fault(f"{path}.duration", f"{config.duration!r} is not a time", 'such as "90s", "5min", "2h"'))
