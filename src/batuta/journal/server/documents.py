"""Small documents that are kept for a time beside the runs: schemas of code, progress of operations. Values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from batuta.journal.audit import Act
from batuta.journal.codec_envelope import Payload

SCHEMAS = "schemas"
"""The kind of documents about code: what a workflow or job takes, by its code name."""
OPERATIONS = "operations"
"""The kind of documents about operations on many things, by their id: what was asked, and how far it is. What was
asked may hold edits of runs."""
FLOW_SECRETS = "flow_secrets"
"""The kind of documents that hold secrets of flows, by their names."""
KEEP_SECRETS = 100 * 366 * 86_400 * 1_000_000
"""Microseconds."""
CODED = frozenset({OPERATIONS, FLOW_SECRETS})
"""Their bodies go through the codecs of payloads."""
OPEN_OPERATIONS = "open_operations"
"""The kind of documents that name the namespace of each operation that has not ended, by its id."""
ENDED_SESSIONS = "ended_sessions"
"""The kind of documents about sessions that were signed out, by the hash of their names."""


class Document(Struct, kw_only=True):
    """Documents in a store."""

    key: str
    body: Payload
    """JSON; a payload where its kind is in CODED."""
    created_at: int
    age: int
    """Microseconds since it was last written, by the store's clock."""


class DocumentStore(Protocol):
    """The part of a store that keeps documents. Codecs leave them alone, except for those of kinds in CODED."""

    async def put_documents(self, kind: str, bodies: Mapping[str, str], keep: int, act: Act | None = None) -> None:
        """Write documents by their keys, over those that are there, for `keep` microseconds from now. Some whose time
        is over are forgotten. The audit log names their keys."""
        ...

    async def rewrite_document(self, kind: str, key: str, before: str, body: str) -> bool:
        """Write a body otherwise, and nothing else of the document. False: its body is not `before`, or there is
        none."""
        ...

    async def document(self, kind: str, key: str) -> Document | None:
        """One whose time is not over."""
        ...

    async def documents(self, kind: str, limit: int = 1_000) -> list[Document]:
        """Documents whose time is not over, newest first, then by key."""
        ...

    async def known_namespaces(self, after: str = "", limit: int = 1_000) -> list[str]:
        """Namespaces of the database with workers, documents, schedules, keys or runs that are due: by name, from after
        that one on."""
        ...
