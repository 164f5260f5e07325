"""Reads the text of a traceback: the frames of the user's own code, and the line that raised."""

from __future__ import annotations

import re

from batuta.journal.failures import Failure

_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)
_FOREIGN = re.compile(
    r"[/\\](?:site-packages|dist-packages|python\d+\.\d+)[/\\]|[/\\]batuta[/\\](?:engine|authoring)[/\\]|^<frozen "
)
_FOLDER = re.compile(r"[/\\]")
_LONGEST = 1_000
"""Characters of an error's message in a sentence about it."""


def own_frames(traceback: str) -> list[tuple[str, int, str]]:
    """File, line and function of each frame that is neither of the library nor of an installed package."""
    return [(file, int(line), name) for file, line, name in _FRAME.findall(traceback) if not _FOREIGN.search(file)]


def file_name(path: str) -> str:
    """The file name without folders, for any separator: a traceback may come from another system."""
    return _FOLDER.split(path)[-1]


def place_of(failure: Failure) -> str:
    """Where the error was raised, as `shop.py:12 in pay`: the innermost frame of the user's own code.

    For a group, that of its first member. Empty when its traceback does not say.
    """
    if failure.members:
        return place_of(failure.members[0])
    frames = own_frames(failure.traceback)
    if not frames:
        return ""
    path, line, name = frames[-1]
    return f"{file_name(path)}:{line} in {name}"


def summary_of(failure: Failure) -> str:
    """The error in one sentence: class, message and place."""
    said = f"{failure.kind}: {failure.message[:_LONGEST]}" if failure.message else failure.kind
    said = "; ".join([said, *failure.notes])
    place = place_of(failure)
    return f"{said} ({place})" if place else said


def traceback_of(failure: Failure) -> str:
    """The text of its traceback, after those of the errors that caused it, as Python prints them."""
    told = failure.traceback.rstrip() or f"{failure.kind}: {failure.message}"
    if failure.cause is None:
        return told
    return f"{traceback_of(failure.cause)}\n\nThe above exception was the direct cause of this one:\n\n{told}"
