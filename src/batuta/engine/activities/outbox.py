"""Messages and runs that a transactional activity sends, as part of the change of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batuta.authoring.activity.transactional import Outgoing
from batuta.authoring.backend import ClientMessage, StartRequest
from batuta.engine.backend.messaging import as_message
from batuta.engine.backend.starts import unowned_run
from batuta.engine.machine.headers import traced
from batuta.engine.machine.identity import RunIdentity
from batuta.errors import AlreadyStarted, RunClosed, UnknownRun, WrongWorkflow
from batuta.journal.records import GIVES, Change, Effects, MessageKind, NewRun, Refusal, Send

NOT_OF_THE_RUN = 0
"""The `seq` of what no command of a workflow has sent."""

_BY_ITSELF = "by the result of the activity that sends it the signal, which it could not read any more"


class Outbox:
    """The jobs, starts and signals of one attempt."""

    def __init__(self, outgoing: Sequence[Outgoing], now: int, run: RunIdentity, headers: Mapping[str, str]) -> None:
        """`headers` are those of the run: what it starts gets them, as its children do."""
        self._run = run
        self._headers = traced(headers)
        self._runs: list[NewRun] = []
        self._sends: list[Send] = []
        for one in outgoing:
            if headers and not isinstance(one, tuple):
                one.headers = {**headers, **one.headers}
            self._add(one, now)

    def _add(self, one: Outgoing, now: int) -> None:
        if isinstance(one, tuple):
            self._add_signal(*one)
            return
        run = unowned_run(one, now)
        self._runs.append(run)
        if isinstance(one, StartRequest) and one.signal is not None:
            self._add_signal(run.id, one.signal)

    def _add_signal(self, id: str, letter: ClientMessage) -> None:
        letter.headers = self._headers
        self._sends.append(Send(seq=NOT_OF_THE_RUN, id=id, message=as_message(MessageKind.SIGNAL, letter)))

    def add_to(self, change: Change) -> None:
        """Have them leave with this change."""
        if self._runs or self._sends:
            change.effects = change.effects or Effects()
            change.effects.children += self._runs
            change.effects.sends += self._sends

    def may_leave(self, refusals: Sequence[Refusal]) -> None:
        """Raises what the first of them was refused for. A run that is there already, and may be, is none."""
        for refusal in refusals:
            if refusal.seq == NOT_OF_THE_RUN:
                self._check(refusal)

    def _check(self, refusal: Refusal) -> None:
        if refusal.error == UnknownRun.__name__:
            raise UnknownRun(refusal.id, self._run.namespace)
        if refusal.error == RunClosed.__name__:
            if refusal.id == self._run.id:
                raise RunClosed(refusal.id, refusal.state, _BY_ITSELF)
            raise RunClosed(refusal.id, refusal.state)
        kind, _, name = refusal.holder.partition(" ")
        for run in self._runs:
            if run.id != refusal.id:
                continue
            if run.if_exists not in GIVES:
                raise AlreadyStarted(refusal.id, refusal.state)
            if (run.kind, run.name) != (kind, name):
                raise WrongWorkflow(run.id, kind, name, run.kind, run.name)


def of_the_run(refusals: Sequence[Refusal]) -> list[Refusal]:
    """The refusals that the workflow's code must hear of."""
    return [refusal for refusal in refusals if refusal.seq != NOT_OF_THE_RUN]
