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
