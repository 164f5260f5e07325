"""A run's children and the messages it sends.

Like an activity, a child or message is a command of its turn. What the store is to do for it leaves with the turn, in
one transaction; whether the store took it is an input of a later turn, where the code waits for that word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Raw, json
from msgspec.structs import replace

from batuta.authoring.client.start import LARGEST_MEMO, check_tag_count, name_version_input
from batuta.authoring.definitions import Workflow, code_of
from batuta.authoring.failures.conversion import to_exception, to_failure
from batuta.authoring.workflow.context import ChildOptions
from batuta.clock import SECOND
from batuta.engine.machine.core import NULL, MachineCore, PendingActivity
from batuta.engine.machine.failed_calls import child_error
from batuta.engine.machine.headers import headers_of
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.loop import Waiter
from batuta.engine.machine.routing import Route, routed_run
from batuta.engine.machine.row_values import expiry
from batuta.errors import AlreadyStarted, BatutaError, Nondeterministic, RunClosed, UnknownRun
from batuta.ids import RunId, derived_run_id, derived_seed, made_traceparent
from batuta.journal.entries import Body, Command, CommandKind, EntryKind, Forked, StartInfo
from batuta.journal.failures import Failure
from batuta.journal.message_headers import with_headers
from batuta.journal.records import (
    Effects,
    IfExists,
    Message,
    MessageKind,
    NewRun,
    ParentPolicy,
    Refusal,
    RunKind,
    Send,
    chosen_message_id,
)
from batuta.names import check_length
from batuta.serde import Codec, Decoder, decode, encode

_ASKED = (CommandKind.CHILD, CommandKind.SEND)
_LONG_AGO = -(2**31)
_ANOTHER_ID = "give the child another id, or none, wait until that run is closed, or send() to it"


class PendingChild:
    """A child that has not answered."""

    __slots__ = ("codec", "data", "decoder", "entry", "future", "id", "issued_at", "name", "options", "seq", "version")

    def __init__(
        self, seq: int, id: str, name: str, version: str, data: bytes, options: ChildOptions, issued_at: int = 0
    ) -> None:
        self.seq, self.id, self.name, self.version, self.data, self.options = seq, id, name, version, data, options
        self.codec: Codec | None = None
        self.decoder: Decoder
        self.future: Waiter
        self.issued_at, self.entry = issued_at, 0


class AcceptedChild:
    """A child that the store has taken: what `start_child` gives."""

    __slots__ = ("_pending", "_related", "id")

    def __init__(self, related: RelatedRuns, pending: PendingChild) -> None:
        self._related, self._pending, self.id = related, pending, pending.id

    async def result(self) -> Any:
        return await asyncio.shield(self._pending.future)

    def cancel(self, reason: str) -> None:
        self._related.cancel_child(self._pending, reason)


class RelatedRuns:
    """The other runs that one run deals with. Made when its code first asks for one."""

    __slots__ = ("_machine", "asked", "children", "had_children", "has_sent", "routed", "sent", "unsettled")

    def __init__(self, machine: MachineCore) -> None:
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
        if machine.start.bounded:
            check_tag_count(options.tags)
        name, version, data = name_version_input(workflow, args, options.version, machine.limit)
        seq = machine.next_seq()
        id = options.id or machine.recorded_to(CommandKind.CHILD) or machine.child_id(seq)
        machine.add_beyond(Command(seq, CommandKind.CHILD, name, Raw(data), to=id))
        self.had_children = True
        pending = PendingChild(seq, id, name, version, data, options)
        pending.codec = workflow.codec if isinstance(workflow, Workflow) else None
        pending.decoder = decoder
        pending.issued_at, pending.entry = machine.at, machine.entries
        pending.future = asyncio.Future(loop=machine.loop)
        self.children[seq] = pending
        return pending

    def cancel_child(self, pending: PendingChild, reason: str, *, forget: bool = False) -> None:
        """Ask a child to end, if it has not yet. `forget`: its answer is not wanted; an abandoned child goes on. Raises
        TooLarge."""
        machine = self._machine
        if machine.start.bounded:
            check_length(reason, "reason")
        if machine.gone or pending.seq not in self.children:
            return
        if forget:
            del self.children[pending.seq]
            if pending.options.policy is ParentPolicy.ABANDON:
                return
        seq = machine.next_seq()
        value = Raw(json.encode(reason))
        machine.add_beyond(Command(seq, CommandKind.CANCEL, pending.name, value, target=pending.seq, to=pending.id))

    async def send(self, id: str, name: str, value: Any, decoder: Decoder | None, message_id: str = "") -> None:
        machine, what = self._machine, f"the value of signal {name!r}"
        machine.check_alive()
        data = encode(value, what, machine.limit)
        if decoder is not None:
            decode(data, decoder, what)
        seq = machine.next_seq()
        command = self.sent[seq] = Command(seq, CommandKind.SEND, name, Raw(data), to=id, message_id=message_id)
        machine.add_beyond(command)
        self.has_sent = True
        accepted = self.asked[seq] = asyncio.Future(loop=machine.loop)
        try:
            await accepted
        finally:
            self.asked.pop(seq, None)
            self.sent.pop(seq, None)

    # -- activities that other queues execute

    async def call_routed(self, pending: PendingActivity, id: str) -> Any:
        """Issue the call and wait for its answer. Cancelled while it waits: asks for the activity's end, too."""
        machine = self._machine
        seq = machine.next_seq()
        machine.add_beyond(Command(seq, CommandKind.ACTIVITY, pending.name, Raw(pending.data), to=id))
        self.had_children = True
        self.routed[seq] = Route(pending, seq, id, machine.entries)
        try:
            return await pending.future
        except asyncio.CancelledError:
            if not machine.gone and self.routed.pop(seq, None) is not None:
                why = Raw(json.encode("its caller does not wait for it any more"))
                machine.add_beyond(
                    Command(machine.next_seq(), CommandKind.CANCEL, pending.name, why, target=seq, to=id)
                )
            raise

    def routed_run_id(self, route: Route) -> RunId:
        return derived_run_id(route.pending.issued_at, self._machine.mark(route.seq), route.seq)

    def _routed_run(self, route: Route) -> NewRun:
        """The run that executes the call, as the store is to insert it. The same every time it is asked for."""
        machine = self._machine
        key = route.pending.key or machine.key(route.seq, route.pending.name)  # the same wherever the call is executed
        return routed_run(route, self.routed_run_id(route), key, machine.identity, machine.start)

    def next_check(self) -> int | None:
        """When to look after an activity that is elsewhere."""
        return min((route.check_at for route in self.routed.values() if route.check_at is not None), default=None)

    def due_checks(self, now: int) -> list[Route]:
        """Routes to look after now. Each is given once."""
        return [route for route in self.routed.values() if route.is_due(now)]

    # -- forks

    def begin_anew(self, entry: int, at: int, fork: Forked) -> None:
        """After a fork: calls that other runs execute begin anew, or their answers are in the inbox."""
        for seq, child in self.children.items():
            child.entry = entry if seq in fork.anew else _LONG_AGO
            if seq in fork.anew:
                child.issued_at = at
            if seq in fork.inputs:
                child.data = bytes(fork.inputs[seq])
        for seq, route in list(self.routed.items()):
            pending = route.pending
            if seq in fork.anew:
                data = bytes(fork.inputs[seq]) if seq in fork.inputs else pending.data
                self.routed[seq] = Route(replace(pending, data=data, issued_at=at), seq, route.id, entry)
            else:
                route.settle(_LONG_AGO)

    # -- inputs

    def is_awaited(self, body: Body) -> bool:
        """Whether any code waits for this answer."""
        return body.seq in self.children or body.seq in self.asked

    def child_done(self, body: Body) -> None:
        pending = self._pending(body)
        what = f"the result of workflow {pending.name!r}"
        value = decode(body.value if body.value is not UNSET else NULL, pending.decoder, what)
        del self.children[body.seq]
        if not pending.future.done():
            pending.future.set_result(value)

    def child_failed(self, body: Body) -> None:
        pending = self._pending(body)
        if body.error is UNSET:
            raise Nondeterministic(f"entry {self._machine.entries - 1}", "an error", "an entry without one")
        del self.children[body.seq]
        _fail(pending.future, child_error(body.error))

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
            _fail(asked, to_exception(body.error, strict=True))
        elif pending is not None:
            _fail(pending.future, to_exception(body.error, strict=True))

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
        new.start = start_body(new, pending.data, retry, machine.start, machine.identity)
        return new

    def add_to(self, effects: Effects, command: Command) -> None:
        """Add to `effects` the run or message that this command of the turn gives to the store."""
        seq, kind = command.seq, command.kind
        if kind is CommandKind.CHILD:
            if (pending := self.children.get(seq)) is None:
                return  # it was cancelled in the turn that started it, and never began
            effects.children.append(self.child_run(pending))
        elif kind is CommandKind.ACTIVITY:
            if (route := self.routed.get(seq)) is None:
                return  # the same
            effects.children.append(self._routed_run(route))
        elif kind is CommandKind.CANCEL:
            effects.sends.append(self._child_cancel(command))
            return
        else:
            effects.sends.append(self._signal(command))
            if seq not in self.asked:
                return
        self.unsettled.add(seq)

    def store_answers(self, commands: Sequence[Command], refusals: Sequence[Refusal]) -> list[tuple[EntryKind, Body]]:
        """Inputs for the code that waits to hear whether the store took what these commands sent; refusals first."""
        namespace = self._machine.identity.namespace
        inputs: list[tuple[EntryKind, Body]] = []
        for refusal in refusals:
            seq = refusal.seq
            self.unsettled.discard(seq)
            if seq in self.asked or seq in self.children:
                inputs.append((EntryKind.REFUSED, Body(seq=seq, error=_refusal_failure(refusal, namespace))))
            elif seq in self.routed:
                name, failure = self.routed[seq].pending.name, _refusal_failure(refusal, namespace)
                inputs.append((EntryKind.ACTIVITY_FAILED, Body(seq, name, error=failure)))
        refused = {refusal.seq for refusal in refusals}
        for command in commands:
            asked = command.kind in _ASKED or (command.kind is CommandKind.ACTIVITY and command.to)
            if asked and command.seq not in refused:
                self.unsettled.discard(command.seq)
                if command.seq in self.asked:
                    inputs.append((EntryKind.ACCEPTED, Body(seq=command.seq)))
        return inputs

    def ended_untold(self) -> list[Command]:
        """After a replay: children that have ended before the run was told that the store took them."""
        untold = self.asked.keys() - self.children.keys() - self.sent.keys()
        return [Command(seq, CommandKind.CHILD) for seq in sorted(untold)]

    def _signal(self, command: Command, *, again: bool = False) -> Send:
        body = bytes(command.value).decode() if command.value is not UNSET else "null"
        start = self._machine.start
        body = with_headers(body, headers_of(start) if start.trace else None)
        send = self._message(command, MessageKind.SIGNAL, command.name, body)
        if command.message_id:
            send.message.message_id = chosen_message_id(MessageKind.SIGNAL, command.name, command.message_id)
        send.again = again
        return send

    def _child_cancel(self, command: Command) -> Send:
        reason = json.decode(command.value, type=str) if command.value is not UNSET else ""
        return self._message(
            command, MessageKind.CANCEL, reason, parent_mark(self._machine.identity.run_id, command.target)
        )

    def _message(self, command: Command, kind: MessageKind, name: str, body: str) -> Send:
        message_id = f"{self._machine.mark(command.seq)}:{command.seq}"
        message = Message(message_id=message_id, kind=kind, name=name, body=body)
        return Send(seq=command.seq, id=command.to, message=message)

    def unanswered(self, recent: int) -> Effects | None:
        """Children and messages that the store may not have answered. The worker that loads the run sends them again.

        `recent`: a refusal comes at most that many entries after its command; older commands were accepted.
        """
        oldest = self._machine.entries - recent
        children = [one for one in self.children.values() if one.entry >= oldest or one.seq in self.asked]
        routed = [one for one in self.routed.values() if one.entry >= oldest]
        if not children and not routed and not self.sent:
            return None
        self.unsettled.update([one.seq for one in children] + [one.seq for one in routed])
        self.unsettled.update(self.sent)
        return Effects(
            children=[self.child_run(one) for one in children] + [self._routed_run(one) for one in routed],
            sends=[self._signal(command, again=True) for command in self.sent.values()],
        )


def parent_mark(run_id: RunId, seq: int) -> str:
    """Names a child by its parent's command: its messages must not reach another run that has its id."""
    return json.encode([str(run_id), seq]).decode()


def start_body(new: NewRun, data: bytes, retry: Any, parent: StartInfo, identity: RunIdentity) -> str:
    """The start message's body of a child."""
    start = StartInfo(
        new.name,
        derived_seed(parent.seed, new.run_id),
        str(new.run_id),
        version=new.version,
        timeout=new.timeout,
        execution_timeout=new.execution_timeout,
        retry=retry,
        trace=parent.trace or made_traceparent(identity.chain_id),
        headers=parent.headers,
        parent=identity.id,
    )
    return json.encode(Body(value=Raw(data), start=start)).decode()


def _refusal_failure(refusal: Refusal, namespace: str) -> Failure:
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


def _fail(future: Waiter, error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # asked for, so that asyncio does not complain


def _no_such(machine: MachineCore, body: Body, what: str) -> Nondeterministic:
    return Nondeterministic(
        f"entry {machine.entries - 1}", f"{what} about command {body.seq}", "no such command waits for it"
    )
