"""Type checkers know the arguments and options of starts, jobs, children and messages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RIGHT, WRONG = HERE / "right_calls.py", HERE / "wrong_calls.py"

Errors = set[tuple[str, int]]


def mypy() -> Errors:
    own = [f"--cache-dir={ROOT / '.mypy_cache' / 'calls'}"]  # mypy may be at work in the common one
    out, err, _ = api.run([*own, "--config-file", str(ROOT / "pyproject.toml"), str(RIGHT), str(WRONG)])
    assert not err, err
    return {
        (Path(found[1]).name, int(found[2])) for found in re.finditer(r"^(\S+\.py):(\d+): error:", out, re.MULTILINE)
    }


def basedpyright() -> Errors:
    python = Path(sys.executable)
    done = subprocess.run(
        [python.parent / "basedpyright", "--outputjson", "--level", "error", "--pythonpath", python, RIGHT, WRONG],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found if one["severity"] == "error"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", [mypy, basedpyright])
def test_a_type_checker_accepts_right_calls_and_refuses_each_wrong_one(
    check: Callable[[], Errors], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    lines = WRONG.read_text().splitlines()
    marked = {(WRONG.name, number) for number, line in enumerate(lines, 1) if "# refused: " in line}
    assert len(marked) > 40
    assert check() == marked
