"""The format of flows: a list of steps, each with a key, a type and a config. Read by msgspec; no behaviour.

A template is any JSON value whose texts may hold `{{ expressions }}`. A rule is a condition. A block is a list of steps
inside another step; keys are unique in the whole flow, and a step is followed by steps of its own block only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from msgspec import UNSET, Meta, Struct, UnsetType, field, structs

FORMAT: Final = 1
"""The version of the format, which its JSON Schema carries in its name."""
LARGEST_DOCUMENT: Final = 256 * 1024
"""Bytes of JSON."""
MOST_STEPS: Final = 500
DEEPEST_BLOCK: Final = 8
KEY_PATTERN: Final = "^[A-Za-z_][A-Za-z0-9_-]{0,99}$"
MOST_AT_ONCE: Final = 100

Key = Annotated[
    str,
    Meta(
        pattern=KEY_PATTERN,
        description="The key of a step: letters, digits, `_` and `-`; it begins with a letter or `_`.",
    ),
]
TEMPLATE: Final = {"flow": "template"}
"""Marks fields that hold templates."""
SECRETS: Final = {"flow": "template", "secrets": True}
"""Marks templates that may hold references to secrets."""
Rule = Annotated[
    dict[str, Any],
    Meta(
        description='A condition: `{"field": "amount", "operator": "greater_than", "value": 100}`, or `and`, `or`, '
        "`not` of conditions."
    ),
]
LONGEST_TIME: Final = 1_000_000_000
"""Seconds."""
Seconds = Annotated[
    int | float | str,
    Meta(
        description='A time: a number of seconds, or a text such as "90s", "5min", "2h", "30d".',
        extra={"flow": "seconds"},
    ),
]
TimeLimit = Annotated[
    int | float | str,
    Meta(
        description='A time of more than 0: a number of seconds, or a text such as "90s", "5min", "2h", "30d".',
        extra={"flow": "seconds", "positive": True},
    ),
]
Names = Annotated[
    dict[str, Any],
    Meta(
        description="Names of values in `context`, and a template for each of them.", extra=TEMPLATE | {"names": True}
    ),
]


class RetryPolicy(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """How often a step is tried: 3 attempts, 1 s and then 2 s apart, unless it says otherwise."""

    attempts: Annotated[int, Meta(ge=1, le=1000, description="How many tries in all.")] = 3
    first: Annotated[Seconds, Meta(description="The wait after the first failure.")] = 1
    factor: Annotated[float, Meta(ge=1, le=100, description="How much longer each wait is than the one before.")] = 2
    longest: Annotated[Seconds, Meta(description="No wait is longer.")] = 30


class Config(Struct, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """The config of a type of step."""


class StepBase(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", omit_defaults=True):
    """The fields of all steps."""

    key: Key
    name: Annotated[str, Meta(max_length=200, description="For people.")] = ""
    if_: Annotated[Rule | None, Meta(description="The step is skipped unless this holds.")] = field(
        name="if", default=None
    )
    next: Annotated[str, Meta(description="The step that follows; empty: the next one of the list.")] = ""
    output: Annotated[
        Names, Meta(description="Values that are put into `context` after the step, which sees its own output.")
    ] = {}


class CallBase(StepBase, kw_only=True):
    """A step that reaches the world."""

    retry: Annotated[RetryPolicy | None, Meta(description="How often it is tried.")] = None
    timeout: Annotated[TimeLimit | None, Meta(description="For each try.")] = None
    gates: Annotated[
        list[str], Meta(max_length=10, description="Breakers and limits of the worker, asked before each try.")
    ] = []


class WaitBase(StepBase, kw_only=True):
    timeout: Annotated[TimeLimit | None, Meta(description="How long the step may take.")] = None


# -- condition, switch


class ConditionConfig(Config, kw_only=True):
    rule: Rule
    on_true: Annotated[str, Meta(description="The step that follows if it holds; empty: the next one.")] = ""
    on_false: Annotated[str, Meta(description="The step that follows if not; empty: the next one.")] = ""


class ConditionStep(StepBase, kw_only=True, tag="condition"):
    """Decides which step follows. Its output is `{"result": true, "rule": {...}}`."""

    config: ConditionConfig


class Case(Struct, kw_only=True, forbid_unknown_fields=True):
    """One way of a switch."""

    when: Rule
    to: Annotated[str, Meta(description="The step that follows.")]


class SwitchConfig(Config, kw_only=True):
    cases: Annotated[list[Case], Meta(min_length=1, max_length=100, description="The first that holds is taken.")]
    default: Annotated[str, Meta(description="The step that follows if none holds; empty: the next one.")] = ""


class SwitchStep(StepBase, kw_only=True, tag="switch"):
    """Chooses among several ways. Its output is `{"case": 0}`, or null for the default."""

    config: SwitchConfig


# -- actions


class ActionConfig(Config, kw_only=True):
    """`actionType` decides which of the fields count.

    `webhook` (the default) and `http_request` call `url`; without one nothing is sent, and the output is
    `{"dryRun": true, "actionType": ...}`. `publish` sends to `topic`; `start_run` starts `workflow`; `signal_run` sends
    `signal` to the run `id`. Any other type is a name of your own, and works like `webhook`.
    """

    action_type: Annotated[str, Meta(min_length=1, max_length=100, description="What kind of action.")] = "webhook"
    url: Annotated[str, Meta(description="Where to send it. May hold `secret://` references.", extra=SECRETS)] = ""
    method: Annotated[str, Meta(pattern="^[A-Za-z]{1,20}$", description="The HTTP method.")] = "POST"
    headers: Annotated[
        dict[str, str], Meta(description="HTTP headers. May hold `secret://` references.", extra=SECRETS)
    ] = {}
    body: Annotated[
        Any, Meta(description="What is sent, a template. Left out: the event's payload.", extra=SECRETS)
    ] = UNSET
    sign: Annotated[str, Meta(description="A `secret://` reference: the webhook is signed with it.", extra=SECRETS)] = (
        ""
    )
    expect: Annotated[
        list[Annotated[int, Meta(ge=100, le=599)]],
        Meta(max_length=50, description="HTTP statuses that are a success; empty: 200 to 299."),
    ] = []
    response: Annotated[
        dict[str, str],
        Meta(description="Names of the output, and for each a path in the answer: `status`, `headers.x`, `body.a.b`."),
    ] = {}
    topic: Annotated[str, Meta(description="publish: the topic.", extra=TEMPLATE)] = ""
    message_key: Annotated[str, Meta(description="publish: the key of the message.", extra=TEMPLATE)] = ""
    message_type: Annotated[str, Meta(description="publish: the type of the message.", extra=TEMPLATE)] = ""
    workflow: Annotated[str, Meta(description="start_run: the name of the workflow.")] = ""
    args: Annotated[
        list[Any], Meta(max_length=50, description="start_run: its arguments, templates.", extra=TEMPLATE)
    ] = []
    id: Annotated[str, Meta(description="start_run and signal_run: the id of the run.", extra=TEMPLATE)] = ""
    signal: Annotated[str, Meta(description="signal_run: the name of the signal; `body` is its value.")] = ""


class ActionStep(CallBase, kw_only=True, tag="action"):
    """Does something outside: a webhook, an HTTP request, a message, another run."""

    config: ActionConfig = field(default_factory=ActionConfig)


class PythonConfig(Config, kw_only=True):
    activity: Annotated[str, Meta(min_length=1, max_length=200, description="The name of an activity of the worker.")]
    args: Annotated[list[Any], Meta(max_length=50, description="Its arguments, templates.", extra=TEMPLATE)] = []
    queue: Annotated[str, Meta(description="The queue of another worker that has it.")] = ""


class PythonStep(CallBase, kw_only=True, tag="python"):
    """Calls an activity that is written in Python. Its output is what that returns."""

    config: PythonConfig


class AiConfig(Config, kw_only=True):
    prompt: Annotated[str, Meta(description="What the model is to do, a template.", extra=TEMPLATE)] = ""
    system: Annotated[str, Meta(description="The system message, a template.", extra=TEMPLATE)] = ""
    input: Annotated[Any, Meta(description="The data, a template. Left out: the event's payload.", extra=TEMPLATE)] = (
        UNSET
    )
    fallback: Annotated[Any, Meta(description="What is done when the model gives no usable answer. Mandatory.")]
    schema: Annotated[dict[str, Any] | None, Meta(description="The JSON Schema that the answer must fit.")] = None
    url: Annotated[str, Meta(description="An OpenAI-compatible endpoint; empty: that of the worker.")] = ""
    api_key: Annotated[str, Meta(description="A `secret://` reference.", extra=SECRETS)] = ""
    model: Annotated[str, Meta(description="The model; empty: that of the worker.")] = ""
    max_tokens: Annotated[int, Meta(ge=1, le=1_000_000, description="Tokens of all answers together.")] = 2_000
    budget: Annotated[TimeLimit, Meta(description="The time for everything.")] = 30
    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, Meta(description="Given to the model.")] = None


class AiStep(CallBase, kw_only=True, tag="ai_task"):
    """Asks a model. Its output is `{"fallbackUsed": false, "fallback": ..., "data": ...}`; when the model cannot be
    used, `fallbackUsed` is true and `data` is the input."""

    config: AiConfig


# -- waiting


class DelayConfig(Config, kw_only=True):
    """One of the fields."""

    seconds: Annotated[Any, Meta(description="How long, a number or a template.", extra=TEMPLATE)] = UNSET
    duration: Annotated[str, Meta(description='How long: "90s", "5min", "2h", "30d".')] = ""
    until: Annotated[str, Meta(description="An ISO date and time with a zone, or a template.", extra=TEMPLATE)] = ""


class DelayStep(StepBase, kw_only=True, tag="delay"):
    """Waits, durably."""

    config: DelayConfig


class Correlation(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which event is meant."""

    field: Annotated[str, Meta(min_length=1, description="A path in the payload of the awaited event.")]
    value: Annotated[Any, Meta(description="What must be there, a template.", extra=TEMPLATE)]


class WaitEventConfig(Config, kw_only=True):
    event: Annotated[str, Meta(min_length=1, max_length=200, description="The type of the event.")]
    correlation: Annotated[Correlation | None, Meta(description="Left out: any event of the type.")] = None
    on_timeout: Annotated[str, Meta(description="The step that follows when none came; empty: the run fails.")] = ""


class WaitEventStep(WaitBase, kw_only=True, tag="wait_event"):
    """Waits for an event. Its output is the event. With a `correlation` it may be one that came before the step
    began, but after the event that began the run: the first one that no step of the run has waited for before."""

    config: WaitEventConfig


class Notify(Config, kw_only=True):
    url: Annotated[
        str, Meta(min_length=1, description="Is sent the token of the approval, and the title.", extra=SECRETS)
    ]
    headers: Annotated[
        dict[str, str], Meta(description="HTTP headers. May hold `secret://` references.", extra=SECRETS)
    ] = {}


class ApprovalConfig(Config, kw_only=True):
    title: Annotated[str, Meta(description="What is to be approved, a template.", extra=TEMPLATE)] = ""
    data: Annotated[Any, Meta(description="What the person is shown, a template.", extra=TEMPLATE)] = None
    notify: Annotated[Notify | None, Meta(description="A webhook that tells somebody.")] = None
    on_rejected: Annotated[str, Meta(description="The step that follows when rejected; empty: the run fails.")] = ""
    on_timeout: Annotated[str, Meta(description="The step that follows when no decision came; empty: it fails.")] = ""


class ApprovalStep(WaitBase, kw_only=True, tag="approval"):
    """Waits for a person. Its output is `{"approved": true, "by": ..., "comment": ..., "data": ...}`."""

    config: ApprovalConfig = field(default_factory=ApprovalConfig)


# -- blocks


class ParallelConfig(Config, kw_only=True):
    branches: Annotated[list[list[Step]], Meta(min_length=1, max_length=50, description="Blocks.")]
    concurrency: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE, description="How many at once.")] = 10


class ParallelStep(WaitBase, kw_only=True, tag="parallel"):
    """Does several blocks at the same time. When one fails, the others are cancelled and the step fails."""

    config: ParallelConfig


class ForEachConfig(Config, kw_only=True):
    items: Annotated[Any, Meta(description="A list, or a template that gives one.", extra=TEMPLATE)]
    as_: Annotated[Key, Meta(description="Its name in `context`; the place is `context.index`.")] = field(
        name="as", default="item"
    )
    steps: Annotated[list[Step], Meta(min_length=1, description="A block, done for each item.")]
    concurrency: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE, description="How many items at once.")] = 10
    collect: Annotated[Any, Meta(description="A template, evaluated after each item: the results.", extra=TEMPLATE)] = (
        UNSET
    )


class ForEachStep(WaitBase, kw_only=True, tag="for_each"):
    """Does a block for each item of a list. Its output is `{"count": 3}`, with `results` if it collects."""

    config: ForEachConfig


class TryConfig(Config, kw_only=True):
    steps: Annotated[list[Step], Meta(min_length=1, description="A block that may fail.")]
    catch: Annotated[
        list[Step], Meta(description="A block, done when it failed; `context.error` has `step`, `message`, `type`.")
    ] = []
    finally_: Annotated[list[Step], Meta(description="A block, done in any case.")] = field(name="finally", default=[])


class TryStep(WaitBase, kw_only=True, tag="try"):
    """Goes on when a block fails. Its output is `{"failed": false}`, with `error` if it failed."""

    config: TryConfig


class SubFlowConfig(Config, kw_only=True):
    workflow: Annotated[str, Meta(min_length=1, description="The name of a published flow.")]
    version: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Left out: the newest published one.")] = (
        None
    )
    payload: Annotated[
        Any, Meta(description="The payload of its event, a template. Left out: this one's.", extra=TEMPLATE)
    ] = UNSET


class SubFlowStep(WaitBase, kw_only=True, tag="sub_flow"):
    """Runs another flow and waits for its end. Its output is the context of that run."""

    config: SubFlowConfig


# -- the rest


class SetConfig(Config, kw_only=True):
    values: Names


class SetStep(StepBase, kw_only=True, tag="set"):
    """Puts values into `context`."""

    config: SetConfig


class FailConfig(Config, kw_only=True):
    message: Annotated[str, Meta(description="Why, a template.", extra=TEMPLATE)] = "the flow says so"


class FailStep(StepBase, kw_only=True, tag="fail"):
    """Fails the run, or the block of a `try`."""

    config: FailConfig = field(default_factory=FailConfig)


class CompensateStep(CallBase, kw_only=True, tag="compensate"):
    """An action that undoes earlier steps if the flow fails later. The last one runs first."""

    config: ActionConfig


class EndConfig(Config, kw_only=True):
    result: Annotated[Any, Meta(description="A template: the output of the step.", extra=TEMPLATE)] = UNSET


class EndStep(StepBase, kw_only=True, tag="end"):
    """Ends the run; in a block, the block."""

    config: EndConfig = field(default_factory=EndConfig)


Step = (
    ConditionStep
    | SwitchStep
    | ActionStep
    | PythonStep
    | AiStep
    | DelayStep
    | WaitEventStep
    | ApprovalStep
    | ParallelStep
    | ForEachStep
    | TryStep
    | SubFlowStep
    | SetStep
    | FailStep
    | CompensateStep
    | EndStep
)
STEP_TYPES: Final[dict[str, type[StepBase]]] = {str(one.__struct_config__.tag): one for one in get_args(Step)}
WAITS: Final = (DelayStep, WaitEventStep, ApprovalStep)
"""A cycle needs one of them."""


# -- how a flow begins


class Concurrency(Struct, kw_only=True, forbid_unknown_fields=True):
    """How many runs of one key there are at once."""

    key: Annotated[str, Meta(min_length=1, description="A template over the event.", extra=TEMPLATE)]
    limit: Annotated[int, Meta(ge=1, le=10_000, description="How many.")] = 1
    overlap: Annotated[
        Literal["queue", "buffer", "skip", "allow", "cancel"],
        Meta(
            description="What becomes of one more. `queue`: it waits for its turn. `buffer`: one waits until another "
            "has ended, more begin none. `skip`: it begins none. `cancel`: the oldest is asked to end. `allow`: it "
            "begins."
        ),
    ] = "queue"


class Debounce(Struct, kw_only=True, forbid_unknown_fields=True):
    """Several events of one key begin one run, with the last of them."""

    key: Annotated[str, Meta(min_length=1, description="A template over the event.", extra=TEMPLATE)]
    wait: Annotated[TimeLimit, Meta(description="How long after the last event.")]
    longest: Annotated[TimeLimit | None, Meta(description="How long after the first event at most.")] = None


class TriggerSchedule(Struct, kw_only=True, forbid_unknown_fields=True):
    """Begins a run at certain times, with this payload as `event.payload`."""

    cron: Annotated[str, Meta(description="A cron expression.")] = ""
    every: Annotated[TimeLimit | None, Meta(description="Instead: the time between two runs.")] = None
    timezone: Annotated[str, Meta(description="Of the cron expression.")] = "UTC"
    payload: Annotated[dict[str, Any], Meta(description="The payload of its events.")] = {}


class Trigger(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """More about how a flow begins than the type of its events."""

    filter: Annotated[Rule | None, Meta(description="Only events that fit.")] = None
    concurrency: Concurrency | None = None
    debounce: Debounce | None = None
    schedule: TriggerSchedule | None = None
    topic: Annotated[str, Meta(description="A topic of the bus; each message is an event.")] = ""


class FlowDocument(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A flow, as a file."""

    name: Annotated[str, Meta(min_length=1, max_length=200, description="Its name, the same in all versions.")]
    description: Annotated[Annotated[str, Meta(max_length=2_000)] | None, Meta(description="For people.")] = None
    trigger_type: Annotated[
        str, Meta(max_length=200, description="The type of the events that begin it; empty: none.")
    ] = ""
    trigger: Trigger | None = None
    steps: Annotated[list[Step], Meta(min_length=2, max_length=MOST_STEPS, description="What it does.")]
    format: Annotated[int, Meta(ge=1, le=FORMAT, description="The version of this format.")] = FORMAT


# -- reading


def blocks_of(step: StepBase) -> list[tuple[str, list[Any]]]:
    """The blocks in a step, each with its path below the step. A `try` has three, of which two may be empty."""
    if isinstance(step, ParallelStep):
        return [(f"config.branches[{place}]", branch) for place, branch in enumerate(step.config.branches)]
    if isinstance(step, ForEachStep):
        return [("config.steps", step.config.steps)]
    if isinstance(step, TryStep):
        config = step.config
        return [("config.steps", config.steps), ("config.catch", config.catch), ("config.finally", config.finally_)]
    return []


def all_steps(steps: Sequence[StepBase]) -> Iterator[StepBase]:
    """Each step, and then those in its blocks."""
    for step in steps:
        yield step
        for _, block in blocks_of(step):
            yield from all_steps(block)


def targets_of(step: StepBase) -> list[tuple[str, str]]:
    """The steps that it names as the next, each with the path of the name below the step."""
    config: Any = getattr(step, "config", None)
    found = [("next", step.next)]
    if isinstance(step, ConditionStep):
        found += [("config.onTrue", config.on_true), ("config.onFalse", config.on_false)]
    elif isinstance(step, SwitchStep):
        found += [(f"config.cases[{place}].to", one.to) for place, one in enumerate(config.cases)]
        found.append(("config.default", config.default))
    elif isinstance(step, ApprovalStep):
        found += [("config.onRejected", config.on_rejected), ("config.onTimeout", config.on_timeout)]
    elif isinstance(step, WaitEventStep):
        found.append(("config.onTimeout", config.on_timeout))
    return [one for one in found if one[1]]


def waited_fields(steps: Sequence[StepBase]) -> set[tuple[str, str]]:
    """Of each event that the flow waits for: its type, and the path that tells which one is meant (empty: any)."""
    return {
        (step.config.event, step.config.correlation.field if step.config.correlation else "")
        for step in all_steps(steps)
        if isinstance(step, WaitEventStep)
    }


@lru_cache(maxsize=100)
def template_fields(kind: type[Struct]) -> tuple[tuple[str, str], ...]:
    """The fields of a config that hold templates: their names in Python and in JSON."""
    return tuple((one.name, one.encode_name) for one in structs.fields(kind) if _is_template(one.type))


def _is_template(kind: Any) -> bool:
    metas = [one for one in get_args(kind)[1:] if isinstance(one, Meta)] if get_origin(kind) is Annotated else []
    return any(meta.extra is not None and meta.extra.get("flow") == "template" for meta in metas)


def is_given(value: Any) -> bool:
    """Whether a field that may be left out is there."""
    return not isinstance(value, UnsetType)
