"""Runs a flow, step by step, with what a host can do. The same inputs give the same steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from msgspec import UNSET, Struct

from batuta.errors import BatutaError
from batuta.flows.document import is_given
from batuta.flows.expressions import MOST_WORK, Value, as_text, moment, size_of
from batuta.flows.host import ActionRequest, AiRequest, ApprovalRequest, Host, Mark, Phase
from batuta.flows.meaning import OF_RUNS
from batuta.flows.models import FlowPart, FlowStart, FlowState
from batuta.flows.program import Block, FlowFailed, Prepared, Program, seconds_of
from batuta.flows.values import is_number

MOST_STEPS_OF_RUN: Final = 1_000_000
"""Steps of one run, over all that it continued as."""
LONG_LIST: Final = 200
"""A `for_each` over more items does them in runs of their own."""
PART: Final = 100
"""Items of each of those."""
LONGEST_LIST: Final = 1_000_000
_ENDED: Final = "\0"
"""In the place of the next step's key: the block is done."""
_LONGEST_ERROR: Final = 2_000
_AT: Final = "failed_step"
"""Of an error on its way out of blocks: the key of the step that it came from."""


class Frame(Struct, eq=False, gc=False):
    """The values that a step can see, and its place."""

    event: dict[str, Any]
    context: dict[str, Any]
    steps: dict[str, Any]
    block: int = 0
    index: int | None = None
    error: dict[str, Any] | None = None
    """In a rescue: what it is for. A block beside it may have failed since."""

    @property
    def scope(self) -> dict[str, Any]:
        context = self.context if self.error is None else {**self.context, "error": self.error}
        return {"event": self.event, "context": context, "steps": self.steps}

    def write(self, values: dict[str, Any]) -> None:
        self.context.update(values)
        if self.error is not None:
            self.error = values.get("error", self.error)

    def inner(self, block: int) -> Frame:
        return Frame(self.event, self.context, self.steps, block, self.index, self.error)


class Interpreter:
    """One run of a flow."""

    def __init__(self, program: Program, host: Host, most: int = MOST_STEPS_OF_RUN) -> None:
        self._program, self._host, self._most = program, host, most

    async def run(self, start: FlowStart, event: dict[str, Any]) -> dict[str, Any]:
        """The context at the end; of a part, as `_part` gives it."""
        if isinstance(start.part, FlowPart):
            return await self._part(start.part, event)
        frame, at = Frame(event, {}, {}), 0
        if isinstance(start.state, FlowState):
            state = start.state
            frame.context, frame.steps, self._host.number = state.context, state.steps, state.number
            at = self._program.block.places[state.at]
        async with self._host.scope() if self._program.undoes else nullcontext():
            await self._block(self._program.block, frame, at, outermost=True)
        return frame.context

    async def _part(self, part: FlowPart, event: dict[str, Any]) -> dict[str, Any]:
        """What it has collected, and what undoes it if the flow fails later."""
        one = self._program.by_key[part.step]
        frame = Frame(event, part.context, part.steps)
        if not self._program.undoes or not self._host.is_apart():
            return {"results": await self._items(one, frame, part.items, part.offset, 0)}
        async with self._host.scope():
            results = await self._items(one, frame, part.items, part.offset, 0)
            return {"results": results, "undo": self._host.undoes()}

    # -- one after the other

    async def _block(self, block: Block, frame: Frame, at: int = 0, *, outermost: bool = False) -> None:
        steps, places = block.steps, block.places
        while at < len(steps):
            to = await self._step(steps[at], frame)
            if to == _ENDED:
                return
            if not to:
                at += 1
                continue
            if places[to] <= at and outermost:
                self._host.turn_back(to, frame.context, frame.steps)
            at = places[to]

    async def _step(self, one: Prepared, frame: Frame) -> str:
        """The key of the step that it names as the next; empty: the one after it."""
        host = self._host
        number = host.number = host.number + 1
        if number > self._most:
            raise FlowFailed(f"the run has made {self._most:,} steps: it goes in circles")
        if one.guard is not None and not one.guard(frame.scope):
            await self._mark(one, frame, number, "skipped")
            return one.next
        try:
            to = await _PERFORM[one.type](self, one, frame, number)
            if one.writes is not None:
                values = _value(one.writes, frame.scope)
                found = await self._mark(one, frame, number, "wrote", context=values)
                frame.write(found.get("context") or {})
        except Exception as error:
            said = str(error)[:_LONGEST_ERROR] or type(error).__name__
            if not hasattr(error, _AT):
                setattr(error, _AT, one.key)
            await self._mark(one, frame, number, "failed", error=said)
            raise
        except asyncio.CancelledError:
            await self._mark(one, frame, number, "cancelled")
            raise
        return to or one.next

    async def _mark(self, one: Prepared, frame: Frame, number: int, phase: Phase, **more: Any) -> dict[str, Any]:
        mark = Mark(phase, number, one.key, one.type, block=frame.block, index=frame.index, **more)
        return await self._host.mark(lambda: mark)

    async def _decide(
        self, one: Prepared, frame: Frame, number: int, make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """A step that only computes, once: a replay has what the journal says."""

        def mark() -> Mark:
            try:
                return Mark("completed", number, one.key, one.type, block=frame.block, index=frame.index, **make())
            except BatutaError as error:
                return Mark("failed", number, one.key, one.type, error=str(error), block=frame.block)

        found = await self._host.mark(mark)
        if found["flow"] == "failed":
            raise FlowFailed(found.get("error", ""))
        if "output" in found:
            self._done(one, frame, found["output"])
        return found

    def _done(self, one: Prepared, frame: Frame, output: Any) -> None:
        frame.steps[one.key] = {"output": output}

    # -- steps that decide

    async def condition(self, one: Prepared, frame: Frame, number: int) -> str:
        config = one.step.config

        def make() -> dict[str, Any]:
            result = one.rules[0](frame.scope)
            to = config.on_true if result else config.on_false
            routed = {"to": to, "branch": result} if to else {}
            return {"output": {"result": result, "rule": config.rule}, **routed}

        return str((await self._decide(one, frame, number, make)).get("to", ""))

    async def switch(self, one: Prepared, frame: Frame, number: int) -> str:
        config = one.step.config

        def make() -> dict[str, Any]:
            scope = frame.scope
            case = next((place for place, rule in enumerate(one.rules) if rule(scope)), None)
            to = config.default if case is None else config.cases[case].to
            return {"output": {"case": case}, "to": to}

        return str((await self._decide(one, frame, number, make)).get("to", ""))

    async def set(self, one: Prepared, frame: Frame, number: int) -> None:
        def make() -> dict[str, Any]:
            values = one.values["values"](frame.scope)
            return {"output": values, "context": values}

        found = await self._decide(one, frame, number, make)
        frame.write(found.get("context") or {})

    async def fail(self, one: Prepared, frame: Frame, number: int) -> None:
        raise FlowFailed(as_text(_value(one.values["message"], frame.scope)))

    async def end(self, one: Prepared, frame: Frame, number: int) -> str:
        config = one.step.config

        def make() -> dict[str, Any]:
            return {"output": one.values["result"](frame.scope) if is_given(config.result) else {}}

        await self._decide(one, frame, number, make)
        return _ENDED

    # -- steps that reach the world

    async def _started(self, one: Prepared, frame: Frame, number: int, call: str = "", *, given: Any = UNSET) -> None:
        await self._mark(one, frame, number, "started", call=call, input=given)

    async def action(self, one: Prepared, frame: Frame, number: int) -> None:
        request = action_request(one, frame.scope)
        of_runs = request.action_type in OF_RUNS
        await self._started(one, frame, number, "" if of_runs else "flow.action")
        output = await self._host.act(one, request)
        if of_runs:
            await self._decide(one, frame, number, lambda: {"output": output})
        else:
            self._done(one, frame, output)

    async def compensate(self, one: Prepared, frame: Frame, number: int) -> None:
        request = action_request(one, frame.scope)
        if request.action_type in OF_RUNS:
            raise FlowFailed(f"{request.action_type} cannot be a compensation: use a webhook, or publish")
        self._host.undo(one, request)
        await self._decide(one, frame, number, lambda: {"output": {"registered": True}})

    async def python(self, one: Prepared, frame: Frame, number: int) -> None:
        config, args = one.step.config, _value(one.values["args"], frame.scope)
        await self._started(one, frame, number, config.activity, given=args)
        self._done(one, frame, await self._host.call(one, config.activity, args, config.queue))

    async def ai_task(self, one: Prepared, frame: Frame, number: int) -> None:
        config, scope = one.step.config, frame.scope
        given, message = _value(one.values["input"], scope), _value(one.values["message"], scope)
        request = AiRequest(
            step=one.key,
            input=given,
            fallback=config.fallback,
            prompt=as_text(message["prompt"]),
            system=as_text(message["system"]),
            schema=config.schema,
            url=config.url,
            gaps=[] if one.gaps is None else one.gaps(scope),
            model=config.model,
            max_tokens=config.max_tokens,
            budget=seconds_of(config.budget) or 30.0,
            temperature=config.temperature,
        )
        await self._started(one, frame, number, "flow.ai_task", given=given)
        self._done(one, frame, await self._host.ask(one, request))

    # -- steps that wait

    async def delay(self, one: Prepared, frame: Frame, number: int) -> None:
        seconds = self._delay(one, frame)
        await self._started(one, frame, number, "timer" if seconds else "", given=seconds)
        await self._host.sleep(one, seconds)
        await self._decide(one, frame, number, lambda: {"output": {"seconds": seconds}})

    def _delay(self, one: Prepared, frame: Frame) -> float:
        config = one.step.config
        if config.duration:
            return seconds_of(config.duration) or 0.0
        if config.until:
            until = _value(lambda scope: moment(one.values["until"](scope)), frame.scope)
            left: float = (until - self._host.now()).total_seconds()
            return max(0.0, left)
        found = _value(one.values["seconds"], frame.scope)
        if not is_number(found) or not 0 <= found <= 1e9:
            raise FlowFailed(f"a delay of {as_text(found)[:50]} is no number of seconds")
        return float(found)

    async def wait_event(self, one: Prepared, frame: Frame, number: int) -> str:
        config = one.step.config
        value = _value(one.values["value"], frame.scope)
        field = config.correlation.field if config.correlation else ""
        awaited = {"event": config.event, "field": field, "value": value}
        await self._started(one, frame, number, "flow.wait", given=awaited)
        event = await self._host.wait_event(one, config.event, field, value)
        if event is not None:
            await self._decide(one, frame, number, lambda: {"output": event})
            return ""
        return await self._timed_out(one, frame, number, f"no event {config.event!r} came within {one.timeout:g} s")

    async def approval(self, one: Prepared, frame: Frame, number: int) -> str:
        scope = frame.scope
        request = ApprovalRequest(
            step=one.key,
            title=as_text(_value(one.values["title"], scope)),
            data=_value(one.values["data"], scope),
            notify=_value(one.values["notify"], scope) if "notify" in one.values else None,
            gaps=[] if one.gaps is None else one.gaps(scope),
        )
        shown = {"title": request.title, "data": request.data}
        await self._started(one, frame, number, "flow.approval", given=shown)
        decision = await self._host.approve(one, request, number)
        if decision is None:
            return await self._timed_out(one, frame, number, f"no decision came within {one.timeout:g} s")
        to = "" if decision.get("approved") else one.step.config.on_rejected
        await self._decide(one, frame, number, lambda: {"output": decision, "to": to})
        if not decision.get("approved") and not to:
            raise FlowFailed(
                f"rejected by {decision.get('by') or 'somebody'}: {decision.get('comment') or ''}".rstrip(": ")
            )
        return to

    async def _timed_out(self, one: Prepared, frame: Frame, number: int, words: str) -> str:
        to = one.step.config.on_timeout
        if not to:
            raise FlowFailed(words)
        await self._decide(one, frame, number, lambda: {"output": {"timedOut": True}, "to": to})
        return str(to)

    async def sub_flow(self, one: Prepared, frame: Frame, number: int) -> None:
        config, payload = one.step.config, _value(one.values["payload"], frame.scope)
        if not isinstance(payload, dict):
            raise FlowFailed("the payload of a sub_flow must be an object")
        await self._started(one, frame, number, "flow", given=payload)
        output = await self._host.sub_flow(one, config.workflow, config.version, payload)
        await self._decide(one, frame, number, lambda: {"output": output})

    # -- blocks

    async def parallel(self, one: Prepared, frame: Frame, number: int) -> None:
        await self._started(one, frame, number)
        inner = frame.inner(number)
        branches = [partial(self._block, block, inner) for block in one.blocks]
        await self._limited(one, self._at_once(branches, one.step.config.concurrency))
        await self._decide(one, frame, number, lambda: {"output": {"branches": len(one.blocks)}})

    async def for_each(self, one: Prepared, frame: Frame, number: int) -> None:
        items = _value(one.values["items"], frame.scope)
        if not isinstance(items, list):
            raise FlowFailed(f"items must be a list, not {as_text(items)[:50]}")
        if len(items) > LONGEST_LIST:
            raise FlowFailed(f"a list of {len(items):,} items is too long: at most {LONGEST_LIST:,}")
        await self._started(one, frame, number, given={"count": len(items)})
        results = await self._limited(one, self._all_items(one, frame, items, number))
        collected = {"results": results} if "collect" in one.values else {}
        await self._decide(one, frame, number, lambda: {"output": {"count": len(items), **collected}})

    async def _all_items(self, one: Prepared, frame: Frame, items: list[Any], number: int) -> list[Any]:
        if len(items) <= LONG_LIST:
            return await self._items(one, frame, items, 0, number)
        results: list[Any] = []
        size = 0
        for offset in range(0, len(items), PART):
            some = items[offset : offset + PART]
            found = await self._host.part(one, some, offset, frame.scope["context"], frame.steps)
            results += await self._items(one, frame, some, offset, number) if found is None else found
            size = _sum(size, results[offset:])
        return results

    async def _items(self, one: Prepared, frame: Frame, items: list[Any], offset: int, number: int) -> list[Any]:
        results: dict[int, Any] = {}
        size = 0
        collect = one.values.get("collect")

        def each(place: int, item: Any) -> Callable[[], Coroutine[Any, Any, None]]:
            async def do() -> None:
                nonlocal size
                context = {**frame.scope["context"], one.step.config.as_: item, "index": place}
                inner = Frame(frame.event, context, dict(frame.steps), number, place)
                await self._block(one.blocks[0], inner)
                if collect is not None:
                    results[place] = _value(collect, inner.scope)
                    size = _sum(size, results[place])

            return do

        work = [each(offset + place, item) for place, item in enumerate(items)]
        await self._at_once(work, one.step.config.concurrency)
        return [results[place] for place in sorted(results)]

    async def _at_once(self, work: Sequence[Callable[[], Coroutine[Any, Any, None]]], most: int) -> None:
        """All of it, some at a time. The first error cancels the rest."""
        waiting = iter(work)

        async def lane() -> None:
            for begin in waiting:
                await begin()

        if most == 1 or len(work) == 1:
            await lane()
            return
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(most, len(work))):
                    group.create_task(lane())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _limited(self, one: Prepared, work: Coroutine[Any, Any, Any]) -> Any:
        if one.timeout is None:
            return await work
        limit = asyncio.timeout(one.timeout)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if limit.expired():
                raise FlowFailed(f"not done within {one.timeout:g} s") from None
            raise

    async def try_(self, one: Prepared, frame: Frame, number: int) -> None:
        await self._started(one, frame, number)
        inner = frame.inner(number)
        last = one.blocks[2]
        try:
            failed = await self._attempt(one, inner, number)
        except (Exception, asyncio.CancelledError):
            await self._block(last, inner)
            raise
        await self._block(last, inner)
        output = {"failed": failed is not None, **({"error": failed} if failed else {})}
        await self._decide(one, frame, number, lambda: {"output": output})

    async def _attempt(self, one: Prepared, frame: Frame, number: int) -> dict[str, Any] | None:
        """The error of the block, after the rescue."""
        body, rescue, _ = one.blocks
        try:
            async with self._host.scope():
                await self._limited(one, self._block(body, frame))
        except Exception as error:  # noqa: BLE001 - whatever a step fails with
            said, kind = str(error)[:_LONGEST_ERROR], type(error).__name__
            failed: dict[str, Any] = {"step": getattr(error, _AT, one.key), "message": said, "type": kind}
            found = await self._mark(one, frame, number, "wrote", context={"error": failed})
            failed = frame.context["error"] = found["context"]["error"]
            own = frame.inner(frame.block)
            own.error = failed if self._host.is_apart() else None
            await self._block(rescue, own)
            return failed
        return None


def action_request(one: Prepared, scope: dict[str, Any]) -> ActionRequest:
    """Raises FlowFailed."""
    config = one.step.config
    request, rest = _value(one.values["request"], scope), _value(one.values["rest"], scope)
    if "body" not in request:
        request["body"] = scope["event"]["payload"]
    return ActionRequest(
        step=one.key,
        action_type=config.action_type,
        request=request,
        gaps=[] if one.gaps is None else one.gaps(scope),
        method=config.method.upper(),
        expect=config.expect,
        response=config.response,
        topic=as_text(rest["topic"]),
        message_key=as_text(rest["messageKey"]),
        message_type=as_text(rest["messageType"]),
        workflow=config.workflow,
        args=rest["args"],
        id=as_text(rest["id"]),
        signal=config.signal,
    )


def _sum(size: int, collected: Any) -> int:
    """With what was collected. Raises FlowFailed."""
    size += size_of(collected)
    if size > MOST_WORK:
        raise FlowFailed(f"collect gives more than {MOST_WORK:,} characters for all items together")
    return size


def _value(value: Value, scope: dict[str, Any]) -> Any:
    """Raises FlowFailed."""
    try:
        return value(scope)
    except BatutaError as error:
        raise FlowFailed(str(error)) from None


_Perform = Callable[[Interpreter, Prepared, Frame, int], Coroutine[Any, Any, str | None]]
"""Does a step, and gives the key of the step that it names as the next, if it names one."""
_PERFORM: Final[dict[str, _Perform]] = {
    "condition": Interpreter.condition,
    "switch": Interpreter.switch,
    "set": Interpreter.set,
    "fail": Interpreter.fail,
    "end": Interpreter.end,
    "action": Interpreter.action,
    "compensate": Interpreter.compensate,
    "python": Interpreter.python,
    "ai_task": Interpreter.ai_task,
    "delay": Interpreter.delay,
    "wait_event": Interpreter.wait_event,
    "approval": Interpreter.approval,
    "sub_flow": Interpreter.sub_flow,
    "parallel": Interpreter.parallel,
    "for_each": Interpreter.for_each,
    "try": Interpreter.try_,
}
