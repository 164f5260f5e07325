"""Journals in files: how they are kept, and how they are read."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from batuta.journal.entries import Body, Entry, EntryKind, decode_body, encode_entry
from batuta.journal.failures import Failure

FOLDER = Path(__file__).parents[1] / "journals"


class Journal(msgspec.Struct):
    """One run, recorded."""

    name: str
    """What happened to it; the file's name."""
    workflow: str
    python: str
    state: str
    entries: list[dict[str, Any]]

    def journal_entries(self) -> list[Entry]:
        rows = []
        for row in self.entries:
            body = msgspec.json.encode(row["body"]).decode()
            rows.append(Entry(row["ord"], EntryKind(row["kind"]), row["at"], row["crc"], body))
        return rows


def load_all() -> list[Journal]:
    return [msgspec.json.decode(path.read_bytes(), type=Journal) for path in sorted(FOLDER.glob("*.json"))]


def save(journal: Journal) -> None:
    data = msgspec.json.format(msgspec.json.encode(journal), indent=1)
    (FOLDER / f"{journal.name}.{journal.python}.json").write_bytes(data + b"\n")


def portable(entries: list[Entry]) -> list[dict[str, Any]]:
    """The entries without tracebacks, which name files of the machine that recorded them."""
    rows: list[dict[str, Any]] = []
    crc = 0
    for entry in entries:
        body = decode_body(entry)
        _strip(body)
        again = encode_entry(entry.ord, entry.kind, entry.at, body, crc)
        crc = again.crc
        rows.append({**msgspec.to_builtins(again), "body": msgspec.json.decode(again.body)})
    return rows


def _strip(body: Body) -> None:
    for error in (body.error, *(command.error for command in body.commands)):
        if error is not UNSET:
            _strip_failure(error)


def _strip_failure(failure: Failure) -> None:
    failure.traceback = ""
    for inner in (*failure.members, *([failure.cause] if failure.cause is not None else [])):
        _strip_failure(inner)
