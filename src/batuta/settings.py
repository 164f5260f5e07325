"""Every knob, with its default. Environment variables `BATUTA_<NAME>` override them; arguments override both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from math import inf
from typing import Any

import msgspec
from msgspec import Struct

from batuta.durations import fields_in_seconds
from batuta.errors import InvalidInput

_OWN_WORDS = {
    "DATABASE_URL",
    "DATABASE_SCHEMA",
    "DATABASE_DIRECT_URL",
    "DATABASE_STATEMENT_TIMEOUT",
    "DATABASE_LOCK_TIMEOUT",
    "DATABASE_BUSY_WAIT",
    "NAMESPACE",
    "ACTOR",
    "FAILPOINT",
    "FAILPOINT_COUNTS",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "METRICS_HOST",
    "METRICS_PORT",
    "HOST",
    "PORT",
    "SERVER_SECRET",
    "SERVER_RATE",
    "AUDIT_KEY",
    "AUDIT_KEY_FILE",
    "KEYS",
    "KEYS_FILE",
    "COMPRESS",
    "REDACT",
    "REDIS_URL",
    "REDIS_SENTINEL_PASSWORD",
    "REDIS_SENTINEL_PASSWORD_FILE",
    "WEBHOOK_ALLOW",
    "REDIS_PASSWORD",
    "REDIS_PASSWORD_FILE",
}
"""Variables with our prefix that are read elsewhere."""


MOST_UNDURABLE = 1_000
"""Maximum of `undurable_entries`: how far back the engine looks for effects that a dead worker may not have sent."""


class Settings(Struct, frozen=True, kw_only=True):
    """How a worker behaves. Times are seconds or timedeltas, and are kept as seconds."""

    max_payload: int = 2 * 1024 * 1024
    """Bytes of JSON that one argument list, result or message may take."""
    max_runs: int = 10_000
    """Runs that a worker holds in memory at once."""
    max_activities: int = 1_000
    """Async activities that a worker executes at once."""
    threads: int = 32
    """Sync activities that a worker executes at once."""
    processes: int = 4
    """Activities with `process=True` that a worker executes at once."""
    transactions: int = 8
    """Transactional activities that a worker executes at once; on PostgreSQL each needs a connection."""
    transaction_time: float = 10.0
    """How long a transactional activity may take; on SQLite, where it blocks all other writers, 2 at most."""
    lease: float = 10.0
    """How long a worker counts as alive after a heartbeat."""
    heartbeat: float = 3.0
    fast_detection: bool = True
    """Notice that a worker's process has died before its lease expires."""
    detection_grace: float = 0.3
    keep_in_memory: float = 30.0
    """A run that waits longer than this leaves memory."""
    batch_rows: int = 1_000
    batch_bytes: int = 4 * 1024 * 1024
    undurable_entries: int = 64
    """How many entries a run may be ahead of the durable ones."""
    grace: float = 30.0
    """How long a graceful stop waits for activities in flight."""
    stuck_turn: float = 2.0
    """A turn that takes longer is named in the log."""
    stuck_loop: float = 30.0
    """A worker whose event loop stands still for longer gives up its lease and ends its process."""
    claim_batch: int = 500
    bus: str = "store"
    """Where messages go: the store, or the URL of a broker, such as pulsar://localhost:6650."""
    bus_admin_url: str = ""
    """Of the broker's web service, which knows how far subscriptions are behind; empty: it is not asked."""
    bus_keep: float = 7 * 86_400.0
    """How long messages are kept that were delivered."""
    prune_every: float = 60.0
    """How often a worker looks for runs that were kept for long enough."""
    prune_share: float = 0.1
    """The share of the time that deleting them takes at most."""
    tune_collector: bool = True
    """Make Python's garbage collector, if it has its defaults, run less often while many runs are in memory."""
    always_replay: bool = False
    """For tests: rebuild every run from its journal before every turn."""

    def __post_init__(self) -> None:
        fields_in_seconds(self, *_TIMES)
        for name in self.__struct_fields__:
            value, kind = getattr(self, name), self.__annotations__[name]
            if not _fits(value, kind):
                words = {"bool": "True or False", "str": "text"}.get(kind, f"more than 0, of type {kind}")
                raise InvalidInput(f"setting {name}={value!r} must be {words}{' or timedelta' * (name in _TIMES)}")
        if self.undurable_entries > MOST_UNDURABLE:
            raise InvalidInput(f"undurable_entries={self.undurable_entries} must be at most {MOST_UNDURABLE}")
        if self.prune_share > 1:
            raise InvalidInput(f"prune_share={self.prune_share} must be at most 1")
        if self.heartbeat * 2 > self.lease:
            raise InvalidInput(f"heartbeat={self.heartbeat} must be at most half of lease={self.lease}")

    @property
    def broker(self) -> str:
        """The name of the broker that messages go to; empty: the store itself."""
        return "" if self.bus == "store" else self.bus.partition(":")[0].partition("+")[0]

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, **given: Any) -> Settings:
        """Defaults, then the environment, then the arguments. Raises InvalidInput that names the variable."""
        env = os.environ if env is None else env
        values: dict[str, Any] = {}
        for variable, text in env.items():
            name = variable.removeprefix("BATUTA_").lower()
            if variable.startswith("BATUTA_") and name in cls.__struct_fields__:
                values[name] = _parse(cls.__annotations__[name], variable, text)
        unknown = given.keys() - set(cls.__struct_fields__)
        if unknown:
            raise InvalidInput(f"unknown settings {', '.join(sorted(unknown))}; {_nearest(min(unknown))}")
        return cls(**(values | given))

    @classmethod
    def strange_variables(cls, env: Mapping[str, str] | None = None) -> list[str]:
        """One sentence for each BATUTA_ variable that means nothing, with the nearest name that does."""
        env = os.environ if env is None else env
        found = [v.removeprefix("BATUTA_") for v in sorted(env) if v.startswith("BATUTA_")]
        known = {name.upper() for name in cls.__struct_fields__} | _OWN_WORDS
        return [
            f"BATUTA_{name} is not a setting; {_nearest(name.lower())}"
            for name in found
            if name not in known and not name.startswith("TEST_")
        ]


_TIMES = tuple(name for name, kind in Settings.__annotations__.items() if kind == "float" and name != "prune_share")


def _fits(value: object, kind: str) -> bool:
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    if kind == "str" or isinstance(value, str):
        return kind == "str" and isinstance(value, str)
    return isinstance(value, int if kind == "int" else int | float) and 0 < value < inf


def _parse(kind: str, variable: str, text: str) -> Any:
    try:
        if kind == "str":
            return text
        if kind == "bool":
            return msgspec.convert(text.lower(), bool, strict=False)
        return msgspec.convert(text, {"int": int, "float": float}[kind], strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{variable}={text!r} is not a valid {kind}: {error}") from error


def _nearest(name: str) -> str:
    close = get_close_matches(name, Settings.__struct_fields__, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(Settings.__struct_fields__)}"
