"""A close that was refused: the run goes back to its last durable entry, reads what it was sent, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batuta.engine.activities.call import Effect, Turn
from batuta.engine.run.effects import effects_of, put_output
from batuta.engine.run.inputs import Input
from batuta.ids import RunId
from batuta.journal.entries import Command, decode_body
from batuta.journal.paging import last_of_page
from batuta.journal.records import Attempt, Change, Message, OutputKind


class RefusedClose:
    """The turns of a run after its last durable entry, up to the refused close: repeated after it has read everything.

    With `then` it is not done again: that is called instead.
    """

    def __init__(self, change: Change, effects: Sequence[Effect], then: Callable[[], None] | None = None) -> None:
        self.inputs: list[Input] = [] if then is not None else [(one.kind, decode_body(one)) for one in change.entries]
        self.times = [entry.at for entry in change.entries]
        taken = {decode_body(entry).message_id for entry in change.entries}
        self._rejected = [one for one in change.consumed if one not in taken]
        self._change = change
        self._effects: list[Effect] = [effect for effect in effects if not isinstance(effect, Command)]
        self.then = then or (lambda: None)
        self.pending: set[int] = set()
        """Activities that were pending at the last durable entry."""
        self.attempts: Sequence[Attempt] = ()
        """Theirs."""
        self.after = 0
        """Messages up to this number were read: see Store.unread."""
        self.drops = True
        """Whether the values of signals may be dropped from memory when they are durable."""

    @classmethod
    def with_all_values(cls, run_id: RunId, epoch: int, last: Input) -> RefusedClose:
        """The code asked for signals that are not in memory any more: only this input is to be done again."""
        again = cls(Change(run_id, epoch, -1), ())
        again.inputs, again.times, again.drops = [last], [0], False
        return again

    def begin(self, pending: set[int], attempts: Sequence[Attempt]) -> None:
        """The run is at its last durable entry, where these activities are pending."""
        self.pending, self.attempts = pending, attempts

    def wait_with(self, last: Input) -> None:
        """All but this input was done again; it comes when the rest of the messages was read."""
        self.inputs, self._rejected, self._effects = [last], [], []
        self._change.attempts = ()

    def next_page(self, messages: Sequence[Message]) -> None:
        """These were read, and there are more."""
        self.after = max(self.after, last_of_page(messages))

    def add(self, more: Turn | None) -> None:
        """Other effects of that change, beside inputs."""
        if more is not None:
            change, effects = more
            self._change.attempts += change.attempts
            self._rejected += change.consumed
            self._effects += [effect for effect in effects if not isinstance(effect, Command)]
            if change.effects is not None:
                effects_of(self._change).outputs += change.effects.outputs

    @property
    def has_more(self) -> bool:
        """Whether there is anything in the refused change beside its entries."""
        return bool(self._change.attempts or self._rejected)

    def add_to(self, change: Change) -> list[Effect]:
        """Have it written with this change: attempts, and the answers to rejected updates. Returns what acts then."""
        change.attempts += self._change.attempts
        change.consumed += tuple(self._rejected)
        if self._rejected and self._change.effects is not None:
            for output in self._change.effects.outputs:
                if output.kind is OutputKind.ANSWER and output.name in self._rejected:
                    put_output(effects_of(change), output)
        return self._effects
