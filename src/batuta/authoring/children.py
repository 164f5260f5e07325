"""Runs that a workflow starts, and messages that it sends to others."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Generic, NoReturn, Protocol, TypeVar, overload

from msgspec import Raw, Struct

from batuta.authoring.context import kinship
from batuta.authoring.definitions import Workflow
from batuta.authoring.letters import name_of
from batuta.authoring.messages import Signal
from batuta.authoring.names import check_reason
from batuta.authoring.retry import Retry
from batuta.authoring.starting import LARGEST_MEMO, check_id, check_start_options
from batuta.errors import InvalidInput
from batuta.journal.records import ParentPolicy
from batuta.serde import Decoder, decoder_for, encode

R = TypeVar("R")


class ChildOptions(Struct, frozen=True, kw_only=True):
    """How a child is started. Times are seconds; None is no limit."""

    id: str | None = None
    queue: str | None = None
    """None: the parent's."""
    policy: ParentPolicy = ParentPolicy.CANCEL
    """What becomes of it when its parent closes."""
    timeout: float | None = None
    execution_timeout: float | None = None
    retry: Retry | None = None
    tags: Mapping[str, str] = {}
    memo: Any = None
    priority: int = 0
    delay: float = 0.0
    version: str | None = None
    """None: the definition's."""
    key: str = ""
    """What its queue's limits per key count by, and what the queue is fair between."""
    expires: float | None = None
    """It times out when nobody has begun it by then."""


class ChildRun(Protocol):
    """A child that the store has accepted, as the backend keeps it."""

    id: str

    def result(self) -> Coroutine[Any, Any, Any]: ...
    def cancel(self, reason: str) -> None: ...


class Kinship(Protocol):
    """What a run does with other runs. Given by the backend."""

    def run_child(
        self, workflow: Any, args: tuple[Any, ...], options: ChildOptions, result: Any
    ) -> Coroutine[Any, Any, Any]: ...
    def start_child(
        self, workflow: Any, args: tuple[Any, ...], options: ChildOptions, result: Any
    ) -> Coroutine[Any, Any, ChildRun]: ...
    def send(self, id: str, name: str, value: Any, decoder: Decoder | None) -> Coroutine[Any, Any, None]: ...
    def continue_as_new(self, args: tuple[Any, ...], version: str | None) -> NoReturn: ...
    def at_safe_point(self, args: tuple[Any, ...]) -> bool: ...


class Child(Generic[R]):
    """A child that was started: it runs by itself until its result is asked for."""

    def __init__(self, run: ChildRun) -> None:
        self._run = run

    @property
    def id(self) -> str:
        return self._run.id

    async def result(self) -> R:
        """Wait for its result. Raises what `Handle.result` raises. Cancelling this wait leaves the child alone."""
        value: R = await self._run.result()
        return value

    async def cancel(self, reason: str = "") -> None:
        """Ask it to end; it may clean up first, and may refuse. Nothing when it has ended, or was asked before."""
        self._run.cancel(check_reason(reason))

    async def signal(self, signal: Any, value: Any = None) -> None:
        """Send it a signal. Raises RunClosed."""
        await send(self.id, signal, value)

    def __repr__(self) -> str:
        return f"<child {self.id}>"


@overload
async def run_child(workflow: Workflow[..., R], /, *args: Any, **options: Any) -> R: ...
@overload
async def run_child(workflow: str, /, *args: Any, result: Any = None, **options: Any) -> Any: ...
async def run_child(workflow: Any, /, *args: Any, result: Any = None, **options: Any) -> Any:
    """Start a child and wait for its result. Raises what `Handle.result` raises, and AlreadyStarted.

    Options: id (unique among open runs; one is made from the parent's), queue (the parent's), policy ("cancel",
    "terminate" or "abandon": what becomes of it when the parent closes first), timeout, execution_timeout, retry,
    tags, memo, priority, delay, version, key, expires. Cancelled while it waits, it asks the child to end and raises
    at once. By name: `result` is the type to decode to.
    """
    return await kinship("run_child()").run_child(workflow, args, _options(options), _decoder(workflow, result))


@overload
async def start_child(workflow: Workflow[..., R], /, *args: Any, **options: Any) -> Child[R]: ...
@overload
async def start_child(workflow: str, /, *args: Any, result: Any = None, **options: Any) -> Child[Any]: ...
async def start_child(workflow: Any, /, *args: Any, result: Any = None, **options: Any) -> Child[Any]:
    """Start a child and go on as soon as the store has accepted it. Raises AlreadyStarted. Options: see `run_child`."""
    kin = kinship("start_child()")
    return Child(await kin.start_child(workflow, args, _options(options), _decoder(workflow, result)))


async def send(id: str, signal: Any, value: Any = None) -> None:
    """Send a signal to the open run of that id; it has arrived when this returns, once, in the order of sending.

    The signal is given by its definition or its name. Raises UnknownRun or RunClosed, and InvalidInput when the value
    does not fit the definition.
    """
    decoder = signal.decoder if isinstance(signal, Signal) else None
    await kinship("send()").send(check_id(id), name_of(signal, Signal), value, decoder)


_NO_OPTIONS = ChildOptions()


def _options(given: dict[str, Any]) -> ChildOptions:
    if not given:
        return _NO_OPTIONS
    if unknown := given.keys() - set(ChildOptions.__struct_fields__):
        raise InvalidInput(
            f"unknown options of a child {', '.join(sorted(unknown))}: there are "
            f"{', '.join(ChildOptions.__struct_fields__)} (arguments of the workflow are given by position)"
        )
    check_start_options(given)
    encode(given.get("tags"), "tags", LARGEST_MEMO)
    kept: dict[str, Any] = {"tags": dict(given.get("tags") or {})}  # as they are now, whatever the code does to them
    if given.get("memo") is not None:
        kept["memo"] = Raw(encode(given["memo"], "memo", LARGEST_MEMO))
    if given.get("id") is not None:
        check_id(given["id"])
    try:
        kept["policy"] = ParentPolicy(given.get("policy", ParentPolicy.CANCEL))
    except ValueError:
        raise InvalidInput(f"policy={given['policy']!r} must be one of {', '.join(ParentPolicy)}") from None
    return ChildOptions(**(given | kept))


def _decoder(workflow: Any, result: Any) -> Any:
    if isinstance(workflow, Workflow):
        return workflow.codec.result_decoder
    return decoder_for(Any if result is None else result, f"the result of workflow {workflow!r}")
