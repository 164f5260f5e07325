"""Changes of a worker, with encoded payloads."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from msgspec import json
from msgspec.structs import replace

from batuta.errors import OutcomeUnknown, UnknownRun
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import Change, Effects, Move, NewRun, Output, OutputKind, RunKind, Successor
from batuta.stores.coded.record_codec import RecordCodec
from batuta.stores.coded.run_facts import Fact, Facts

Pairs = dict[int, tuple[Entry, Entry]]
"""Entries, plain and coded, by the identity of the plain one."""

_COUNTS = "{}"
"""The outcome of an end in a batch: none."""
_RECENT = 4
"""Batches that are remembered."""
_MOST_DOUBTFUL = 20_000
"""Most remembered entries: a stopped worker does not write its batch again."""


class Changes:
    """Gives new changes: the committer may have to write the old ones again."""

    def __init__(self, coding: RecordCodec, facts: Facts, marked: str) -> None:
        self.coding = self._coding = coding
        self._facts, self._marked = facts, marked
        self._recent: deque[Pairs] = deque()
        """Entries of the last batches.

        A codec gives another text each time, and a repeated write must be the same: the store recognises its own write
        by its entry.
        """
        self._doubtful: Pairs = {}
        """Of batches that may or may not be durable."""
        self._known: Pairs = {}
        """Of both, so that one look is enough."""

    @asynccontextmanager
    async def written(self, changes: Sequence[Change]) -> AsyncIterator[list[Change]]:
        """The changes, coded, for the block to write."""
        coded = await self.coded(changes)
        pairs: Pairs = {
            id(entry): (entry, found)
            for change, other in zip(changes, coded, strict=True)
            for entry, found in zip(change.entries, other.entries, strict=True)
        }
        self._keep(pairs)
        try:
            yield coded
        except OutcomeUnknown:
            self._doubtful |= pairs
            while len(self._doubtful) > _MOST_DOUBTFUL:
                key = next(iter(self._doubtful))
                self._forget(key, self._doubtful.pop(key))
            raise
        for key in pairs if self._doubtful else ():
            self._doubtful.pop(key, None)

    def _keep(self, pairs: Pairs) -> None:
        self._known |= pairs
        self._recent.append(pairs)
        if len(self._recent) > _RECENT:
            for key, pair in self._recent.popleft().items():
                if key not in self._doubtful:
                    self._forget(key, pair)

    def _forget(self, key: int, pair: tuple[Entry, Entry]) -> None:
        """Unless a later batch has the same entry."""
        if self._known.get(key) is pair:
            del self._known[key]

    async def coded(self, changes: Sequence[Change]) -> list[Change]:
        return [await self._change(change) for change in changes]

    async def _change(self, change: Change) -> Change:
        coding, run_id, start = self._coding, change.run_id, change.start
        if start is not None:
            self._facts.note(start)
            start = self._owned(start)
        entries = await self._entries(run_id, change.entries) if change.entries else []
        return Change(
            run_id,
            change.epoch,
            change.head,
            entries,
            start,
            change.consumed,
            tuple(coding.attempt(run_id, attempt) for attempt in change.attempts) if change.attempts else (),
            None if change.move is None else await self._move(run_id, change.move),
            None if change.effects is None else await self._effects(run_id, change.effects),
        )

    async def _entries(self, run_id: RunId, entries: Sequence[Entry]) -> list[Entry]:
        run = self._facts.known(run_id) or await self._fact(run_id)
        known, coding = self._known, self._coding
        return [coding.entry(run, entry) if (found := known.get(id(entry))) is None else found[1] for entry in entries]

    async def _fact(self, run_id: RunId) -> Fact:
        try:
            return await self._facts.of(run_id)
        except UnknownRun:
            return Fact(run_id, "", run_id, None, 0, RunKind.WORKFLOW, "", "")  # the store refuses it

    def _owned(self, start: NewRun) -> NewRun:
        """A run that begins at once has no start message."""
        return self._coding.new_run(start if start.start == "{}" else replace(start, start="{}"))

    async def _move(self, run_id: RunId, move: Move) -> Move:
        parent = None
        if move.outcome and move.outcome != _COUNTS:
            parent = (await self._facts.of(run_id)).parent
            if parent is None:
                move = replace(move, outcome="")
        if move.fingerprint:
            move = replace(move, fingerprint=f"{move.fingerprint}{self._marked}")
        return self._coding.move(run_id, parent, move)

    def _output(self, run_id: RunId, chain_id: RunId | None, output: Output) -> Output:
        """The run that a compensation output holds is coded as it will be inserted: the store that does has no keys."""
        if output.kind is not OutputKind.COMPENSATION or output.value is None:
            return self._coding.output(run_id, chain_id, output)
        new = self._coding.compensation(json.decode(output.value, type=NewRun))
        return replace(output, value=json.encode(new).decode())

    async def _effects(self, run_id: RunId, effects: Effects) -> Effects:
        coding, successor, letter = self._coding, effects.successor, effects.letter
        answers = any(output.kind is OutputKind.ANSWER for output in effects.outputs)
        chain_id = (await self._facts.of(run_id)).chain_id if answers else None
        return Effects(
            outputs=[self._output(run_id, chain_id, output) for output in effects.outputs],
            children=[coding.new_run(child) for child in effects.children],
            sends=[replace(send, message=coding.message_to_id(send.id, send.message)) for send in effects.sends],
            successor=None if successor is None else await self._successor(run_id, successor),
            letter=None if letter is None else coding.letter(run_id, letter),
        )

    async def _successor(self, run_id: RunId, new: Successor) -> Successor:
        after = (await self._fact(run_id)).followed_by(new.run_id, new.name)
        return replace(new, start=self._coding.start_of(after, new.start))
