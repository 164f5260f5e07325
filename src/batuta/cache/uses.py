"""How often values of each entity are found: counted in every process, and left in the cache for those who look."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import DecodeError, Struct, json

from batuta.cache.backend import CacheBackend
from batuta.clock import SECOND
from batuta.ids import new_message_id

_OURS = "batuta:cache"
_KEPT = 600.0
"""Seconds for which the counts of a process that has ended are there."""
_HOUR = 3600


class EntityUse(Struct, kw_only=True):
    """Looks for values of one entity, by all processes that use the cache now, since each of them began."""

    entity: str
    """The pattern of its keys, without identifiers."""
    hits: int = 0
    absent: int = 0
    """Looks that found that there is no such thing."""
    misses: int = 0
    failed: int = 0
    """Operations that failed, or were left out because the cache does not work."""
    seconds: float = 0.0
    """That all looks took together."""

    def note(self, outcome: str, seconds: float) -> None:
        """One operation, as observers are told of it."""
        match outcome:
            case "hit":
                self.hits += 1
            case "absent":
                self.absent += 1
            case "miss":
                self.misses += 1
            case "failed" | "skipped":
                self.failed += 1
                return
            case _:
                return
        self.seconds += seconds

    def add(self, other: EntityUse) -> None:
        self.hits += other.hits
        self.absent += other.absent
        self.misses += other.misses
        self.failed += other.failed
        self.seconds += other.seconds


class Uses:
    """Those of one process."""

    def __init__(self) -> None:
        self._process = new_message_id()
        self._of: dict[str, EntityUse] = {}

    def note(self, entity: str, outcome: str, seconds: float) -> None:
        use = self._of.get(entity)
        if use is None:
            use = self._of[entity] = EntityUse(entity=entity)
        use.note(outcome, seconds)

    async def write(self, backend: CacheBackend, now: int) -> None:
        """Leave them in the cache. Raises what the backend raises."""
        await backend.put(_place(self._process), json.encode(list(self._of.values())), _KEPT)
        await backend.add_members(_processes(now // SECOND), [self._process], 2.0 * _HOUR)


async def uses_of(backend: CacheBackend, now: int) -> list[EntityUse]:
    """The uses of all processes that have told of them in the last minutes, by entity. Raises what the backend
    raises."""
    seconds = now // SECOND
    processes = await backend.members(_processes(seconds)) | await backend.members(_processes(seconds - _HOUR))
    found: dict[str, EntityUse] = {}
    for process in processes:
        for use in _read(await backend.get(_place(process))):
            found.setdefault(use.entity, EntityUse(entity=use.entity)).add(use)
    return [found[name] for name in sorted(found)]


def _read(data: bytes | None) -> Iterable[EntityUse]:
    try:
        return [] if data is None else json.decode(data, type=list[EntityUse])
    except (DecodeError, RecursionError):  # of another version
        return []


def _place(process: str) -> str:
    return f"{_OURS}:uses:{process}"


def _processes(seconds: int) -> str:
    """A set for each hour, so that processes of long ago are forgotten."""
    return f"{_OURS}:processes:{seconds // _HOUR}"
