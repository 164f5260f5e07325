"""Requests that carry an idempotency key: each is carried out once, and answered the same again. Values, no I/O."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from batuta.journal.codec_envelope import Payload

PRUNE_EVERY = 64
"""A store deletes requests whose time is over with every so many that begin, up to a hundred at once."""


class KeptRequest(Struct, kw_only=True):
    """The record of a request."""

    key: str
    digest: str
    """The digest of the request: the same key with another digest is another request."""
    owner: str
    """Who carries it out: only they write its answer."""
    locked_until: int
    """Microseconds: until then only the owner carries it out."""
    expires_at: int
    answer: Payload | None = None
    """JSON, once it is there."""


class RequestStore(Protocol):
    """The part of a store that keeps requests."""

    namespace: str

    async def begin_request(self, key: str, digest: str, owner: str, lock: int, keep: int) -> KeptRequest:
        """Let `owner` carry out the request of that key, for `lock` microseconds, unless another one does or did:
        the request is returned with its owner. A request whose answer did not come in time is taken over. A request
        older than `keep` microseconds is forgotten, and some others like it with it."""
        ...

    async def renew_request(self, key: str, owner: str, lock: int) -> bool:
        """Lock it for so many microseconds from now. False when another owner has it, or it has an answer."""
        ...

    async def find_request(self, key: str) -> KeptRequest | None:
        """The request of that key, if it is kept."""
        ...

    async def list_requests(self, after: str, limit: int, prefix: str = "") -> list[KeptRequest]:
        """Requests that are kept, in order of their keys, without their answers: `answer` is empty where there is
        one. Only keys that begin with `prefix`."""
        ...

    async def clear_request(self, key: str) -> bool:
        """Forget a request, with or without an answer. False when it is not kept."""
        ...

    async def finish_request(self, key: str, owner: str, answer: str) -> bool:
        """Keep the answer. False when another owner has the request."""
        ...

    async def drop_request(self, key: str, owner: str) -> bool:
        """Forget a request that has no answer: it may be carried out again. False when another owner has it."""
        ...
