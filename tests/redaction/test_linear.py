"""A long text takes as long as its parts: no expression goes over the same characters again and again."""

import gc
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from re import _constants as sre  # type: ignore[attr-defined]  # the only way to read an expression
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from batuta.redaction import PATTERNS, Redactor, pairs
from tests.architecture.source import ROOT

REGEXES = [one.regex for all_of_it in PATTERNS.values() for one in all_of_it] + [
    value for value in vars(pairs).values() if isinstance(value, re.Pattern)
]
MOST = 600
"""How often something that is not possessive may repeat."""

EVIL = [
    *("a", "1", " ", "\n", "\\", "[", "(", "{", "<", "%", "%2", "%25", ".", "-", "+", "@", '"', "'", "=", ":"),
    *("a.", "a@", "a-", "a@a.", "%40", "1.", "1 ", "1-", "+1", "(11)", "55", "000201", "6304", "eyJ", "eyJa.", "eyJ-"),
    *("bearer ", "Bearer+", "://", "://a:", "://a:b", "password=", "password=(", 'password="', "token:[", "<cpf>"),
    *("--", "--password ", "'--pin',", "-----BEGIN PRIVATE KEY-----"),
    *("<a ", "\\u0041", "%3D", "cpf", "cpf%3D", "529982247", "52998224725.", "411111111111111", "deadbeef", '\\\\\\"'),
    *("12.ABC.345/01DE-3", "authorization: ", "0.5", "-4-", "0" * 7 + "-"),
]


def repeats(parsed: Any) -> Iterator[tuple[Any, int]]:
    """Every repetition of an expression, with its highest count."""
    for op, args in parsed:
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            yield op, args[1]
        for inner in args if isinstance(args, list | tuple) else (args,):
            if isinstance(inner, parser.SubPattern):
                yield from repeats(inner)
            elif isinstance(inner, list):
                for each in inner:
                    if isinstance(each, parser.SubPattern):
                        yield from repeats(each)


@pytest.mark.parametrize("regex", REGEXES, ids=lambda regex: regex.pattern[:30])
def test_unbounded_repeats_in_patterns_never_backtrack(regex: re.Pattern[str]) -> None:
    found = [*repeats(parser.parse(regex.pattern, regex.flags))]
    assert not [count for op, count in found if op is not sre.POSSESSIVE_REPEAT and count > MOST]


def steps(text: str) -> int:
    """Lines of Python that redacting it takes, without those of finalizers that the collector would call meanwhile."""
    count = 0

    def tracer(_frame: Any, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return tracer

    redactor, before = Redactor(PATTERNS), sys.gettrace()
    gc.disable()
    sys.settrace(tracer)
    try:
        redactor.text(text)
    finally:
        sys.settrace(before)
        gc.enable()
    return count


@pytest.mark.parametrize("piece", EVIL)
def test_twice_the_text_takes_at_most_twice_the_steps(piece: str) -> None:
    once, twice = steps(piece * 500), steps(piece * 1_000)
    assert twice <= 2.2 * once + 200


def test_long_texts_take_bounded_processor_time() -> None:
    """Squares of 100,000 would take minutes. The limit is of the processor, not of a clock."""
    program = f"""
        import resource
        from batuta.redaction import PATTERNS, Redactor
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        redactor = Redactor(PATTERNS)
        for piece in {json.dumps(EVIL[::3])}:
            redactor.text(piece * (100_000 // len(piece)))
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    outcome = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
