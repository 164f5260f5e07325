"""The inputs of a run that wait for their turn, and the messages that it was given.

The answer of a transactional activity is written in the activity's own transaction, not by the committer. So its entry
must be the next one: all entries before it are durable, and no other input of the run is delivered until it is durable,
too, or is taken back. Until then it is `transactional`, and the inputs after it wait.
"""

from __future__ import annotations

from contextlib import suppress

from batuta.engine.activities.call import TransactionalInput
from batuta.engine.run.inputs import Input
from batuta.journal.entries import Body, EntryKind
from batuta.journal.kinds import ACTIVITY_ANSWERS
from batuta.journal.records import Message

_ANY_NUMBER = 2**63
_DONE = EntryKind.ACTIVITY_DONE
_STOP: Input = (_DONE, Body())
"""Stands before the inputs that wait for the transactional one."""


class Inbox:
    """The inbox of one run."""

    __slots__ = ("_held", "_seen", "backlog", "transactional")

    def __init__(self) -> None:
        self.backlog: list[Input] = []  # no deque: an empty one has 600 bytes, a tenth of a run
        self._seen: dict[str, int] = {}
        self._held: dict[int, TransactionalInput] | None = None
        self.transactional: TransactionalInput | None = None
        """The next input, if its transaction writes it: everything else of the run waits for it."""

    # -- messages

    def is_new(self, message: Message) -> bool:
        """Whether the run was not given this message before. An update that was rejected can come again under its id,
        with a higher number."""
        return self._seen.get(message.message_id, -1) < message.number

    def see(self, message: Message) -> None:
        """The run is given the message. A message handed over in this process has no number yet."""
        self._seen[message.message_id] = message.number or _ANY_NUMBER

    def has_seen(self, message_id: str) -> bool:
        return message_id in self._seen

    def unsee(self, message_id: str) -> None:
        """The message is unread again: it is read with the others, in its order."""
        self._seen.pop(message_id, None)

    def unsee_backlog(self) -> None:
        """Messages that waited for their turn are unread: they are read with the others, in their order."""
        for _, body in self.backlog:
            self._seen.pop(body.message_id, None)
        self.backlog = [one for one in self.backlog if not one[1].message_id]

    def answered(self) -> set[int]:
        """The calls whose answers wait for their turn."""
        return {body.seq for kind, body in self.backlog if kind in ACTIVITY_ANSWERS}

    # -- answers that are written in transactions of their own

    def hold(self, answer: TransactionalInput) -> None:
        """Have the answer wait for its place among the run's inputs."""
        if self._held is None:
            self._held = {}
        self._held[answer.call.seq] = answer
        self.backlog.append((_DONE, answer.body))

    def held(self, body: Body) -> TransactionalInput | None:
        """The answer that this input is, if it is one."""
        answer = None if self._held is None else self._held.get(body.seq)
        return answer if answer is not None and answer.body is body else None

    def shut(self, answer: TransactionalInput) -> None:
        """It is the next input now."""
        self.transactional = answer
        if self._held is not None:
            del self._held[answer.body.seq]
        self.backlog[0] = _STOP

    def lift(self) -> None:
        if _STOP in self.backlog:
            self.backlog.remove(_STOP)

    def stop(self) -> None:
        """The turn of the transactional input has run, and is not durable: nothing else may come."""
        self.backlog.insert(0, _STOP)

    def open(self) -> bool:
        """The transactional input is durable, or taken back. Whether there was one."""
        there, self.transactional = self.transactional is not None, None
        self.lift()
        return there

    def remove(self, answer: TransactionalInput) -> bool:
        """The answer is no input any more. Whether it was the transactional one that the others wait for."""
        if self._held is not None and self._held.get(answer.call.seq) is answer:
            del self._held[answer.call.seq]
            with suppress(ValueError):
                self.backlog.remove((_DONE, answer.body))
        return self.transactional is answer and self.open()
