"""Rules for steps beyond the types of their fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from msgspec import Struct

from batuta.authoring.client.calendar import cron, every
from batuta.durations import parse_duration
from batuta.errors import BatutaError
from batuta.flows.conditions import paths_of
from batuta.flows.document import (
    LONGEST_TIME,
    ActionConfig,
    ActionStep,
    AiStep,
    ApprovalStep,
    CompensateStep,
    Concurrency,
    Debounce,
    DelayStep,
    FlowDocument,
    ForEachStep,
    StepBase,
    SubFlowStep,
    Trigger,
    TriggerSchedule,
    WaitEventStep,
    is_given,
)
from batuta.flows.expressions import moment, paths_in
from batuta.flows.faults import Fault
from batuta.flows.models import normalised_type
from batuta.flows.secrets import MARK
from batuta.flows.values import is_number, parse_path
from batuta.names import check_name
from batuta.webhooks.client import check_headers
from batuta.webhooks.urls import parse_target

OF_RUNS: Final = frozenset({"start_run", "signal_run"})
"""Actions that the run does itself, without an activity."""
_NAME: Final = re.compile(r"[^\W\d][\w-]{0,99}")
_TAKEN: Final = {"steps": "it has the outputs of the steps"}
"""Names in `context` that a flow may not give."""
_LITERAL: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""Of a pattern: a sign that is escaped, or a set of signs."""
_OPENING: Final = re.compile(r"\(\?(?:[:=!>]|<[=!]|P?<\w+>)")
_COUNT: Final = re.compile(r"(?<=[^(|)])\{\d+\}")
"""Of a sign or a plain group: `x{3}` has one length, and so fits a text in one way."""
_PLAIN_GROUP: Final = re.compile(r"\([^()*+?{|]*\)")
_ONCE: Final = re.compile(r"\(([^()]*)\)(?![*+{])")
"""A group that is not repeated: its content counts for the group around it."""
_REPEATED_GROUP: Final = re.compile(r"\)[*+{]")
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
    at = f"{path}.config"
    if isinstance(step, ActionStep | CompensateStep):
        _check_action(step.config, at, faults)
        if isinstance(step, CompensateStep) and step.config.action_type in OF_RUNS:
            why = f"{step.config.action_type} cannot be a compensation"
            faults.append(Fault(f"{at}.actionType", why, "use a webhook, or publish"))
    elif isinstance(step, AiStep):
        _check_ai(step, at, faults)
    elif isinstance(step, DelayStep):
        _check_delay(step, at, faults)
    elif isinstance(step, WaitEventStep):
        _check_type(step.config.event, f"{at}.event", faults)
        if step.config.correlation is not None:
            with _told(faults, f"{at}.correlation.field"):
                parse_path(step.config.correlation.field)
    elif isinstance(step, ApprovalStep) and step.config.notify is not None:
        _check_url(step.config.notify.url, f"{at}.notify.url", faults)
        _check_headers(step.config.notify.headers, f"{at}.notify.headers", faults)
    elif isinstance(step, ForEachStep):
        if not _may_be(step.config.items, list):
            faults.append(Fault(f"{at}.items", "must be a list, or a template that gives one"))
        if step.config.as_ == "index":
            faults.append(Fault(f"{at}.as", "context.index is the place of the item", "choose another name"))
    elif isinstance(step, SubFlowStep) and is_given(step.config.payload) and not _may_be(step.config.payload, dict):
        faults.append(Fault(f"{at}.payload", "must be an object, or a template that gives one"))


def _may_be(template: Any, kind: type) -> bool:
    return isinstance(template, kind) or (isinstance(template, str) and "{{" in template)


def _check_type(text: str, path: str, faults: list[Fault]) -> None:
    if text and not normalised_type(text):
        faults.append(Fault(path, f"{text!r} has no letter and no digit", "such as invoice_overdue"))


@contextmanager
def _told(faults: list[Fault], path: str, hint: str = "") -> Iterator[None]:
    """An error that is raised here becomes a fault at that path."""
    try:
        yield
    except BatutaError as error:
        faults.append(Fault(path, str(error), hint))


def name_faults(names: Mapping[str, Any], path: str) -> list[Fault]:
    """Names of values in `context` that no path could lead to, or that are taken."""
    found: list[Fault] = []
    for name in names:
        if _NAME.fullmatch(name) is None:
            hint = "letters, digits, '_' and '-', no digit first, at most 100"
            found.append(Fault(f"{path}.{name[:100]}", f"{name[:100]!r} is no name that a path can lead to", hint))
        elif name in _TAKEN:
            found.append(Fault(f"{path}.{name}", f"the name {name!r} is taken: {_TAKEN[name]}", "choose another name"))
    return found


# -- how a flow begins: of objects whose faults are found already, what is sound


def _check_flow(given: Mapping[str, Any], _: str, faults: list[Fault]) -> None:
    name = given.get("name")
    if isinstance(name, str) and (not name.strip() or not name.isprintable()):
        faults.append(Fault("name", "must be printable characters, and not only spaces"))
    _check_type(str(given.get("trigger_type", "")), "trigger_type", faults)


def _check_trigger(given: Mapping[str, Any], path: str, faults: list[Fault]) -> None:
    _check_begin(paths_of(given.get("filter")), f"{path}.filter", faults)
    if topic := given.get("topic"):
        with _told(faults, f"{path}.topic"):
            check_name(topic, "the topic")


def _check_key(given: Mapping[str, Any], path: str, faults: list[Fault]) -> None:
    with suppress(BatutaError):  # that it cannot be read was told
        _check_begin(paths_in(given.get("key", "")), f"{path}.key", faults)


def _check_begin(paths: list[tuple[str, ...]], path: str, faults: list[Fault]) -> None:
    for read in paths:
        if read[0] != "event":
            faults.append(Fault(path, f"there is no {read[0]!r} before a flow begins", "only event is there"))
            return


def _check_debounce(given: Mapping[str, Any], path: str, faults: list[Fault]) -> None:
    _check_key(given, path, faults)
    wait, longest = _seconds(given.get("wait")), _seconds(given.get("longest"))
    if wait is not None and longest is not None and longest < wait:
        faults.append(Fault(f"{path}.longest", "must not be less than wait"))


def _check_schedule(given: Mapping[str, Any], path: str, faults: list[Fault]) -> None:
    expression, interval = given.get("cron"), _seconds(given.get("every"))
    told = any(one.path.startswith(f"{path}.") for one in faults)
    if bool(expression) == (given.get("every") is not None) and not told:
        has = "both" if expression else "none"
        faults.append(Fault(path, f"needs one of cron, every; it has {has}"))
    checks: list[tuple[str, Callable[[], object]]] = []
    checks += [("cron", lambda: cron(str(expression)))] if expression else []
    checks += [("every", lambda: every(interval or 0))] if interval is not None else []
    checks += [("timezone", lambda: cron("@daily", str(given["timezone"])))] if "timezone" in given else []
    for name, check in checks:
        with _told(faults, f"{path}.{name}"):
            check()


def _seconds(given: Any) -> float | None:
    return parse_duration(given) if isinstance(given, str) else given


CHECKS: Final[dict[type[Struct], Callable[[Mapping[str, Any], str, list[Fault]], None]]] = {
    FlowDocument: _check_flow,
    Trigger: _check_trigger,
    TriggerSchedule: _check_schedule,
    Debounce: _check_debounce,
    Concurrency: _check_key,
}
"""What such an object needs beyond the types of its fields."""


# -- steps


def _check_action(config: ActionConfig, path: str, faults: list[Fault]) -> None:
    for name, field in _NEEDS.get(config.action_type, {}).items():
        if not getattr(config, field):
            faults.append(Fault(path, f"the field {name!r} is missing", f"{config.action_type} needs it"))
    _check_url(config.url, f"{path}.url", faults)
    _check_host(config, f"{path}.url", faults)
    if config.action_type in ("publish", *OF_RUNS) and is_given(config.body) and MARK in str(config.body):
        why = f"a secret may not stand here: what {config.action_type} sends is kept"
        faults.append(Fault(f"{path}.body", why, "only calls of a url may hold one"))
    _check_headers(config.headers, f"{path}.headers", faults)
    _check_reference(config.sign, f"{path}.sign", faults)
    for name, where in config.response.items():
        at = f"{path}.response.{name}"
        with _told(faults, at):
            if parse_path(where)[0] not in ("status", "headers", "body"):
                faults.append(
                    Fault(at, f"{where!r} must begin with status, headers or body", "such as 'body.order.id'")
                )


def _check_url(url: str, path: str, faults: list[Fault]) -> None:
    if url and "{{" not in url and MARK not in url:
        with _told(faults, path):
            parse_target(url)


def _check_headers(headers: Mapping[str, str], path: str, faults: list[Fault]) -> None:
    for name, value in headers.items():
        with _told(faults, f"{path}.{name[:100]}"):
            check_headers({name: "" if "{{" in value else value})


def _check_reference(text: str, path: str, faults: list[Fault]) -> None:
    if text and MARK not in text:
        faults.append(Fault(path, "must be a reference to a secret, not the secret itself", "such as secret://env/KEY"))


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
    _check_reference(config.api_key, f"{path}.apiKey", faults)
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
        for pattern in _patterns(schema):
            re.compile(pattern)
            if _may_take_for_ever(pattern):
                return (
                    f"the pattern {pattern[:50]!r} repeats a group that repeats something itself: it may take for ever"
                )
    except re.error as error:
        return f"a pattern cannot be read: {error}"[:200]
    except jsonschema.SchemaError as error:
        return str(error.message)[:200]
    except (RecursionError, ValueError) as error:
        return f"it cannot be used: {error}"[:200]
    return ""


def _patterns(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["pattern"]] if isinstance(value.get("pattern"), str) else []
        own += value["patternProperties"] if isinstance(value.get("patternProperties"), dict) else []
        return own + [one for part in value.values() for one in _patterns(part)]
    if isinstance(value, list):
        return [one for part in value for one in _patterns(part)]
    return []


def _may_take_for_ever(pattern: str) -> bool:
    """Whether it repeats a group that repeats something itself, or chooses: `(a+)+`, `(a|b)*`."""
    bare = _OPENING.sub("(", _LITERAL.sub("x", pattern))
    while bare != (shorter := _ONCE.sub(r"\1", _PLAIN_GROUP.sub("x", _COUNT.sub("", bare)))):
        bare = shorter
    return _REPEATED_GROUP.search(bare) is not None


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
    is_time = is_number(seconds) and 0 <= seconds <= LONGEST_TIME
    if given == ["seconds"] and not is_time and not (isinstance(seconds, str) and "{{" in seconds):
        faults.append(Fault(f"{path}.seconds", "must be a number of seconds, not negative, or a template"))
    if given == ["until"] and "{{" not in config.until:
        with _told(faults, f"{path}.until", "such as 2031-05-17T09:00:00-03:00"):
            moment(config.until)
    if given == ["duration"] and parse_duration(config.duration) is None:
        faults.append(Fault(f"{path}.duration", f"{config.duration!r} is not a time", 'such as "90s", "5min", "2h"'))
