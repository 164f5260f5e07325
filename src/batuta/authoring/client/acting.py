"""Who acts with a client on behalf of others: a server that many people use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from batuta.names import check_name, check_reason


class Acting(NamedTuple):
    """Actor and reason in the audit log, in place of the client's own."""

    actor: str
    reason: str


acting: ContextVar[Acting | None] = ContextVar("batuta_acting", default=None)


@contextmanager
def acting_as(actor: str, reason: str = "") -> Iterator[None]:
    """The audit log names `actor` for acts of this task in the block. `reason`: for acts that say none."""
    token = acting.set(Acting(check_name(actor, "actor"), check_reason(reason)))
    try:
        yield
    finally:
        acting.reset(token)
