"""Every example runs as it stands, and prints what it says it prints."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def promised(example: Path) -> str:
    """What stands under `Prints:` in its docstring."""
    text = ast.get_docstring(ast.parse(example.read_text())) or ""
    return textwrap.dedent(text.partition("Prints:\n")[2]).strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_its_docstring_promises(example: Path, tmp_path: Path) -> None:
    outcome = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.strip() == promised(example) != ""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_enough_to_read_at_once(example: Path) -> None:
    assert len(example.read_text().splitlines()) <= 70
