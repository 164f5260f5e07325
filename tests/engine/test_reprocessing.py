"""Dead letters are begun anew, or discarded: on every store, each once."""

# covers D-02
import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from batuta import (
    Batuta,
    InvalidInput,
    LetterResolved,
    Retry,
    RunFailed,
    UnknownLetter,
    activity,
    activity_info,
    job,
    workflow,
)
from batuta.connect import connect
from batuta.errors import InvalidFork, RunMoved
from batuta.verify import verify
from tests.engine.arena import Arena, until

done: list[Any] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def _anew() -> None:
    done.clear()
    broken.clear()
    broken.add("charge")


@activity
async def reserve(order: str) -> str:
    done.append(("reserve", order))
    return f"hold {order}"


@activity(retry=Retry(attempts=2, first=0.0))
async def charge(order: str) -> str:
    done.append(("charge", activity_info().key))
    if "charge" in broken:
        raise ConnectionError(f"no answer for {order}")
    return "paid"


@workflow
async def buy(order: str) -> str:
    return f"{await reserve(order)}, {await charge(order)}"


@workflow
async def side_by_side(order: str) -> list[str]:
    return list(await asyncio.gather(charge(order), reserve(order)))


@workflow(dead_letter=True)
async def picky(order: str) -> str:
    await reserve(order)
    if "charge" in broken:
        raise ValueError("not today")
    return order


@job(retry=Retry(attempts=2, first=0.0))
async def send(number: int) -> int:
    done.append(("send", activity_info().key))
    if "charge" in broken or number < 0:
        raise ConnectionError(f"no mail for {number}")
    return number


THINGS = (buy, side_by_side, picky, reserve, charge, send)


async def fail(client: Batuta, what: Any, *args: Any, **options: Any) -> str:
    handle = await (client.enqueue if what is send else client.start)(what, *args, **options)
    with pytest.raises(RunFailed):
        await handle.result(20)
    return handle.id


async def fail_once(client: Batuta, what: Any, *args: Any) -> str:
    """Failed while it was broken, which it is no more."""
    broken.add("charge")
    try:
        return await fail(client, what, *args)
    finally:
        broken.clear()


async def sound(arena: Arena, client: Batuta) -> None:
    found = await verify(arena.store(client), patience=5)
    assert not found.violations, found.violations


async def test_what_was_done_is_kept_and_the_failed_activity_has_the_same_key(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *THINGS)
    id = await fail(client, buy, "a")
    before = await client.dead_letters.get(id)
    broken.clear()
    found = await client.dead_letters.reprocess(id, reason="mended")
    assert (found.matched, found.reprocessed, found.resolved, found.refused) == (1, 1, 0, {})
    assert await (await client.get(id)).result(20) == "hold a, paid"
    assert Counter(what for what, _ in done) == {"reserve": 1, "charge": 3}
    assert len({key for what, key in done if what == "charge"}) == 1
    after = await client.dead_letters.get(before.run_id)
    assert (after.state, after.successor) == ("reprocessed", found.runs[0])
    assert after.resolved_at is not None
    assert await client.dead_letters.count() == 0
    (row,) = await arena.store(client).audit()
    assert (row.verb, row.target, row.run_id, row.reason) == ("reprocess", id, str(before.run_id), "mended")
    await sound(arena, client)


async def test_a_result_that_came_after_the_failure_is_kept(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *THINGS)
    id = await fail(client, side_by_side, "a")
    broken.clear()
    await client.dead_letters.reprocess(id)
    assert await (await client.get(id)).result(20) == ["paid", "hold a"]
    await sound(arena, client)


async def test_a_job_is_tried_again_with_all_its_attempts(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *THINGS)
    id = await fail(client, send, 7, key="ann")
    broken.clear()
    await client.dead_letters.reprocess(id)
    assert await (await client.get(id, send)).result(20) == 7
    assert len(done) == 3
    assert len({key for _, key in done}) == 1
    await sound(arena, client)


async def test_the_workflows_own_error_is_tried_again_from_its_last_turn(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *THINGS)
    id = await fail(client, picky, "a")
    broken.clear()
    await client.dead_letters.reprocess(id)
    assert await (await client.get(id)).result(20) == "a"
    assert done == [("reserve", "a")]


async def test_a_reprocessed_run_that_fails_again_is_a_new_dead_letter(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *THINGS)
    id = await fail(client, send, 7)
    first = await client.dead_letters.get(id)
    await client.dead_letters.reprocess(id)
    await until(lambda: _count(client, 1))
    second = await client.dead_letters.get(id)
    assert second.run_id != first.run_id
    assert second.fingerprint == first.fingerprint
    (group,) = (await client.dead_letters.groups(state="any")).groups
    assert group.count == 2


async def test_from_the_start_everything_is_done_anew_with_other_keys(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *THINGS)
    id = await fail(client, buy, "a")
    broken.clear()
    await client.dead_letters.reprocess(id, mode="start")
    assert await (await client.get(id)).result(20) == "hold a, paid"
    assert Counter(what for what, _ in done) == {"reserve": 2, "charge": 3}
    assert len({key for what, key in done if what == "charge"}) == 2
    await sound(arena, client)


async def test_with_other_input_it_begins_with_that(arena: Arena) -> None:
    client, elsewhere = await arena.client(), await arena.client()
    await arena.worker(client, *THINGS)
    one, two, three = await fail(client, buy, "a"), await fail(client, send, 7), await fail(client, send, 8)
    broken.clear()
    await client.dead_letters.reprocess(one, mode="start", input=["b"])
    await elsewhere.dead_letters.reprocess(two, mode="start", input=[9], code=send)
    assert await (await client.get(one)).result(20) == "hold b, paid"
    assert await (await client.get(two)).result(20) == 9
    four, five = await fail_once(client, buy, "c"), await fail_once(client, send, 10)
    await client.dead_letters.reprocess(four, input=["d"])
    await client.dead_letters.reprocess(five, input=[11])
    assert await (await client.get(four)).result(20) == "hold c, paid"
    assert await (await client.get(five)).result(20) == 11
    assert done.count(("reserve", "c")) == 1
    for mode in ("start", "failed_step"):
        for given in (["x"], [], [1, 2]):
            with pytest.raises(InvalidFork, match="does not fit"):
                await client.dead_letters.reprocess(three, mode=mode, input=given)
        with pytest.raises(InvalidFork, match="is not in this process"):
            await elsewhere.dead_letters.reprocess(three, mode=mode, input=[1])
        with pytest.raises(InvalidFork, match="not of 'buy'"):
            await elsewhere.dead_letters.reprocess(three, mode=mode, input=[1], code=buy)
    assert (await client.dead_letters.get(three)).state == "open"
    await sound(arena, client)


async def test_many_are_reprocessed_by_filter_after_a_dry_run(arena: Arena) -> None:
    client = await arena.client()
    worker = await arena.worker(client, *THINGS)
    ids = [await fail(client, send, number) for number in (1, 2, -3)]
    other = await fail(client, buy, "a")
    (group,) = (await client.dead_letters.groups(name=send)).groups
    assert group.count == 3
    tried = await client.dead_letters.reprocess(fingerprint=group.fingerprint, dry_run=True)
    assert (tried.matched, tried.reprocessed) == (3, 0)
    assert await client.dead_letters.count() == 4
    broken.clear()
    found = await client.dead_letters.reprocess(fingerprint=group.fingerprint, rate=1_000)
    assert (found.matched, found.reprocessed, len(found.runs)) == (3, 3, 3)
    assert [await (await client.get(id)).result(20) for id in ids[:2]] == [1, 2]
    await until(lambda: _count(client, 1, name="send"))
    assert (await client.dead_letters.get(other)).state == "open"
    await until(lambda: _told(worker, 5))
    await sound(arena, client)


async def test_the_audit_log_says_by_which_filter_many_were_chosen(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *THINGS)
    ids = [await fail(client, send, number) for number in (1, 2, 3)]
    await client.dead_letters.discard(ids[0], reason="that one")
    await client.dead_letters.discard(name=send, id_prefix=ids[1], reason="those")
    await client.dead_letters.reprocess(queue="default", reason="mended")
    discarded = {row.target: row.detail for row in (await client.audit(verb="discard")).rows}
    assert discarded == {
        ids[0]: {},
        ids[1]: {"filter": {"states": ["open"], "name": "send", "id_prefix": ids[1]}},
    }
    (row,) = (await client.audit(verb="reprocess")).rows
    filtered = {"states": ["open"], "queue": "default"}
    assert (row.target, row.detail) == (ids[2], {"mode": "failed_step", "input": False, "filter": filtered})


async def test_a_resolved_dead_letter_is_refused_alone_and_counted_among_many(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *THINGS)
    one, two = await fail(client, send, 1), await fail(client, send, 2)
    assert await client.dead_letters.discard(one, reason="not needed") == 1
    for verb in (client.dead_letters.reprocess(one), client.dead_letters.discard(one, reason="twice")):
        with pytest.raises(LetterResolved, match="was discarded before"):
            await verb
    with pytest.raises(UnknownLetter):
        await client.dead_letters.reprocess("nobody")
    found = await client.dead_letters.reprocess([one, two])
    assert (found.matched, found.reprocessed) == (1, 1)


async def test_an_id_that_has_another_run_by_now_is_refused_and_stays_open(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *THINGS)
    id = await fail(client, buy, "a", id="order")
    old = await client.dead_letters.get(id)
    broken.clear()
    await (await client.start(buy, "b", id="order", if_exists="restart")).result(20)
    with pytest.raises(RunMoved):
        await client.dead_letters.reprocess(old)
    found = await client.dead_letters.reprocess(name=buy)
    assert (found.matched, found.reprocessed, found.refused) == (1, 0, {"RunMoved": 1})
    assert (await client.dead_letters.get(id)).state == "open"
    assert (await client.dead_letters.get(id)).run_id == old.run_id


async def test_a_run_that_is_retried_or_reset_is_a_dead_letter_no_more(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *THINGS)
    one, two = await fail(client, buy, "a"), await fail(client, buy, "b")
    broken.clear()
    await (await client.get(one)).retry("mended")
    await (await client.get(two)).reset(0)
    for id in (one, two):
        assert await (await client.get(id)).result(20) in ("hold a, paid", "hold b, paid")
    letters = (await client.dead_letters.list(state="any")).letters
    assert [letter.state for letter in letters] == ["reprocessed", "reprocessed"]
    assert {letter.successor for letter in letters} == {(await client.get(id)).run_id for id in (one, two)}
    await sound(arena, client)


async def test_two_at_the_same_time_share_the_work(arena: Arena) -> None:
    clients = [await arena.client() for _ in range(2)]
    await arena.worker(clients[0], *THINGS)
    batch = await clients[0].enqueue_many([send.call(number) for number in range(30)])
    await until(lambda: _count(clients[0], 30))
    broken.clear()
    found = await asyncio.gather(*(client.dead_letters.reprocess(name=send, rate=300) for client in clients))
    assert sum(each.reprocessed for each in found) == 30
    assert sorted([await (await clients[0].get(handle.id)).result(20) for handle in batch]) == list(range(30))
    assert sum(what == "send" for what, _ in done) == 90
    await sound(arena, clients[0])


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"name": "send", "state": "open"},
        {"colour": "red"},
        {"reason": 7, "name": "x"},
        {"name": "send", "mode": "backwards"},
        {"name": "send", "rate": 0},
        {"name": "send", "rate": "fast"},
        {"name": "send", "input": 1},
        {"name": "send", "input": "x", "mode": "start"},
        {"name": "send", "dry_run": "yes"},
        {"kind": "letter"},
        {"after": "yesterday"},
        {"before": datetime(2020, 1, 1)},  # noqa: DTZ001 - that is the point
        {"fingerprint": 5},
        {"name": "send", "code": "send"},
    ],
)
async def test_bad_input_is_named_and_nothing_is_done(given: dict[str, Any]) -> None:
    from batuta import connect

    async with connect("memory://") as client:
        with pytest.raises(InvalidInput):
            await client.dead_letters.reprocess(**given)


async def test_bad_input_of_other_verbs() -> None:
    from batuta import connect

    async with connect("memory://") as client:
        for verb in (
            client.dead_letters.discard(reason="x"),
            client.dead_letters.discard(name=None, id_prefix="", reason="x"),
            client.dead_letters.discard(name="send", reason=" "),
            client.dead_letters.list(limit=0),
            client.dead_letters.groups(limit=5_000),
            client.dead_letters.list(state="shut"),
            client.dead_letters.list(cursor="x"),
            client.dead_letters.reprocess("a", name="b"),
        ):
            with pytest.raises(InvalidInput):
                await verb
        assert (
            await client.dead_letters.count(states=["open", "discarded"], after=datetime.now(UTC) - timedelta(1)) == 0
        )
        assert await client.dead_letters.discard(everything=True, reason="all") == 0


async def _told(worker: Any, count: int) -> bool:
    return bool(worker.letters.count == count)


async def _count(client: Batuta, count: int, **where: Any) -> bool:
    return await client.dead_letters.count(**where) == count


async def test_none_is_as_if_it_was_not_given() -> None:
    nothing: Any = None
    async with connect("memory://") as client:
        assert (await client.dead_letters.list(states=["open", nothing], state=nothing)).letters == []
        done = await client.dead_letters.reprocess(mode=nothing, everything=True)
    assert done.matched == 0
