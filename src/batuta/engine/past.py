"""What a run that was made from another knows of those before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from batuta.engine.identity import RunIdentity
from batuta.engine.routes import Route
from batuta.ids import RunId
from batuta.journal.entries import Forked

if TYPE_CHECKING:
    from batuta.engine.kin import Kin
    from batuta.engine.machine import Machine

_LONG_AGO = -(2**31)


class Past:
    """Made before such a run is replayed. Its entries up to the point of the fork were written as another run, so that
    its code is told that it is that one until then."""

    def __init__(self, identity: RunIdentity, last: Forked) -> None:
        self._forks: list[Forked] = []
        self.first = RunId(last.first_run_id)
        """The run that wrote the first entry."""
        self.told = _named(identity, last.first_id, last.first_run_id)
        """Who the code is told to be."""

    def take_over(self, machine: Machine, at: int, fork: Forked) -> None:
        """The run becomes itself: what is pending is its own now, and its time begins anew."""
        machine.at = at
        machine.entries += 1
        self._forks.append(fork)
        self.told = _named(machine.identity, fork.id, fork.mark)
        for seq, pending in machine.activities.items():
            pending.issued_at = at
            pending.data = bytes(fork.inputs[seq]) if seq in fork.inputs else pending.data
        if machine.kin is not None:
            _renew(machine.kin, machine.entries, at, fork)
        if fork.key_base:
            machine.reseed(fork.key_base)

    def key_base(self, seq: int) -> str:
        """Of a command's key; empty: the run's own."""
        changed = (one for one in reversed(self._forks) if one.key_base and (seq > one.seq or seq in one.inputs))
        return next((one.key_base for one in changed), "")

    def mark(self, seq: int) -> str:
        """What names the child or message of a command; empty: as in the first run."""
        renamed = (one for one in reversed(self._forks) if seq > one.seq or seq in one.anew)
        return next((one.mark for one in renamed), "")


def first_run_id(machine: Machine) -> RunId:
    """Of the run that was started, from which this one may have been made."""
    if machine.past is not None:
        return machine.past.first
    return RunId(machine.start.key_base) if machine.start.mark else machine.identity.run_id


def _named(identity: RunIdentity, id: str, run_id: str) -> RunIdentity:
    return RunIdentity(RunId(run_id), id, identity.queue, identity.namespace)


def _renew(kin: Kin, entry: int, at: int, fork: Forked) -> None:
    """Calls that other runs execute are begun anew, or their answers are in the inbox."""
    for seq, child in kin.children.items():
        child.entry = entry if seq in fork.anew else _LONG_AGO
        if seq in fork.anew:
            child.issued_at = at
        if seq in fork.inputs:
            child.data = bytes(fork.inputs[seq])
    for seq, route in list(kin.routed.items()):
        if seq in fork.anew:
            data = bytes(fork.inputs[seq]) if seq in fork.inputs else route.pending.data
            kin.routed[seq] = Route(replace(route.pending, data=data, issued_at=at), seq, route.id, entry)
        else:
            route.entry, route.check_at = _LONG_AGO, None
