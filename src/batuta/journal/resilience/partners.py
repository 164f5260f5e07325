"""State that all workers share about partners: breakers and limits, as documents that a store changes under a lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from msgspec import MsgspecError, Struct, json

from batuta.clock import SECOND
from batuta.journal.audit import Act
from batuta.journal.codec_envelope import Payload
from batuta.journal.records import Hint

T = TypeVar("T")

BREAKER, LIMIT = "breaker", "limit"
WEBHOOK = "webhook"
"""An endpoint for webhooks. Its document holds secrets: it goes through the codecs of its store."""
DAMAGED = "damaged"
"""The state of a breaker of which the store has something that cannot be read."""
_MINUTE = 60 * SECOND
CLOSED, OPEN, HALF_OPEN = BREAKER_STATES = ("closed", "open", "half-open")


def is_set_back(noted: int, now: int) -> bool:
    """Whether the clock was set back since this time was noted: clocks of processes differ by less than a minute."""
    return noted > now + _MINUTE


class Partner(Struct, kw_only=True):
    """A breaker or a limit, or what a limit counts for one key."""

    kind: str
    name: str
    key: str = ""
    """Empty: the breaker or limit itself."""
    doc: Payload
    """JSON; a payload for an endpoint of webhooks."""


class PartnerChange(Struct, Generic[T]):
    """The outcome of a rule."""

    answer: T
    doc: str | None = None
    """None: it stays as it is; empty: it is forgotten."""
    tell: bool = False
    """Other processes are to look at it soon."""
    expires_at: int | None = None
    """Microseconds: from then on it may be forgotten."""


class PartnerDocs(Struct):
    """The input of a rule."""

    own: str | None
    """The document of the breaker or limit itself; None: there is none."""
    doc: str | None
    """The document of the key."""
    now: int
    """The store's time, microseconds."""


PartnerRule = Callable[[PartnerDocs], PartnerChange[T]]
"""It may be called more than once for one change."""


def hint_of(kind: str, name: str, key: str, changed: PartnerChange[Any]) -> Hint:
    """What listeners are told of a change."""
    if not changed.tell:
        return Hint()
    return Hint(partners=True, partner=None if key or not changed.doc else (kind, name, changed.doc))


class PartnerStore(Protocol):
    """The part of a store that is about partners."""

    poll_seconds: float | None
    """None when hints are certain."""

    async def change_partner(
        self, kind: str, name: str, key: str, rule: PartnerRule[T], act: Act | None = None
    ) -> PartnerChange[T]:
        """Change one document as the rule says: no other change of it comes in between. With an empty key both
        documents are the same. The act is recorded if the document changes. Some documents of the same name that have
        expired are forgotten."""
        ...

    async def partners(self, keys: bool = False, limit: int = 1_000) -> list[Partner]:
        """All breakers and limits, by kind and name; with `keys` also what limits count by key."""
        ...

    async def wake_gate(self, name: str, limit: int) -> int:
        """Make runs due that wait for the gate, so many at most. Returns how many."""
        ...

    def listen(self, callback: Callable[[Hint], None]) -> Callable[[], Any]: ...


async def all_partners(store: PartnerStore, *, keys: bool = False) -> list[Partner]:
    """What `PartnerStore.partners` gives, however much that is."""
    limit = 1_000
    while len(found := await store.partners(keys, limit)) == limit:
        limit *= 10
    return found


class _State(Struct):
    """The fields of every document of a breaker."""

    state: str


def breaker_states(found: Iterable[Partner]) -> dict[str, str]:
    """The states of the breakers among these, by name."""
    states = {}
    for one in found:
        if one.kind == BREAKER:
            try:
                states[one.name] = json.decode(one.doc, type=_State).state
            except (MsgspecError, RecursionError):
                states[one.name] = DAMAGED
    return states


def gate_reason(name: str) -> str:
    """The reason of a run that waits for a gate."""
    return f"gate:{name}"
