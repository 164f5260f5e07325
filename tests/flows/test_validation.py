"""A flow that cannot be is refused with all that is wrong, each with its path and a hint."""

import json
from typing import Any

import pytest

from batuta.flows.document import LARGEST_DOCUMENT, MOST_STEPS, STEP_TYPES
from batuta.flows.faults import InvalidFlow
from batuta.flows.validation import check_document, parse_document
from tests.flows.kit import DONE, OVERDUE, check_steps, rule, step


def faults(steps: Any) -> dict[str, str]:
    """What is wrong, by path."""
    found, wrong = check_steps(steps)
    assert (found is None) == bool(wrong)
    told: dict[str, str] = {}
    for one in wrong:
        told[one.path] = f"{told.get(one.path, '')} {one.message} ({one.hint})"
    return told


def test_the_plain_form_of_the_document_is_accepted_as_it_stands() -> None:
    # covers E-05
    plain = """[
        {"key": "check_overdue", "type": "condition", "config": {
            "rule": {"field": "amount", "operator": "greater_than", "value": 100}, "onFalse": "done"}},
        {"key": "classify", "type": "ai_task", "config": {"fallback": "use_default_template"}},
        {"key": "pause", "type": "delay", "config": {"seconds": 1}},
        {"key": "notify", "type": "action", "config": {"actionType": "webhook", "url": "https://example.com/hook"}},
        {"key": "done", "type": "end", "config": {}}]"""
    steps, wrong = check_steps(plain)
    assert not wrong
    assert steps is not None
    assert [one.key for one in steps] == ["check_overdue", "classify", "pause", "notify", "done"]


BAD = [
    ([step("a", "sett", values={}), DONE], "steps[0].type", "unknown step type 'sett' (did you mean 'set'?)"),
    ([{"key": "a"}, DONE], "steps[0].type", "a step needs a type"),
    ([step("a", "set", values={}), step("a", "end")], "steps[1].key", "the key 'a' is taken"),
    ([DONE, step("a", "set", values={})], "steps[0].type", "must not be an end"),
    ([step("a", "set", values={}), step("b", "set", values={})], "steps", "there is no end"),
    ([DONE], "steps", "at least 2"),
    ([], "steps", "at least 2"),
    ([{"key": "a b", "type": "action"}, DONE], "steps[0].key", "expected 1 to 100 letters"),
    ([{"key": "a", "type": "action", "confg": {}}, DONE], "steps[0].confg", "did you mean 'config'?"),
    ([step("a", "action", urll="x"), DONE], "steps[0].config.urll", "did you mean 'url'?"),
    ([step("a", "condition", rule=rule("x", "bigger", 1)), DONE], "steps[0].config.rule.operator", "unknown operator"),
    ([step("a", "condition"), DONE], "steps[0]", "the field 'config' is missing"),
    (
        [step("a", "condition", rule={"and": [rule("x", "gt", 1), rule("y", "in", 3)]}), DONE],
        "steps[0].config.rule.and[1].value",
        "'in' needs a list",
    ),
    ([step("a", "condition", rule=rule("x", "gt", 1), onTrue="don"), DONE], "steps[0].config.onTrue", "'done'?"),
    ([step("a", "action", body="{{ event.payload. }}"), DONE], "steps[0].config.body", "expression"),
    ([step("a", "action", body="{{ evnt.payload }}"), DONE], "steps[0].config.body", "must begin with"),
    ([step("a", "action", body='{{ eval("1") }}'), DONE], "steps[0].config.body", "unknown function"),
    (
        [step("a", "action", body="{{ steps.b.output }}"), step("b", "action"), DONE],
        "steps[0].config.body",
        "never comes",
    ),
    ([step("a", "action", body="{{ steps.x.output }}"), DONE], "steps[0].config.body", "there is no step 'x'"),
    ([step("a", "action", body="{{ steps.a.output }}"), DONE], "steps[0].config.body", "never comes before"),
    ([step("a", "set", values={"x": "secret://env/X"}), DONE], "steps[0].config.values", "a secret may not stand here"),
    (
        [step("a", "action", actionType="publish", topic="t", body={"k": "secret://env/X"}), DONE],
        "steps[0].config.body",
        "what publish sends is kept",
    ),
    ([step("a", "action", url="secret://x"), DONE], "steps[0].config.url", "cannot be read"),
    ([step("a", "action", url="ftp://x"), DONE], "steps[0].config.url", "http"),
    ([step("a", "action", actionType="publish"), DONE], "steps[0].config", "'topic' is missing"),
    ([step("a", "ai_task", prompt="x"), DONE], "steps[0].config", "'fallback' is missing"),
    ([step("a", "ai_task", fallback=None), DONE], "steps[0].config.fallback", "must not be null"),
    ([step("a", "ai_task", fallback="x", schema={"type": "txt"}), DONE], "steps[0].config.schema", "'txt'"),
    ([step("a", "delay"), DONE], "steps[0]", "'config' is missing"),
    ([step("a", "delay", seconds=1, duration="1s"), DONE], "steps[0].config", "needs one of"),
    ([step("a", "delay", seconds=-1), DONE], "steps[0].config.seconds", "not negative"),
    ([step("a", "delay", duration="soon"), DONE], "steps[0].config.duration", "is not a time"),
    ([step("a", "action", timeout="soon"), DONE], "steps[0].timeout", "is not a time"),
    ([step("a", "action", retry={"attempts": 0}), DONE], "steps[0].retry.attempts", ">= 1"),
    (
        [step("a", "for_each", items=[], steps=[step("b", "wat")]), DONE],
        "steps[0].config.steps[0].type",
        "unknown step",
    ),
    (
        [step("a", "for_each", items=[], steps=[step("b", "set", values={}, next="done")]), DONE],
        "steps[0].config.steps[0].next",
        "another block",
    ),
    (
        [
            step("a", "for_each", items=[], steps=[step("b", "action")]),
            step("c", "action", body="{{ steps.b.output }}"),
            DONE,
        ],
        "steps[1].config.body",
        "never comes before",
    ),
    ("{}", "steps", "must be a list"),
    ("[", "", "not JSON"),
    ("[NaN]", "", "no JSON number"),
    ('[{"key": "a", "key": "b", "type": "action"}]', "steps[0].key", "stands twice"),
    ("[" * 100_000, "", "nested too deeply"),
    ('["\\ud800"]', "", "not Unicode"),
    (" " * (LARGEST_DOCUMENT + 1), "", "bytes"),
    ([step("a", "action", body={"n": 2**70}), DONE], "steps[0].config.body.n", "64 bits"),
    (f'[{{"key": "a", "type": "action", "config": {{"body": {"9" * 5_000}}}}}]', "steps[0].config.body", "64 bits"),
    ('[{"key": "a", "type": "action", "config": {"body": 1e400}}]', "steps[0].config.body", "too large"),
    ([step("a", "action", body="{{ 1e999 }}"), DONE], "steps[0].config.body", "not a number as JSON has them"),
    ([step("a", "action", body="{{ 007 }}"), DONE], "steps[0].config.body", "not a number as JSON has them"),
    ([step("a", "action", retry={"longest": "x"}), DONE], "steps[0].retry.longest", "is not a time"),
    ([step("a", "action", retry={"first": -1}), DONE], "steps[0].retry.first", "must not be negative"),
    ([step("a", "action", timeout=0), DONE], "steps[0].timeout", "more than 0"),
    ([step("a", "try", timeout=1e300, steps=[step("b", "fail")]), DONE], "steps[0].timeout", "too long"),
    ([step("a", "ai_task", fallback=1, budget="x"), DONE], "steps[0].config.budget", "is not a time"),
    ([step("a", "delay", seconds="5"), DONE], "steps[0].config.seconds", "must be a number"),
    ([step("a", "delay", until="tomorrow"), DONE], "steps[0].config.until", "ISO date"),
    ([step("a", "set", values={"steps": 1}), DONE], "steps[0].config.values.steps", "is taken"),
    ([step("a", "set", values={"a.b": 1}), DONE], "steps[0].config.values.a.b", "no name that a path can lead to"),
    ([step("a", "action", output={"": 1}), DONE], "steps[0].output.", "no name that a path can lead to"),
    ([step("a", "wait_event", event="---"), DONE], "steps[0].config.event", "no letter and no digit"),
    (
        [step("a", "wait_event", event="x", correlation={"field": "a..b", "value": 1}), DONE],
        "steps[0].config.correlation.field",
        "empty part",
    ),
    ([step("a", "for_each", items=5, steps=[step("b", "fail")]), DONE], "steps[0].config.items", "must be a list"),
    (
        [step("a", "for_each", items=[], **{"as": "index"}, steps=[step("b", "fail")]), DONE],
        "steps[0].config.as",
        "choose another name",
    ),
    ([step("a", "sub_flow", workflow="x", payload=[1]), DONE], "steps[0].config.payload", "must be an object"),
    ([step("a", "compensate", actionType="start_run", workflow="x"), DONE], "steps[0].config.actionType", "cannot be"),
    ([step("a", "action", sign="whsec_abc"), DONE], "steps[0].config.sign", "not the secret itself"),
    ([step("a", "ai_task", fallback=1, apiKey="sk-1"), DONE], "steps[0].config.apiKey", "not the secret itself"),
    ([step("a", "action", headers={"Host": "x"}), DONE], "steps[0].config.headers.Host", "by the client itself"),
    ([step("a", "action", headers={"a b": "x"}), DONE], "steps[0].config.headers.a b", "not the name of a header"),
    ([step("a", "approval", notify={"url": "ftp://x"}), DONE], "steps[0].config.notify.url", "https"),
    ([step("a", "action", expect=[99]), DONE], "steps[0].config.expect[0]", ">= 100"),
    ([{"key": "a", "type": ["set"]}, DONE], "steps[0].type", "known: condition"),
]


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|aa)+",
        "((a+))*",
        "(?:a*)*",
        "(?P<n>x(a|b))+",
        "((a+)b){2,}",
        "(a?){50}a{50}",
        "(a{2}+b+)+",
        "(a{1,2})+",
        "(",
        "[(a+",
    ],
)
def test_a_pattern_that_may_take_for_ever_is_refused(pattern: str) -> None:
    found = faults([step("a", "ai_task", fallback=1, schema={"properties": {"x": {"pattern": pattern}}}), DONE])
    assert list(found) == ["steps[0].config.schema"]


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[A-Z]{2}\d{4}$",
        r"^[a-z]+@[a-z]+\.[a-z]+$",
        "(ab)+",
        "(a+)?b",
        r"\(a+\)+",
        "[(a+]+",
        "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        r"^(\d{3}\.){2}\d{3}-\d{2}$",
        r"^\d+(,((\d{3}))*)?$",
    ],
)
def test_other_patterns_are_accepted(pattern: str) -> None:
    schema = {"patternProperties": {pattern: {"pattern": pattern}}}
    assert not faults([step("a", "ai_task", fallback=1, schema=schema), DONE])


@pytest.mark.parametrize(("steps", "path", "words"), BAD, ids=[f"{path or 'whole'}: {words}" for _, path, words in BAD])
def test_each_fault_has_its_path_and_a_hint(steps: Any, path: str, words: str) -> None:
    found = faults(steps if isinstance(steps, str) else json.dumps(steps))
    assert any(at.endswith(path) and words in said for at, said in found.items()), found


def test_all_faults_are_told_at_once() -> None:
    found = faults(
        [
            step("a", "condtion"),
            step("b", "action", urll=1, body="{{ x"),
            step("b", "set", values={"z": "{{ steps.nobody.output }}"}),
            step("c", "condition", rule={"or": []}, onTrue="nowhere"),
        ]
    )
    assert {path.partition("]")[0] for path in found} == {"steps[0", "steps[1", "steps[2", "steps[3", "steps"}
    assert len(found) >= 6


def test_each_value_of_a_template_has_its_own_fault() -> None:
    values = {"a": "{{ x }}", "b": ["fine", "{{ nope(1) }}"], "c": "{{ 'x' }}", "d": "{{ event.payload.l[0] }}"}
    found = faults([step("s", "set", values=values), DONE])
    at = "steps[0].config.values"
    assert set(found) == {f"{at}.a", f"{at}.b[1]", f"{at}.c", f"{at}.d"}
    assert "double quotes" in found[f"{at}.c"]
    assert "items.0" in found[f"{at}.d"]
    read = faults([step("s", "set", values={"a": {"b": ["{{ steps.nobody.output }}"]}}), DONE])
    assert set(read) == {f"{at}.a.b[0]"}


TRIGGERS: list[tuple[dict[str, Any], str, str]] = [
    ({"schedule": {}}, "trigger.schedule", "needs one of cron, every; it has none"),
    ({"schedule": {"cron": "@daily", "every": 5}}, "trigger.schedule", "it has both"),
    ({"schedule": {"every": -5}}, "trigger.schedule.every", "more than 0"),
    ({"schedule": {"every": 0.5}}, "trigger.schedule.every", "at least 1 second"),
    ({"schedule": {"cron": "61 * * * *"}}, "trigger.schedule.cron", "bad minute"),
    ({"schedule": {"cron": "@daily", "timezone": "Mars/X"}}, "trigger.schedule.timezone", "unknown time zone"),
    ({"debounce": {"key": "k", "wait": "soon"}}, "trigger.debounce.wait", "is not a time"),
    ({"debounce": {"key": "k", "wait": 10, "longest": 1}}, "trigger.debounce.longest", "less than wait"),
    ({"debounce": {"key": "{{ steps.a.output }}", "wait": 1}}, "trigger.debounce.key", "before a flow begins"),
    ({"concurrency": {"key": "{{ context.a }}"}}, "trigger.concurrency.key", "before a flow begins"),
    ({"filter": {"field": "steps.a.output", "operator": "exists"}}, "trigger.filter", "before a flow begins"),
    ({"topic": "a\nb"}, "trigger.topic", "printable"),
]


@pytest.mark.parametrize(("trigger", "path", "words"), TRIGGERS, ids=[words for _, _, words in TRIGGERS])
def test_a_trigger_that_cannot_be_is_refused_before_it_is_published(
    trigger: dict[str, Any], path: str, words: str
) -> None:
    _, wrong = check_document({"name": "x", "trigger": trigger, "steps": OVERDUE})
    assert [one.path for one in wrong] == [path]
    assert words in wrong[0].message


@pytest.mark.parametrize("name", ["   ", "a\0b", "a\nb", "a\u202eb"])
def test_a_name_that_cannot_be_read_is_refused(name: str) -> None:
    _, wrong = check_document({"name": name, "trigger_type": "---", "steps": OVERDUE})
    assert [one.path for one in wrong] == ["name", "trigger_type"]


def test_a_document_of_one_megabyte_is_refused_by_its_size() -> None:
    document = {"name": "big", "steps": [step("a", "set", values={"x": "y" * 2**20}), DONE]}
    _, wrong = check_document(json.dumps(document))
    assert len(wrong) == 1
    assert "at most 262,144" in wrong[0].hint


def test_keys_that_stand_twice_are_told_with_their_path() -> None:
    _, wrong = check_document('{"name": "a", "name": "b", "steps": [{"key": "x", "type": "end", "type": "set"}]}')
    assert {"name", "steps[0].type"} <= {one.path for one in wrong}


def loop(*inside: dict[str, Any]) -> list[dict[str, Any]]:
    again = step("again", "condition", rule=rule("context.n", "lt", 3), onTrue="first")
    return [step("first", "set", values={"n": 1}), *inside, again, DONE]


def test_a_cycle_needs_a_wait_that_is_never_skipped() -> None:
    assert "without a wait" in str(faults(loop()))
    assert not faults(loop(step("pause", "delay", seconds=1)))
    assert "without a wait" in str(faults(loop(step("pause", "delay", seconds=1, when=rule("x", "exists")))))


def test_a_step_of_a_cycle_may_refer_to_a_later_one_that_came_before() -> None:
    steps = loop(
        step("use", "set", values={"x": "{{ default(steps.pause.output, 0) }}"}), step("pause", "delay", seconds=1)
    )
    assert not faults(steps)


def test_steps_in_blocks_can_be_referred_to_after_the_block_but_for_those_of_a_list() -> None:
    branch = [step("b1", "action")]
    use = step("use", "set", values={"x": "{{ steps.b1.output }}"})
    assert not faults([step("p", "parallel", branches=[branch]), use, DONE])
    assert not faults([step("t", "try", steps=branch, catch=[use]), DONE])
    collected = step("e", "for_each", items=[1], steps=branch, collect="{{ steps.b1.output }}")
    assert not faults([collected, DONE])


def test_branches_of_a_parallel_do_not_see_each_other() -> None:
    other = [step("b2", "set", values={"x": "{{ steps.b1.output }}"})]
    assert "never comes before" in str(faults([step("p", "parallel", branches=[[step("b1", "action")], other]), DONE]))


def test_too_many_steps_are_refused() -> None:
    many = [step(f"s{place}", "set", values={}) for place in range(MOST_STEPS)]
    assert "at most" in str(faults([*many, DONE]))
    inside = [step("e", "for_each", items=[], steps=many), DONE]
    assert "use sub_flows" in str(faults(inside))


def test_the_error_of_a_document_tells_all() -> None:
    with pytest.raises(InvalidFlow) as caught:
        parse_document({"name": "x", "steps": [step("a", "wat"), DONE], "wht": 1})
    assert {one.path for one in caught.value.faults} == {"wht", "steps[0].type"}
    assert "2 faults" in str(caught.value)


def test_a_sound_document_comes_back_with_its_trigger() -> None:
    trigger = {"filter": rule("amount", "gt", 1), "concurrency": {"key": "{{ event.payload.id }}"}}
    found = parse_document({"name": "x", "trigger_type": "a", "trigger": trigger, "steps": OVERDUE})
    assert found.trigger is not None
    assert found.trigger.concurrency is not None
    assert found.trigger.concurrency.limit == 1


def test_every_type_of_step_has_a_case_here() -> None:
    assert set(STEP_TYPES) == {
        *("condition", "switch", "action", "python", "ai_task", "delay", "wait_event", "approval"),
        *("parallel", "for_each", "try", "sub_flow", "set", "fail", "compensate", "end"),
    }


def test_only_the_first_wrong_keys_are_compared_with_all_others() -> None:
    keys = [f"{'k' * 60}{n}" for n in range(450)]
    steps = [step(key, "set", next=f"{key}x", values={}) for key in keys]
    wrong = [one for one in check_steps([*steps, DONE])[1] if "there is no step" in one.message]
    guessed = [one.hint.startswith("did you mean") for one in wrong]
    assert (len(wrong), guessed[0], sum(guessed) <= 20) == (450, True, True)


def test_keys_that_stand_many_times_in_an_object_are_told() -> None:
    found = faults('[{"key": "a", "type": "end", ' + '"x": 1, ' * 25_000 + '"x": 1}]')
    assert "stands twice" in found["steps[0].x"]
