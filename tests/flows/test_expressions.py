"""Templates and expressions of flows: what they give, and that nothing leaves them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.errors import InvalidInput
from batuta.flows.expressions import (
    FUNCTIONS,
    LARGEST_RESULT,
    MOST_WORK,
    ExpressionError,
    compile_expression,
    compile_template,
)

SCOPE: dict[str, Any] = {
    "event": {
        "type": "invoice_overdue",
        "payload": {
            "name": " Ana ",
            "amount": 2500,
            "items": [{"sku": "a"}, {"sku": "b"}],
            "note": None,
            "n": "12.50",
            "endereço": {"número": 7},
        },
    },
    "context": {"count": 3, "list": [3, 1, 2]},
    "steps": {"check": {"output": {"result": True}}, "key-with-dash": {"output": 7}},
}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        (7, 7),
        (None, None),
        ("{{ event.payload.amount }}", 2500),
        ("{{event.payload.items}}", [{"sku": "a"}, {"sku": "b"}]),
        ("{{ event.payload.items.1.sku }}", "b"),
        ("Hello {{ trim(event.payload.name) }}!", "Hello Ana!"),
        ("{{ event.payload.amount }} of {{ context.count }}", "2500 of 3"),
        ("{{ steps.check.output.result }} {{ event.payload.note }}", "true null"),
        ("{{ steps.key-with-dash.output }}", 7),
        ({"to": ["{{ upper(trim(event.payload.name)) }}"], "n": 1}, {"to": ["ANA"], "n": 1}),
        ('{{ default(event.payload.missing, "none") }}', "none"),
        ('{{ default(event.payload.note, "none") }}', "none"),
        ("{{ default(event.payload.amount, 1) }}", 2500),
        ("{{ number(event.payload.n) }}", 12.5),
        ("{{ add(event.payload.amount, 0.5) }}", 2500.5),
        ("{{ divide(1, 4) }}", 0.25),
        ("{{ round(2.567, 1) }} {{ round(2.5) }}", "2.6 2"),
        ("{{ min(context.list) }} {{ max(1, 5, 2) }} {{ sum(context.list) }}", "1 5 6"),
        ("{{ first(context.list) }} {{ last(context.list) }} {{ length(context.list) }}", "3 2 3"),
        ('{{ join(split("a,b", ","), "-") }}', "a-b"),
        ('{{ concat("a", 1, true, null) }}', "a1truenull"),
        ('{{ replace("a-b", "-", "+") }} {{ substring("hello", 1, 3) }}', "a+b el"),
        ('{{ get(event.payload, "amount") }}', 2500),
        ('{{ merge(context, json("{\\"x\\":1}")) }}', {"count": 3, "list": [3, 1, 2], "x": 1}),
        ('{{ add_seconds("2026-01-31T00:00:00Z", 86400) }}', "2026-02-01T00:00:00+00:00"),
        ('{{ seconds_between("2026-01-31T00:00:00Z", "2026-01-31T00:01:00+00:00") }}', 60.0),
        ('{{ "a }} b" }}', "a }} b"),
        ('{{ "\\u00e9\\"" }}', 'é"'),
        ("{ not } an {expression}", "{ not } an {expression}"),
        ("{{ event.payload.endereço.número }}", 7),
        ("{{ divide(4, 2) }} {{ add(0.1, 0.2) }} {{ round(add(0.1, 0.2), 2) }}", "2.0 0.30000000000000004 0.3"),
        ("{{ round(2.5) }} {{ round(3.5) }}", "2 4"),
    ],
)
def test_a_template_gives(template: Any, expected: Any) -> None:
    assert compile_template(template)(SCOPE) == expected


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("event.payload.missing", r"default\(event\.payload\.missing"),
        ("upper(event.payload.amount)", "upper: 2500 is not a text"),
        ("add(event.payload.name, 1)", "is not a number"),
        ("divide(1, 0)", "division by zero"),
        ('number("one")', "is not a number"),
        ('number("１２")', "is not a number"),
        ('first(split("", ","))', ""),
        ("length(1)", "has no length"),
        ("multiply(999999999999999, 999999999)", "larger than"),
        ('get(event.payload, "x")', "there is no 'x'"),
        ('json("{")', "not JSON"),
        ('add_seconds("yesterday", 1)', "ISO"),
        ('add_seconds("2026-01-01T00:00:00", 1)', "time zone"),
        ('add_seconds("2026-01-01T00:00:00Z", 999999999999999)', "year"),
        ('substring("a", -1)', "positions"),
        ('replace("a", "", "b")', "empty"),
    ],
)
def test_an_expression_without_a_value_says_why(expression: str, why: str) -> None:
    found = compile_expression(expression)
    if not why:
        assert found(SCOPE) == ""
        return
    with pytest.raises(ExpressionError, match=why):
        found(SCOPE)


ESCAPES = """
" __class__ event.__class__ event.payload.__class__.__mro__ ''.__class__ ().__class__ [].append {}.keys
lambda:0 import os __import__("os") eval("1") exec("1") open("/etc/passwd") os.system("ls") getattr(event,"x")
globals() locals() vars() event["payload"] event.payload[0] event.payload() event().x event|safe
event.payload.name|upper event+1 1+1 1/0 not-event event==1 event?1:2 ${event.payload} #{event} <%=1%> {%if%}
`ls` $(ls) {{event}} event;event event,event f"{event}" b"x" r"x" event.payload.name.upper()
format("{0.__class__}",event) "%s"%event {0.__class__} *event **event @event ~event !event &event
range(1000000000) [x*for*x*in*range(9)] while True: print(1) type(event) str(event) repr(event) dir() help()
input() id(1) constructor event.constructor.constructor("return*this")() process.env require("fs") this window
document alert(1) self cls upper upper( upper) upper() upper(,) upper("a" upper("a",) default() default(1)
concat( ( ) , "unclosed 'single' 1e9999 --1
""".split()


@pytest.mark.parametrize("expression", ESCAPES)
def test_nothing_leaves_the_language(expression: str) -> None:
    """Refused, or a plain path to nothing: never a value of Python's own."""
    try:
        found = compile_expression(expression)
    except InvalidInput:
        return
    with pytest.raises(ExpressionError):
        found(SCOPE)


def test_attributes_of_python_are_no_fields() -> None:
    for path in ("event.payload.name.upper", "context.list.append", "event.keys", "context.count.real"):
        with pytest.raises(ExpressionError):
            compile_expression(path)(SCOPE)


def test_sizes_depths_and_results_are_bounded() -> None:
    deep = "trim(" * 31 + '"a"' + ")" * 31
    many: Any = ["x"] * 6_000
    nested: Any = "x"
    for _ in range(40):
        nested = [nested]
    for template in ("{{" + deep + "}}", "{{" + '"a"' * 2_000 + "}}", many, nested, "{{ unclosed"):
        with pytest.raises(InvalidInput):
            compile_template(template)
    doubling = "{{ event.payload.big }}" * 20
    scope = {"event": {"payload": {"big": "x" * (LARGEST_RESULT // 10)}}}
    with pytest.raises(ExpressionError, match="over the limit"):
        compile_template(doubling)(scope)
    with pytest.raises(ExpressionError, match="more than"):
        compile_expression('replace(event.payload.big, "x", "yyyyyyyyyyyyyyyy")')(scope)


@pytest.mark.parametrize(
    "template",
    [
        ["{{ event.payload }}"] * 20,
        "{{ event.payload.big }}" * 1_000,
        [f"{{{{ list({', '.join(['event'] * 20)}) }}}}"],
        f"{{{{ list({', '.join(['list(event, event, event, event, event)'] * 5)}) }}}}",
        ["{{ length(upper(lower(upper(event.payload.big)))) }}"] * 10,
    ],
    ids=["values", "texts", "a list", "lists in a list", "work"],
)
def test_a_template_gives_and_reads_a_bounded_amount_of_text(template: Any) -> None:
    scope = {"event": {"payload": {"big": "x" * (MOST_WORK // 15)}}}
    with pytest.raises(ExpressionError, match=r"more than|over the limit"):
        compile_template(template)(scope)
    assert compile_template({"one": "{{ event.payload }}"})(scope) == {"one": scope["event"]["payload"]}


@settings(max_examples=500, deadline=None)
@given(
    st.text(st.sampled_from('{}()",.\\ aeventpylod_019-+eE\n\x00é'), max_size=60)
    | st.builds(
        lambda name, args: f"{{{{ {name}({', '.join(args)}) }}}}",
        st.sampled_from([*FUNCTIONS, "default"]),
        st.lists(
            st.sampled_from(['"a"', "1", "-2.5", "null", "true", "context.list", "event.payload", "event.no"]),
            max_size=4,
        ),
    )
)
def test_any_text_is_refused_gives_a_value_or_says_why_not(text: str) -> None:
    try:
        compile_template(text)(SCOPE)
    except InvalidInput:
        pass
