"""How long runs are kept once they are closed."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from batuta.ids import RunId


class Retention(Struct, kw_only=True, frozen=True):
    """One rule. The most specific one holds: of the name and state, of the name, of the state, of all."""

    name: str = ""
    """Of the workflow or job; empty: any."""
    state: str = ""
    """A closed state; empty: any."""
    keep: int | None = None
    """Microseconds from the close; None: for ever."""


class Pruned(Struct):
    """What one step of pruning did."""

    deleted: int
    """Runs."""
    last: RunId | None
    """Where the next step goes on; None: all were looked at, begin from the oldest again."""
    busy: float = 0.0
    """Seconds that the database was at work for it."""


def target_of(name: str, state: str) -> str:
    """What the audit log calls a rule."""
    return f"{name or '*'} {state or '*'}"


def keep_json(keep: int | None) -> str:
    """What the audit log says of a rule."""
    return f'{{"keep":{"null" if keep is None else keep}}}'


def kept_for(rules: Iterable[Retention], name: str, state: str) -> int | None:
    """Microseconds that a run of this name is kept after it closed in this state; None: for ever."""
    holding = [rule for rule in rules if rule.name in ("", name) and rule.state in ("", state)]
    best = max(holding, key=lambda rule: (rule.name != "", rule.state != ""), default=None)
    return None if best is None else best.keep


def shortest(rules: Iterable[Retention]) -> int | None:
    """No run that closed later than so long ago is deleted; None: none at all."""
    return min((rule.keep for rule in rules if rule.keep is not None), default=None)
