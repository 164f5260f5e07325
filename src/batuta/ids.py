"""Identities and chance enter here and nowhere else."""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID, SafeUUID

from msgspec import json, to_builtins

RunId = UUID
"""A run's identity: a UUIDv7, so that new runs sort after old ones and index pages stay warm."""

_lock = threading.Lock()
_last = 0
_chance: list[int] = []
"""Random numbers, drawn some at a time: asking the system for each costs more than the rest of an id."""
_DRAWN = 64
_source: random.Random = random.SystemRandom()
_time = time.time_ns
"""Where chance and the times in ids come from. Tests may foresee both."""
_62_BITS = (1 << 62) - 1
os.register_at_fork(after_in_child=_chance.clear)  # a child must not go on with its parent's numbers
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]  # nor wait for its threads


def new_run_id() -> RunId:
    """A UUIDv7 greater than every one made before in this process."""
    global _last  # noqa: PLW0603 - a process has one sequence of ids
    with _lock:  # not `acquire` and `try`: an interrupt between the two would leave it locked for ever
        stamp = _time() // 1000
        _last = stamp = stamp if stamp > _last else _last + 1
        chance = _draw() & _62_BITS
    return _uuid7(stamp, chance)


def _draw() -> int:
    """64 random bits. The lock is held."""
    if not _chance:
        _chance.extend(struct.unpack(f"<{_DRAWN}Q", _source.randbytes(8 * _DRAWN)))
    return _chance.pop()


class Origin(NamedTuple):
    """Where the ids of a process come from, and how far they are."""

    source: random.Random
    time: Callable[[], int]
    last: int
    chance: list[int]


def foresee(seed: int | None, at: int | None = None) -> Origin:
    """Testing only: make new ids, `random()` and `uuid()` of runs and the jitter of waits depend on `seed`.

    `at`: ids also count up from that time (microseconds). None restores the default. Returns the previous state.
    """
    global _source, _time, _last  # noqa: PLW0603 - a process has one sequence of ids
    with _lock:
        before = Origin(_source, _time, _last, _chance[:])
        _chance.clear()
        _source = random.SystemRandom() if seed is None else random.Random(seed)
        _time, _last = (time.time_ns, _last) if at is None else (int, at)
    return before


def go_on_from(before: Origin) -> None:
    """Testing only: restore the state before."""
    global _source, _time, _last
    with _lock:
        _source, _time, _last = before[:3]
        _chance[:] = before.chance


def derived_run_id(at: int, key_base: str, seq: int) -> RunId:
    """The id of the run that a command begins: the same whenever that command is carried out again.

    A UUIDv7 of `at` (microseconds); those of one turn sort in order of their commands.
    """
    digest = hashlib.blake2b(f"{key_base}:{seq}".encode(), digest_size=6).digest()
    chance = (seq & 0xFFFF) << 46 | int.from_bytes(digest, "big") >> 2
    return _uuid7(at % _AGES, chance)


def named_run_id(at: int, *names: str) -> RunId:
    """The id of the run with these names, a UUIDv7 of `at` (microseconds): the same on every worker."""
    return _uuid7(at % _AGES, int.from_bytes(digest_of(*names, size=8), "big") >> 2)


def digest_of(*parts: str, size: int) -> bytes:
    """A hash of several texts, of that many bytes. Joined texts could be equal: "a/b" and "c", "a" and "b/c"."""
    return hashlib.blake2b(json.encode(parts), digest_size=size).digest()


_AGES = (1 << 48) * 1000
"""Clamp to the times that an id can hold, since a journal may have been changed."""
_REST = 1 << 66
_MILLIS = (1 << 80) - 1000 * _REST
_MARKS = 0x7 << 76 | 0x2 << 62


def _uuid7(micros: int, chance: int) -> UUID:
    """48 bits of milliseconds, the version, 10 bits of the rest, the variant and 62 bits of chance. Added up: Python
    takes longer over bits."""
    return uuid_of(micros // 1000 * _MILLIS + micros * _REST + (_MARKS + chance))


_slots: Any = vars(UUID)
_set_int, _set_is_safe = _slots["int"].__set__, _slots["is_safe"].__set__
_new, _UNKNOWN = object.__new__, SafeUUID.unknown


def uuid_of(number: int) -> UUID:
    """`UUID(int=number)`, in a quarter of the time: its constructor looks at six ways of giving one."""
    made = _new(UUID)
    _set_int(made, number)
    _set_is_safe(made, _UNKNOWN)
    return made


text_of: Callable[[RunId], str] = to_builtins
"""`str(run_id)`, in a quarter of the time."""


def new_worker_id() -> str:
    """Random for each process start: a restarted worker is a new worker."""
    return secrets.token_hex(8)


def new_message_id() -> str:
    """Names a message that its sender did not name."""
    return secrets.token_hex(12)


def new_secret(size: int = 16) -> bytes:
    """An unguessable value. It does not come from `_source`, which tests may predict."""
    return secrets.token_bytes(size)


def new_seed() -> int:
    """The seed of a new run's `random()`, `uuid()` and order of sets.

    Its id, which is public, reveals nothing about it.
    """
    with _lock:
        return _draw() & _62_BITS


def derived_seed(seed: int, run_id: RunId) -> int:
    """The seed of a run that another run begins: the same every time the command is carried out."""
    return int.from_bytes(digest_of(str(seed), text_of(run_id), size=8), "big") & _62_BITS


bits = random.getrandbits
"""Random bits for values that need not be secret."""


def jitter() -> float:
    """A number in [0, 1): spreads retries and polls so that workers do not march in step."""
    return _source.getrandbits(32) / 2**32


def new_trace_id() -> str:
    """32 hex digits, for what came without a trace."""
    return secrets.token_hex(16)


def made_traceparent(chain_id: RunId) -> str:
    """The W3C `traceparent` of runs that came without one: made from the id of their chain, and not sampled."""
    trace_id = chain_id.hex
    return f"00-{trace_id}-{trace_id[16:]}-00"


def trace_id_of_run(trace: str, chain_id: RunId) -> str:
    """The trace id of a run: of the `traceparent` that it came with, else made from the id of its chain."""
    parts = trace.split("-")
    return parts[1] if len(parts) == 4 else chain_id.hex


def new_span_id() -> str:
    """16 hex digits."""
    return secrets.token_hex(8)
