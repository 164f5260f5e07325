"""Requests with an idempotency key, in memory."""

from __future__ import annotations

from msgspec.structs import replace

from batuta.journal.server.requests import PRUNE_EVERY, KeptRequest
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.unit_of_work import UnitOfWork


class RequestVerbs(Base):
    _begun = 0

    @verb
    def begin_request(self, unit: UnitOfWork, key: str, digest: str, owner: str, lock: int, keep: int) -> KeptRequest:
        kept = unit.tables.requests
        self._begun += 1
        if self._begun % PRUNE_EVERY == 1:
            for old in [one for one, request in kept.items() if request.expires_at <= unit.now]:
                del kept[old]
        found = kept.get(key)
        found = None if found is not None and found.expires_at <= unit.now else found
        if found is not None and (found.answer is not None or found.digest != digest or found.locked_until > unit.now):
            return replace(found)
        kept[key] = KeptRequest(
            key=key, digest=digest, owner=owner, locked_until=unit.now + lock, expires_at=unit.now + keep
        )
        return replace(kept[key])

    @verb
    def renew_request(self, unit: UnitOfWork, key: str, owner: str, lock: int) -> bool:
        found = unit.tables.requests.get(key)
        if found is None or found.owner != owner or found.answer is not None:
            return False
        found.locked_until = unit.now + lock
        return True

    @verb
    def find_request(self, unit: UnitOfWork, key: str) -> KeptRequest | None:
        found = unit.tables.requests.get(key)
        return None if found is None or found.expires_at <= unit.now else replace(found)

    @verb
    def list_requests(self, unit: UnitOfWork, after: str, limit: int, prefix: str = "") -> list[KeptRequest]:
        kept = unit.tables.requests
        keys = sorted(key for key in kept if key > after and key.startswith(prefix))
        found = [kept[key] for key in keys if kept[key].expires_at > unit.now][:limit]
        return [replace(one, answer=None if one.answer is None else "") for one in found]

    @verb
    def clear_request(self, unit: UnitOfWork, key: str) -> bool:
        return unit.tables.requests.pop(key, None) is not None

    @verb
    def finish_request(self, unit: UnitOfWork, key: str, owner: str, answer: str) -> bool:
        found = unit.tables.requests.get(key)
        if found is None or found.owner != owner:
            return False
        found.answer = answer
        return True

    @verb
    def drop_request(self, unit: UnitOfWork, key: str, owner: str) -> bool:
        found = unit.tables.requests.get(key)
        if found is None or found.owner != owner or found.answer is not None:
            return False
        del unit.tables.requests[key]
        return True
