"""Values of flows: templates such as `"Hello {{ event.payload.name }}"`, over a fixed list of functions.

The language is total: no loops, no definitions, no access to Python. An expression is a path, a literal
(`"text"`, `12.5`, `true`, `false`, `null`) or a call `upper(event.payload.name)`. A text that is one expression and
nothing else has the expression's own type; inside a longer text, values are written out. Sizes, depths and results are
bounded.

| | |
|---|---|
| a path that leads nowhere | an error that names it; `default(path, value)` gives the value instead |
| a number in a text | as in JSON |
| an object, a list, `true`, `null` in a text | as JSON |
| integers | exact, up to 15 digits in arithmetic; larger results are an error |
| numbers with a fraction | 64 bits, as in JSON: `add(0.1, 0.2)` is 0.30000000000000004, and `round(..., 2)` of it 0.3 |
| `round` of a half | to the even neighbour: `round(2.5)` is 2, `round(3.5)` is 4 |
| division | has a fraction, `divide(4, 2)` is 2.0; by zero an error |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import msgspec

from batuta.errors import InvalidInput
from batuta.flows.values import MISSING, ROOTS, is_number, look_up, parse_path

Value = Callable[[Mapping[str, Any]], Any]
"""Is given the scope: `event`, `context`, `steps`. Raises ExpressionError."""

LONGEST: Final = 2_000
"""Characters of an expression."""
DEEPEST: Final = 30
MOST_NODES: Final = 5_000
"""Values in a template of objects and lists."""
LARGEST_RESULT: Final = 256 * 1024
"""Characters of a text that an expression makes."""
LARGEST_NUMBER: Final = 10**15
MOST_WORK: Final = 16 * 1024 * 1024
"""Characters that all expressions of one template give, and that their functions read."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)(?![\w.])
    |(?P<text>"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")
    |(?P<name>[^\W\d][\w-]*(?:\.[\w-]+)*)
    |(?P<sign>[(),]))\s*""",
    re.VERBOSE,
)
_WORDS: Final = {"true": True, "false": False, "null": None}
_HINTS: Final = {
    "'": 'texts stand in double quotes, "so"',
    "[": "write items.0 for the first item",
    "+": "write add(a, b)",
    "*": "write multiply(a, b)",
    "/": "write divide(a, b)",
}
"""What to write in the place of signs that other languages have."""


class ExpressionError(InvalidInput):
    """An expression that has no value for this event."""


# -- templates


def compile_template(template: Any, what: str = "the value", paths: list[tuple[str, ...]] | None = None) -> Value:
    """A JSON value whose texts may hold `{{ expressions }}`. Raises InvalidInput, which says where.

    `paths` is given every path that the template reads.
    """
    templates = _Templates(paths)
    made = templates.compile(template, what, 1)
    return made if templates.reads_little else _measured(made)


def paths_in(template: Any) -> list[tuple[str, ...]]:
    """Every path that a sound template reads."""
    paths: list[tuple[str, ...]] = []
    compile_template(template, paths=paths)
    return paths


class _Scope(dict[str, Any]):
    """What a template reads, and how much of it is left to read and to give."""

    left = MOST_WORK


def measured(scope: Mapping[str, Any]) -> Mapping[str, Any]:
    """For templates that are bounded together."""
    return scope if isinstance(scope, _Scope) else _Scope(scope)


def _measured(value: Value) -> Value:
    return lambda scope: value(measured(scope))


def spend(scope: Mapping[str, Any], characters: int) -> None:
    """Raises ExpressionError when all of a template together is too much."""
    if isinstance(scope, _Scope):
        scope.left -= characters
        if scope.left < 0:
            raise ExpressionError(f"the expressions give or read more than {MOST_WORK:,} characters")


def size_of(value: Any) -> int:
    """About how many characters of JSON."""
    if isinstance(value, str | list | Mapping):
        return len(value) if isinstance(value, str) else len(msgspec.json.encode(value))
    return 8


class _Templates:
    def __init__(self, paths: list[tuple[str, ...]] | None) -> None:
        self._nodes, self._paths = 0, paths
        self._texts = 0
        self.reads_little = True
        """At most one value, as it is."""

    def compile(self, template: Any, what: str, depth: int) -> Value:
        self._nodes += 1
        if self._nodes > MOST_NODES or depth > DEEPEST:
            raise InvalidInput(f"{what}: a template has at most {MOST_NODES:,} values and {DEEPEST} levels")
        if isinstance(template, str):
            self._texts += template.count("{{")
            self.reads_little = self.reads_little and self._texts < 2 and "(" not in template
            return _compile_text(template, what, self._paths)
        if isinstance(template, Mapping):
            parts = {key: self.compile(part, f"{what}.{key}", depth + 1) for key, part in template.items()}
            return lambda scope: {key: part(scope) for key, part in parts.items()}
        if isinstance(template, list):
            made = [self.compile(part, f"{what}.{number}", depth + 1) for number, part in enumerate(template)]
            return lambda scope: [part(scope) for part in made]
        return _constant(template)


def _constant(value: Any) -> Value:
    return lambda _scope: value


def compile_url(text: str) -> Value:
    """A template of a URL: values inside of it are escaped, so that none of them changes its host, path or query.

    A text that is one expression gives the URL itself. Raises InvalidInput.
    """
    return _measured(_compile_text(text, "the url", None, url_text))


def url_text(value: Any) -> str:
    return quote(as_text(value), safe="")


def _compile_text(
    text: str, what: str, paths: list[tuple[str, ...]] | None, write: Callable[[Any], str] | None = None
) -> Value:
    written = write or as_text
    if "{{" not in text:
        return _constant(text)
    pieces: list[str | Value] = []
    rest = text
    while "{{" in rest:
        before, _, rest = rest.partition("{{")
        inside, closed, rest = _until_end(rest)
        if not closed:
            raise InvalidInput(f"{what}: '{{{{' without '}}}}'")
        pieces += [before] if before else []
        pieces.append(compile_expression(inside, what, paths))
    pieces += [rest] if rest else []
    if len(pieces) == 1 and not isinstance(pieces[0], str):
        return _given(pieces[0])

    def fill(scope: Mapping[str, Any]) -> str:
        texts: list[str] = []
        left = LARGEST_RESULT
        for piece in pieces:
            texts.append(piece if isinstance(piece, str) else written(piece(scope)))
            left -= len(texts[-1])
            if left < 0:
                raise ExpressionError(f"the text would be over the limit of {LARGEST_RESULT:,} characters")
        spend(scope, LARGEST_RESULT - left)
        return "".join(texts)

    return fill


def _given(value: Value) -> Value:
    """The value of an expression that stands alone."""

    def give(scope: Mapping[str, Any]) -> Any:
        found = value(scope)
        if isinstance(scope, _Scope):
            spend(scope, size_of(found))
        return found

    return give


def _until_end(text: str) -> tuple[str, bool, str]:
    """The expression before `}}`, which may stand inside a text of it, too."""
    quoted, position = False, 0
    while position < len(text):
        char = text[position]
        if quoted and char == "\\":
            position += 1
        elif char == '"':
            quoted = not quoted
        elif not quoted and text.startswith("}}", position):
            return text[:position], True, text[position + 2 :]
        position += 1
    return text, False, ""


# -- expressions


def compile_expression(text: str, what: str = "the expression", paths: list[tuple[str, ...]] | None = None) -> Value:
    """Raises InvalidInput, which says where. `paths`: as of `compile_template`."""
    if len(text) > LONGEST:
        raise InvalidInput(f"{what}: an expression has at most {LONGEST:,} characters")
    return _Parser(text, what, paths).whole()


class _Parser:
    def __init__(self, text: str, what: str, paths: list[tuple[str, ...]] | None) -> None:
        self._what, self._tokens, self._next = what, _tokens(text, what), 0
        self._paths: list[tuple[str, ...]] = [] if paths is None else paths

    def whole(self) -> Value:
        if not self._tokens:
            raise InvalidInput(f"{self._what}: an empty expression")
        found = self._expression(1)
        if self._next < len(self._tokens):
            raise self._unexpected()
        return found

    def _expression(self, depth: int) -> Value:
        if depth > DEEPEST:
            raise InvalidInput(f"{self._what}: calls within calls, more than {DEEPEST} levels")
        kind, text = self._take()
        if kind in ("number", "text"):
            return self._literal(text)
        if kind != "name":
            self._next -= 1
            raise self._unexpected()
        if self._is("("):
            return self._call(text, depth)
        if text in _WORDS:
            return _constant(_WORDS[text])
        return self._path(text)

    def _literal(self, text: str) -> Value:
        try:
            return _constant(msgspec.json.decode(text))
        except msgspec.MsgspecError:
            raise InvalidInput(f"{self._what}: {text[:50]!r} is not a number as JSON has them") from None

    def _path(self, text: str) -> Value:
        path = parse_path(text)
        if path[0] not in ROOTS:
            raise InvalidInput(f"{self._what}: {text!r} must begin with {', '.join(ROOTS)}; texts stand in quotes")
        self._paths.append(path)

        def read(scope: Mapping[str, Any]) -> Any:
            found = look_up(scope, path)
            if found is MISSING:
                raise ExpressionError(f"there is no {text!r}: use default({text}, ...) if it may be missing")
            return found

        return read

    def _call(self, name: str, depth: int) -> Value:
        if name != "default" and name not in FUNCTIONS:
            known = ", ".join(sorted([*FUNCTIONS, "default"]))
            raise InvalidInput(f"{self._what}: unknown function {name!r}; known: {known}")
        self._next += 1
        args: list[Value] = []
        while not self._is(")"):
            if args:
                self._expect(",")
            args.append(self._expression(depth + 1))
        self._expect(")")
        least, most = (2, 2) if name == "default" else FUNCTIONS[name][:2]
        if not least <= len(args) <= most:
            count = f"{least}" if least == most else f"{least} to {most}"
            raise InvalidInput(f"{self._what}: {name} takes {count} arguments, not {len(args)}")
        return _default(*args) if name == "default" else _calls(name, FUNCTIONS[name][2], args)

    def _take(self) -> tuple[str, str]:
        if self._next >= len(self._tokens):
            raise InvalidInput(f"{self._what}: the expression ends too early")
        self._next += 1
        return self._tokens[self._next - 1]

    def _is(self, sign: str) -> bool:
        return self._next < len(self._tokens) and self._tokens[self._next] == ("sign", sign)

    def _expect(self, sign: str) -> None:
        if self._take() != ("sign", sign):
            self._next -= 1
            raise self._unexpected()

    def _unexpected(self) -> InvalidInput:
        return InvalidInput(f"{self._what}: unexpected {self._tokens[self._next][1]!r} in the expression")


def _tokens(text: str, what: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            part = text[position : position + 20].strip()
            hint = next((f": {words}" for sign, words in _HINTS.items() if part.startswith(sign)), "")
            raise InvalidInput(f"{what}: {part!r} is no path, text, number or call{hint}")
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        position = match.end()
    return found


def _default(value: Value, otherwise: Value) -> Value:
    def choose(scope: Mapping[str, Any]) -> Any:
        try:
            found = value(scope)
        except ExpressionError:
            found = None
        return otherwise(scope) if found is None else found

    return choose


def _calls(name: str, function: Callable[..., Any], args: list[Value]) -> Value:
    def call(scope: Mapping[str, Any]) -> Any:
        given = [arg(scope) for arg in args]
        spend(scope, sum(len(one) for one in given if isinstance(one, str | list | Mapping)))
        try:
            found = function(*given)
        except ExpressionError as error:
            raise ExpressionError(f"{name}: {error}") from None
        if name in _GATHERING:
            spend(scope, size_of(found))
        return found

    return call


# -- functions


def as_text(value: Any) -> str:
    """A value inside a text."""
    return value if isinstance(value, str) else _bounded(msgspec.json.encode(value).decode())


def _bounded(text: str) -> str:
    if len(text) > LARGEST_RESULT:
        raise ExpressionError(f"the text would have {len(text):,} characters, over the limit of {LARGEST_RESULT:,}")
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ExpressionError(f"{as_text(value)[:50]} is not a text")
    return value


def _number(value: Any) -> int | float:
    if not is_number(value):
        raise ExpressionError(f"{as_text(value)[:50]} is not a number: number(...) makes one of a text")
    if not abs(value) <= LARGEST_NUMBER:
        raise ExpressionError(f"a number is larger than {LARGEST_NUMBER:,}")
    found: int | float = value
    return found


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ExpressionError(f"{as_text(value)[:50]} is not a list")
    return value


def _arithmetic(work: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compute(left: Any, right: Any) -> Any:
        try:
            return _number(work(_number(left), _number(right)))
        except ZeroDivisionError:
            raise ExpressionError("division by zero") from None

    return compute


def _to_number(value: Any) -> int | float:
    if is_number(value):
        return _number(value)
    text = _text(value).strip()
    if len(text) > 40 or re.fullmatch(r"[+-]?\d+(\.\d+)?", text, re.ASCII) is None:
        raise ExpressionError(f"{text[:50]!r} is not a number")
    return _number(float(text) if "." in text else int(text))


def _round(value: Any, digits: Any = 0) -> int | float:
    places = _number(digits)
    if not isinstance(places, int) or not 0 <= places <= 15:
        raise ExpressionError("the digits must be 0 to 15")
    found = round(_number(value), places)
    return int(found) if places == 0 else found


def _length(value: Any) -> int:
    if not isinstance(value, str | list | Mapping):
        raise ExpressionError(f"{as_text(value)[:50]} has no length")
    return len(value)


def _get(value: Any, key: Any) -> Any:
    found = look_up(value, (as_text(key),))
    if found is MISSING:
        raise ExpressionError(f"there is no {as_text(key)[:50]!r}")
    return found


def _end(place: int) -> Callable[[Any], Any]:
    def take(value: Any) -> Any:
        if not _list(value):
            raise ExpressionError("the list is empty")
        return value[place]

    return take


def _extreme(choose: Callable[[Any], Any]) -> Callable[..., Any]:
    def compute(*values: Any) -> Any:
        given = _list(values[0]) if len(values) == 1 else list(values)
        if not given:
            raise ExpressionError("the list is empty")
        return choose([_number(one) for one in given])

    return compute


def moment(value: Any) -> datetime:
    """The time that a text tells. Raises ExpressionError."""
    try:
        found = datetime.fromisoformat(_text(value))
    except ValueError:
        raise ExpressionError(f"{_text(value)[:50]!r} is not an ISO date and time") from None
    if found.tzinfo is None:
        raise ExpressionError(f"{_text(value)[:50]!r} has no time zone: write Z or an offset")
    return found


def _add_seconds(time: Any, seconds: Any) -> str:
    try:
        return (moment(time) + timedelta(seconds=_number(seconds))).isoformat()
    except OverflowError:
        raise ExpressionError("the time is before year 1 or after year 9999") from None


def _parse_json(value: Any) -> Any:
    try:
        return msgspec.json.decode(_bounded(_text(value)))
    except (msgspec.DecodeError, RecursionError):
        raise ExpressionError("the text is not JSON") from None


FUNCTIONS: Final[dict[str, tuple[int, int, Callable[..., Any]]]] = {
    # name: least and most arguments, what it does
    "upper": (1, 1, lambda value: _text(value).upper()),
    "lower": (1, 1, lambda value: _text(value).lower()),
    "trim": (1, 1, lambda value: _text(value).strip()),
    "concat": (1, 20, lambda *values: _bounded("".join(map(as_text, values)))),
    "replace": (3, 3, lambda value, old, new: _replace(_text(value), _text(old), _text(new))),
    "split": (2, 2, lambda value, by: _text(value).split(_text(by) or "\0")),
    "join": (2, 2, lambda values, by: _bounded(_text(by).join(map(as_text, _list(values))))),
    "substring": (2, 3, lambda value, start, end=None: _substring(_text(value), start, end)),
    "length": (1, 1, _length),
    "text": (1, 1, as_text),
    "number": (1, 1, _to_number),
    "json": (1, 1, _parse_json),
    "add": (2, 2, _arithmetic(lambda left, right: left + right)),
    "subtract": (2, 2, _arithmetic(lambda left, right: left - right)),
    "multiply": (2, 2, _arithmetic(lambda left, right: left * right)),
    "divide": (2, 2, _arithmetic(lambda left, right: left / right)),
    "round": (1, 2, _round),
    "min": (1, 20, _extreme(min)),
    "max": (1, 20, _extreme(max)),
    "sum": (1, 1, lambda values: _number(sum(_number(one) for one in _list(values)))),
    "first": (1, 1, _end(0)),
    "last": (1, 1, _end(-1)),
    "get": (2, 2, _get),
    "keys": (1, 1, lambda value: sorted(_mapping(value))),
    "list": (0, 20, lambda *values: list(values)),
    "merge": (2, 2, lambda left, right: {**_mapping(left), **_mapping(right)}),
    "add_seconds": (2, 2, _add_seconds),
    "seconds_between": (2, 2, lambda left, right: (moment(right) - moment(left)).total_seconds()),
}


_GATHERING: Final = frozenset({"list", "merge"})
"""They give a value several times as large as any that they read."""


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ExpressionError(f"{as_text(value)[:50]} is not an object")
    return value


def _replace(text: str, old: str, new: str) -> str:
    if not old:
        raise ExpressionError("the text to replace is empty")
    if len(text) + text.count(old) * (len(new) - len(old)) > LARGEST_RESULT:
        raise ExpressionError(f"the text would have more than {LARGEST_RESULT:,} characters")
    return text.replace(old, new)


def _substring(text: str, start: Any, end: Any) -> str:
    first, last = _number(start), len(text) if end is None else _number(end)
    if not isinstance(first, int) or not isinstance(last, int) or first < 0 or last < 0:
        raise ExpressionError("positions are whole numbers from 0")
    return text[first:last]
