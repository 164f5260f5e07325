"""Conditions of flows: data, compiled to functions. Nothing in them is ever executed as code.

A rule is `{"field": "amount", "operator": "greater_than", "value": 100}`, or `{"and": [...]}`, `{"or": [...]}` and
`{"not": ...}` of rules. `field` is a path into the event's payload, or one that begins with `event.`, `context.` or
`steps.`. A missing field is empty, and fits operators that deny something; no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from batuta.errors import BatutaError, InvalidInput
from batuta.flows.values import MISSING, ROOTS, look_up, order, parse_path, same

Condition = Callable[[Mapping[str, Any]], bool]
"""Is given the scope: `event`, `context`, `steps`."""

DEEPEST: Final = 50
MOST_RULES: Final = 1_000
_RULE_KEYS = {"field", "operator", "value"}


def _contains(have: Any, wanted: Any) -> bool:
    if isinstance(have, str):
        return isinstance(wanted, str) and wanted in have
    if isinstance(have, list):
        return any(same(one, wanted) for one in have)
    return isinstance(have, Mapping) and isinstance(wanted, str) and wanted in have


def _compares(fits: Callable[[int], bool]) -> Callable[[Any, Any], bool]:
    def compare(have: Any, wanted: Any) -> bool:
        found = order(have, wanted)
        return found is not None and fits(found)

    return compare


def _is_empty(have: Any) -> bool:
    return have is None or (isinstance(have, str | list | Mapping) and len(have) == 0)


# Each tells whether a value that is there fits.
_TESTS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "equals": same,
    "greater_than": _compares(lambda found: found > 0),
    "greater_than_or_equal": _compares(lambda found: found >= 0),
    "less_than": _compares(lambda found: found < 0),
    "less_than_or_equal": _compares(lambda found: found <= 0),
    "contains": _contains,
    "in": lambda have, wanted: any(same(have, one) for one in wanted),
    "starts_with": lambda have, wanted: isinstance(have, str) and have.startswith(wanted),
    "ends_with": lambda have, wanted: isinstance(have, str) and have.endswith(wanted),
    "exists": lambda _have, _wanted: True,
    "is_empty": lambda have, _wanted: _is_empty(have),
}
_DENIALS: Final = {
    "not_equals": "equals",
    "not_contains": "contains",
    "not_in": "in",
    "not_exists": "exists",
    "is_not_empty": "is_empty",
}
OPERATORS: Final = (*_TESTS, *_DENIALS)
ALIASES: Final = {
    "eq": "equals",
    "==": "equals",
    "neq": "not_equals",
    "ne": "not_equals",
    "!=": "not_equals",
    "gt": "greater_than",
    ">": "greater_than",
    "gte": "greater_than_or_equal",
    "ge": "greater_than_or_equal",
    ">=": "greater_than_or_equal",
    "greater_than_or_equals": "greater_than_or_equal",
    "lt": "less_than",
    "<": "less_than",
    "lte": "less_than_or_equal",
    "le": "less_than_or_equal",
    "<=": "less_than_or_equal",
    "less_than_or_equals": "less_than_or_equal",
}
_UNARY: Final = frozenset(("exists", "not_exists", "is_empty", "is_not_empty"))
_LISTS: Final = frozenset(("in", "not_in"))
_TEXTS: Final = frozenset(("starts_with", "ends_with"))


class BadRule(InvalidInput):
    """A condition that cannot be. `errors` has every fault: where it is, and what to do."""

    def __init__(self, errors: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path or 'the condition'}: {why}" for path, why in errors))
        self.errors = errors


def compile_condition(rule: object) -> Condition:
    """The condition as a function. Raises BadRule with all faults, not only the first."""
    compiler = _Compiler()
    found = compiler.rule(rule, "", 1)
    if compiler.errors:
        raise BadRule(compiler.errors)
    return found


def paths_of(rule: object) -> list[tuple[str, ...]]:
    """The paths that a condition reads, each from `event`, `context` or `steps`. Of a sound condition."""
    if not isinstance(rule, Mapping):
        return []
    if "field" in rule:
        return [_from_root(parse_path(rule["field"]))]
    parts = [part for value in rule.values() for part in (value if isinstance(value, list) else [value])]
    return [path for part in parts for path in paths_of(part)]


def _from_root(path: tuple[str, ...]) -> tuple[str, ...]:
    return path if path[0] in ROOTS else ("event", "payload", *path)


class _Compiler:
    def __init__(self) -> None:
        self.errors: list[tuple[str, str]] = []
        self._rules = 0

    def rule(self, rule: object, path: str, depth: int) -> Condition:
        self._rules += 1
        if depth > DEEPEST or self._rules > MOST_RULES:
            if self._rules <= MOST_RULES + 1:
                self._refuse(path, f"a condition has at most {DEEPEST} levels and {MOST_RULES:,} rules")
            return _never
        if not isinstance(rule, Mapping) or not rule:
            return self._refuse(path, "must be an object with field and operator, or and / or / not")
        word = next((word for word in ("and", "or", "not") if word in rule), None)
        if word is None:
            return self._comparison(rule, path)
        if len(rule) != 1:
            return self._refuse(path, f"{word!r} must stand alone, without {', '.join(sorted(set(rule) - {word}))}")
        if word == "not":
            denied = self.rule(rule["not"], _at(path, "not"), depth + 1)
            return lambda scope: not denied(scope)
        parts = rule[word]
        if not isinstance(parts, list) or not parts:
            return self._refuse(_at(path, word), "must be a list of at least one rule")
        made = [self.rule(part, _at(path, f"{word}.{number}"), depth + 1) for number, part in enumerate(parts)]
        if word == "and":
            return lambda scope: all(part(scope) for part in made)
        return lambda scope: any(part(scope) for part in made)

    def _comparison(self, rule: Mapping[str, Any], path: str) -> Condition:
        strange = sorted(map(str, set(rule) - _RULE_KEYS))
        if strange:
            return self._refuse(
                path, f"has the unknown field {', '.join(strange)}: a rule has field, operator and value"
            )
        try:
            where = parse_path(rule.get("field"))
        except BatutaError as error:
            return self._refuse(_at(path, "field"), str(error))
        given = rule.get("operator")
        operator = ALIASES.get(given, given) if isinstance(given, str) else None
        if operator not in OPERATORS:
            return self._refuse(_at(path, "operator"), f"unknown operator {given!r}; known: {', '.join(OPERATORS)}")
        wanted = rule.get("value", MISSING)
        if (fault := _unfit_value(operator, wanted)) is not None:
            return self._refuse(_at(path, "value"), fault)
        return _comparison(where, operator, wanted)

    def _refuse(self, path: str, why: str) -> Condition:
        self.errors.append((path, why))
        return _never


def _unfit_value(operator: str, wanted: Any) -> str | None:
    if operator in _UNARY:
        # `{"operator": "exists", "value": true}` is how many write it.
        return None if wanted is MISSING or wanted is True else f"{operator!r} takes no value"
    if wanted is MISSING:
        return f"{operator!r} needs a value"
    if operator in _LISTS and not isinstance(wanted, list):
        return f"{operator!r} needs a list"
    if operator in _TEXTS and not isinstance(wanted, str):
        return f"{operator!r} needs a text"
    return None


def _comparison(where: tuple[str, ...], operator: str, wanted: Any) -> Condition:
    denied = operator in _DENIALS
    path = _from_root(where)
    test = _TESTS[_DENIALS.get(operator, operator)]
    missing = denied if operator not in ("is_empty", "is_not_empty") else operator == "is_empty"

    def compare(scope: Mapping[str, Any]) -> bool:
        have = look_up(scope, path)
        return missing if have is MISSING else test(have, wanted) is not denied

    return compare


def _never(_scope: Mapping[str, Any]) -> bool:
    return False


def _at(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part
