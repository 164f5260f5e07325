"""Subscriptions: each message of a topic becomes a job, a new run or a signal."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, get_origin

from msgspec import Struct

from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.client.messages import Message
from batuta.authoring.definitions import Activity, ExecutionMode, Workflow
from batuta.authoring.jobs import Job
from batuta.authoring.workflow.messages import Signal
from batuta.errors import InvalidInput
from batuta.journal.bus.messages import DELIVERY
from batuta.names import LONGEST_ID, check_name, joined, shortened
from batuta.serde import type_hints

Receiver = Callable[[Message[Any]], str]
"""The id of the run that gets a message as a signal."""
LONGEST_NAME = 150


class Client(Protocol):
    """The part of the client that a delivery uses."""

    @property
    def start(self) -> Any: ...
    @property
    def get(self) -> Any: ...


class Subscription(Struct, frozen=True, kw_only=True):
    """A durable subscription: it keeps its place while no worker has it. Made by `subscribe`."""

    topic: str
    name: str
    handler: Any
    """A Job, a Workflow or a Signal."""
    to: Receiver | None = None
    ordered: bool = True
    from_start: bool = False
    options: ActivityOptions

    @property
    def job_name(self) -> str:
        return DELIVERY + self.name

    def job(self, client: Client) -> Job[..., Any]:
        """The job that each delivery is a run of."""
        handler = self.handler
        if isinstance(handler, Job):
            return Job(
                handler.fn,
                self.job_name,
                self.options,
                process=handler.execution_mode is ExecutionMode.PROCESS,
                limit=handler.limit,
                transactional=handler.execution_mode is ExecutionMode.STORE,
                raises=handler.raises,
                result=handler.keeps_result,
                priority=handler.priority,
            )
        if isinstance(handler, Workflow):
            return Job(_starting(self.name, handler, client), self.job_name, self.options)
        return Job(_sending(handler, self.to or _by_key, client), self.job_name, self.options)


def subscribe(
    topic: str,
    handler: Any,
    *,
    name: str | None = None,
    to: Receiver | None = None,
    ordered: bool = True,
    from_start: bool = False,
    **options: Any,
) -> Subscription:
    """Have each message of a topic handled: `client.worker(subscriptions=[subscribe("orders", book)])`.

    `handler`: a job (or an async function), executed with the message; a workflow, started with it under the id
    `<name>:<message id>`; or a signal, sent with it to the run whose id `to(message)` gives, without `to` the one that
    is the message's key. `name`: of the subscription, unique in the namespace; without it the handler's. Workers with a
    subscription of one name share its messages.

    Messages of one key are delivered one after the other, in order: the next one begins when the run of the one before
    has ended, well or as a dead letter. `ordered=False`: they do not wait. A new subscription gets what is published
    from then on; with `from_start` all that is kept. `options` are those of ActivityOptions, instead of the job's own.
    """
    if not isinstance(handler, Job | Workflow | Signal):
        if not callable(handler) or isinstance(handler, Activity):
            raise InvalidInput(f"{handler!r} cannot get messages: give a job, a function, a workflow or a signal")
        handler = Job(handler, None, ActivityOptions())
    if to is not None and not isinstance(handler, Signal):
        raise InvalidInput(f"to= is for signals: {handler!r} gets each message itself")
    own = handler.options if isinstance(handler, Job) else ActivityOptions()
    called = check_name(handler.name if name is None else name, "name of a subscription")
    if len(called) > LONGEST_NAME:
        raise InvalidInput(f"the name of subscription {called!r} must have at most {LONGEST_NAME} characters")
    _check_is_message(handler.type if isinstance(handler, Signal) else _kind_of_argument(handler), handler)
    return Subscription(
        topic=check_name(topic, "topic"),
        name=called,
        handler=handler,
        to=to,
        ordered=ordered,
        from_start=from_start,
        options=own.merged(options),
    )


def _kind_of_argument(handler: Job[..., Any] | Workflow[..., Any]) -> Any:
    signature = inspect.signature(handler.fn)
    try:
        signature.bind(None)
    except TypeError as error:
        raise InvalidInput(f"{handler!r} must take one argument, the message: {error}") from None
    return type_hints(handler.fn, repr(handler)).get(next(iter(signature.parameters)))


def _check_is_message(kind: Any, handler: object) -> None:
    """Another class could be filled with fields of the message, such as its id, in place of those of the payload."""
    whole = get_origin(kind) or kind
    if whole is not Any and not (isinstance(whole, type) and issubclass(whole, Message)):
        raise InvalidInput(
            f"{handler!r} gets the whole message, and is declared for {kind!r}: declare it for Message[...], whose "
            f"`payload` has what was published"
        )


def _starting(name: str, workflow: Workflow[..., Any], client: Client) -> Callable[..., Awaitable[str]]:
    async def start(message: Message[Any]) -> str:
        id = shortened(joined(name, message.id), LONGEST_ID)
        await client.start(workflow, message, id=id, key=message.key or None)
        return id

    start.__annotations__["message"] = _kind_of_argument(workflow)
    return start


def _sending(signal: Signal[Any], to: Receiver, client: Client) -> Callable[..., Awaitable[str]]:
    async def send(message: Message[Any]) -> str:
        id = to(message)
        handle = await client.get(id)
        await handle.signal(signal, message, message_id=message.id)
        return id

    return send


def _by_key(message: Message[Any]) -> str:
    if not message.key:
        raise InvalidInput(
            f"message {message.id!r} of topic {message.topic!r} has no key: give to= to say which run gets it"
        )
    return message.key
