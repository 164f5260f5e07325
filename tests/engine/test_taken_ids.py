"""A start whose id is taken: it never gets another workflow's run, and is told whose run it got."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from batuta import (
    AlreadyStarted,
    Batuta,
    Handle,
    InvalidInput,
    RunClosed,
    Schedule,
    Signal,
    WrongWorkflow,
    continue_as_new,
    job,
    once,
    run_child,
    workflow,
)
from batuta.clock import SECOND, as_datetime
from batuta.engine.backend.schedule_rules import slot_id
from tests.engine.arena import PATIENCE, Arena, until
from tests.engine.kit import world

go = Signal("go", int)


@workflow
async def payment(amount: int, *, currency: str = "EUR") -> int:
    return amount + await go.wait()


@workflow
async def refund(amount: int) -> int:
    return -amount


@workflow
async def rounds(left: int) -> str:
    if left:
        continue_as_new(left - 1)
    return "done"


@job
async def mail(to: str) -> str:
    return f"mailed {to}"


@job
async def page(to: str) -> str:
    return f"paged {to}"


@pytest.fixture(params=["owned", "unowned"])
async def client(request: pytest.FixtureRequest, arena: Arena) -> Batuta:
    """Of a process that has a worker, which begins runs at once, or has none."""
    made = await arena.client()
    if request.param == "owned":
        await arena.worker(made, payment, refund, rounds, mail, page)
    return made


async def wrong(starting: Any) -> WrongWorkflow:
    with pytest.raises(WrongWorkflow) as caught:
        await starting
    return caught.value


# -- another workflow's run


async def test_a_start_does_not_get_the_run_of_another_workflow(client: Batuta) -> None:
    await client.start(payment, 5, id="o-1")
    error = await wrong(client.start(refund, 5, id="o-1"))
    assert (error.id, error.found, error.wanted) == ("o-1", "payment", "refund")
    assert "run 'o-1' is of workflow 'payment', not of workflow 'refund'" in str(error)
    await wrong(client.start("refund", 5, id="o-1"))
    await wrong(client.start(refund, 5, id="o-1", if_exists="same"))
    with pytest.raises(AlreadyStarted):
        await client.start(refund, 5, id="o-1", if_exists="reject")
    assert (await (await client.get("o-1")).describe()).workflow == "payment"


async def test_a_job_does_not_take_the_id_of_another_kind_of_run(client: Batuta) -> None:
    await client.start(payment, 5, id="o-1")
    await client.enqueue(mail, "ann", id="m-1")
    error = await wrong(client.enqueue(mail, "ann", id="o-1"))
    assert (error.kind, error.wanted_kind) == ("workflow", "job")
    await wrong(client.enqueue(page, "ann", id="m-1"))
    await wrong(client.start(payment, 5, id="m-1"))
    assert (await client.enqueue(mail, "ann", id="m-1")).is_new is False


async def test_nor_does_a_job_whose_unique_key_makes_the_id_of_a_workflows_run(client: Batuta) -> None:
    await client.start(payment, 5, id="mail:42")
    error = await wrong(client.enqueue(mail, "ann", unique="42"))
    assert (error.kind, error.wanted_kind) == ("workflow", "job")
    await wrong(client.enqueue(mail, "ann", unique="42", unique_for=60))
    await wrong(client.enqueue_many([mail.call("ann").with_options(unique="42")]))
    assert (await client.enqueue(mail, "ann", unique="43")).is_new
    await wrong(client.start(payment, 5, id="mail:43"))


async def test_the_error_of_a_batch_names_the_call_that_failed(client: Batuta) -> None:
    await client.enqueue(mail, "ann", id="m-1")
    error = await wrong(client.enqueue_many([mail.call("bob"), page.call("ann").with_options(id="m-1")]))
    assert "call 1 of the batch" in error.__notes__[0]


async def test_a_signal_with_the_start_does_not_reach_another_workflows_run(client: Batuta, arena: Arena) -> None:
    there = await client.start(payment, 5, id="o-1")
    await wrong(client.start(refund, 5, id="o-1", signal=(go, 7)))
    stored = await arena.store(client).load(there.run_id)
    assert [message.name for message in stored.messages if message.name == "go"] == []
    assert "signal" not in [str(line.kind) for line in await there.journal()]


async def test_get_refuses_the_run_of_another_workflow(client: Batuta) -> None:
    await client.start(payment, 5, id="o-1")
    await client.enqueue(mail, "ann", id="m-1")
    assert (await client.get("o-1", payment)).is_new is None
    await wrong(client.get("o-1", refund))
    await wrong(client.get("m-1", page))
    await wrong(client.get("o-1", mail))
    with pytest.raises(InvalidInput, match="not a workflow or job"):
        await client.get("o-1", "refund")  # type: ignore[call-overload]  # that is the point


async def test_the_run_of_another_version_is_given(client: Batuta) -> None:
    first = await client.start(payment, 5, id="o-1")
    assert (await client.start(payment, 5, id="o-1", version="2")).run_id == first.run_id


async def test_an_id_of_a_closed_run_can_be_taken_over_by_another_workflow(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, payment, refund)
    await (await client.start(refund, 5, id="o-1")).result(PATIENCE)
    assert (await client.start(payment, 5, id="o-1", if_exists="restart")).is_new


async def test_a_schedule_says_that_its_slot_is_taken(arena: Arena, caplog: pytest.LogCaptureFixture) -> None:
    client = await arena.client()
    await arena.worker(client, payment, refund)
    slot = await arena.store(client).now() + SECOND
    plan = Schedule("nightly", once(as_datetime(slot)), refund, 5)
    await client.start(payment, 5, id=slot_id("nightly", slot))

    async def told() -> bool:
        return any("schedule 'nightly' did not begin a slot" in line for line in caplog.messages)

    with caplog.at_level(logging.ERROR, "batuta.engine"):
        await arena.worker(client, schedules=[plan])
        await until(told)


async def test_a_childs_id_that_another_workflow_has_is_refused() -> None:
    @workflow
    async def parent() -> str:
        try:
            await run_child(refund, 1, id="taken")
        except AlreadyStarted as error:
            return error.id
        return "begun"

    async with world(parent, payment, refund) as env:
        await env.start(payment, 5, id="taken")
        assert await (await env.start(parent)).result() == "taken"


# -- whether it is new


async def test_the_handle_tells_whether_the_run_is_new(client: Batuta) -> None:
    first = await client.start(payment, 5, id="o-1")
    assert first.is_new is True
    assert (await client.start(payment, 5, id="o-1")).is_new is False
    assert (await client.start(payment, 5, id="o-1", signal=(go, 1))).is_new is False
    assert (await client.start(payment, 5, id="o-2", signal=(go, 1))).is_new is True
    assert (await client.start(payment, 5)).is_new is True
    assert (await client.enqueue(mail, "ann", unique="a")).is_new is True
    batch = await client.enqueue_many([mail.call("b").with_options(id="b"), mail.call("b").with_options(id="b")])
    assert [one.is_new for one in batch] == [True, False]


async def test_of_concurrent_starts_one_is_new(client: Batuta) -> None:
    found = await asyncio.gather(*(client.start(payment, 5, id="o-1") for _ in range(20)))
    assert [one.is_new for one in found].count(True) == 1
    assert len({one.run_id for one in found}) == 1


# -- the same arguments


async def other(starting: Any) -> AlreadyStarted:
    with pytest.raises(AlreadyStarted, match="other arguments") as caught:
        await starting
    error = caught.value
    assert error.digest
    assert error.existing_digest
    assert error.digest != error.existing_digest
    assert error.digest[:12] in str(error)
    assert error.existing_digest[:12] in str(error)
    return error


async def test_arguments_are_compared_when_that_is_asked_for(client: Batuta) -> None:
    first = await client.start(payment, 5, id="o-1", if_exists="same")
    assert first.is_new
    again = await client.start(payment, 5, id="o-1", if_exists="same")
    assert (again.run_id, again.is_new) == (first.run_id, False)
    error = await other(client.start(payment, 6, id="o-1", if_exists="same"))
    assert error.existing_digest == (await other(client.start(payment, 7, id="o-1", if_exists="same"))).existing_digest
    assert (await client.start(payment, 6, id="o-1")).run_id == first.run_id


async def test_the_order_of_keys_makes_no_difference(client: Batuta) -> None:
    await client.start("ledger", {"a": 1, "b": 2}, id="l", if_exists="same")
    assert not (await client.start("ledger", {"b": 2, "a": 1}, id="l", if_exists="same")).is_new
    await other(client.start("ledger", {"b": 2, "a": 1.5}, id="l", if_exists="same"))


async def test_arguments_of_jobs_too(client: Batuta) -> None:
    first = await client.enqueue(mail, "ann", id="m-1", if_exists="same")
    assert (await client.enqueue(mail, "ann", id="m-1", if_exists="same")).run_id == first.run_id
    await other(client.enqueue(mail, "bob", id="m-1", if_exists="same"))
    await other(client.enqueue_many([mail.call("bob").with_options(id="m-1", if_exists="same")]))
    with pytest.raises(AlreadyStarted):
        await client.enqueue(mail, "ann", id="m-1", if_exists="reject")
    with pytest.raises(InvalidInput, match="needs id="):
        await client.enqueue(mail, "ann", if_exists="same")
    with pytest.raises(InvalidInput, match="must be one of"):
        await client.enqueue(mail, "ann", id="m-1", if_exists="similar")  # type: ignore[call-overload]  # the same


async def test_a_signal_goes_only_to_the_run_of_the_same_arguments(arena: Arena) -> None:
    client = await arena.client()
    first = await client.start(payment, 5, id="o-1", if_exists="same", signal=(go, 1, "s"))
    assert first.is_new
    await other(client.start(payment, 6, id="o-1", if_exists="same", signal=(go, 2)))
    await arena.worker(client, payment)
    assert await first.result(PATIENCE) == 6
    with pytest.raises(RunClosed):
        await client.start(payment, 5, id="o-1", if_exists="same", signal=(go, 3))


async def test_what_is_compared_is_what_the_first_run_of_the_chain_began_with(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, rounds)
    first: Handle[Any] = await client.start(rounds, 3, id="r", if_exists="same")
    assert await first.result(PATIENCE) == "done"
    assert not (await client.start(rounds, 3, id="r", if_exists="same")).is_new
    await other(client.start(rounds, 0, id="r", if_exists="same"))
