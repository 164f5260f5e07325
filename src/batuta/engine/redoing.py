"""A close that was refused: the run goes back to its last durable entry, reads what it was sent, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from batuta.engine.effects import put_output
from batuta.engine.held import reopen
from batuta.engine.outside import answered_early
from batuta.engine.reading import MESSAGES, Input, accepts, readable_input
from batuta.engine.relations import send_again
from batuta.engine.waiting import pick_up
from batuta.journal.entries import Command, EntryKind, decode_body
from batuta.journal.records import Attempt, Change, Effects, Message, MessageKind, OutputKind

if TYPE_CHECKING:
    from batuta.engine.live import Effect, LiveRun

_ANSWERS = (EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED)


class Redo:
    """What a run did between what is durable and the close that was refused, to be done again after all was read.

    With `then` it is not done again: that is called instead.
    """

    def __init__(self, change: Change, effects: Sequence[Effect], then: Callable[[], None] | None = None) -> None:
        self.inputs: list[Input] = [(entry.kind, decode_body(entry)) for entry in change.entries]
        self.times = [entry.at for entry in change.entries]
        taken = {body.message_id for _, body in self.inputs}
        self._rejected = [one for one in change.consumed if one not in taken]
        self._change = change
        self._effects = [effect for effect in effects if not isinstance(effect, Command)]
        self.then = then or _nothing
        if then is not None:
            self.inputs.clear()

    def add(self, more: tuple[Change, list[Effect]] | None) -> None:
        """What else came to be written meanwhile, beside inputs."""
        if more is not None:
            change, effects = more
            self._change.attempts += change.attempts
            self._rejected += change.consumed
            self._effects += [effect for effect in effects if not isinstance(effect, Command)]
            if change.effects is not None:
                self._change.effects = self._change.effects or Effects()
                self._change.effects.outputs += change.effects.outputs

    def restore(self, run: LiveRun) -> None:
        """What stands in the refused change beside its entries: attempts, and the answers to rejected updates."""
        if not (self._change.attempts or self._rejected):
            return
        change = run.open_change()
        change.attempts += self._change.attempts
        change.consumed += tuple(self._rejected)
        run.effects += self._effects
        if self._rejected and self._change.effects is not None:
            change.effects = change.effects or Effects()
            for output in self._change.effects.outputs:
                if output.kind is OutputKind.ANSWER and output.name in self._rejected:
                    put_output(change.effects, output)


def _nothing() -> None: ...


def _redo(run: LiveRun, again: Redo, messages: Sequence[Message]) -> None:
    """The run is at its last durable entry: give it the same inputs, with the unread messages before the last one.

    They are put before the code together, and it runs when the last is there: so it cannot end before it could see
    them, in whatever order it takes them.
    """
    again.restore(run)
    if not again.inputs:
        return
    for (kind, body), at in zip(again.inputs[:-1], again.times, strict=False):
        run.run_turn(kind, body, at)
    tail = _tail(run, again.inputs[-1], messages)
    accepted = [one for one in tail if one[0] is not EntryKind.UPDATE or accepts(run, run.machine, one[1])]
    for kind, body in accepted:
        if run.leaving:
            return  # a turn failed, or a validator acted: it is parked where it was
        body.quiet = body is not accepted[-1][1]
        run.run_turn(kind, body)


def _tail(run: LiveRun, last: Input, messages: Sequence[Message]) -> list[Input]:
    """The unread messages and the input that ended the run, in their order; what is not a message comes last."""
    kind, body = last
    readable = [one for one in messages if one.kind in (MessageKind.SIGNAL, MessageKind.UPDATE)]
    unread = [one for one in readable if one.message_id not in run.seen or one.message_id == body.message_id]
    run.seen.update(one.message_id for one in unread)
    inputs = [readable_input(one) for one in sorted(unread, key=lambda one: one.number)]
    if kind in MESSAGES:
        return inputs
    return [last, *inputs] if kind is EntryKind.STARTED else [*inputs, last]


def do_again(run: LiveRun, again: Redo, attempts: Sequence[Attempt], messages: Sequence[Message]) -> None:
    """The run is replayed to its last durable entry: what came after it comes again, and what is unread with it."""
    run.reading = True
    again.add(reopen(run))
    # Messages that waited for their turn are unread: they are read with the others, in their order.
    run.seen.difference_update(body.message_id for _, body in run.backlog)
    run.backlog = [one for one in run.backlog if not one[1].message_id]
    send_again(run)
    try:
        pending = set(run.machine.activities)
        _redo(run, again, messages)
        answered = {body.seq for kind, body in run.backlog if kind in _ANSWERS}
        pick_up(run, pending, attempts, answered | answered_early(run, messages, attempts))
        run.receive(messages)
    finally:
        run.reading = False
    again.then()
    run.go_on_soon()  # for what is hinted at now that nothing waits for its turn
