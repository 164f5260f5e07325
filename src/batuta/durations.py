"""Durations as people write and read them: `90s`, `5min`, `1h`, `30d`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

Duration = float | timedelta
"""A time as a caller may give it: a number of seconds, or a timedelta."""

UNITS = {"s": 1, "min": 60, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
"""Seconds of each unit."""
_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")
_PARTS = ((86_400, "day", "days"), (3_600, "h", "h"), (60, "min", "min"))


def in_seconds(value: Any) -> Any:
    """A timedelta as seconds; anything else as it is, for the check that follows."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def fields_in_seconds(struct: Struct, *names: str) -> None:
    """Replace each timedelta in these fields of a struct by its seconds."""
    for name in names:
        if isinstance(value := getattr(struct, name), timedelta):
            force_setattr(struct, name, value.total_seconds())


def parse_duration(text: str) -> float | None:
    """The seconds of a text such as "1h"; None if the text is not a duration."""
    found = _TEXT.fullmatch(text.lower())
    return float(found[1]) * UNITS[found[2]] if found is not None and found[2] in UNITS else None


def typed_duration(seconds: float) -> str:
    """In one unit, as `parse_duration` reads it: `30d`, `90min`, `1.5s`."""
    unit = next((unit for unit in ("d", "h", "min") if seconds and seconds % UNITS[unit] == 0), "s")
    return f"{seconds / UNITS[unit]:.15g}{unit}"


def human_duration(seconds: float) -> str:
    """Exact, for sentences: `30 days`, `1 h 30 min`, `0.25 s`."""
    if seconds < 0:
        return f"-{human_duration(-seconds)}"
    rest, parts = seconds, []
    for size, one, many in _PARTS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:.0f} {one if count == 1 else many}")
    if rest or not parts:
        parts.append(f"{round(rest, 6):g} s")
    return " ".join(parts)


def short_duration(seconds: float) -> str:
    """Two digits or so, for columns: `3s`, `2m05s`, `4h10m`, `3d02h`."""
    whole = round(max(seconds, 0))
    if whole < 60:
        return f"{whole}s"
    for large, small, size, part in (("m", "s", 60, 1), ("h", "m", 3_600, 60)):
        if whole < size * (60 if size == 60 else 24):
            return f"{whole // size}{large}{whole % size // part:02d}{small}"
    return f"{whole // 86_400}d{whole % 86_400 // 3_600:02d}h"
