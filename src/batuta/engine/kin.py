"""What a run has to do with other runs: the children it waits for and the messages it sends.

Like an activity, a child or message is a command of its turn. What the store is to do for it leaves with the turn, in
one transaction; whether the store took it is an input of a later turn, where the code waits for that word.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import UNSET, Raw, json

from batuta.authoring.chains import ContinueAsNew
from batuta.authoring.children import ChildOptions
from batuta.authoring.definitions import Workflow, check_version, code_of
from batuta.authoring.failures import to_exception, to_failure
from batuta.authoring.starting import LARGEST_MEMO, name_version_input
from batuta.clock import SECOND
from batuta.engine.headers import headers_of
from batuta.engine.loop import Waiter
from batuta.engine.routes import Route, default_id, recorded_to, routed_run
from batuta.engine.rows import expiry
from batuta.errors import AlreadyStarted, BatutaError, InvalidInput, Nondeterministic, RunClosed, UnknownRun
from batuta.ids import RunId, derived_run_id, seed_of
from batuta.journal.entries import Body, Command, CommandKind, StartInfo
from batuta.journal.failures import Failure
from batuta.journal.headed import with_headers
from batuta.journal.records import Effects, IfExists, Message, MessageKind, NewRun, ParentPolicy, Refusal, RunKind, Send
from batuta.serde import Codec, Decoder, decode, encode

if TYPE_CHECKING:
    from batuta.engine.machine import Machine

_ANOTHER_ID = "give the child another id, or none, wait until that run is closed, or send() to it"


class PendingChild:
    """A child that has not answered."""

    __slots__ = ("codec", "data", "decoder", "entry", "future", "id", "issued_at", "name", "options", "seq", "version")

    def __init__(self, seq: int, id: str, name: str, version: str, data: bytes, options: ChildOptions) -> None:
        self.seq, self.id, self.name, self.version, self.data, self.options = seq, id, name, version, data, options
        self.codec: Codec | None = None
        self.decoder: Decoder
        self.future: Waiter
        self.issued_at = self.entry = 0


class AcceptedChild:
    """A child that the store has taken: what `start_child` gives."""

    __slots__ = ("_kin", "_pending", "id")

    def __init__(self, kin: Kin, pending: PendingChild) -> None:
        self._kin, self._pending, self.id = kin, pending, pending.id

    async def result(self) -> Any:
        return await asyncio.shield(self._pending.future)

    def cancel(self, reason: str) -> None:
        self._kin.cancel_child(self._pending, reason)


class Kin:
    """The other runs that one run deals with. Made when its code first asks for one."""

    __slots__ = ("_machine", "asked", "children", "had_children", "has_sent", "routed", "sent", "unsettled")

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.children: dict[int, PendingChild] = {}
        """By the command that started them; those that have not answered."""
        self.routed: dict[int, Route] = {}
        """Activities that other queues execute, and that have not answered."""
        self.asked: dict[int, Waiter] = {}
        """Commands whose issuer waits for the store's word."""
        self.sent: dict[int, Command] = {}
        """The messages among them."""
        self.had_children = self.has_sent = False
        self.unsettled: set[int] = set()
        """Live: commands given to the store, whose word is not here yet. The run must not leave memory before it is."""

    def waits(self) -> bool:
        return bool(self.children or self.asked or self.routed)

    def awaits_word(self) -> bool:
        """Whether the store has yet to say that it took something."""
        return bool(self.asked or self.unsettled)

    def clear(self) -> None:
        """The run leaves memory."""
        self.children.clear()
        self.routed.clear()
        self.asked.clear()
        self.sent.clear()

    # -- what workflow code asks

    async def run_child(self, workflow: Any, args: tuple[Any, ...], options: ChildOptions, decoder: Any) -> Any:
        pending = self._issue(workflow, args, options, decoder)
        try:
            return await pending.future
        except asyncio.CancelledError:
            self.cancel_child(pending, "its parent does not wait for it any more", forget=True)
            raise

    async def start_child(
        self, workflow: Any, args: tuple[Any, ...], options: ChildOptions, decoder: Any
    ) -> AcceptedChild:
        pending = self._issue(workflow, args, options, decoder)
        accepted = self.asked[pending.seq] = asyncio.Future(loop=self._machine.loop)
        try:
            await accepted
        except asyncio.CancelledError:
            self.asked.pop(pending.seq, None)
            self.cancel_child(pending, "its parent does not wait for it any more", forget=True)
            raise
        return AcceptedChild(self, pending)

    def _issue(self, workflow: Any, args: tuple[Any, ...], options: ChildOptions, decoder: Any) -> PendingChild:
        machine = self._machine
        machine.check_alive()
        name, version, data = name_version_input(workflow, args, options.version, machine.limit)
        seq = machine.next_seq()
        id = options.id or recorded_to(machine, CommandKind.CHILD) or default_id(machine, seq)
        machine.commands.append(Command(seq, CommandKind.CHILD, name, Raw(data), to=id))
        machine.beyond = self.had_children = True
        pending = PendingChild(seq, id, name, version, data, options)
        pending.codec = workflow.codec if isinstance(workflow, Workflow) else None
        pending.decoder = decoder
        pending.issued_at, pending.entry = machine.at, machine.entries
        pending.future = asyncio.Future(loop=machine.loop)
        self.children[seq] = pending
        return pending

    def cancel_child(self, pending: PendingChild, reason: str, *, forget: bool = False) -> None:
        """Ask a child to end, if it has not yet. `forget`: nobody wants its answer, and one to be abandoned goes on."""
        machine = self._machine
        if machine.gone or pending.seq not in self.children:
            return
        if forget:
            del self.children[pending.seq]
            if pending.options.policy is ParentPolicy.ABANDON:
                return
        seq = machine.next_seq()
        value = Raw(json.encode(reason))
        machine.commands.append(
            Command(seq, CommandKind.CANCEL, pending.name, value, target=pending.seq, to=pending.id)
        )
        machine.beyond = True

    async def send(self, id: str, name: str, value: Any, decoder: Decoder | None) -> None:
        machine, what = self._machine, f"the value of signal {name!r}"
        machine.check_alive()
        data = encode(value, what, machine.limit)
        if decoder is not None:
            decode(data, decoder, what)
        seq = machine.next_seq()
        command = self.sent[seq] = Command(seq, CommandKind.SEND, name, Raw(data), to=id)
        machine.commands.append(command)
        machine.beyond = self.has_sent = True
        accepted = self.asked[seq] = asyncio.Future(loop=machine.loop)
        try:
            await accepted
        finally:
            self.asked.pop(seq, None)
            self.sent.pop(seq, None)

    def continue_as_new(self, args: tuple[Any, ...], version: str | None) -> NoReturn:
        machine = self._machine
        machine.check_alive()
        if asyncio.current_task() is not machine.main:
            raise InvalidInput(
                "continue_as_new() was called in a task: call it in the workflow's own coroutine, its tasks being done"
            )
        following = machine.start.version if version is None else check_version(version)
        if following != machine.start.version:  # its parameters are its own: who has that version checks them
            raise ContinueAsNew(encode(args, f"the input of version {following!r}", machine.limit), following)
        codec = machine.workflow.codec
        data = codec.encode_args(args, {}, machine.limit)
        codec.decode_args(data)
        raise ContinueAsNew(data, following)

    def at_safe_point(self, args: tuple[Any, ...]) -> bool:
        """Whether to continue as new here; kept on the tape. In replay, what was done when this turn was live."""
        machine = self._machine
        machine.check_alive()
        busy = machine.mailbox is not None and machine.mailbox.is_handling()
        if busy or machine.activities or self.waits() or machine.next_timer() is not None:
            return False
        if machine.recorded is None:
            goes_on = machine.continue_hint()
        else:
            place = len(machine.commands)
            found = machine.recorded[place] if place < len(machine.recorded) else None
            if found is not None and found.kind is CommandKind.CONTINUE:
                # Of a journal older than the mark, or its code continued right here, with the same arguments.
                return self._is_input(found, args)
            goes_on = found is not None and found.kind is CommandKind.SAFE_POINT
        if goes_on:
            machine.commands.append(Command(machine.next_seq(), CommandKind.SAFE_POINT))
        return goes_on

    def _is_input(self, command: Command, args: tuple[Any, ...]) -> bool:
        machine = self._machine
        try:
            return command.value == Raw(machine.workflow.codec.encode_args(args, {}, machine.limit))
        except (TypeError, InvalidInput):
            return False

    # -- inputs

    def is_awaited(self, body: Body) -> bool:
        """Whether any code waits for this answer."""
        return body.seq in self.children or body.seq in self.asked

    def child_done(self, body: Body) -> None:
        pending = self._pending(body)
        what = f"the result of workflow {pending.name!r}"
        value = decode(body.value if body.value is not UNSET else Raw(b"null"), pending.decoder, what)
        del self.children[body.seq]
        if not pending.future.done():
            pending.future.set_result(value)

    def child_failed(self, body: Body) -> None:
        pending = self._pending(body)
        if body.error is UNSET:
            raise Nondeterministic(f"entry {self._machine.entries - 1}", "an error", "an entry without one")
        del self.children[body.seq]
        _fail(pending.future, body.error)

    def _pending(self, body: Body) -> PendingChild:
        pending = self.children.get(body.seq)
        if pending is None:
            raise _no_such(self._machine, body, "the end of a child")
        return pending

    def accepted(self, body: Body) -> None:
        future = self.asked.pop(body.seq, None)
        if future is None:
            raise _no_such(self._machine, body, "the store's word")
        if not future.done():
            future.set_result(None)

    def refused(self, body: Body) -> None:
        asked, pending = self.asked.pop(body.seq, None), self.children.pop(body.seq, None)
        if (asked is None and pending is None) or body.error is UNSET:
            raise _no_such(self._machine, body, "the store's word")
        if asked is not None:
            _fail(asked, body.error)
        elif pending is not None:
            _fail(pending.future, body.error)

    # -- what the store is to do

    def child_run(self, pending: PendingChild) -> NewRun:
        """The child, as the store is to insert it. The same every time it is asked for."""
        machine, options = self._machine, pending.options
        run_id = derived_run_id(pending.issued_at, machine.mark(pending.seq), pending.seq)
        new = NewRun(
            run_id=run_id,
            id=pending.id,
            name=pending.name,
            kind=RunKind.WORKFLOW,
            queue=options.queue or machine.identity.queue,
            priority=options.priority,
            delay=round(options.delay * SECOND),
            timeout=round((options.timeout or 0) * SECOND),
            execution_timeout=round((options.execution_timeout or 0) * SECOND),
            version=pending.version,
            tags=encode(dict(options.tags), "tags", LARGEST_MEMO).decode() if options.tags else "{}",
            memo=encode(options.memo, "memo", LARGEST_MEMO).decode() if options.memo is not None else "null",
            parent_run_id=machine.identity.run_id,
            parent_seq=pending.seq,
            parent_policy=options.policy,
            code=code_of(pending.name, pending.version),
            flow_key=options.key,
            if_exists=IfExists.RESTART,
        )
        new.expires = expiry(options.expires, new.delay)
        retry = Raw(json.encode(options.retry)) if options.retry else UNSET
        new.start = start_body(new, pending.data, retry, self._machine.start)
        return new

    def signal(self, command: Command, *, again: bool = False) -> Send:
        body = bytes(command.value).decode() if command.value is not UNSET else "null"
        start = self._machine.start
        body = with_headers(body, headers_of(start) if start.trace else None)
        send = self._message(command, MessageKind.SIGNAL, command.name, body)
        send.again = again
        return send

    def child_cancel(self, command: Command) -> Send:
        reason = json.decode(command.value, type=str) if command.value is not UNSET else ""
        return self._message(
            command, MessageKind.CANCEL, reason, parent_mark(self._machine.identity.run_id, command.target)
        )

    def _message(self, command: Command, kind: MessageKind, name: str, body: str) -> Send:
        message_id = f"{self._machine.mark(command.seq)}:{command.seq}"
        message = Message(message_id=message_id, kind=kind, name=name, body=body)
        return Send(seq=command.seq, id=command.to, message=message)

    def unanswered(self, recent: int) -> Effects | None:
        """What may not have reached the store's word: to be sent again by whoever brings the run back into memory.

        `recent`: how many entries the word of a refusal can come after the command; what is older was taken.
        """
        oldest = self._machine.entries - recent
        children = [one for one in self.children.values() if one.entry >= oldest or one.seq in self.asked]
        routed = [one for one in self.routed.values() if one.entry >= oldest]
        if not children and not routed and not self.sent:
            return None
        self.unsettled.update([one.seq for one in children] + [one.seq for one in routed])
        self.unsettled.update(self.sent)
        return Effects(
            children=[self.child_run(one) for one in children] + [routed_run(self._machine, one) for one in routed],
            sends=[self.signal(command, again=True) for command in self.sent.values()],
        )


def parent_mark(run_id: RunId, seq: int) -> str:
    """Names a child by its parent's command: what is meant for it must not reach another run that has its id."""
    return json.encode([str(run_id), seq]).decode()


def start_body(new: NewRun, data: bytes, retry: Any, parent: StartInfo) -> str:
    """The start message's body of a child."""
    start = StartInfo(
        new.name,
        seed_of(new.run_id),
        str(new.run_id),
        version=new.version,
        timeout=new.timeout,
        execution_timeout=new.execution_timeout,
        retry=retry,
        trace=parent.trace,
        headers=parent.headers,
    )
    return json.encode(Body(value=Raw(data), start=start)).decode()


def refusal_failure(refusal: Refusal, namespace: str) -> Failure:
    """A refusal as the error that the code is raised."""
    error: BatutaError
    match refusal.error:
        case "AlreadyStarted":
            error = AlreadyStarted(refusal.id, refusal.state or "open", _ANOTHER_ID)
        case "UnknownRun":
            error = UnknownRun(refusal.id, namespace)
        case _:
            error = RunClosed(refusal.id, refusal.state or "closed")
    return to_failure(error)


def _fail(future: Waiter, failure: Failure) -> None:
    if not future.done():
        future.set_exception(to_exception(failure))
        future.exception()  # nobody need ask for it


def _no_such(machine: Machine, body: Body, what: str) -> Nondeterministic:
    return Nondeterministic(
        f"entry {machine.entries - 1}", f"{what} about command {body.seq}", "no such command waits for it"
    )
