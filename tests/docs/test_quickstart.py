"""The README's example is short, and the quickstart does what it says: also after kill -9."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, pages, snippets

PAGE = ROOT / "docs" / "quickstart.md"
BLOCKS = {found.info: found.body for found in snippets(PAGE)}


def shown(output: str) -> list[str]:
    """The output that the page shows."""
    return BLOCKS[f"text output={output}"].splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "trip.py").write_text(BLOCKS["python file=trip.py"])
    return tmp_path


def begin(place: Path, id: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "trip.py", id], cwd=place, stdout=subprocess.PIPE, text=True)


def finish(place: Path, id: str) -> list[str]:
    with begin(place, id) as process:
        output, _ = process.communicate(timeout=45)
    assert process.returncode == 0
    return output.splitlines()


def test_every_make_target_that_the_pages_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in pages() for name in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
    assert {"demo", "test"} <= named <= targets


def test_the_first_example_has_at_most_15_lines() -> None:
    first = next(found for found in snippets(ROOT / "README.md") if found.info == "python")
    assert len(first.body.splitlines()) <= 15


@pytest.mark.waiting
def test_the_quickstart_prints_what_it_shows_and_a_second_start_books_nothing(place: Path) -> None:
    assert finish(place, "trip-1") == shown("once")
    assert finish(place, "trip-1") == shown("once")[-1:]


@pytest.mark.waiting
@pytest.mark.chaos
def test_after_kill_9_the_quickstart_resumes_as_shown(place: Path) -> None:  # covers B-03
    with begin(place, "trip-2") as process:
        assert process.stdout is not None
        seen = [process.stdout.readline().rstrip("\n") for _ in shown("killed")]
        os.kill(process.pid, signal.SIGKILL)
        seen += process.stdout.read().splitlines()
    assert process.returncode == -signal.SIGKILL
    assert seen == shown("killed")
    assert finish(place, "trip-2") == shown("resumed")


@pytest.mark.waiting
def test_the_commands_that_the_quickstart_shows_work(place: Path) -> None:
    finish(place, "trip-2")
    commands = re.findall(r"^\$ batuta (.+)$", PAGE.read_text(), re.MULTILINE)
    assert commands
    for command in commands:
        outcome = subprocess.run(
            [sys.executable, "-m", "batuta", *command.split()],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert outcome.returncode == 0, outcome.stderr
        assert "trip-2" in outcome.stdout or "flight to Lisbon: confirmed" in outcome.stdout
