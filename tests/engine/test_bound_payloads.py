"""No encrypted payload is believed anywhere but where it was written, and nothing that is not encrypted at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar
from uuid import UUID

import pytest
from msgspec import json

from batuta import (
    Batuta,
    CompleteLater,
    Handle,
    Retry,
    RunFailed,
    RunState,
    RunTerminated,
    RunTimedOut,
    Schedule,
    activity,
    activity_info,
    checkpoint,
    connect,
    every,
    run_child,
    send,
    workflow,
)
from batuta.codecs import Compression, Encryption, Keys, PayloadCodec
from batuta.connect import store_for
from batuta.errors import BatutaError, InvalidSchedule, PayloadDamaged, PayloadSealed
from batuta.ids import RunId
from batuta.journal.codec_envelope import is_coded
from batuta.journal.server.documents import OPERATIONS
from batuta.journal.store import Store
from tests.engine.arena import PATIENCE, until, until_state
from tests.engine.forging import Forger, Place
from tests.engine.test_sealed import (
    K1,
    K2,
    SECRET,
    bounces,
    do_everything,
    go,
    mail,
    pay,
    until_charged,
    why_parked,
    working,
)

pytestmark = pytest.mark.usefixtures("real_time")

T = TypeVar("T")
CODECS = [Compression(least=64), Encryption(K1)]
_OF_EACH = 2
tokens: list[str] = []


@activity(retry=Retry(first=3600, longest=3600))
async def stumbles(card: str) -> str:
    checkpoint(card)
    raise ConnectionError(f"no line for {card}")


@activity
async def asks(card: str) -> str:
    tokens.append(activity_info().token)
    raise CompleteLater


@workflow
async def stuck(card: str) -> str:
    return await stumbles(card)


@workflow
async def asking(card: str) -> str:
    return await asks(card)


@workflow(on_error="park")
async def breaks(card: str) -> str:
    raise ValueError(f"the card {card} is bad")


@workflow
async def tells(card: str, to: str) -> None:
    await send(to, go, card)


@workflow
async def elder(card: str) -> str:
    return await run_child(younger, card)


@workflow
async def younger(card: str) -> str:
    return f"{card} {await go.wait()}"


@pytest.fixture
async def forger(url: str) -> AsyncIterator[Forger]:
    made = Forger(url)
    yield made
    await made.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = store_for(url, codec=CODECS)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def fill(url: str) -> None:
    """Payloads in every place that there is: of runs of the same workflow and of others, begun or not."""
    async with working(url, *CODECS) as client:
        await do_everything(client)
        again = await client.start(pay, f"{SECRET} again", id="paid", if_exists="restart", memo={"card": "again"})
        await until_charged(again)
    tokens.clear()
    workflows: list[Any] = [stuck, asking, breaks, tells, elder]
    await fill_rooms(url)
    async with connect(url, codec=CODECS) as client:
        for number in range(2):
            card = f"{SECRET} {number}"
            waits = await client.start(pay, card, id=f"waits {number}", memo={"card": number})
            await waits.signal(go, card, message_id="same")
            await client.enqueue(mail, card, memo=number)
            for text in (card, f"{card} later"):
                await client.enqueue(mail, text, unique=f"u{number}", debounce=3600, memo=number)
        async with client.worker(workflows=workflows, activities=[stumbles, asks], heartbeat=0.1):
            for number in range(2):
                await _begin_all(client, f"{SECRET} {number}", f"waits {number}")
        for token in tokens:
            await client.complete(token, SECRET)
    async with connect(url, codec=CODECS) as client, client.worker(workflows=[younger], heartbeat=0.1):
        for number in range(2):
            children = (await client.list(workflow="younger", limit=10)).runs
            found = await client.get(children[number].id, younger)
            await found.signal(go, SECRET)
            await found.result(PATIENCE)


async def fill_rooms(url: str) -> None:
    """Flows, their events and secrets; messages of the bus, endpoints, answers that are kept, keys of the server."""
    async with connect(url, codec=CODECS) as client, opened(url) as store:
        for number in range(2):
            made = await client.flows.create(flow_of(f"flow {number}", f"{SECRET} {number}"))
            await client.flows.publish(made.id, activate=False)
            await client.flows.events.send("overdue", {"card": number}, source="shop")
            await client.flows.secrets.set(f"bank{number}", SECRET)
            await client.publish("cards", SECRET, id=f"m {number}")
            await client.publish(f"cards {number}", SECRET, id="m")
            await client.webhooks.create(f"https://example.com/{number}")
            await client.api_keys.create(f"page {number}", "viewer")
            await store.put_documents(OPERATIONS, {f"op {number}": json.encode(SECRET).decode()}, 10**12)
            await store.begin_request(f"key {number}", "digest", "ann", 10**9, 10**12)
            assert await store.finish_request(f"key {number}", "ann", json.encode(SECRET).decode())


def flow_of(name: str, text: str = "") -> dict[str, Any]:
    rule = {"field": "amount", "operator": "greater_than", "value": 100}
    steps = [
        {"key": "check", "type": "condition", "config": {"rule": rule, "onFalse": "done"}},
        {"key": "done", "type": "end"},
    ]
    return {"name": name, "description": text, "trigger_type": "overdue", "steps": steps}


async def _begin_all(client: Batuta, card: str, to: str) -> None:
    await (await client.start(tells, card, to)).result(PATIENCE)
    await until_state(await client.start(breaks, card), RunState.NEEDS_CODE)
    await until_entries(await client.start(elder, card), 1)
    known = len(tokens)
    asked = await client.start(asking, card)

    async def has_asked() -> bool:
        return len(tokens) > known

    await until(has_asked)
    await until_entries(asked, 1)
    failed = await client.start(stuck, card)

    async def has_failed() -> bool:
        return "no line" in str((await failed.describe()).attempts)

    await until(has_failed)


async def until_entries(handle: Handle[Any], least: int) -> None:
    async def has_them() -> bool:
        return (await handle.describe()).entries >= least

    await until(has_them)


def some_of_each(places: list[Place]) -> list[Place]:
    sorts: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        sorts[place.sort].append(place)
    return list({id(place): place for found in sorts.values() for place in (*found[:_OF_EACH], found[-1])}.values())


async def reads(store: Store, place: Place) -> bool:
    """Whether what lies there is believed."""
    owner = place.values[0]
    run_id = RunId(bytes=bytes(owner)) if isinstance(owner, bytes) else owner
    try:
        match place.table, place.column:
            case "journal", _:
                return bool(await store.journal(run_id, place.values[1] - 1, 1))
            case "inbox", _:
                await store.inbox(run_id)
                return not (await store.load(run_id)).sealed
            case "runs", "start":
                return not (await store.load(run_id)).sealed
            case "runs", column:
                return "PayloadDamaged" not in getattr(await store.get_run(run_id), column)
            case "attempts", _:
                found = await store.attempts(run_id, place.values[1])
                return not any("PayloadDamaged" in (attempt.error or "") for attempt in found)
            case "outputs", _ if place.values[1] == "answer":
                return not any("PayloadDamaged" in (one.error or "") for one in await store.answers_of(run_id))
            case "outputs", _:
                return bool(await store.outputs(run_id))
            case "dead_letters", _:
                return not (await store.letter(run_id)).message.startswith("PayloadDamaged")
            case "schedules", _:
                return not (await store.schedule(place.values[0])).schedule.sealed
            case _:
                return await reads_of_rooms(store, place)
    except PayloadDamaged:
        return False


async def reads_of_rooms(store: Store, place: Place) -> bool:
    first = place.values[0]
    id = UUID(bytes=first) if isinstance(first, bytes) else first
    match place.table:
        case "flows":
            return not none_missing(await store.flow(id)).sealed
        case "events":
            return not none_missing(await store.event(id)).sealed
        case "bus_messages":
            [found] = [one for one in await store.messages(place.values[1]) if one.number == first]
            return not is_coded(found.body)
        case "partners":
            [one] = [one for one in await store.partners() if one.name == place.values[1]]
            return not is_coded(one.doc) and "url" in one.doc
        case "documents":
            return bool(await store.document(*place.values))
        case "api_keys":
            return bool(none_missing(await store.find_api_key(str(first))).digest)
    return bool(none_missing(await store.find_request(first)).answer)


def none_missing(found: T | None) -> T:
    assert found is not None
    return found


SORTS = {
    "journal.body",
    "inbox.body start",
    "inbox.body signal",
    "inbox.body update",
    "inbox.body child",
    "inbox.body activity",
    "runs.memo",
    "runs.reason",
    "attempts.error",
    "attempts.details",
    "attempts.tokens",
    "outputs.value published",
    "outputs.value answer",
    "dead_letters.message",
    "schedules.spec",
    "flows.document",
    "flows.description",
    "events.payload",
    "bus_messages.body",
    "partners.doc",
    "documents.body",
    "requests.answer",
    "api_keys.digest",
}


async def test_no_stored_value_is_believed_in_the_place_of_another(url: str, forger: Forger) -> None:
    """The table of docs/operating/payload-security.md: every two values, swapped."""
    await fill(url)
    places = some_of_each(await forger.places())
    assert {place.sort for place in places} - {"runs.start"} == SORTS
    async with opened(url) as store:
        for place in places:
            assert await reads(store, place), place
        for place in places:
            for other in places:
                if other is not place:
                    await forger.write(place, other.text)
                    assert not await reads(store, place), (place, other)
            await forger.write(place, place.text)
            assert await reads(store, place), place


async def test_a_start_with_all_of_its_row_moved_to_another_run_is_found(url: str, forger: Forger) -> None:
    """Also where the row says that it is another run's, and where the run's row says that it runs something else."""
    async with connect(url, codec=CODECS) as client:
        mine, theirs = await client.start(pay, "mine", id="mine"), await client.start(pay, "theirs", id="theirs")
        other = await client.start(younger, "mine", id="other")
    starts = await forger.starts(mine.run_id), await forger.starts(theirs.run_id)
    if starts[0].table == "inbox":
        for place, other_place in zip(starts, starts[::-1], strict=True):
            await forger.move(place, other_place.values[0])
    else:
        for place, other_place in zip(starts, starts[::-1], strict=True):
            await forger.write(place, other_place.text)
    await forger.update("runs", other.run_id, name="pay", code="pay")
    async with working(url, *CODECS) as client:
        for handle in (mine, theirs):
            reason = await why_parked(await client.get(handle.id), "PayloadDamaged")
            assert "another run" in reason or "belongs elsewhere" in reason
        assert "belongs elsewhere" in await why_parked(await client.get(other.id), "PayloadDamaged")


def row_of(handle: Handle[Any], forger: Forger, *names: str) -> dict[str, Any]:
    own = {"id": handle.id, "chain_id": forger.as_id(handle.run_id)}
    return {name: own[name] for name in names}


@pytest.mark.parametrize("names", [("id",), ("id", "chain_id")])
async def test_a_run_whose_row_is_given_the_id_or_chain_of_another_is_not_taken_for_it(
    url: str, forger: Forger, names: tuple[str, ...]
) -> None:
    """Else it would read the other one's signals, and those who ask for the other one would get its result."""
    async with connect(url, codec=CODECS) as client, client.worker(workflows=[younger, tells]):
        ended: list[Handle[Any]] = [await client.start(tells, SECRET, to) for to in ("nobody", "nobody else")]
        handles: list[Handle[Any]] = [await client.start(younger, card, id=card) for card in ("alice", "bob")]
        for handle in ended:
            with suppress(BatutaError):
                await handle.result(PATIENCE)
        for handle in handles:
            await until_entries(handle, 1)
    for one, other in (ended, handles):
        rows = row_of(one, forger, *names), row_of(other, forger, *names)
        await forger.update("runs", one.run_id, id="aside")
        await forger.update("runs", other.run_id, **rows[0])
        await forger.update("runs", one.run_id, **rows[1])
    async with connect(url, codec=CODECS) as client, client.worker(workflows=[younger], heartbeat=0.1):
        for handle in handles:
            await (await client.get(handle.id)).signal(go, "theirs")
            assert "belongs elsewhere" in await why_parked(await client.get(handle.id), "PayloadDamaged")
        for handle in ended:
            with pytest.raises(PayloadDamaged, match="belongs elsewhere"):
                await (await client.get(handle.id)).result(PATIENCE)


async def test_a_signal_for_an_id_reaches_no_run_whose_row_was_given_that_id(url: str, forger: Forger) -> None:
    """Also while that run is in the memory of its worker, and does not read its row."""
    async with connect(url, codec=CODECS) as client, client.worker(workflows=[younger], heartbeat=0.1):
        alice, bob = [await client.start(younger, card, id=card) for card in ("alice", "bob")]
        for handle in (alice, bob):
            await until_entries(handle, 1)
        await forger.update("runs", alice.run_id, id="aside")
        await forger.update("runs", bob.run_id, id="alice")
        async with connect(url, codec=CODECS) as other:
            await (await other.get("alice")).signal(go, "approved")
        assert "belongs elsewhere" in await why_parked(bob, "PayloadDamaged")
        with pytest.raises(PayloadDamaged, match="had the id 'bob'"):
            await client.get("alice")


async def test_a_child_whose_row_is_given_another_parent_answers_none(url: str, forger: Forger) -> None:
    async with connect(url, codec=CODECS) as client, client.worker(workflows=[elder]):
        parents = [await client.start(elder, card) for card in ("alice", "bob")]
        for handle in parents:
            await until_entries(handle, 1)
    children = [await forger.child_of(handle.run_id) for handle in parents]
    for child, parent in zip(children, reversed(parents), strict=True):
        await forger.update("runs", child, parent_run_id=forger.as_id(parent.run_id))
    async with connect(url, codec=CODECS) as client, client.worker(workflows=[elder, younger], heartbeat=0.1):
        for run in (await client.list(workflow="younger", limit=10)).runs:
            assert "belongs elsewhere" in await why_parked(await client.get(run.id), "PayloadDamaged")


async def test_a_run_whose_row_names_the_code_of_another_workflow_is_not_run_by_it(url: str, forger: Forger) -> None:
    async with connect(url, codec=CODECS) as client:
        run = await client.start(pay, SECRET, id="run")
        sent = await client.enqueue(mail, SECRET)
    await forger.update("runs", run.run_id, code="younger")
    await forger.update("runs", sent.run_id, code="job:bounces")
    async with working(url, *CODECS) as client, client.worker(workflows=[younger], heartbeat=0.1):
        for handle in (run, sent):
            assert "its row says that code" in await why_parked(await client.get(handle.id), "PayloadDamaged")


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "continued", "terminated"])
async def test_the_result_of_a_run_is_not_chosen_by_the_state_of_its_row(
    url: str, forger: Forger, state: RunState
) -> None:
    """Else a run that was not done would have completed with None, and one that failed, too."""
    async with connect(url, codec=CODECS) as client, client.worker(workflows=[younger, tells]):
        begun = await client.start(younger, SECRET)
        await until_entries(begun, 1)
        failed = await client.start(tells, SECRET, "nobody")
        with pytest.raises(RunFailed):
            await failed.result(PATIENCE)
    for handle in (begun, failed):
        await forger.update("runs", handle.run_id, state=state, closed_at=10**15, wake_at=None, owner=None)
    async with connect(url, codec=CODECS) as client:
        for handle in (begun, failed):
            if (handle, state) != (failed, "failed"):
                with pytest.raises(PayloadDamaged, match=r"its journal does not end so|no run follows it"):
                    await (await client.get_run(handle.run_id)).result(PATIENCE)


# -- what is not encrypted


@pytest.mark.parametrize(
    "forged", ['"forged"', '{"seq":1,"value":"forged"}', '{"value":["forged"]}', "null", "{}", "x"]
)
async def test_a_text_in_the_clear_is_believed_in_no_place(url: str, forger: Forger, forged: str) -> None:
    await fill(url)
    async with opened(url) as store:
        for place in some_of_each(await forger.places()):
            if (place.column, forged) == ("memo", "null"):
                continue  # as that of a run without one: whoever can write may delete it, and tells nothing
            await forger.write(place, forged)
            assert not await reads(store, place), place
            await forger.write(place, place.text)


async def test_a_schedule_that_was_put_there_in_the_clear_is_not_executed(url: str) -> None:
    async with connect(url, codec=[]) as client:
        await client.schedules.create(Schedule("forged", every(1), mail, "forged"))
    async with working(url, *CODECS) as client:
        await client.schedules.create(Schedule("ours", every(1), mail, "ours"))

        async def has_run() -> bool:
            return len((await client.list(job="mail", limit=10)).runs) >= 3

        await until(has_run)
        begun = {run.id.partition(":")[0] for run in (await client.list(job="mail", limit=100)).runs}
        with pytest.raises(InvalidSchedule, match="it is not encrypted"):
            await client.schedules.get("forged")
        with pytest.raises(InvalidSchedule, match="it is not encrypted"):
            await client.schedules.trigger("forged")
    assert begun == {"ours"}


@pytest.mark.parametrize("body", ['{"seq":1}', '{"seq":1,"value":"forged"}', '{"seq":1,"error":{"type":"x:Y"}}'])
async def test_a_child_does_not_end_by_a_message_that_was_put_there(url: str, forger: Forger, body: str) -> None:
    async with connect(url, codec=CODECS) as client:
        async with client.worker(workflows=[elder, younger]):
            handle = await client.start(elder, SECRET, id="elder")
            await until_entries(handle, 1)
    kid = await forger.child_of(handle.run_id)
    row = {"chain_id": handle.run_id, "message_id": f"child:{kid}", "name": str(handle.run_id), "body": body}
    await forger.insert("inbox", namespace="default", kind="child", at=1, **row)
    await forger.update("runs", handle.run_id, wake_at=1)
    async with connect(url, codec=CODECS) as client, client.worker(workflows=[elder], heartbeat=0.1):
        assert "the store did not close a child of this run that way" in await why_parked(
            await client.get("elder"), "PayloadDamaged"
        )


async def test_the_end_of_a_child_that_the_store_has_closed_is_told_as_its_row_says(url: str, forger: Forger) -> None:
    async with connect(url, codec=CODECS) as client:
        async with client.worker(workflows=[elder, younger]):
            handles = [await client.start(elder, SECRET, id=id) for id in ("terminated", "late", "changed")]
            for handle in handles:
                await until_entries(handle, 1)
            kids = {handle.id: RunId(str(await forger.child_of(handle.run_id))) for handle in handles}
        for id in ("terminated", "changed"):
            await (await client.get_run(kids[id])).terminate("we are closed")
        await forger.update("runs", kids["late"], deadline=1)
        [told] = [one for one in await forger.messages(handles[2].run_id) if one.more == "child"]
        await forger.write(told, '{"seq":1,"value":"forged"}')
        async with client.worker(workflows=[elder, younger], heartbeat=0.1):
            for handle, error in zip(handles, (RunTerminated, RunTimedOut, RunTerminated), strict=True):
                found = await client.get(handle.id)
                with pytest.raises(Exception, match=error.__name__):
                    await found.result(PATIENCE)


async def test_an_end_that_was_put_behind_a_journal_is_found(url: str, forger: Forger) -> None:
    async with working(url, *CODECS) as client:
        handle = await client.start(pay, SECRET)
        await until_charged(handle)
        ended = await client.start(pay, SECRET, id="ended")
        await until_charged(ended)
        await client.select(id_prefix="ended").terminate("enough")
        head = (await handle.describe()).entries - 1
    row: dict[str, Any] = {"namespace": "default", "epoch": 1, "at": 1 << 60, "crc": 0, "body": "{}"}
    await forger.insert("journal", run_id=handle.run_id, ord=head + 1, kind="terminated", **row)
    await forger.update("runs", handle.run_id, head=head + 1)
    async with opened(url) as store:
        with pytest.raises(PayloadDamaged, match="the store did not close the run that way"):
            await store.journal(handle.run_id)
        assert (await store.load(handle.run_id)).sealed.startswith("PayloadDamaged")
        assert (await store.outcome(ended.run_id))[1] is not None
        assert await store.journal(ended.run_id)
        await forger.update("runs", ended.run_id, state="timed_out")
        with pytest.raises(PayloadDamaged, match="the store did not close the run that way"):
            await store.outcome(ended.run_id)
        await forger.update("runs", ended.run_id, state="terminated")
        await forger.sql(
            f"UPDATE {forger.schema}journal SET body = {forger.mark(1)} WHERE kind = 'terminated'",
            '{"reason":"enough","value":"forged"}',
        )
        with pytest.raises(PayloadDamaged, match="says more than why the run was closed"):
            await store.outcome(ended.run_id)


async def test_an_answer_that_was_emptied_is_no_answer(url: str, forger: Forger) -> None:
    await fill(url)
    async with opened(url) as store:
        for place in [one for one in await forger.places() if one.table == "outputs"]:
            await forger.write(place, None)
            assert not await reads(store, place), place


@pytest.mark.parametrize("codecs", [[], [Encryption(K2)], [Compression()]], ids=["none", "other key", "other codec"])
async def test_a_schedule_is_not_replaced_by_those_who_cannot_read_it(
    url: str, forger: Forger, codecs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATUTA_AUDIT_KEY", Keys.new("audit"))  # they may act, and read nothing
    async with connect(url, codec=CODECS) as client:
        await client.schedules.create(Schedule("nightly", every(3600), mail, SECRET))
    [before] = [place for place in await forger.places() if place.table == "schedules"]
    async with connect(url, codec=codecs) as client:
        with pytest.raises(PayloadSealed, match=r"nightly|namespace"):
            await client.schedules.update(Schedule("nightly", every(60), mail, "mine"))
        with pytest.raises(PayloadSealed, match=r"nightly|namespace"):
            async with client.worker(jobs=[mail], schedules=[Schedule("nightly", every(60), mail, "mine")]):
                pass
        await client.schedules.pause("nightly", "maintenance")
    [after] = [place for place in await forger.places() if place.table == "schedules"]
    assert after.text == before.text
    async with connect(url, codec=CODECS) as client:
        found = await client.schedules.get("nightly")
        assert (found.arguments, found.paused, found.reason) == ([SECRET], True, "maintenance")


async def test_a_schedule_that_was_damaged_is_replaced_by_those_who_declare_it(url: str) -> None:
    async with connect(url, codec=[]) as client:
        await client.schedules.create(Schedule("nightly", every(3600), mail, "forged"))
    async with connect(url, codec=CODECS) as client:
        async with client.worker(jobs=[mail], schedules=[Schedule("nightly", every(3600), mail, SECRET)]):
            assert (await client.schedules.get("nightly")).arguments == [SECRET]


# -- what a database reader can confirm


async def test_the_fingerprint_of_a_dead_letter_confirms_no_guess_of_its_message(url: str) -> None:
    """The same error in two namespaces: with one key the same hash, with another key or none another hash."""
    kinds: dict[str, list[PayloadCodec]] = {"none": [], "one": [Encryption(K1)], "same": [Encryption(K1)]}
    found: dict[str, set[str]] = {}
    for namespace, codecs in (kinds | {"other": [Encryption(K2)]}).items():
        async with connect(url, namespace=namespace, codec=codecs) as client:
            async with client.worker(jobs=[bounces]):
                for handle in [await client.enqueue(bounces, SECRET) for _ in range(2)]:
                    with pytest.raises(RunFailed, match=SECRET):
                        await handle.result(PATIENCE)
            found[namespace] = {letter.fingerprint for letter in (await client.dead_letters.list()).letters}
    assert [len(hashes) for hashes in found.values()] == [1, 1, 1, 1]
    assert found["one"] == found["same"]
    assert len(found["none"] | found["one"] | found["other"]) == 3


async def test_the_kept_answer_of_a_request_is_encrypted_and_no_other_is_believed(url: str, forger: Forger) -> None:
    async with connect(url, codec=CODECS) as client:
        requests = client.namespace.requests
        for key in ("one", "two"):
            kept = await requests.begin_request(key, f"digest of {key}", "me", 10**9, 10**9)
            assert (kept.owner, kept.digest, kept.answer) == ("me", f"digest of {key}", None)
            assert await requests.finish_request(key, "me", f'{{"card":"{key}"}}')
        again = await requests.begin_request("one", "digest of one", "you", 10**9, 10**9)
        assert (again.owner, again.answer) == ("me", '{"card":"one"}')
        rows = dict(await forger.sql(f"SELECT key, digest || answer FROM {forger.schema}requests"))
        assert not [text for text in rows.values() if "card" in text or "digest of" in text]
        put = f"UPDATE {forger.schema}requests SET answer = {forger.mark(1)} WHERE key = 'one'"
        [(other,)] = await forger.sql(f"SELECT answer FROM {forger.schema}requests WHERE key = 'two'")
        for forged in (other, '{"card":"forged"}', ""):
            await forger.sql(put, forged)
            with pytest.raises(PayloadDamaged):
                await requests.begin_request("one", "digest of one", "you", 10**9, 10**9)


async def test_a_request_is_known_again_after_the_first_key_has_changed(url: str) -> None:
    keys = {f"key-{number}": bytes([number]) * 32 for number in (1, 2)}
    orders = [dict(keys), dict(reversed(keys.items()))]
    for number, order in enumerate(orders):
        async with connect(url, codec=Encryption(Keys(order))) as client:
            requests = client.namespace.requests
            if number == 0:
                await requests.begin_request("one", "digest", "me", 10**9, 10**9)
                await requests.finish_request("one", "me", '{"card":"one"}')
            else:
                again = await requests.begin_request("one", "digest", "you", 10**9, 10**9)
                assert (again.owner, again.digest, again.answer) == ("me", "digest", '{"card":"one"}')
                other = await requests.begin_request("one", "another digest", "you", 10**9, 10**9)
                assert other.digest != "another digest"
