"""Whether a process has ended: proved, refuted, or not to be known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.journal import process_identity
from batuta.journal.process_identity import has_ended, this_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nobody can look at processes elsewhere")

TELL = (
    "import sys; from batuta.journal.process_identity import this_process; "
    "print(this_process(), flush=True); sys.stdin.read()"
)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", TELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        yield child
        child.kill()


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_this_process_has_not_ended() -> None:
    assert this_process()
    assert has_ended(this_process()) is False


def test_a_child_process_counts_as_alive_until_it_is_killed_even_unreaped(
    other: subprocess.Popen[str],
) -> None:
    process = said(other)
    assert has_ended(process) is False
    os.kill(other.pid, signal.SIGKILL)
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    assert has_ended(process) is True
    other.wait()
    assert has_ended(process) is True


def test_a_number_that_another_process_has_by_now_says_that_the_first_has_ended(other: subprocess.Popen[str]) -> None:
    place, _, begun = said(other).rpartition(" ")
    assert has_ended(f"{place} {int(begun) - 1}") is True


@pytest.mark.parametrize("word", range(4), ids=["host", "boot", "pid namespace", "time namespace"])
def test_nothing_is_known_of_another_machine_boot_or_container(word: int) -> None:
    words = this_process().split()
    words[word], words[-2] = "another", "4194305"
    assert has_ended(" ".join(words)) is None


@pytest.mark.parametrize("process", ["", " ", "x", "1 2", "a b c d e f"])
def test_nothing_is_known_of_what_is_no_process(process: str) -> None:
    assert has_ended(process) is None


def test_where_processes_of_others_are_hidden_nothing_is_known(
    other: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = said(other)
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    (tmp_path / "self").symlink_to(str(os.getpid()))
    (tmp_path / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    assert this_process()
    assert has_ended(process) is None


def test_a_proc_of_another_namespace_names_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").symlink_to("1")
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    assert this_process() == ""
