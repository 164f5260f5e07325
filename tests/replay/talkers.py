"""Workflows that talk, whose journals are kept. Never change one: add another, and record it."""

import asyncio
from typing import Any

from batuta import (
    Handle,
    InvalidInput,
    Query,
    Schedule,
    Signal,
    Update,
    UpdateFailed,
    UpdateRejected,
    Workflow,
    activity,
    every,
    handlers_done,
    info,
    publish,
    run_child,
    send,
    start_child,
    wait_until,
    workflow,
)
from batuta.journal.records import Message, MessageKind
from batuta.journal.states import CLOSED
from batuta.testing import Environment

approve = Signal("approve", bool)
item = Signal("item", int)
stop = Signal("stop")
add = Update("add", int)
status = Query("status", str)


@activity
async def weigh(number: int) -> int:
    await asyncio.sleep(1)
    return number * 10


@workflow
async def signalled() -> list[Any]:
    """Waits in vain, waits, iterates, and has a handler; one value does not fit."""
    handled: list[int] = []
    said: list[Any] = []
    try:
        await approve.wait(timeout=30)
    except TimeoutError:
        said.append("nobody")
    said.append(await approve.wait(timeout=3600))
    async for number in item:
        said.append(number)
        if number == 3:
            break

    @item.handle
    async def take(number: int) -> None:
        handled.append(await weigh(number))

    await stop.wait()
    return [*said, *handled]


async def signal_it(env: Environment) -> Handle[Any]:
    handle = await env.start(signalled, signal=(item, 1))
    await env.advance(31)
    await handle.signal("approve", "perhaps")
    await handle.signal(approve, True)
    for number in (2, 3, 4, 5):
        await handle.signal(item, number)
    await env.advance(5)
    await handle.signal(stop)
    return handle


@workflow
async def updated() -> list[int]:
    """Accepts, rejects and fails; publishes; one update is still open at its end."""
    numbers: list[int] = []

    def positive(number: int) -> None:
        if number < 0:
            raise ValueError("too low")

    @add.handle(validator=positive)
    async def append(number: int) -> int:
        if number == 13:
            raise LookupError("not that one")
        numbers.append(await weigh(number))
        publish("count", len(numbers))
        return len(numbers)

    status.handle(lambda: f"{len(numbers)} so far")
    await stop.wait()
    return numbers


async def update_it(env: Environment) -> Handle[Any]:
    handle = await env.start(updated)
    await asyncio.gather(*(handle.update(add, number, update_id=f"u{number}") for number in (1, 2, 3)))
    for number in (-1, 13):
        try:
            await handle.update(add, number, update_id=f"u{number}")
        except (UpdateRejected, UpdateFailed):
            pass
    assert await handle.query(status) == "3 so far"
    try:
        await handle.update(add, 4, update_id="u4", timeout=0.5)
    except TimeoutError:
        await handle.signal(stop)
    return handle


@workflow
async def reads_before_it_ends() -> str:
    return "told" if await approve.wait() else "not told"


async def send_as_it_ends(env: Environment) -> Handle[Any]:
    """Two signals in its inbox, and the first ends it: it takes the second, too."""
    handle = await env.start(reads_before_it_ends, delay=10)
    await handle.signal(approve, False, message_id="one")
    await handle.signal(approve, True, message_id="two")
    return handle


@workflow
async def weighs_and_ends() -> int:
    try:
        return await weigh(1)
    except asyncio.CancelledError:
        await weigh(2)
        raise


async def cancel_as_it_ends(env: Environment) -> Handle[Any]:
    """Signal and cancel come with the turn that would end it."""
    commit = env.store.commit

    async def with_a_cancel(worker_id: str, changes: Any) -> Any:
        for change in changes:
            if change.move is not None and change.move.state in CLOSED:
                env.store.commit = commit  # type: ignore[method-assign]
                note = Message(message_id="note", kind=MessageKind.SIGNAL, name="approve", body="true")
                await env.store.send(change.run_id, note)
                await env.store.send(change.run_id, Message(message_id="cancel", kind=MessageKind.CANCEL, name="late"))
        return await commit(worker_id, changes)

    env.store.commit = with_a_cancel  # type: ignore[method-assign]
    return await env.start(weighs_and_ends)


async def cancel_before_it_begins(env: Environment) -> Handle[Any]:
    """A worker finds start, signal and cancel."""
    handle = await env.start(weighs_and_ends, delay=10)
    await handle.signal(approve, False, message_id="one")
    await handle.cancel("not needed")
    return handle


@workflow
async def waits_for_its_handlers() -> list[int]:
    numbers: list[int] = []

    @add.handle
    async def append(number: int) -> int:
        numbers.append(await weigh(number))
        return len(numbers)

    await stop.wait()
    await handlers_done()
    return numbers


async def ask_before_it_ends(env: Environment) -> Handle[Any]:
    handle = await env.start(waits_for_its_handlers)
    asked = [asyncio.create_task(handle.update(add, number, update_id=f"u{number}")) for number in (1, 2)]
    await env.advance(0.5)
    await handle.signal(stop)
    await asyncio.gather(*asked)
    return handle


@workflow
async def waits_until() -> list[Any]:
    """Conditions that hold at once, after messages and after activities, and never; several that hold together."""
    numbers: list[int] = []
    said: list[Any] = []

    @item.handle
    async def take(number: int) -> None:
        numbers.append(number)
        numbers.append(await weigh(number))

    async def as_soon_as(count: int) -> None:
        await wait_until(lambda: len(numbers) >= count)
        said.append([count, *numbers])

    await wait_until(lambda: not numbers)
    waiting = [asyncio.create_task(as_soon_as(count)) for count in (3, 2, 1)]
    await wait_until(lambda: 20 in numbers, timeout=3600)
    try:
        await wait_until(lambda: len(numbers) > 10, timeout=60)
    except TimeoutError:
        said.append("no more")
    await asyncio.gather(*waiting)
    return said


async def send_until(env: Environment) -> Handle[Any]:
    handle = await env.start(waits_until)
    await env.advance(10)
    for number in (1, 2):
        await handle.signal(item, number)
    return handle


@workflow
async def names_its_messages(other: str) -> list[Any]:
    child = await start_child(waits_until, id=f"{other}/child")
    for number in (1, 2):
        await child.signal(item, number, message_id=f"number-{number}")
        await send(child.id, item, number, message_id=f"number-{number}")
    return [await child.result(), info().parent_id, info().slot]


async def name_messages(env: Environment) -> Handle[Any]:
    return await env.start(names_its_messages, "id", id="id")


@workflow
async def tells_its_parent() -> list[Any]:
    return [info().parent_id, info().slot]


async def have_children(env: Environment) -> Handle[Any]:
    """The journal of a child, of a parent that a schedule began."""
    await env.client.schedules.create(Schedule("hourly", every(3600), starts_one))
    await env.advance(3600)
    return await env.client.get("the child")


@workflow
async def starts_one() -> Any:
    return [await run_child(tells_its_parent, id="the child"), info().slot]


@workflow
async def told_its_slot() -> list[Any]:
    return [info().parent_id, info().slot]


async def schedule_it(env: Environment) -> Handle[Any]:
    view = await env.client.schedules.create(Schedule("hourly", every(3600), told_its_slot))
    assert view.next_at is not None
    await env.advance(3700)
    return await env.client.get((await env.client.schedules.get("hourly")).last_id)


@workflow
async def meets_limits() -> list[str]:
    """Too many tags for a child, and too long a reason for its cancellation."""
    said = []
    try:
        await run_child(weighs_and_ends, tags={f"tag {number}": "" for number in range(65)})
    except InvalidInput as error:
        said.append(type(error).__name__)
    child = await start_child(waits_until)
    try:
        await child.cancel("so" * 5_000)
    except InvalidInput as error:
        said.append(type(error).__name__)
        await child.cancel("so")
    return said


async def meet_limits(env: Environment) -> Handle[Any]:
    return await env.start(meets_limits, id="id")


ALL: list[Workflow[..., Any]] = [
    signalled,
    updated,
    reads_before_it_ends,
    weighs_and_ends,
    waits_for_its_handlers,
    waits_until,
    names_its_messages,
    tells_its_parent,
    starts_one,
    told_its_slot,
    meets_limits,
]
ACTIVITIES = [weigh]
SCENARIOS = {
    "signalled": signal_it,
    "updated": update_it,
    "reads_before_it_ends": send_as_it_ends,
    "cancelled_as_it_ends": cancel_as_it_ends,
    "cancelled_before_it_began": cancel_before_it_begins,
    "waits_for_its_handlers": ask_before_it_ends,
    "waits_until": send_until,
    "names_its_messages": name_messages,
    "told_its_parent": have_children,
    "told_its_slot": schedule_it,
    "meets_limits": meet_limits,
}
