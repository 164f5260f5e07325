"""Named queries: SQL lives in `.sql` files, each statement under a line `-- name --` and a word on its purpose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files

_HEADER = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


def load_queries(package: str) -> Mapping[str, str]:
    """The statements of a package's `.sql` files, by name. Comments are left out, so that texts stay short."""
    found = sorted((item for item in files(package).iterdir() if item.name.endswith(".sql")), key=lambda one: one.name)
    return merge(parse_queries(item.read_text("utf-8")) for item in found)


def merge(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """All of them together. A name may stand in one part only."""
    queries: dict[str, str] = {}
    for part in parts:
        if twice := queries.keys() & part.keys():
            raise ValueError(f"query {min(twice)!r} stands twice")
        queries.update(part)
    return queries


def parse_queries(text: str) -> dict[str, str]:
    """Split a file at its `-- name --` lines."""
    parts = _HEADER.split(text)
    queries: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in queries:
            raise ValueError(f"query {name!r} stands twice in one file")
        queries[name] = _COMMENT.sub("", body).strip().removesuffix(";")
    return queries
