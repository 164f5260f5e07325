"""Conditions of flows, row by row, and against a reference evaluator written by itself."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.flows.conditions import ALIASES, DEEPEST, MOST_RULES, OPERATORS, BadRule, compile_condition

PAYLOAD = {
    "amount": 2500,
    "rate": 2.0,
    "name": "Ana",
    "vip": True,
    "none": None,
    "empty": "",
    "tags": ["a", 1, {"x": 1.0}],
    "customer": {"address": {"city": "São Paulo"}, "list": []},
    "due": "2026-01-31",
}
SCOPE = {"event": {"type": "invoice_overdue", "payload": PAYLOAD}, "context": {"n": 1}, "steps": {}}


def holds(field: str, operator: str, *value: Any) -> bool:
    rule = {"field": field, "operator": operator} | ({"value": value[0]} if value else {})
    return compile_condition(rule)(SCOPE)


@pytest.mark.parametrize(
    ("field", "operator", "value", "expected"),
    [
        ("amount", "greater_than", 100, True),
        ("amount", "greater_than", 2500, False),
        ("amount", "gte", 2500.0, True),
        ("amount", "lt", 2500.5, True),
        ("amount", "lte", 2499, False),
        ("amount", "greater_than", "100", False),
        ("name", "greater_than", 1, False),
        ("due", "lt", "2026-02-01", True),
        ("vip", "greater_than", 0, False),
        ("amount", "equals", 2500.0, True),
        ("rate", "equals", 2, True),
        ("vip", "equals", True, True),
        ("vip", "equals", 1, False),
        ("none", "equals", None, True),
        ("none", "equals", False, False),
        ("amount", "equals", "2500", False),
        ("tags", "equals", ["a", 1.0, {"x": 1}], True),
        ("tags", "equals", ["a", True, {"x": 1}], False),
        ("missing", "equals", None, False),
        ("missing", "not_equals", 1, True),
        ("amount", "!=", 1, True),
        ("name", "contains", "n", True),
        ("name", "contains", 1, False),
        ("tags", "contains", {"x": 1}, True),
        ("tags", "contains", True, False),
        ("customer", "contains", "address", True),
        ("amount", "contains", "2", False),
        ("missing", "not_contains", "x", True),
        ("amount", "in", [1, 2500], True),
        ("vip", "in", [1], False),
        ("missing", "in", [None], False),
        ("missing", "not_in", [1], True),
        ("name", "starts_with", "A", True),
        ("name", "ends_with", "na", True),
        ("amount", "starts_with", "2", False),
        ("customer.address.city", "equals", "São Paulo", True),
        ("tags.2.x", "equals", 1, True),
        ("tags.9", "exists", True, False),
        ("tags.-1", "exists", True, False),
        ("name.length", "exists", True, False),
        ("event.type", "equals", "invoice_overdue", True),
        ("context.n", "lt", 2, True),
        ("steps.x.output", "not_exists", True, True),
        ("none", "exists", True, True),
        ("none", "is_empty", True, True),
        ("empty", "is_empty", True, True),
        ("missing", "is_empty", True, True),
        ("customer.list", "is_not_empty", True, False),
        ("amount", "is_not_empty", True, True),
    ],
)
def test_each_operator_follows_its_row(field: str, operator: str, value: Any, expected: bool) -> None:
    assert holds(field, operator, value) is expected


@pytest.mark.parametrize(("alias", "operator"), ALIASES.items())
def test_an_alias_means_its_operator(alias: str, operator: str) -> None:
    for value in (1, 2500, 9999, "Ana"):
        assert holds("amount", alias, value) == holds("amount", operator, value)


def test_rules_are_joined_to_any_depth() -> None:
    true, false = {"field": "vip", "operator": "exists"}, {"field": "x", "operator": "exists"}
    for rule, expected in (
        ({"and": [true, true]}, True),
        ({"and": [true, false]}, False),
        ({"or": [false, true]}, True),
        ({"or": [false]}, False),
        ({"not": false}, True),
        ({"and": [{"or": [false, {"not": false}]}, true]}, True),
    ):
        assert compile_condition(rule)(SCOPE) is expected


def test_every_fault_is_told_with_its_place() -> None:
    rule = {
        "and": [
            {"field": "a", "operator": "resembles", "value": 1},
            {"or": []},
            {"field": "", "operator": "eq", "value": 1},
            {"field": "a", "operator": "in", "value": 1},
            {"field": "a", "operator": "gt"},
            {"not": {"field": "a", "operator": "eq", "value": 1, "extra": 2}},
            {"and": [{"field": "a", "operator": "exists"}], "or": []},
            7,
            {"field": "a", "operator": ["eq"], "value": 1},
        ]
    }
    with pytest.raises(BadRule) as refused:
        compile_condition(rule)
    assert [path for path, _ in refused.value.errors] == [
        "and.0.operator",
        "and.1.or",
        "and.2.field",
        "and.3.value",
        "and.4.value",
        "and.5.not",
        "and.6",
        "and.7",
        "and.8.operator",
    ]
    assert "known: equals" in str(refused.value)


def test_a_condition_has_a_bounded_size_and_depth() -> None:
    leaf: dict[str, Any] = {"field": "a", "operator": "exists"}
    deep = leaf
    for _ in range(DEEPEST - 1):
        deep = {"not": deep}
    compile_condition(deep)
    for rule in ({"not": deep}, {"or": [leaf] * MOST_RULES}):
        with pytest.raises(BadRule, match="at most"):
            compile_condition(rule)


# -- the reference: one plain function, with its own idea of equality and order

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.5, 1.0, -2.0])
    | st.sampled_from(["", "a", "ab", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["a", "b", "a.b", "b.0", "c.a.b", "event.payload.a", "context.x"])


def _value_for(operator: str) -> st.SearchStrategy[Any]:
    name = ALIASES.get(operator, operator)
    if name in ("in", "not_in"):
        return st.lists(JSON, max_size=3)
    if name in ("starts_with", "ends_with"):
        return st.sampled_from(["", "a", "b"])
    return st.just(True) if name in ("exists", "not_exists", "is_empty", "is_not_empty") else JSON


LEAVES = st.sampled_from([*OPERATORS, *ALIASES]).flatmap(
    lambda operator: st.fixed_dictionaries(
        {"field": FIELDS, "operator": st.just(operator), "value": _value_for(operator)}
    )
)
RULES = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        lambda word, parts: {word: parts[0] if word == "not" else parts},
        st.sampled_from(["and", "or", "not"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=8,
)
GONE = "<gone>"


def reference(rule: dict[str, Any], scope: dict[str, Any]) -> bool:
    if "and" in rule:
        return False not in [reference(part, scope) for part in rule["and"]]
    if "or" in rule:
        return True in [reference(part, scope) for part in rule["or"]]
    if "not" in rule:
        return not reference(rule["not"], scope)
    value: Any = scope if rule["field"].split(".")[0] in ("event", "context", "steps") else scope["event"]["payload"]
    for step in rule["field"].split("."):
        try:
            value = value[step] if isinstance(value, dict) else value[int(step)] if isinstance(value, list) else GONE
        except (KeyError, IndexError, ValueError):
            value = GONE
    wanted, name = rule["value"], ALIASES.get(rule["operator"], rule["operator"])
    if name.startswith("not_"):
        return not reference(rule | {"operator": name[4:]}, scope)
    if name == "is_not_empty":
        return not reference(rule | {"operator": "is_empty"}, scope)
    if name == "exists":
        return value is not GONE
    if name == "is_empty":
        return value is GONE or value is None or value in ("", []) or value == {}
    if value is GONE:
        return False
    match name:
        case "equals":
            return _canon(value) == _canon(wanted)
        case "in":
            return _canon(value) in [_canon(one) for one in wanted]
        case "contains":
            if isinstance(value, list):
                return _canon(wanted) in [_canon(one) for one in value]
            return isinstance(wanted, str) and isinstance(value, str | dict) and wanted in value
        case "starts_with" | "ends_with":
            return (
                isinstance(value, str)
                and (value[: len(wanted)] if name[0] == "s" else value[len(value) - len(wanted) :]) == wanted
                and len(value) >= len(wanted)
            )
    kinds = {bool: "b", int: "n", float: "n", str: "s"}
    if kinds.get(type(value)) != kinds.get(type(wanted)) or kinds.get(type(value)) not in ("n", "s"):
        return False
    return {
        "greater_than": value > wanted,
        "less_than": value < wanted,
        "greater_than_or_equal": value >= wanted,
        "less_than_or_equal": value <= wanted,
    }[name]


def _canon(value: Any) -> str:
    """A text that is the same for equal values."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_canon(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canon, value)) + "]"
    return f"{type(value).__name__[0]}{value}" if isinstance(value, bool | str) or value is None else f"#{float(value)}"


@settings(max_examples=1_000, deadline=None)
@given(RULES, st.dictionaries(st.sampled_from("abc"), JSON), st.dictionaries(st.just("x"), JSON))
def test_random_conditions_agree_with_the_reference(rule: Any, payload: Any, context: Any) -> None:
    scope = {"event": {"payload": payload}, "context": context, "steps": {}}
    assert compile_condition(rule)(scope) == reference(rule, scope)
