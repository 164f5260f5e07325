"""Messages of a run: signals that wait to be received, handlers of signals and updates, answers to queries."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import defaultdict, deque
from collections.abc import Callable
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import UNSET, Raw

from batuta.engine.machine.core import NULL, MachineCore
from batuta.engine.machine.loop import Waiter
from batuta.errors import (
    InvalidInput,
    Nondeterministic,
    RunClosed,
    UnknownQuery,
    UpdateFailed,
    UpdateInterrupted,
    WorkflowBroken,
    told,
)
from batuta.journal.entries import Body, Carried, CommandKind
from batuta.journal.states import RunState
from batuta.serde import Codec, Decoder, decode, encode

log = logging.getLogger("batuta.engine")

MISFITS = "batuta.misfits"
"""The published value that counts, by name, the signals whose value did not fit their type."""

_CANCELLED = "the handler of signal %r of run %s was cancelled before it came to its end"
_NOTHING: Any = object()
_DROPPED = Raw(b"")
"""In place of the value of a signal that is in the journal only."""
_CONTINUED = RunState.CONTINUED


class SignalsDropped(WorkflowBroken):
    """The code asks for a signal whose value was dropped from memory: the run is replayed with all values."""

    def __init__(self) -> None:
        super().__init__("signals that the code asks for are in the journal only")


class _Box:
    """The signals of one name."""

    __slots__ = ("decoder", "getters", "handler", "letters")

    def __init__(self) -> None:
        self.letters: deque[tuple[int, Raw]] = deque()
        self.getters: deque[Waiter] = deque()
        self.handler: Callable[[Any], Any] | None = None
        self.decoder: Decoder

    def wake_one(self) -> None:
        while self.getters:
            getter = self.getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return


class _Handler:
    """Who answers updates or queries of one name."""

    __slots__ = ("codec", "decoder", "fn", "validator")

    def __init__(
        self, fn: Callable[..., Any], what: str, decoder: Decoder, validator: Callable[..., Any] | None = None
    ) -> None:
        self.fn, self.decoder, self.validator = fn, decoder, validator
        self.codec = _codec(fn, what)

    def encode(self, value: Any, what: str, limit: int) -> bytes:
        """The answer's JSON, of the type that was declared. Raises InvalidInput."""
        data = encode(value, what, limit)
        decode(data, self.decoder, what)
        return data


class MessageHandlers:
    """Made when a run's first message comes, or its code first looks for one."""

    def __init__(self, machine: MachineCore) -> None:
        self._machine = machine
        self._boxes: defaultdict[str, _Box] = defaultdict(_Box)
        self._updates: dict[str, _Handler] = {}
        self._queries: dict[str, _Handler] = {}
        self._open: dict[str, str] = {}
        """Accepted updates without an answer: message id and name."""
        self._arrived = self._receivers = self._handled = 0
        self._handles_signals = False
        self._misfits: dict[str, int] = {}
        self._idle: list[Waiter] = []
        """Of code that waits for the handlers."""

    def listens(self) -> bool:
        """Whether a message could wake the run's code."""
        return self._receivers > 0 or self._handles_signals or bool(self._updates)

    def is_handling(self) -> bool:
        """Whether a handler of a signal or update is not done."""
        return self._handled > 0 or bool(self._open)

    async def handlers_done(self) -> None:
        self._machine.check_alive()
        while self.is_handling():
            idle: Waiter = asyncio.Future(loop=self._machine.loop)
            self._idle.append(idle)
            await idle

    def _one_done(self) -> None:
        if self._idle and not self.is_handling():
            waiting, self._idle = self._idle, []
            for idle in waiting:
                if not idle.done():
                    idle.set_result(None)

    # -- signals

    def deliver_signal(self, body: Body) -> None:
        self.put(body.name, body.value if body.value is not UNSET else NULL)

    def put(self, name: str, value: Raw) -> None:
        """A signal has come: it is handled, received, or waits."""
        self._arrived += 1
        box = self._boxes[name]
        if box.handler is not None:
            self._begin_handling(name, box, box.handler, value)
        else:
            box.letters.append((self._arrived, value))
            box.wake_one()

    async def receive(self, name: str, decoder: Decoder, timeout: float | None) -> Any:
        """The next signal of that name that fits."""
        self._machine.check_alive()
        box = self._boxes[name]
        if box.handler is not None:
            raise InvalidInput(f"signal {name!r} has a handler, which receives them all: nothing is left to wait for")
        found = self._take(name, box, decoder)
        if found is not _NOTHING:
            return found
        async with asyncio.timeout(timeout):
            return await self._wait(name, box, decoder)

    async def _wait(self, name: str, box: _Box, decoder: Decoder) -> Any:
        while True:
            getter: Waiter = asyncio.Future(loop=self._machine.loop)
            box.getters.append(getter)
            self._receivers += 1
            try:
                await getter
            except BaseException:
                # Given up just when a signal came: that one is for the next who waits.
                if not getter.done():
                    getter.cancel()
                    box.getters.remove(getter)
                elif box.letters:
                    box.wake_one()
                raise
            finally:
                self._receivers -= 1
            found = self._take(name, box, decoder)
            if found is not _NOTHING:
                return found

    def _take(self, name: str, box: _Box, decoder: Decoder) -> Any:
        while box.letters:
            found = self._read(name, self._next(box), decoder)
            if found is not _NOTHING:
                return found
        return _NOTHING

    def _next(self, box: _Box) -> Raw:
        value = box.letters.popleft()[1]
        if value is _DROPPED:
            raise self._machine.loop.breaks(SignalsDropped())
        return value

    def drop_values(self) -> None:
        """Forget the values of signals that wait, and that no code waits for. They are in the journal."""
        for box in self._boxes.values():
            letters = box.letters
            for place in range(len(letters) - 1, -1, -1) if not box.getters else ():
                arrived, value = letters[place]
                if value is _DROPPED:
                    break
                letters[place] = arrived, _DROPPED

    def require_values(self) -> None:
        """All signals that were not received are about to be carried on."""
        if any(value is _DROPPED for box in self._boxes.values() for _, value in box.letters):
            self._machine.loop.breaks(SignalsDropped())

    def _read(self, name: str, value: Raw, decoder: Decoder) -> Any:
        """The value, if it fits. A misfit must not harm the run: it is counted in a published value."""
        try:
            return decode(value, decoder, f"the value of signal {name!r}")
        except InvalidInput as error:
            machine, text = self._machine, str(error)
            machine.log(
                lambda: log.error("run %s passes over a signal: %s", machine.identity.id, text, extra=machine.logged)
            )
            self._misfits[name] = self._misfits.get(name, 0) + 1
            machine.publish(MISFITS, self._misfits)
            return _NOTHING

    def handle_signal(self, name: str, decoder: Decoder, fn: Callable[[Any], Any]) -> None:
        self._machine.check_alive()
        box = self._boxes[name]
        box.handler, box.decoder = fn, decoder
        self._handles_signals = True
        while box.letters:
            self._begin_handling(name, box, fn, self._next(box))

    def _begin_handling(self, name: str, box: _Box, fn: Callable[[Any], Any], letter: Raw) -> None:
        value = self._read(name, letter, box.decoder)
        if value is not _NOTHING:
            self._handled += 1
            self._machine.spawn(self._handle(name, fn, value), f"signal {name}")

    async def _handle(self, name: str, fn: Callable[[Any], Any], value: Any) -> None:
        machine = self._machine
        try:
            handling = fn(value)
            if inspect.isawaitable(handling):
                await handling
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError:
            machine.log(lambda: log.warning(_CANCELLED, name, machine.identity.id, extra=machine.logged))
            raise
        except BaseException as error:
            if machine.gone:
                raise
            machine.fail(error)  # whatever it is, the run cannot go on as if it had worked
        finally:
            self._handled -= 1
            self._one_done()

    def unreceived(self) -> list[Carried]:
        """The signals that the code has not received, in the order in which they came."""
        letters = [(at, name, value) for name, box in self._boxes.items() for at, value in box.letters]
        return [Carried(name, value) for _, name, value in sorted(letters, key=lambda letter: letter[0])]

    # -- updates

    def handle_update(
        self, name: str, decoder: Decoder, fn: Callable[..., Any], validator: Callable[..., Any] | None
    ) -> None:
        self._machine.check_alive()
        self._updates[name] = _Handler(fn, f"update {name!r}", decoder, validator)

    def validate(self, name: str, value: Raw) -> None:
        """Called before any turn, and changes nothing. Raises Forbidden when the validator does more than look; what
        else it raises rejects the update."""
        handler = self._updates.get(name)
        if handler is None:
            known = ", ".join(sorted(self._updates)) or "none"
            raise InvalidInput(f"it has no handler for that now (it takes: {known})")
        args, kwargs = handler.codec.decode_args(value)
        validator = handler.validator
        if validator is not None:
            self._machine.only_looking(f"the validator of update {name!r}", lambda: validator(*args, **kwargs))

    def deliver_update(self, body: Body) -> None:
        name, value = body.name, body.value if body.value is not UNSET else Raw(b"[]")
        handler = self._updates.get(name)
        if handler is None:
            where = f"entry {self._machine.entries - 1}"
            raise Nondeterministic(where, f"update {name!r} was accepted", "no handler of that name")
        args, kwargs = handler.codec.decode_args(value)
        self._open[body.message_id] = name
        self._machine.spawn(self._answer(name, body.message_id, handler, args, kwargs), f"update {name}")

    async def _answer(
        self, name: str, message_id: str, handler: _Handler, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        machine = self._machine
        try:
            answer = handler.fn(*args, **kwargs)
            if inspect.isawaitable(answer):
                answer = await answer
            data = handler.encode(answer, f"the answer to update {name!r}", machine.limit)
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError as error:
            self._failed(name, message_id, error)
            raise
        except Exception as error:  # noqa: BLE001 - it is the answer
            self._failed(name, message_id, error)
        except BaseException as error:
            if machine.gone:
                raise
            machine.fail(error)  # SystemExit ends the run, here as in its main coroutine
        else:
            self._say(name, message_id, data=data)

    def _failed(self, name: str, message_id: str, error: BaseException) -> None:
        failed = UpdateFailed(name, self._machine.identity.id, told(error))
        failed.__cause__ = error
        self._say(name, message_id, error=failed)

    def _say(self, name: str, message_id: str, data: bytes | None = None, error: Exception | None = None) -> None:
        if self._open.pop(message_id, None) is not None:
            self._machine.issue_beyond(CommandKind.ANSWER, name, data, error, to=message_id)
            self._one_done()

    def close(self, state: RunState, how: str) -> None:
        """The run ends: callers that still wait for an answer learn that none will come."""
        id = self._machine.identity.id
        for message_id, name in list(self._open.items()):
            ended = RunClosed(id, state, f"it ended before it answered update {name!r}", how)
            self._say(name, message_id, error=UpdateInterrupted(name, id) if state is _CONTINUED else ended)
        left = {name: len(box.letters) for name, box in self._boxes.items() if box.letters}
        if left and state is RunState.COMPLETED:
            self._warn(left)

    def _warn(self, left: dict[str, int]) -> None:
        machine, text = self._machine, ", ".join(f"{count:,} of {name!r}" for name, count in left.items())
        machine.log(
            lambda: log.warning(
                "run %s completed, and its code has not received all signals: %s",
                machine.identity.id,
                text,
                extra=machine.logged,
            )
        )

    # -- queries

    def handle_query(self, name: str, decoder: Decoder, fn: Callable[..., Any]) -> None:
        self._machine.check_alive()
        self._queries[name] = _Handler(fn, f"query {name!r}", decoder)

    def query(self, name: str, value: Raw) -> bytes:
        """The JSON of the answer. Raises UnknownQuery, Forbidden, InvalidInput and what the handler raises."""
        handler = self._queries.get(name)
        if handler is None:
            raise UnknownQuery(name, self._machine.identity.id, self._queries)
        args, kwargs = handler.codec.decode_args(value)
        what = f"the handler of query {name!r}"
        answer = self._machine.only_looking(what, lambda: handler.fn(*args, **kwargs))
        return handler.encode(answer, f"the answer to query {name!r}", self._machine.limit)


_codecs: WeakKeyDictionary[CodeType, tuple[dict[str, Any], Codec]] = WeakKeyDictionary()
"""Handlers are often made anew in each run, from the same code."""


def _codec(fn: Callable[..., Any], what: str) -> Codec:
    code: CodeType | None = getattr(fn, "__code__", None)
    if code is None or inspect.ismethod(fn):
        return Codec(fn, what)
    known = _codecs.get(code)
    if known is None or known[0] != fn.__annotations__:
        known = _codecs[code] = (dict(fn.__annotations__), Codec(fn, what))
    return known[1]
