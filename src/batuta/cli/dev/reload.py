"""Noticing that the user's code changed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from batuta.cli.common.redaction import say

LOOK = 0.5
"""Seconds between two looks."""


def sources(folder: Path) -> dict[Path, int]:
    """The files of loaded modules below a folder, with the times of their last change."""
    found: dict[Path, int] = {}
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not name or not name.endswith(".py"):
            continue
        path = Path(name)
        if folder in path.parents and not {"site-packages", ".venv"} & set(path.parts):
            try:
                found[path] = path.stat().st_mtime_ns
            except OSError:
                found[path] = 0
    return found


async def changed(before: Mapping[Path, int], folder: Path) -> Path:
    """Wait for a file that is not as it was, and can be read as Python."""
    seen = dict(before)
    while True:
        await asyncio.sleep(LOOK)
        for path, at in sources(folder).items():
            if seen.setdefault(path, at) == at:
                continue
            seen[path] = at
            try:
                compile(path.read_bytes(), str(path), "exec")
            except (SyntaxError, ValueError) as error:
                say(f"{path.name} changed and cannot be read: {error}; the code from before goes on", err=True)
                continue
            except OSError:
                continue
            return path


def begin_again() -> None:
    """Replace this process by a new one with the same arguments. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "batuta", *sys.argv[1:]])  # noqa: S606 - the same program again
