"""Tests of a workflow: a month with doubles, crashes, other orders, a journal kept as a test. For pytest, or alone.

Prints:
    whatever crashes: paid 250 for lamp
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import Handle, Retry, Signal, activity, workflow
from batuta.testing import Environment, assert_replays, crash_sweep, double, in_virtual_time, interleavings, record, run

approve = Signal("approve", bool)


@activity(retry=Retry(attempts=5, first=60.0))
async def pay(item: str, euros: int) -> str:
    return f"paid {euros} for {item}"


@activity
async def remind(whom: str) -> None: ...


@workflow
async def order(item: str, euros: int) -> str:
    while True:
        try:
            return await pay(item, euros) if await approve.wait(timeout=7 * 86_400) else "declined"
        except TimeoutError:
            await remind("the boss")


@in_virtual_time
async def test_the_boss_is_reminded_each_week() -> None:
    reminded, paid = double(remind), double(pay, returns="paid", fails=2)
    async with Environment(workflows=[order], activities=[reminded, paid]) as env:
        handle = await env.start(order, "lamp", 250)
        await env.advance(30 * 86_400)
        reminded.assert_called(4)
        await handle.signal(approve, True)
        assert await handle.result() == "paid"


async def decide(env: Environment, handle: Handle[str]) -> None:
    await env.advance(10 * 86_400)
    await handle.signal(approve, True, message_id="yes")


def test_neither_a_crash_nor_another_order_changes_anything() -> None:
    print("whatever crashes:", crash_sweep(order, "lamp", 250, activities=[pay, remind], script=decide).ending)
    assert interleavings(order, "lamp", 250, activities=[pay, remind], script=decide).ending == "paid 250 for lamp"


def test_todays_code_replays_the_journals_of_yesterday() -> None:
    async def yesterday(file: Path) -> None:
        async with Environment(workflows=[order], activities=[pay, remind]) as env:
            handle = await env.start(order, "lamp", 250, signal=(approve, True), id="one")
            assert await handle.result() == "paid 250 for lamp"
            await record(handle, file)

    with TemporaryDirectory() as folder:
        run(yesterday(Path(folder, "approved.json")))
        assert_replays(order, f"{folder}/*.json")


if __name__ == "__main__":
    test_the_boss_is_reminded_each_week()
    test_neither_a_crash_nor_another_order_changes_anything()
    test_todays_code_replays_the_journals_of_yesterday()
