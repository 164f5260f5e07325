"""Code in the documentation works.

The ``python`` blocks of a page are one program, in the order of the page: they run together. A block that
can't run by itself is marked ``python fragment``; it must still be valid Python. A page whose program has
to be shown in the middle of something else marks a block ``python file=name.py``: it is written beside.
"""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.docs.pages import Snippet, name, pages, snippets

RUNNABLE = [page for page in pages() if any(found.info == "python" for found in snippets(page))]
PYTHON = [page for page in pages() if any(found.info.startswith("python") for found in snippets(page))]


def program(found: list[Snippet]) -> str:
    """The blocks as one source, each at the line where the page has it, so that errors point there."""
    lines: list[str] = []
    for snippet in found:
        lines += [""] * (snippet.line - 1 - len(lines))
        lines += snippet.body.splitlines()
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", PYTHON, ids=name)
def test_every_python_block_is_valid(page: Path) -> None:
    for found in snippets(page):
        if found.info.startswith("python"):
            # Fragments may await or return outside a function.
            ast.parse("async def page():\n" + textwrap.indent(found.body, "    ") + "\n    pass")


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_the_python_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    blocks = list(snippets(page))
    for block in blocks:
        kind, _, file = block.info.partition(" file=")
        if kind == "python" and file:
            (tmp_path / file).write_text(block.body)
    script = tmp_path / (page.stem.replace("-", "_") + "_page.py")
    script.write_text(program([block for block in blocks if block.info == "python"]))
    outcome = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
