"""Rules that every store follows, as functions of values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from batuta.ids import RunId
from batuta.journal.entries import Body, Entry, EntryKind, encode_entry
from batuta.journal.records import Change, IfExists, Message, MessageKind, NewRun, Run, StartOutcome, Verdict

T = TypeVar("T")

POISON_DEATHS = 5
"""Deaths without progress that park a run."""

SUSPECT_DEATHS = 2
"""Deaths without progress that make a run a suspect. The SQL repeats the number: indexes need it as such."""

BEAT_LIMIT = 2_000
"""Runs that one transaction of a heartbeat times out, revives or reaps at most, each."""

TIMED_OUT = "the run was over its time"
POISONED = "its workers died with it, again and again, without progress"


def judge(change: Change, epoch: int, head: int, closed: bool) -> Verdict | bool:
    """What the fence says to a change: True to write it, False when it is there already, or REFUSED."""
    if epoch != change.epoch:
        return Verdict.REFUSED
    if head == change.head and not closed:
        return True
    return False if head == change.new_head else Verdict.REFUSED


def may_replace(policy: IfExists, closed: bool) -> bool:
    """Whether a start may take the id over from the run that has it."""
    return policy is IfExists.RESTART and closed


def deadline_of(run: NewRun, now: int, chain_created_at: int) -> int | None:
    """When a new run times out: the earlier of its own time and its chain's."""
    own = now + run.timeout if run.timeout else None
    chain = chain_created_at + run.execution_timeout if run.execution_timeout else None
    return min((at for at in (own, chain) if at is not None), default=None)


def started(outcome: StartOutcome) -> tuple[Run, bool]:
    """Of a start that was alone: its run and whether it is new. Raises what kept it from being written."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def start_message(run: NewRun) -> Message:
    """The message that waits for the first owner of an unowned run."""
    return Message(message_id=f"start:{run.run_id}", kind=MessageKind.START, name=run.name, body=run.start)


def timed_out_entry(head: int, last: tuple[int, int] | None, now: int) -> Entry:
    """The last entry of a run that is over its time. `last` is time and crc of the entry at `head`."""
    at, crc = last or (0, 0)
    return encode_entry(head + 1, EntryKind.TIMED_OUT, max(now, at), Body(reason=TIMED_OUT), crc)


def may_take(code: Mapping[str, str], name: str, failed_code: Sequence[str]) -> bool:
    """Whether a worker with this code may claim a run, or take it out of needs_code."""
    fingerprint = code.get(name)
    return fingerprint is not None and fingerprint not in failed_code


def is_suspect(deaths: int, head: int, claimed_head: int) -> bool:
    """Whether workers died with the run since it last made progress, so often that it may be to blame."""
    return deaths >= SUSPECT_DEATHS and head == claimed_head


def one_suspect(due: Iterable[T], is_suspect: Callable[[T], bool]) -> list[T]:
    """What is due, with only the first of its suspects."""
    chosen: list[T] = []
    found = False
    for each in due:
        suspect = is_suspect(each)
        if not (suspect and found):
            chosen.append(each)
        found = found or suspect
    return chosen


def chain_of(run: NewRun) -> RunId:
    """The chain that a new run belongs to: its own, unless it follows another."""
    return run.chain_id or run.run_id
