"""Named queries: SQL lives in `.sql` files, each statement under a line `-- name --` and a word on its purpose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

_HEADER = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


def load_queries(package: str, *names: str) -> Mapping[str, str]:
    """The statements of these files of a package, by name. Comments are left out, so that texts stay short."""
    queries: dict[str, str] = {}
    for name in names:
        for key, text in parse_queries(files(package).joinpath(name).read_text("utf-8")).items():
            if key in queries:
                raise ValueError(f"query {key!r} stands twice in {package}")
            queries[key] = text
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
