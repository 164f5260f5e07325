"""Reconciliation: identifiers of entries (CID) and the verifier of a set of them (VSync)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from uuid import UUID

from pixdict.dict.entries import Entry
from pixdict.dict.keys import normalised

EMPTY_VSYNC = "0" * 64
"""The verifier of no entries."""


def cid_of(entry: Entry, request_id: UUID) -> str:
    """The identifier of an entry: it changes with each of its fields except the opening date of the account."""
    account, owner = entry.account, entry.owner
    key = normalised(entry.key_type, entry.key or "")
    return content_id(
        request_id.bytes,
        entry.key_type,
        key,
        owner.tax_id_number,
        owner.name,
        owner.trade_name,
        account.participant,
        account.branch,
        account.account_number,
        account.account_type,
    )


def content_id(secret: bytes, *attributes: str | None) -> str:
    """HMAC-SHA256 of the attributes, joined by `&`; an absent one counts as empty."""
    message = "&".join(attribute or "" for attribute in attributes)
    return hmac.new(secret, message.encode(), hashlib.sha256).hexdigest()


def vsync_of(cids: Iterable[str]) -> str:
    """The exclusive or of all identifiers. Adding one twice removes it."""
    value = 0
    for cid in cids:
        value ^= int(cid, 16)
    return f"{value:064x}"
