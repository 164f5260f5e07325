"""Runs that a workflow starts, and messages that it sends to others."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, Literal, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from msgspec import Raw

from batuta.authoring.client.requests import check_message_id, name_of
from batuta.authoring.client.start import LARGEST_MEMO, check_id, check_start_options, options_given
from batuta.authoring.definitions import Workflow
from batuta.authoring.retry import Retry
from batuta.authoring.workflow.context import ChildOptions, ChildRun, noticed, runtime_for
from batuta.authoring.workflow.messages import Signal
from batuta.durations import Duration
from batuta.errors import InvalidInput
from batuta.journal.records import ParentPolicy
from batuta.names import check_choice, check_text
from batuta.serde import decoder_for, encode

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ChildStartOptions(TypedDict, total=False):
    """The options of `run_child` and `start_child`, for type checkers. `run_child` describes them."""

    id: str | None
    queue: str | None
    policy: Literal["cancel", "terminate", "abandon"] | ParentPolicy
    timeout: Duration | None
    execution_timeout: Duration | None
    retry: Retry | None
    tags: Mapping[str, str]
    memo: Any
    priority: int
    delay: Duration
    version: str | None
    key: str
    expires: Duration | None


class Child(Generic[R]):
    """A started child: it runs on its own until its result is awaited."""

    def __init__(self, run: ChildRun) -> None:
        self._run = run

    @property
    def id(self) -> str:
        return self._run.id

    @noticed
    async def result(self) -> R:
        """Wait for its result. Raises what `Handle.result` raises. Cancelling this wait leaves the child alone."""
        value: R = await self._run.result()
        return value

    @noticed
    async def cancel(self, reason: str = "") -> None:
        """Ask it to end; it may clean up first, and may refuse. Nothing when it has ended, or was asked before."""
        self._run.cancel(check_text(reason, "reason"))

    @overload
    async def signal(self, signal: Signal[T], value: T, *, message_id: str | None = None) -> None: ...
    @overload
    async def signal(self, signal: Signal[None], *, message_id: str | None = None) -> None: ...
    @overload
    async def signal(self, signal: str, value: Any = None, *, message_id: str | None = None) -> None: ...
    @noticed
    async def signal(self, signal: Any, value: Any = None, *, message_id: str | None = None) -> None:
        """Send it a signal. Raises RunClosed. `message_id`: as of `send`."""
        await send(self.id, signal, value, message_id=message_id)

    def __repr__(self) -> str:
        return f"<child {self.id}>"


@overload
async def run_child(
    workflow: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, **options: Unpack[ChildStartOptions]
) -> R: ...
@overload
async def run_child(workflow: str, /, *args: Any, result: Any = None, **options: Unpack[ChildStartOptions]) -> Any: ...
@noticed  # type: ignore[misc]  # mypy does not see that *Any takes *Ts
async def run_child(workflow: Any, /, *args: Any, result: Any = None, **options: Any) -> Any:
    """Start a child and wait for its result. Raises what `Handle.result` raises, and AlreadyStarted.

    Options: id (unique among open runs; one is made from the parent's), queue (the parent's), policy ("cancel",
    "terminate" or "abandon": what becomes of it when the parent closes first), timeout, execution_timeout, retry,
    tags, memo, priority, delay, version, key, expires. Cancelled while it waits, it asks the child to end and raises
    at once. By name: `result` is the type to decode to.
    """
    return (
        await runtime_for("run_child()")
        .kinship()
        .run_child(workflow, args, _options(options), _decoder(workflow, result))
    )


@overload
async def start_child(
    workflow: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, **options: Unpack[ChildStartOptions]
) -> Child[R]: ...
@overload
async def start_child(
    workflow: str, /, *args: Any, result: Any = None, **options: Unpack[ChildStartOptions]
) -> Child[Any]: ...
@noticed  # type: ignore[misc]  # mypy does not see that *Any takes *Ts
async def start_child(workflow: Any, /, *args: Any, result: Any = None, **options: Any) -> Child[Any]:
    """Start a child and go on as soon as the store has accepted it. Raises AlreadyStarted. Options: see `run_child`."""
    kin = runtime_for("start_child()").kinship()
    return Child(await kin.start_child(workflow, args, _options(options), _decoder(workflow, result)))


@overload
async def send(id: str, signal: Signal[T], value: T, *, message_id: str | None = None) -> None: ...
@overload
async def send(id: str, signal: Signal[None], *, message_id: str | None = None) -> None: ...
@overload
async def send(id: str, signal: str, value: Any = None, *, message_id: str | None = None) -> None: ...
@noticed
async def send(id: str, signal: Any, value: Any = None, *, message_id: str | None = None) -> None:
    """Send a signal to the open run of that id. When this returns, it has arrived, once, in the order of sending.

    The signal is given by its definition or its name. `message_id` is the sender's own name for it: a second signal of
    the same name and id is not delivered, whether a run or a client sends it. Raises UnknownRun or RunClosed, and
    InvalidInput when the value does not fit the definition.
    """
    decoder = signal.decoder if isinstance(signal, Signal) else None
    chosen = "" if message_id is None else check_message_id(message_id)
    await runtime_for("send()").kinship().send(check_id(id), name_of(signal, Signal), value, decoder, chosen)


_NO_OPTIONS = ChildOptions()


def _options(given: dict[str, Any]) -> ChildOptions:
    if not given:
        return _NO_OPTIONS
    if unknown := given.keys() - set(ChildOptions.__struct_fields__):
        raise InvalidInput(
            f"unknown options of a child {', '.join(sorted(unknown))}: there are "
            f"{', '.join(ChildOptions.__struct_fields__)} (arguments of the workflow are given by position)"
        )
    given = options_given(given)
    check_start_options(given, count=False)  # the run does, if it counts
    encode(given.get("tags"), "tags", LARGEST_MEMO)
    kept: dict[str, Any] = {"tags": dict(given.get("tags") or {})}  # a copy, whatever the code does to them later
    if given.get("memo") is not None:
        kept["memo"] = Raw(encode(given["memo"], "memo", LARGEST_MEMO))
    if given.get("id") is not None:
        check_id(given["id"])
    kept["policy"] = check_choice(ParentPolicy, "policy", given.get("policy", ParentPolicy.CANCEL))
    return ChildOptions(**(given | kept))


def _decoder(workflow: Any, result: Any) -> Any:
    if isinstance(workflow, Workflow):
        return workflow.codec.result_decoder
    return decoder_for(Any if result is None else result, f"the result of workflow {workflow!r}")
