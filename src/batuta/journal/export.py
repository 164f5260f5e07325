"""A run's journal as a file: to be replayed elsewhere, or kept as a test."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from batuta.errors import InvalidInput
from batuta.journal.codec_envelope import refuse_coded
from batuta.journal.entries import Entry, EntryKind
from batuta.journal.records import Run, RunKind


class ExportedEntry(Struct):
    """A row of the journal, its body as JSON."""

    ord: int
    kind: EntryKind
    at: int
    crc: int
    body: Raw


class Exported(Struct, kw_only=True):
    """One run."""

    workflow: str
    id: str = ""
    run_id: str = ""
    version: str = ""
    queue: str = "default"
    namespace: str = "default"
    state: str = ""
    kind: RunKind = RunKind.WORKFLOW
    entries: list[ExportedEntry]

    def journal_entries(self) -> list[Entry]:
        """The entries, as a store gives them."""
        return [Entry(row.ord, row.kind, row.at, row.crc, _compact(row.body)) for row in self.entries]


def _compact(body: Raw) -> str:
    """The original text, since a file may have been reformatted."""
    return msgspec.json.format(bytes(body), indent=-1).decode()


def export(run: Run, namespace: str, entries: list[Entry]) -> Exported:
    """The run and its journal.

    Raises PayloadSealed when that went through a codec, because it could not be replayed.
    """
    for row in entries:
        refuse_coded(row.body, f"entry {row.ord} of run {run.id!r}")
    return Exported(
        workflow=run.name,
        id=run.id,
        run_id=str(run.run_id),
        version=run.version,
        queue=run.queue,
        namespace=namespace,
        state=str(run.state),
        kind=run.kind,
        entries=[ExportedEntry(row.ord, row.kind, row.at, row.crc, Raw(row.body.encode())) for row in entries],
    )


_one: Any = msgspec.json.Decoder(Exported)
_several: Any = msgspec.json.Decoder(list[Exported])


def read_exported(data: bytes, where: str) -> list[Exported]:
    """The contents of a file: one run or a list. Raises InvalidInput that names `where`."""
    try:
        return _several.decode(data) if data.lstrip()[:1] == b"[" else [_one.decode(data)]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInput(f"{where} is not an exported journal: {error}") from error
