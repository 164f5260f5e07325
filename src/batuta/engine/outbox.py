"""What a transactional activity sends out: part of the change that its answer makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batuta.authoring.backend import Letter, StartRequest
from batuta.authoring.enqueueing import JobRequest
from batuta.authoring.transactions import Outgoing
from batuta.engine.enqueueing import job_run
from batuta.engine.headers import traced
from batuta.engine.identity import RunIdentity
from batuta.engine.starts import unowned_run
from batuta.engine.talking import as_message
from batuta.errors import AlreadyStarted, RunClosed, UnknownRun
from batuta.journal.records import Change, Effects, IfExists, MessageKind, NewRun, Refusal, Send

_GIVES = (IfExists.RETURN, IfExists.RENEW)
NOT_OF_THE_RUN = 0
"""The `seq` of what no command of a workflow has sent."""

_BY_ITSELF = "by the result of the very activity that sends it the signal, which nobody would read any more"


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
        if isinstance(one, JobRequest):
            self._runs.append(job_run(one, now))
        elif isinstance(one, StartRequest):
            self._add_start(one)
        else:
            self._add_signal(*one)

    def _add_start(self, request: StartRequest) -> None:
        run = unowned_run(request)
        self._runs.append(run)
        if request.signal is not None:
            self._add_signal(run.id, request.signal)

    def _add_signal(self, id: str, letter: Letter) -> None:
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
        asked = [run for run in self._runs if run.id == refusal.id]
        if any(run.if_exists not in _GIVES for run in asked):
            raise AlreadyStarted(refusal.id, refusal.state)


def of_the_run(refusals: Sequence[Refusal]) -> list[Refusal]:
    """Those that the workflow's code must hear of."""
    return [refusal for refusal in refusals if refusal.seq != NOT_OF_THE_RUN]
