"""The audit log in PostgreSQL."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from batuta.journal.audit import Act, ActFilter, Recorded
from batuta.stores.postgres.base import Base

_ABOVE_ALL = 2**63 - 1
_columns = itemgetter(*Recorded.__struct_fields__)
_names = Recorded.__struct_fields__

ActValues = tuple[str | None, str, str, str, str, str]


def act_values(act: Act | None) -> ActValues:
    """The parameters of `record_acts` for an action: actor, verb, reason, detail, before, after.

    No actor: no action.
    """
    if act is None:
        return None, "", "", "null", "null", "null"
    return act.actor, "|".join((act.verb.value, *_key(act))), act.reason, act.detail, act.before, act.after


def _key(act: Act) -> tuple[str, ...]:
    """Its salt and the blocks of HMAC: the database has SHA-256, but no HMAC."""
    if not act.salt:
        return ()
    block = act.secret.ljust(64, b"\0")
    return act.salt, *(bytes(byte ^ pad for byte in block).hex() for pad in (0x36, 0x5C))


class AuditVerbs(Base):
    async def note_act(self, target: str, act: Act) -> None:
        await self._execute("note_act", target, *act_values(act))

    async def audit(self, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        return await self._read_all(_recorded, "audit", after, limit)

    async def audit_head(self) -> tuple[int, str]:
        rows = await self._read("audit_head")
        return (rows[0]["number"], rows[0]["hash"]) if rows else (0, "")

    async def acts(self, where: ActFilter, before: int | None = None, limit: int = 50) -> list[Recorded]:
        query = "acts" if where.target is None else "acts_on"
        last = _ABOVE_ALL if before is None else before
        said = (where.target, where.actor, where.verb, where.since, where.until)
        return await self._read_all(_recorded, query, last, *said, limit)


def _recorded(row: Any) -> Recorded:
    return Recorded(**dict(zip(_names, _columns(row), strict=True)))
