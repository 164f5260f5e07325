"""Identities and chance enter here and nowhere else."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from uuid import UUID

RunId = UUID
"""A run's identity: a UUIDv7, so that new runs sort after old ones and index pages stay warm."""

_lock = threading.Lock()
_last = 0


def new_run_id() -> RunId:
    """A UUIDv7 greater than every one made before in this process."""
    global _last  # noqa: PLW0603 - a process has one sequence of ids
    with _lock:
        stamp = time.time_ns() // 1000  # microseconds: 48 bits of milliseconds, then 10 bits of the rest
        _last = stamp = max(stamp, _last + 1)
    return _uuid7(stamp, int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF)


def derived_run_id(at: int, key_base: str, seq: int) -> RunId:
    """The id of the run that a command begins: the same whenever that command is carried out again.

    A UUIDv7 of `at` (microseconds); those of one turn sort in order of their commands.
    """
    digest = hashlib.blake2b(f"{key_base}:{seq}".encode(), digest_size=6).digest()
    chance = (seq & 0xFFFF) << 46 | int.from_bytes(digest, "big") >> 2
    return _uuid7(at, chance)


def _uuid7(micros: int, chance: int) -> UUID:
    millis, rest = divmod(micros, 1000)
    return UUID(int=(millis & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | rest << 66 | 0x2 << 62 | chance)


def new_worker_id() -> str:
    """Random per process start: a restarted worker is another worker."""
    return secrets.token_hex(8)


def new_message_id() -> str:
    """Names a message that its sender did not name."""
    return secrets.token_hex(12)


def seed_of(run_id: RunId) -> int:
    """What a new run's `random()` and `uuid()` and the order of its sets grow from: the random part of its id."""
    return run_id.int & 0xFFFF_FFFF_FFFF


def jitter() -> float:
    """A number in [0, 1): spreads retries and polls so that workers do not march in step."""
    return secrets.randbits(32) / 2**32
