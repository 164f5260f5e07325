"""Headers of a run: what goes with it, and with all that it calls and starts, besides arguments."""

from __future__ import annotations

from collections.abc import Mapping

from batuta.authoring.middleware import TRACE
from batuta.journal.entries import StartInfo


def put_headers(start: StartInfo, headers: Mapping[str, str]) -> None:
    """Keep these in the run's first entry."""
    kept = dict(headers)
    start.trace = kept.pop(TRACE, start.trace)
    start.headers = kept


def traced(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """The headers of a start that go with its message: all, if it is traced."""
    return dict(headers) if headers and TRACE in headers else None


def headers_of(start: StartInfo) -> dict[str, str]:
    """Its headers, as they were given."""
    return start.headers | {TRACE: start.trace} if start.trace else dict(start.headers)
