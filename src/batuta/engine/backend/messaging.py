"""Messages between clients and runs: signals, updates, queries and published values."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Raw

from batuta.authoring.backend import Answer, ClientMessage, RunRef
from batuta.authoring.definitions import Workflow
from batuta.engine.backend.batching import until_known
from batuta.engine.backend.caller_transaction import ReadyWrite
from batuta.engine.backend.follow_chain import last_of_chain
from batuta.engine.forks.dry_run import in_callbacks
from batuta.engine.run.query_state import (
    EndsTooSoon,
    QueryState,
    QueryStateUnknown,
    acknowledged,
    has_begun,
    later_pages,
)
from batuta.engine.worker.waiters import Waiters
from batuta.errors import InvalidInput, QueryFailed, RunClosed, UnknownQuery, told
from batuta.ids import RunId
from batuta.journal.codec_envelope import refuse_coded
from batuta.journal.failures import Failure
from batuta.journal.message_headers import with_headers
from batuta.journal.records import Message, MessageKind, Output, Run, StoredRun, chosen_message_id
from batuta.journal.states import CLOSED, PARKED, RunState
from batuta.journal.store import Store
from batuta.serde import decode_stored

_PATIENCE = 10.0
"""Seconds that a query waits for a run to read what cannot be read for it."""
_LOOK_AGAIN = 0.05


def as_message(kind: MessageKind, client_message: ClientMessage) -> Message:
    """A message as the inbox holds it."""
    message_id = chosen_message_id(kind, client_message.name, client_message.message_id)
    body = with_headers(bytes(client_message.body).decode(), client_message.headers)
    return Message(message_id=message_id, kind=kind, name=client_message.name, body=body)


class Messenger:
    """Implements `authoring.backend.MessageService` on a store."""

    def __init__(self, store: Store, waiters: Waiters, code_here: Callable[[str], Workflow[..., Any] | None]) -> None:
        self._store, self._waiters, self._code_here = store, waiters, code_here

    # -- signals and updates

    async def enter_signal(self, transaction: object, ref: RunRef, client_message: ClientMessage) -> ReadyWrite:
        caller = await self._store.enter(transaction, [])
        message = as_message(MessageKind.SIGNAL, client_message)

        async def write() -> list[RunRef]:
            await caller.send(ref.run_id, ref.id, message)
            return []

        return ReadyWrite(caller, write)

    async def signal(self, ref: RunRef, client_message: ClientMessage) -> None:
        await self._send(ref.run_id, as_message(MessageKind.SIGNAL, client_message))

    async def _send(self, run_id: RunId, message: Message) -> bool:
        """Its id makes it harmless to send it again."""
        return await until_known(lambda: self._store.send(run_id, message))

    async def update(self, ref: RunRef, client_message: ClientMessage) -> Answer:
        """Once it is called the request is sent, also for a caller who waits no longer."""
        message, answers = as_message(MessageKind.UPDATE, client_message), self._waiters.answers
        asking = asyncio.ensure_future(self._ask_for(ref, message))
        try:
            asked, future, sent = await asyncio.shield(asking)
        except asyncio.CancelledError:
            answers.give_up(*(await asking)[:2])
            raise
        try:
            if future.done():  # perhaps with the answer of an earlier attempt, which the store has forgotten by now
                future = answers.expect(asked)
                answers.look_for(asked)
            elif not sent:
                answers.look_for(asked)
            return _answer(await self._answered(ref, message, future))
        finally:
            answers.give_up(asked, future)

    async def _ask_for(self, ref: RunRef, message: Message) -> tuple[tuple[RunId, str], asyncio.Future[Output], bool]:
        if ref.chain_id is None:
            ref.chain_id = (await self._store.get_run(ref.run_id)).chain_id
        asked, answers = (ref.chain_id, message.message_id), self._waiters.answers
        future = answers.expect(asked)  # before it is sent: the answer may come first
        try:
            return asked, future, await self._send(ref.run_id, message)
        except BaseException:
            answers.give_up(asked, future)
            raise

    async def _answered(self, ref: RunRef, message: Message, answer: asyncio.Future[Output]) -> Output:
        """The answer, or RunClosed when the chain ends without one."""
        run_id = ref.run_id
        while True:
            closing = asyncio.ensure_future(self._waiters.wait(run_id))
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
        """Rebuild a copy of the run from its journal, let it read the run's unread messages, and ask it.

        If the copy cannot go on, wait for the run.
        """
        gives_up = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            current = await last_of_chain(self._store, ref.run_id)
            stored, messages = await acknowledged(self._store, current.run_id)
            if stored.run.state is RunState.CONTINUED and current.state is not RunState.CONTINUED:
                continue  # just now: its messages are for the next one
            code = self._code_for(stored.run, name, workflow)
            if stored.sealed:
                raise QueryFailed(name, stored.run.id, stored.sealed)
            if not await has_begun(self._store, stored, messages):
                raise QueryFailed(name, stored.run.id, "the run has not begun")
            try:
                try:
                    return await self._ask(code, stored, messages, name, Raw(arguments))
                except EndsTooSoon as end:
                    return await self._ask(code, stored, messages, name, Raw(arguments), end.place)
            except (UnknownQuery, asyncio.CancelledError, KeyboardInterrupt):
                raise
            except QueryStateUnknown as error:
                held = stored.run.state in PARKED or stored.run.state is RunState.PAUSED
                if held or asyncio.get_running_loop().time() > gives_up:
                    why = f"the run has unread messages that a query cannot read ({error})"
                    raise QueryFailed(name, stored.run.id, why) from error
            except BaseException as error:
                raise QueryFailed(name, stored.run.id, told(error)) from error
            await asyncio.sleep(_LOOK_AGAIN)

    async def _ask(
        self,
        code: Workflow[..., Any],
        stored: StoredRun,
        messages: Sequence[Message],
        name: str,
        arguments: Raw,
        together: int | None = None,
    ) -> Raw:
        """`together`: the place of the message that must be read together with those after it."""
        copy, attempts = QueryState(code, stored.run, self._store.namespace), stored.attempts
        try:
            await in_callbacks(copy.replay(stored.entries))
            first = messages if stored.entries else copy.in_reading_order(messages)
            if together is None:
                await in_callbacks(copy.read(first, attempts))
            else:
                await in_callbacks(copy.read_together(first, together, attempts))
            async for page in later_pages(self._store, stored):
                await in_callbacks(copy.read_later(page, attempts))
            return await in_callbacks(copy.ask(name, arguments))
        finally:
            asyncio.get_running_loop().call_soon(copy.machine.tear_down, context=contextvars.Context())

    def _code_for(self, run: Run, name: str, given: Workflow[..., Any] | None) -> Workflow[..., Any]:
        if given is not None and given.name != run.name:
            raise InvalidInput(f"run {run.id!r} is of workflow {run.name!r}, not of {given.name!r}")
        found = given or self._code_here(run.code or run.name)
        if found is None:
            why = f"its code is not in this process: get the run with workflow={run.name}, or ask where a worker has it"
            error = QueryFailed(name, run.id, why)
            error.needs_code = True
            raise error
        return found


def _answer(output: Output) -> Answer:
    refuse_coded(output.error or output.value or "", "the answer")
    if output.error is not None:
        return Answer(error=decode_stored(output.error, "the answer", Failure))
    decode_stored(output.value or "null", "the answer", Raw)
    return Answer(value=Raw((output.value or "null").encode()))
