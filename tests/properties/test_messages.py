"""Random messages, and workers that die at random moments: each is seen once, in order, and answered."""

import asyncio
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from batuta import Signal, Update, UpdateRejected, activity, failpoints, publish, workflow
from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.testing import Environment, run
from tests.engine.kit import replay
from tests.long import examples
from tests.properties.test_crashes import Killer, forgive_the_killed

item = Signal("item", int)
stop = Signal("stop")
add = Update("add", int)


@activity
async def act(number: int) -> int:
    await asyncio.sleep(number)
    return number


@workflow
async def ledger() -> list[list[int]]:
    signals: list[int] = []
    updates: list[int] = []

    def check(number: int) -> None:
        if number % 3 == 0:
            raise ValueError("not this one")

    @add.handle(validator=check)
    async def take(number: int) -> int:
        updates.append(number)
        await act(number)
        publish("updates", len(updates))
        return number + 1

    async def listen() -> None:
        async for number in item:
            signals.append(number)
            await act(number)

    listening = asyncio.create_task(listen())
    await stop.wait()
    await asyncio.sleep(1000)
    listening.cancel()
    return [signals, updates]


Step = tuple[str, int]

steps = st.lists(
    st.tuples(st.sampled_from(["signal", "signal", "twice", "update", "sleep"]), st.integers(0, 40)), max_size=12
)


async def begin(env: Environment, killer: Killer) -> Any:
    while True:
        try:
            return await env.start(ledger, id="one")
        except (OutcomeUnknown, StoreUnavailable):
            await killer.recovered()


async def perform(handle: Any, step: Step, number: int) -> Any:
    match step:
        case ("update", value):
            try:
                return await handle.update(add, value, update_id=f"u{number}")
            except UpdateRejected:
                return "rejected"
        case ("sleep", value):
            await asyncio.sleep(value)
        case (kind, value):
            for _ in range(2 if kind == "twice" else 1):
                await handle.signal(item, value, message_id=f"s{number}")
    return None


async def lived_through(plan: list[Step], moments: set[int], always_replay: bool) -> tuple[Any, list[Any]]:
    asyncio.get_running_loop().set_exception_handler(forgive_the_killed)
    async with Environment(workflows=[ledger], activities=[act], always_replay=always_replay) as env:
        killer = Killer(env, moments)
        failpoints.armed = killer  # type: ignore[assignment]  # it has what is asked of it
        try:
            handle = await begin(env, killer)
            heard = [await perform(handle, step, number) for number, step in enumerate(plan)]
            await handle.signal(stop)
            result = await handle.result()
            await killer.recovered()
        finally:
            failpoints.arm()
        replay(ledger, await env.store.journal(handle.run_id)).tear_down()
        return result, heard


@settings(
    derandomize=True,
    deadline=None,
    max_examples=examples(50),
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(plan=steps, moments=st.sets(st.integers(1, 120), max_size=8), always_replay=st.booleans())
def test_every_message_is_seen_once_in_order_and_answered(
    plan: list[Step], moments: set[int], always_replay: bool
) -> None:
    result, heard = run(lived_through(plan, moments, always_replay))
    accepted = [value for kind, value in plan if kind == "update" and value % 3]
    assert result == [[value for kind, value in plan if kind in ("signal", "twice")], accepted]
    answers = [answer for (kind, _), answer in zip(plan, heard, strict=True) if kind == "update"]
    assert answers == [value + 1 if value % 3 else "rejected" for kind, value in plan if kind == "update"]
