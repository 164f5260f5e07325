"""What clients say to runs and hear from them: signals, updates, queries and published values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Raw, json

from batuta.authoring.backend import Answer, Letter, RunRef
from batuta.authoring.definitions import Workflow
from batuta.engine.following import last_of_chain
from batuta.engine.identity import RunIdentity
from batuta.engine.machine import Machine
from batuta.engine.rehearsing import in_callbacks
from batuta.engine.replay import Replay
from batuta.engine.waiters import Waiters
from batuta.errors import InvalidInput, OutcomeUnknown, QueryFailed, RunClosed, UnknownQuery
from batuta.ids import RunId
from batuta.journal.coded import refuse_coded
from batuta.journal.entries import Entry
from batuta.journal.failures import Failure
from batuta.journal.headed import with_headers
from batuta.journal.records import Message, MessageKind, Output, Run
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store

_TRIES = 3
"""How often a message is sent whose first sending may or may not have worked: its id makes that harmless."""


def as_message(kind: MessageKind, letter: Letter) -> Message:
    """A letter as it lies in the inbox. Ids that callers choose do not meet those of other kinds, nor of other names:
    whoever numbers orders sends several signals about each."""
    message_id = f"{kind}:{letter.name}:{letter.message_id}"
    body = with_headers(bytes(letter.body).decode(), letter.headers)
    return Message(message_id=message_id, kind=kind, name=letter.name, body=body)


class Messenger:
    """The part of the native backend that talks with runs."""

    def __init__(self, store: Store, waiters: Waiters, code_here: Callable[[str], Workflow[..., Any] | None]) -> None:
        self._store, self._waiters, self._code_here = store, waiters, code_here

    # -- signals and updates

    async def signal(self, ref: RunRef, letter: Letter) -> None:
        await self._send(ref.run_id, as_message(MessageKind.SIGNAL, letter))

    async def _send(self, run_id: RunId, message: Message) -> bool:
        for tried in range(1, _TRIES + 1):
            try:
                return await self._store.send(run_id, message)
            except OutcomeUnknown:
                if tried == _TRIES:
                    raise
        raise AssertionError  # not reached

    async def update(self, ref: RunRef, letter: Letter) -> Answer:
        if ref.chain_id is None:
            ref.chain_id = (await self._store.get_run(ref.run_id)).chain_id
        message = as_message(MessageKind.UPDATE, letter)
        asked, answers = (ref.chain_id, message.message_id), self._waiters.answers
        future = answers.expect(asked)  # before it is sent: the answer may come first
        try:
            if not await self._send(ref.run_id, message):
                answers.look_for(asked)
            return _answer(await self._answered(ref, message, future))
        finally:
            answers.give_up(asked, future)

    async def _answered(self, ref: RunRef, message: Message, answer: asyncio.Future[Output]) -> Output:
        """The answer, or RunClosed when the chain ends without one."""
        run_id = ref.run_id
        while True:
            closing = asyncio.ensure_future(self._waiters.closed(run_id))
            both: set[asyncio.Future[Any]] = {answer, closing}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                closing.cancel()
            if answer.done():
                return answer.result()
            closing.result()
            run = await last_of_chain(self._store, run_id)
            # Only now: an answer can come with the change that closes the run.
            [found] = await self._store.answers([(run.chain_id, message.message_id)])
            if found is not None:
                return found
            if run.state in CLOSED and run.state is not RunState.CONTINUED:
                why = f"it ended before it answered update {message.name!r}"
                raise RunClosed(run.id, str(run.state), why)
            run_id = run.run_id

    # -- what runs show

    async def published(self, ref: RunRef) -> dict[str, Raw]:
        run = await last_of_chain(self._store, ref.run_id)
        outputs = await self._store.outputs(run.run_id)
        for output in outputs:
            refuse_coded(output.value or "", f"what run {run.id!r} has published as {output.name!r}")
        return {output.name: Raw((output.value or "null").encode()) for output in outputs}

    async def query(self, ref: RunRef, name: str, arguments: bytes, workflow: Workflow[..., Any] | None) -> Raw:
        """Rebuild the run from its journal, beside the one that is owned, and ask it."""
        current = await last_of_chain(self._store, ref.run_id)
        tape = await self._store.load(current.run_id)
        code = self._code_for(tape.run, name, workflow)
        if tape.sealed:
            raise QueryFailed(name, tape.run.id, tape.sealed)
        if not tape.entries:
            raise QueryFailed(name, tape.run.id, "the run has not begun")
        try:
            steps = _asking(code, tape.run, tape.entries, name, Raw(arguments), self._store.namespace)
            return await in_callbacks(steps)
        except (UnknownQuery, asyncio.CancelledError):
            raise
        except Exception as error:
            raise QueryFailed(name, tape.run.id, f"{type(error).__name__}: {error}") from error

    def _code_for(self, run: Run, name: str, given: Workflow[..., Any] | None) -> Workflow[..., Any]:
        if given is not None and given.name != run.name:
            raise InvalidInput(f"run {run.id!r} is of workflow {run.name!r}, not of {given.name!r}")
        found = given or self._code_here(run.code or run.name)
        if found is None:
            why = f"its code is not here: get the run with workflow={run.name}, or ask where a worker has it"
            raise QueryFailed(name, run.id, why)
        return found


def _answer(output: Output) -> Answer:
    refuse_coded(output.error or output.value or "", "the answer")
    if output.error is not None:
        return Answer(error=json.decode(output.error, type=Failure))
    return Answer(value=Raw((output.value or "null").encode()))


def _asking(
    workflow: Workflow[..., Any], run: Run, entries: list[Entry], name: str, arguments: Raw, namespace: str
) -> Iterator[Raw | None]:
    """Replays in slices; the last thing given is the answer."""
    machine = Machine(workflow, RunIdentity(run.run_id, run.id, run.queue, namespace, run.chain_id))
    try:
        yield from Replay(machine, entries).slices()
        yield Raw(machine.messages().query(name, arguments))
    finally:
        machine.tear_down()
