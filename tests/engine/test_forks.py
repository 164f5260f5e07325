"""Forks: a run begins with what another has done up to a point, with edits or without."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from batuta import (
    AlreadyStarted,
    Handle,
    InvalidFork,
    Retry,
    RunFailed,
    activity,
    activity_info,
    info,
    job,
    uuid,
    workflow,
)
from batuta.authoring.backend import RunRef
from batuta.engine.backend.native import NativeBackend
from tests.engine.forkkit import act, broken, executed, forget, is_sound, keys, order
from tests.engine.kit import jobs, world


@pytest.fixture(autouse=True)
def _afresh() -> None:
    forget()


async def test_a_fork_begins_with_what_was_done_and_leaves_the_run_alone() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        assert await handle.result() == [5, 10, 15]
        copy = await handle.fork("order-1-b", at=1, reason="what if")
        assert await copy.result() == [5, 10, 15]
        assert Counter(name for name, _ in executed) == {"reserve": 1, "charge": 1, "ship": 2}
        assert (await handle.describe()).run_id == handle.run_id
        run = await copy.describe()
        assert (run.id, run.forked_from, run.forked_at) == ("order-1-b", handle.run_id, 1)
        await is_sound(env)


async def test_a_fork_has_keys_of_its_own_from_its_point_on() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        await handle.result()
        copy = await handle.fork("copy", at=1)
        await copy.result()
        assert len(keys["charge"]) == 1
        assert len(keys["ship"]) == 2


async def test_a_result_can_be_edited() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        await handle.result()
        copy = await handle.fork("copy", output={2: 99})
        assert await copy.result() == [5, 99, 15]
        assert Counter(name for name, _ in executed) == {"reserve": 1, "charge": 1, "ship": 2}
        await is_sound(env)


async def test_the_input_of_a_pending_call_can_be_edited() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        await handle.result()
        copy = await handle.fork("copy", input={2: ["charge", 7]})
        assert await copy.result() == [5, 7, 15]
        assert executed.count(("charge", 7)) == 1
        assert len(keys["charge"]) == 2
        await is_sound(env)


async def test_the_run_can_begin_anew_with_other_arguments() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        await handle.result()
        copy = await handle.fork("copy", args=[6])
        assert await copy.result() == [6, 12, 18]
        assert len(keys["reserve"]) == 2
        await is_sound(env)


@dataclass
class Address:
    street: str
    number: int


@activity
async def ship_to(address: Address) -> Address:
    return address


@workflow
async def ships(address: Address) -> Address:
    return await ship_to(address)


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ({"at": 9}, "entries 0 to 1: there is no 9"),
        ({"at": -2}, "there is no -2"),
        ({"at": 1}, "has ended with entry 1"),
        ({"output": {1: {"street": 5}}}, "does not fit"),
        ({"input": {1: ["a street"]}}, "does not fit"),
        ({"input": {1: [1, 2, 3]}}, "does not fit"),
        ({"args": ["a street"]}, "does not fit"),
        ({"output": {7: 1}}, "no such call"),
        ({"output": {7: 1}, "at": 0}, "no such call"),
        ({"input": {1: [1]}, "at": -1}, "no such call"),
        ({"args": [1], "at": 0}, "fork it at -1"),
        ({"input": {1: [1]}, "output": {1: 1}}, "both"),
        ({}, "at which entry"),
    ],
)
async def test_an_invalid_fork_is_explained_and_changes_nothing(edits: dict[str, Any], why: str) -> None:
    async with world(ships, ship_to) as env:
        handle = await env.start(ships, Address("Rua", 1), id="s")
        await handle.result()
        with pytest.raises(InvalidFork, match=why):
            await handle.fork("copy", **edits)
        assert await env.client.count(kind="any") == 1
        assert len(await env.store.audit()) == 0


async def test_an_edit_needs_the_code() -> None:
    async with world(ships, ship_to) as env:
        handle = await env.start(ships, Address("Rua", 1), id="s")
        await handle.result()
        stranger = NativeBackend(env.store)
        ref = RunRef("s", handle.run_id)
        with pytest.raises(InvalidFork, match="code"):
            await Handle[Any](stranger, ref).fork("copy", output={1: {"street": "Rua", "number": 2}})
        await Handle[Any](stranger, ref, code=ships).fork("copy", output={1: {"street": "Rua", "number": 2}})
        assert await (await env.get("copy", ships)).result() == Address("Rua", 2)


async def test_an_id_that_is_taken_is_refused() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        await env.start(order, 6, id="order-2")
        await handle.result()
        with pytest.raises(AlreadyStarted):
            await handle.fork("order-2", at=0)


# -- identity and chance


async def test_a_fork_has_chance_of_its_own_and_a_reset_has_not() -> None:
    @workflow
    async def draws() -> list[str]:
        first = str(uuid())
        await act("between")
        return [first, str(uuid()), info().id]

    async with world(draws, act) as env:
        handle = await env.start(draws, id="d")
        one = await handle.result()
        copy = await (await handle.fork("copy", at=0)).result()
        await handle.reset(0)
        same = await handle.result()
        assert copy[0] == one[0]
        assert copy[1] != one[1]
        assert copy[2] == "copy"
        assert same[:2] == one[:2]
        await is_sound(env)


async def test_a_fork_of_a_fork_of_a_reset_replays() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="a")
        await handle.result()
        await handle.reset(0)
        await handle.result()
        second = await handle.fork("b", at=2)
        await second.result()
        third = await second.fork("c", output={3: 77})
        assert await third.result() == [5, 10, 77]
        await is_sound(env)


# -- jobs


@job(retry=Retry(attempts=1))
async def mail(to: str) -> str:
    keys.setdefault("mail", set()).add(activity_info().key)
    if to in broken:
        raise ConnectionError("no such host")
    return f"to {to}"


async def test_a_job_is_forked_with_another_input() -> None:
    broken.add("anne")
    async with jobs(mail) as env:
        handle = await env.enqueue(mail, "anne", id="m")
        with pytest.raises(RunFailed):
            await handle.result()
        again = await handle.fork("m2", input={1: ["ann"]})
        assert await again.result() == "to ann"
        afresh = await handle.fork("m3", args=["bob"])
        assert await afresh.result() == "to bob"
        with pytest.raises(InvalidFork, match="does not fit"):
            await handle.fork("m4", args=[1, 2, 3])
        assert len(keys["mail"]) == 3
