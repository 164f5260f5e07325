"""`batuta backup`: a copy of a SQLite database while workers write to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from batuta.cli.common.lazy import FAILED, OK
from batuta.cli.common.options import Answers, json_option, opened
from batuta.cli.common.redaction import say
from batuta.cli.verify import show_report
from batuta.clock import SECOND, SystemClock
from batuta.connect import store_for, with_codecs
from batuta.errors import InvalidInput
from batuta.printable import number_of

if TYPE_CHECKING:
    from rich.console import Console

    from batuta.stores.sqlite import SqliteStore
    from batuta.verify import Report

_FAR = 365 * 24 * 3600 * SECOND


@click.command()
@click.argument("source_url", metavar="SOURCE_URL")
@click.argument("dest_file", metavar="DEST_FILE", type=click.Path(path_type=Path))
@json_option
def backup(source_url: str, dest_file: Path, as_json: bool) -> None:
    """Copy the SQLite database at SOURCE_URL to DEST_FILE while workers go on writing.

    The copy is of one moment, and is verified before it gets its name. Exits 1 when a check fails, which means that the
    source has the same fault. Never overwrites a file. For PostgreSQL use pg_dump or base backups.
    """
    target = dest_file.absolute()
    reports = asyncio.run(_backup(_source(source_url), target))
    holds = all(report.holds for report in reports.values())
    document = {
        "file": str(dest_file),
        "bytes": target.stat().st_size,
        "runs": sum(report.runs for report in reports.values()),
        "holds": holds,
        "namespaces": {
            name: {"runs": report.runs, "found": report.found, "violations": report.violations}
            for name, report in reports.items()
        },
    }
    Answers(as_json).answer(document, lambda console: _show(console, document, reports))
    raise SystemExit(OK if holds else FAILED)


def _source(url: str) -> SqliteStore:
    from batuta.stores.sqlite import SqliteStore

    if urlsplit(url).scheme in ("postgresql", "postgres"):
        raise InvalidInput(
            "PostgreSQL makes its own backups: use pg_dump for a copy of one moment, or base backups with archived WAL "
            "to restore any moment"
        )
    store = store_for(url, codec=[])
    if not isinstance(store, SqliteStore):
        raise InvalidInput(f"{url!r} is not a file: give a SQLite file to copy")
    return store


async def _backup(source: SqliteStore, target: Path) -> dict[str, Report]:
    from batuta.stores.sqlite import SqliteStore

    async with opened(source):  # says what is wrong with it
        pass
    with source.copied_to(target) as draft:
        async with opened(SqliteStore(draft, "default")) as store:
            namespaces = store.namespaces()
        return {name: await _verify(draft, name) for name in namespaces}


class _Later(SystemClock):
    """A year from now: in a copy no worker is alive, whatever its lease."""

    def now(self) -> int:
        return super().now() + _FAR


async def _verify(draft: Path, namespace: str) -> Report:
    from batuta.stores.sqlite import SqliteStore
    from batuta.verify import verify

    async with opened(SqliteStore(draft, namespace, _Later())) as store:
        return await verify(with_codecs(store), patience=0)


def _show(console: Console, document: dict[str, Any], reports: dict[str, Report]) -> None:
    say(f"copied {number_of(document['runs'], 'run')} ({document['bytes']:,} bytes) to {document['file']}")
    for name, report in reports.items():
        if not report.holds:
            say(f"namespace {name}:")
            show_report(console, report)
