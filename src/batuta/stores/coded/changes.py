"""What a worker commits, coded."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from batuta.ids import RunId
from batuta.journal.records import Change, Effects, Move, NewRun, OutputKind
from batuta.stores.coded.coding import Coding
from batuta.stores.coded.facts import Facts

_COUNTS = "{}"
"""What a batch is told of an end: nothing."""


class Changes:
    """Gives new changes: the committer may have to write the old ones again."""

    def __init__(self, coding: Coding, facts: Facts, marked: str) -> None:
        self._coding, self._facts, self._marked = coding, facts, marked

    async def coded(self, changes: Sequence[Change]) -> list[Change]:
        return [await self._change(change) for change in changes]

    async def _change(self, change: Change) -> Change:
        coding, run_id, start = self._coding, change.run_id, change.start
        if start is not None:
            self._facts.note_new(start)
            start = self._owned(start)
        return Change(
            run_id,
            change.epoch,
            change.head,
            [coding.entry(run_id, entry) for entry in change.entries],
            start,
            change.consumed,
            tuple(coding.attempt(run_id, attempt) for attempt in change.attempts) if change.attempts else (),
            None if change.move is None else await self._move(run_id, change.move),
            None if change.effects is None else await self._effects(run_id, change.effects),
        )

    def _owned(self, start: NewRun) -> NewRun:
        """A run that begins at once has no start message."""
        return self._coding.new_run(start if start.start == "{}" else replace(start, start="{}"))

    async def _move(self, run_id: RunId, move: Move) -> Move:
        outcome = move.outcome
        if outcome and outcome != _COUNTS:
            parent = (await self._facts.of(run_id)).parent
            outcome = "" if parent is None else self._coding.outcome(run_id, parent, outcome)
        fingerprint = f"{move.fingerprint}{self._marked}" if move.fingerprint else ""
        reason = self._coding.reason(run_id, move)
        return Move(move.state, move.wake_at, reason, fingerprint, outcome, move.children)

    async def _effects(self, run_id: RunId, effects: Effects) -> Effects:
        coding, successor, letter = self._coding, effects.successor, effects.letter
        answers = any(output.kind is OutputKind.ANSWER for output in effects.outputs)
        chain_id = (await self._facts.of(run_id)).chain_id if answers else None
        return Effects(
            outputs=[coding.output(run_id, chain_id, output) for output in effects.outputs],
            children=[coding.new_run(child) for child in effects.children],
            sends=[replace(send, message=coding.message(send.id, send.message)) for send in effects.sends],
            successor=None
            if successor is None
            else replace(successor, start=coding.start_of(successor.run_id, successor.start)),
            letter=None if letter is None else coding.letter(run_id, letter),
        )
