"""All that a directory knows, in one SQLite file. One transaction is one request."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec import Struct, json

from pixdict.dict.buckets import Bucket
from pixdict.dict.cids import EMPTY_VSYNC, vsync_of
from pixdict.dict.claims import UNFINISHED, ExtendedClaim
from pixdict.dict.entries import ExtendedEntry, account_identity
from pixdict.private_files import make_private

SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY, key_type TEXT NOT NULL, participant TEXT NOT NULL, owner TEXT NOT NULL,
    account TEXT NOT NULL, cid TEXT NOT NULL UNIQUE, request_id TEXT NOT NULL, document BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_of_account ON entries (account);
CREATE INDEX IF NOT EXISTS entries_of_owner ON entries (owner);
CREATE TABLE IF NOT EXISTS requests (
    participant TEXT NOT NULL, request_id TEXT NOT NULL, fingerprint TEXT NOT NULL, key TEXT NOT NULL,
    PRIMARY KEY (participant, request_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS claims (
    id TEXT PRIMARY KEY, key TEXT NOT NULL, type TEXT NOT NULL, status TEXT NOT NULL, donor TEXT NOT NULL,
    claimer TEXT NOT NULL, modified INTEGER NOT NULL, document BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS claims_of_key ON claims (key);
CREATE INDEX IF NOT EXISTS claims_in_order ON claims (modified, id);
CREATE TABLE IF NOT EXISTS cid_events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, participant TEXT NOT NULL, key_type TEXT NOT NULL, type TEXT NOT NULL,
    cid TEXT NOT NULL, at INTEGER NOT NULL, vsync TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS cid_events_in_order ON cid_events (participant, key_type, seq);
CREATE TABLE IF NOT EXISTS verifications (
    id INTEGER PRIMARY KEY AUTOINCREMENT, participant TEXT NOT NULL, key_type TEXT NOT NULL, vsync TEXT NOT NULL,
    result TEXT NOT NULL, at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS buckets (
    policy TEXT NOT NULL, scope TEXT NOT NULL, tokens INTEGER NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (policy, scope)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lookups (
    end_to_end_id TEXT NOT NULL, participant TEXT NOT NULL, payer TEXT NOT NULL, policy TEXT NOT NULL,
    key TEXT NOT NULL, credited INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (end_to_end_id, participant, payer)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class StoredEntry(Struct, frozen=True):
    """A live entry with what identifies it."""

    entry: ExtendedEntry
    cid: str
    request_id: UUID


class StoredClaim(Struct, frozen=True):
    """A claim with what its answers do not tell."""

    claim: ExtendedClaim
    created: datetime
    key_ownership_date: datetime | None = None
    """That of the donor's entry, which is gone once the claim is confirmed."""
    request_id: UUID | None = None
    entry_creation_date: datetime | None = None


class Event(Struct, frozen=True):
    """A change of the set of identifiers of a participant, and the verifier after it."""

    type: str
    cid: str
    at: int
    vsync: str


class Lookup(Struct, frozen=True):
    """A lookup that a payment may follow."""

    participant: str
    payer: str
    policy: str
    key: str


class Storage:
    """Reads and writes of one directory. Not for several threads; a second process waits."""

    def __init__(self, path: str | Path) -> None:
        """Raises sqlite3.Error for a file that cannot be used."""
        make_private(path)
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.executescript(SCHEMA)
        except sqlite3.Error:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def undone_by_errors(self) -> Iterator[None]:
        """A part of a transaction: an error undoes that part alone."""
        self._connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK TO part")
            raise
        finally:
            self._connection.execute("RELEASE part")

    def _one(self, sql: str, *values: Any) -> Any:
        return self._connection.execute(sql, values).fetchone()

    def _all(self, sql: str, values: Iterable[Any]) -> list[Any]:
        return self._connection.execute(sql, tuple(values)).fetchall()

    # Entries

    def entry(self, key: str) -> StoredEntry | None:
        """The live entry of a key."""
        row = self._one("SELECT document FROM entries WHERE key = ?", key)
        return row and json.decode(row[0], type=StoredEntry)

    def entry_of_cid(self, cid: str) -> StoredEntry | None:
        """The live entry with that identifier."""
        row = self._one("SELECT document FROM entries WHERE cid = ?", cid)
        return row and json.decode(row[0], type=StoredEntry)

    def has_key(self, key: str) -> bool:
        """Whether the key is registered."""
        return self._one("SELECT 1 FROM entries WHERE key = ?", key) is not None

    def put_entry(self, stored: StoredEntry, now: int) -> None:
        """Add an entry or replace that of the same key; the changes of the set of identifiers are told."""
        entry = stored.entry
        before = self.entry(entry.key)
        if before is not None:
            self._add_event("REMOVED", before, now)
        account = entry.account
        self._connection.execute(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.key,
                entry.key_type,
                account.participant,
                entry.owner.tax_id_number,
                account_identity(account),
                stored.cid,
                str(stored.request_id),
                json.encode(stored),
            ),
        )
        self._add_event("ADDED", stored, now)

    def remove_entry(self, stored: StoredEntry, now: int) -> None:
        """Remove a live entry."""
        self._connection.execute("DELETE FROM entries WHERE key = ?", (stored.entry.key,))
        self._add_event("REMOVED", stored, now)

    def keys_of_account(self, account: str) -> int:
        """How many keys lead to that account."""
        return int(self._one("SELECT count(*) FROM entries WHERE account = ?", account)[0])

    def accounts_of_owner(self, owner: str) -> int:
        """How many accounts with keys someone has."""
        return int(self._one("SELECT count(DISTINCT account) FROM entries WHERE owner = ?", owner)[0])

    # Request ids

    def request(self, participant: str, request_id: UUID) -> tuple[str, str] | None:
        """The fingerprint of what was asked with that id, and the key that it led to."""
        sql = "SELECT fingerprint, key FROM requests WHERE participant = ? AND request_id = ?"
        row = self._one(sql, participant, str(request_id))
        return row and (row[0], row[1])

    def add_request(self, participant: str, request_id: UUID, fingerprint: str, key: str) -> None:
        """Remember what a request id was used for, for ever."""
        values = (participant, str(request_id), fingerprint, key)
        self._connection.execute("INSERT INTO requests VALUES (?, ?, ?, ?)", values)

    # Claims

    def claim(self, claim_id: UUID) -> StoredClaim | None:
        """One claim."""
        row = self._one("SELECT document FROM claims WHERE id = ?", str(claim_id))
        return row and json.decode(row[0], type=StoredClaim)

    def unfinished_claim(self, key: str) -> StoredClaim | None:
        """The claim that has not ended for a key."""
        marks = ", ".join("?" * len(UNFINISHED))
        sql = f"SELECT document FROM claims WHERE key = ? AND status IN ({marks})"  # noqa: S608 - marks alone
        row = self._one(sql, key, *sorted(UNFINISHED))
        return row and json.decode(row[0], type=StoredClaim)

    def put_claim(self, stored: StoredClaim, modified: int) -> None:
        """Add or replace a claim."""
        claim = stored.claim
        self._connection.execute(
            "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                str(claim.id),
                claim.key,
                claim.type,
                claim.status,
                claim.donor_participant,
                claim.claimer_account.participant,
                modified,
                json.encode(stored),
            ),
        )

    def claims(
        self,
        *,
        donors: list[str],
        claimers: list[str],
        statuses: list[str],
        claim_type: str | None,
        after: int,
        before: int,
        limit: int,
    ) -> list[ExtendedClaim]:
        """Claims by when they changed, at most `limit`. `donors` and `claimers` are joined by or."""
        where = f"(donor IN ({_marks(donors)}) OR claimer IN ({_marks(claimers)})) AND modified BETWEEN ? AND ?"
        values: list[Any] = [*donors, *claimers, after, before]
        if statuses:
            where += f" AND status IN ({_marks(statuses)})"
            values += statuses
        if claim_type:
            where += " AND type = ?"
            values.append(claim_type)
        sql = f"SELECT document FROM claims WHERE {where} ORDER BY modified, id LIMIT ?"  # noqa: S608 - marks alone
        return [json.decode(row[0], type=StoredClaim).claim for row in self._all(sql, [*values, limit])]

    # Reconciliation

    def _add_event(self, kind: str, stored: StoredEntry, now: int) -> None:
        participant, key_type = stored.entry.account.participant, stored.entry.key_type
        vsync = vsync_of([self.vsync(participant, key_type), stored.cid])
        self._connection.execute(
            "INSERT INTO cid_events (participant, key_type, type, cid, at, vsync) VALUES (?, ?, ?, ?, ?, ?)",
            (participant, key_type, kind, stored.cid, now, vsync),
        )

    def vsync(self, participant: str, key_type: str) -> str:
        """The verifier of a participant's entries of one type."""
        sql = "SELECT vsync FROM cid_events WHERE participant = ? AND key_type = ? ORDER BY seq DESC LIMIT 1"
        row = self._one(sql, participant, key_type)
        return row[0] if row else EMPTY_VSYNC

    def events(self, participant: str, key_type: str, after: int, before: int, limit: int) -> list[Event]:
        """Changes in their order, at most `limit`."""
        sql = (
            "SELECT type, cid, at, vsync FROM cid_events WHERE participant = ? AND key_type = ? AND at BETWEEN ? AND ?"
            " ORDER BY at, seq LIMIT ?"
        )
        return [Event(*row) for row in self._all(sql, (participant, key_type, after, before, limit))]

    def vsync_at(self, participant: str, key_type: str, moment: int) -> str:
        """The verifier as it was after all changes up to a moment."""
        sql = (
            "SELECT vsync FROM cid_events WHERE participant = ? AND key_type = ? AND at <= ?"
            " ORDER BY at DESC, seq DESC LIMIT 1"
        )
        row = self._one(sql, participant, key_type, moment)
        return row[0] if row else EMPTY_VSYNC

    def add_verification(self, participant: str, key_type: str, vsync: str, result: str, now: int) -> int:
        """Keep the result of a check; returns its id."""
        cursor = self._connection.execute(
            "INSERT INTO verifications (participant, key_type, vsync, result, at) VALUES (?, ?, ?, ?, ?)",
            (participant, key_type, vsync, result, now),
        )
        return int(cursor.lastrowid or 0)

    # Rate limits

    def bucket(self, policy: str, scope: str) -> Bucket | None:
        """The last balance of a bucket; None for a bucket that was never used, which is full."""
        row = self._one("SELECT tokens, at FROM buckets WHERE policy = ? AND scope = ?", policy, scope)
        return row and Bucket(row[0], row[1])

    def put_bucket(self, policy: str, scope: str, bucket: Bucket) -> None:
        """Keep a balance."""
        values = (policy, scope, bucket.tokens, bucket.at)
        self._connection.execute("INSERT OR REPLACE INTO buckets VALUES (?, ?, ?, ?)", values)

    def add_lookup(self, end_to_end_id: str, lookup: Lookup) -> None:
        """Remember a lookup that found its key. A second one of the same payment counts once."""
        self._connection.execute(
            "INSERT OR IGNORE INTO lookups (end_to_end_id, participant, payer, policy, key) VALUES (?, ?, ?, ?, ?)",
            (end_to_end_id, lookup.participant, lookup.payer, lookup.policy, lookup.key),
        )

    def credit_lookups(self, end_to_end_id: str, payer: str) -> list[Lookup]:
        """The lookups of a payment that were not credited before; from now on they are."""
        sql = (
            "UPDATE lookups SET credited = 1 WHERE end_to_end_id = ? AND payer = ? AND credited = 0"
            " RETURNING participant, payer, policy, key"
        )
        return [Lookup(*row) for row in self._all(sql, (end_to_end_id, payer))]

    def settlements(self, key: str) -> int:
        """How many payments followed lookups of a key."""
        return int(self._one("SELECT count(*) FROM lookups WHERE key = ? AND credited = 1", key)[0])

    # The rest

    def fact(self, name: str, otherwise: str) -> str:
        """A text that was kept under a name."""
        row = self._one("SELECT value FROM facts WHERE name = ?", name)
        return row[0] if row else otherwise

    def put_fact(self, name: str, value: str) -> None:
        """Keep a text under a name."""
        self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def counts(self) -> dict[str, int]:
        """How much there is of everything."""
        tables = ("entries", "claims", "cid_events", "lookups", "verifications")
        return {table: self._one(f"SELECT count(*) FROM {table}")[0] for table in tables}  # noqa: S608 - our names


def _marks(values: list[str]) -> str:
    return ", ".join("?" * len(values)) or "NULL"
