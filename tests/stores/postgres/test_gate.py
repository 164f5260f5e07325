"""Who commits on the one connection for that."""

from __future__ import annotations

import asyncio

import pytest

from batuta.stores.postgres.gate import Gate


async def pass_through(gate: Gate, name: str, passed: list[str], inside: asyncio.Event) -> None:
    if gate.taken:
        await gate.wait()
    gate.taken = True
    try:
        passed.append(name)
        await inside.wait()
        assert passed[-1] == name  # nobody came in meanwhile
    finally:
        gate.leave()


async def rounds() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_they_come_in_one_at_a_time_and_in_their_order() -> None:
    gate, passed, inside = Gate(), list[str](), asyncio.Event()
    tasks = [asyncio.create_task(pass_through(gate, name, passed, inside)) for name in "abc"]
    await rounds()
    assert passed == ["a"]
    inside.set()
    await asyncio.gather(*tasks)
    assert passed == ["a", "b", "c"]
    assert not gate.taken


@pytest.mark.parametrize("handed_over", [False, True])
async def test_one_that_gives_up_waiting_holds_up_nobody(handed_over: bool) -> None:
    gate, passed, inside = Gate(), list[str](), asyncio.Event()
    inside.set()
    gate.taken = True
    second, third = (asyncio.create_task(pass_through(gate, name, passed, inside)) for name in ("second", "third"))
    await rounds()
    if handed_over:  # it is the second one's, and that has not noticed yet
        gate.leave()
        second.cancel()
    else:
        second.cancel()
        gate.leave()
    await asyncio.wait([second, third], timeout=10)
    assert second.cancelled()
    assert passed == ["third"]
    assert not gate.taken
