"""Webhooks are delivered by jobs: signed, tried again, held back by the endpoint's breaker, and kept when they fail."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import batuta
from batuta import Batuta, InvalidInput, Retry, RunFailed, RunState, activity, workflow
from batuta.authoring.middleware import Middleware
from batuta.errors import InvalidURL, MissingExtra, UnknownEndpoint
from batuta.telemetry import Event, WebhookAttempted
from batuta.webhooks import AddressPolicy, HttpLimits, SafeHttpClient, new_signing_secret
from batuta.webhooks.endpoints import EndpointDoc, Secret
from tests.webhooks.receiver import Receiver, receiving

SOON = Retry(attempts=4, first=0.01, factor=1, jitter=0)
HERE = AddressPolicy(["127.0.0.1"])


class Heard(Middleware):
    events = (WebhookAttempted,)

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def event(self, event: Event) -> None:
        assert isinstance(event, WebhookAttempted)
        self.outcomes.append(event.outcome)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def client(heard: Heard) -> AsyncIterator[Batuta]:
    limits = HttpLimits(total=20, connect=5)
    async with (
        batuta.connect("memory://", middleware=[heard]) as client,
        SafeHttpClient(HERE, limits) as http,
        client.worker(webhooks=http),
    ):
        yield client


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(40):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_an_event_reaches_every_endpoint_that_takes_its_type(client: Batuta, receiver: Receiver) -> None:
    paid = await client.webhooks.create(receiver.url, types=["order.paid"])
    orders = await client.webhooks.create(receiver.url, types=["order.*", "claim.opened"])
    every = await client.webhooks.create(receiver.url)
    await client.webhooks.create(receiver.url, types=["orders.paid", "paid"])
    await client.webhooks.disable((await client.webhooks.create(receiver.url)).id)
    handles = await client.webhooks.send("order.paid", {"id": 7, "who": "é"}, id="evt-7")
    answers = [await handle.result() for handle in handles]
    assert len(answers) == 3
    assert {one.id for one in receiver.received} == {"evt-7"}
    for secret in (paid.secret, orders.secret, every.secret):
        assert [verified(one, secret) for one in receiver.received].count(True) == 1
    body = json.loads(receiver.received[0].body)
    assert (body["type"], body["data"]) == ("order.paid", {"id": 7, "who": "é"})
    assert body["timestamp"].endswith("Z")
    assert receiver.received[0].headers["content-type"] == "application/json"


def verified(one: Any, secret: str) -> bool:
    from batuta.errors import InvalidSignature
    from batuta.webhooks import verify_webhook

    try:
        return bool(verify_webhook(one.headers, one.body, [secret]))
    except InvalidSignature:
        return False


async def test_an_event_with_the_same_id_is_sent_once(client: Batuta, receiver: Receiver) -> None:
    await client.webhooks.create(receiver.url)
    for _ in range(3):
        [handle] = await client.webhooks.send("a", 1, id="evt-1")
        await handle.result()
    assert len(receiver.received) == 1


async def test_a_failed_attempt_is_repeated_with_the_same_id_and_body(
    client: Batuta, receiver: Receiver, heard: Heard
) -> None:
    receiver.answers = [(500, {}), (404, {}), (302, {"Location": "http://10.0.0.1/"})]
    endpoint = await client.webhooks.create(receiver.url)
    [handle] = await client.webhooks.send("a", {"n": 1}, retry=SOON)
    await handle.result()
    assert len(receiver.received) == 4
    assert len(set(receiver.verified(endpoint.secret))) == 1
    assert len({one.body for one in receiver.received}) == 1
    errors = [one.error for one in await handle.attempts()]
    said = [json.loads(error)["message"] for error in errors if error]
    assert said == [f"the receiver answered with status {status}: ok" for status in (500, 404, 302)]
    assert heard.outcomes == ["5xx", "4xx", "3xx", "delivered"]
    assert (await client.webhooks.get(endpoint.id)).failing_since is None


async def test_retry_after_is_obeyed_and_holds_back_other_deliveries_to_the_endpoint(
    client: Batuta, receiver: Receiver
) -> None:
    receiver.answers = [(429, {"Retry-After": "3600"})]
    endpoint = await client.webhooks.create(receiver.url)
    [first] = await client.webhooks.send("a", 1, retry=SOON)
    name = f"webhook:{endpoint.id}"

    async def held() -> bool:
        limits = {one.name: one for one in await client.limits.list()}
        return name in limits and any(key.held_until for key in limits[name].keys)

    await until(held)
    [second] = await client.webhooks.send("a", 2, retry=SOON)

    async def waits() -> bool:
        run = await second.describe()
        return run.state is RunState.WAITING and run.reason == f"gate:{name}"

    await until(waits)
    wake = (await first.describe()).wake_at
    created = (await first.describe()).created_at
    assert wake is not None
    assert created is not None
    assert (wake - created).total_seconds() > 3_500
    assert len(receiver.received) == 1
    await client.limits.release(name)
    await second.result()
    assert len(receiver.received) == 2


async def test_an_endpoint_that_is_away_opens_its_breaker_and_no_other_one(client: Batuta, receiver: Receiver) -> None:
    bad = await client.webhooks.create(receiver.url, types=["bad"])
    async with receiving() as other:
        await client.webhooks.create(other.url, types=["good"])
        receiver.usual = 503
        [handle] = await client.webhooks.send("bad", 1, retry=Retry(attempts=10, first=0.01, factor=1))
        name = f"webhook:{bad.id}"

        async def opened() -> bool:
            return any(one.name == name and one.state == "open" for one in await client.breakers.list())

        await until(opened)
        assert 5 <= len(receiver.received) <= 6
        [good] = await client.webhooks.send("good", 1)
        await good.result()

        async def waits() -> bool:
            return (await handle.describe()).reason == f"gate:{name}"

        await until(waits)
        receiver.usual = 200
        await client.breakers.close(name)
        await handle.result()


async def test_a_refused_address_fails_without_a_second_attempt(client: Batuta, heard: Heard) -> None:
    await client.webhooks.create("http://169.254.169.254/latest")
    [handle] = await client.webhooks.send("a", 1)
    with pytest.raises(RunFailed, match=r"169\.254\.169\.254 may not be called"):
        await handle.result()
    assert len(await handle.attempts()) == 1
    assert heard.outcomes == ["refused"]
    letter = await client.dead_letters.get(handle.id)
    assert "may not be called" in letter.message


async def test_a_dead_letter_is_sent_again_with_the_same_id(client: Batuta, receiver: Receiver) -> None:
    endpoint = await client.webhooks.create(receiver.url)
    receiver.usual = 400
    [handle] = await client.webhooks.send("a", 1, id="evt", retry=Retry(attempts=1))
    with pytest.raises(RunFailed):
        await handle.result()
    receiver.usual = 200
    again = await client.webhooks.resend(handle.id)
    assert (await again.result())["status"] == 200
    assert receiver.verified(endpoint.secret) == ["evt", "evt"]
    assert await client.dead_letters.count() == 0
    twice = await client.webhooks.resend(str(again.run_id), "the receiver lost it")
    await twice.result()
    assert receiver.verified(endpoint.secret) == ["evt"] * 3
    page = await client.webhooks.deliveries(endpoint=endpoint.id)
    assert [run.tags["type"] for run in page.runs] == ["a"] * 3
    assert (await client.webhooks.deliveries(endpoint="ep_other")).runs == []


async def test_a_delivery_under_way_and_a_run_that_is_none_are_not_sent_again() -> None:
    async with batuta.connect("memory://") as client:
        await client.webhooks.create("https://example.com")
        [handle] = await client.webhooks.send("a", 1)
        with pytest.raises(InvalidInput, match="under way"):
            await client.webhooks.resend(handle.id)
        other = await client.enqueue("something else")
        with pytest.raises(InvalidInput, match="no delivery"):
            await client.webhooks.resend(other.id)


async def test_a_delivery_that_waits_for_its_next_attempt_is_sent_now(client: Batuta, receiver: Receiver) -> None:
    await client.webhooks.create(receiver.url)
    receiver.answers = [(500, {}), (200, {})]
    [handle] = await client.webhooks.send("a", 1, retry=Retry(first=3_600, longest=3_600))

    async def waits() -> bool:
        return len(await handle.attempts()) == 1

    await until(waits)
    assert (await client.webhooks.resend(handle.id, "the receiver is mended")).run_id == handle.run_id
    assert (await handle.result()).status == 200
    assert len({one.id for one in receiver.received}) == 1
    [row] = (await client.audit(target=handle.id)).rows
    assert (row.verb, row.reason) == ("retry", "the receiver is mended")


async def test_a_rotated_secret_signs_with_the_old_one_until_that_ends(client: Batuta, receiver: Receiver) -> None:
    first = await client.webhooks.create(receiver.url)
    second = await client.webhooks.rotate(first.id)
    assert first.secret != second.secret
    await (await client.webhooks.test(first.id)).result()
    assert receiver.verified(first.secret) == receiver.verified(second.secret)
    third = await client.webhooks.rotate(first.id, overlap=0)
    receiver.received.clear()
    await (await client.webhooks.test(first.id)).result()
    assert [verified(receiver.received[0], one.secret) for one in (first, second, third)] == [False, False, True]
    assert len((await client.webhooks.get(first.id)).secrets) == 1


async def test_a_secret_is_shown_once(client: Batuta, receiver: Receiver) -> None:
    given = new_signing_secret()
    made = await client.webhooks.create(receiver.url + "?token=hidden", secret=given)
    assert made.secret == given
    assert given not in repr(made)
    shown = [await client.webhooks.get(made.id), *await client.webhooks.list()]
    assert given not in repr(shown)
    assert "hidden" not in repr(shown)
    assert shown[0].url.endswith("/hook?...")
    await client.webhooks.update(made.id, description="for the shop")
    acts = await client.audit(target=made.id)
    assert [act.verb for act in acts.rows] == ["change webhook", "create webhook"]
    assert given not in repr(acts)
    assert "hidden" not in repr(acts)


async def test_410_disables_an_endpoint_at_once(client: Batuta, receiver: Receiver) -> None:
    made = await client.webhooks.create(receiver.url)
    receiver.usual = 410
    [handle] = await client.webhooks.send("a", 1)
    with pytest.raises(RunFailed, match="gone"):
        await handle.result()
    shown = await client.webhooks.get(made.id)
    assert (shown.enabled, "410" in shown.reason) == (False, True)
    rows = [row for row in (await client.audit()).rows if row.verb == "change webhook"]
    assert [(row.target, row.reason, row.after) for row in rows] == [(made.id, shown.reason, {"enabled": False})]
    assert await client.webhooks.send("a", 2) == []
    receiver.usual = 200
    assert (await client.webhooks.enable(made.id)).reason == ""
    await (await client.webhooks.resend(handle.id)).result()


def test_an_endpoint_that_only_fails_is_disabled_after_the_time_that_it_has() -> None:
    doc = EndpointDoc(url="u", secrets=[Secret(text="s", created_at=0)], created_at=0, disable_after=60)
    second = 1_000_000
    assert doc.noted(failed=True, gone=False, now=second)
    assert not doc.noted(failed=True, gone=False, now=50 * second)
    assert doc.noted(failed=False, gone=False, now=51 * second)
    assert not doc.noted(failed=False, gone=False, now=52 * second)
    assert doc.noted(failed=True, gone=False, now=100 * second)
    assert not doc.noted(failed=True, gone=False, now=159 * second)
    assert doc.noted(failed=True, gone=False, now=160 * second)
    assert not doc.enabled
    assert "60 s" in doc.reason
    never = EndpointDoc(url="u", secrets=[], created_at=0)
    assert never.noted(failed=True, gone=False, now=0)
    assert not never.noted(failed=True, gone=False, now=10**15)
    assert never.enabled


async def test_deliveries_to_a_disabled_or_deleted_endpoint_become_dead_letters(
    client: Batuta, receiver: Receiver
) -> None:
    made = await client.webhooks.create(receiver.url)
    await client.webhooks.disable(made.id, "they asked for it")
    with pytest.raises(RunFailed, match="disabled: they asked for it"):
        await (await client.webhooks.test(made.id)).result()
    await client.webhooks.enable(made.id)
    await (await client.webhooks.test(made.id)).result()
    receiver.usual = 500
    [handle] = await client.webhooks.send("a", 1, retry=Retry(attempts=2, first=3600))

    async def tried() -> bool:
        return len(receiver.received) == 2

    await until(tried)
    await client.webhooks.delete(made.id)
    assert await client.webhooks.list() == []
    assert [one.name for one in await client.breakers.list() if made.id in one.name] == []
    for wrong in (client.webhooks.get, client.webhooks.enable, client.webhooks.delete, client.webhooks.test):
        with pytest.raises(UnknownEndpoint, match=made.id):
            await wrong(made.id)
    await handle.cancel()


@activity(retry=Retry(attempts=3, first=0.01))
async def announce(number: int) -> str:
    [handle] = await sending[0].webhooks.send("order.paid", {"number": number})
    if (failures := sending[1]) > 0:
        sending[1] = failures - 1
        raise ConnectionError("after it was sent")
    return str(handle.id)


sending: list[Any] = []


@workflow
async def pay(number: int) -> list[str]:
    return [await announce(number), await announce(number)]


async def test_an_activity_that_is_repeated_sends_the_same_event_once(client: Batuta, receiver: Receiver) -> None:
    sending[:] = [client, 2]
    await client.webhooks.create(receiver.url)
    async with client.worker(workflows=[pay], activities=[announce]):
        ids = await (await client.start(pay, 1)).result()
    assert len(set(ids)) == 2

    async def both() -> bool:
        return len(receiver.received) == 2

    await until(both)
    assert len({one.id for one in receiver.received}) == 2


@pytest.mark.parametrize("secret", ["", "x", "whsec_", "whsec_AAAA", "whsec_" + "A" * 200, 5])
async def test_a_secret_that_cannot_sign_is_refused_and_not_repeated(secret: Any) -> None:
    async with batuta.connect("memory://") as client:
        with pytest.raises(InvalidInput) as refused:
            await client.webhooks.create("https://example.com/", secret=secret)
        assert "AAAA" not in str(refused.value)


async def test_bad_input_is_refused_with_what_is_wrong() -> None:
    good = "https://example.com/"
    async with batuta.connect("memory://") as client:
        webhooks = client.webhooks
        for bad in ("", "example.com", "ftp://example.com/", "http://user:pw@example.com/", "http://2130706433/"):
            with pytest.raises(InvalidURL):
                await webhooks.create(bad)
        for types in (
            ["a b"],
            [""],
            ["a..b"],
            ["*.a"],
            ["a.*.b"],
            "order.paid",
            [3],
            ["x" * 600],
            [f"t{n}" for n in range(101)],
        ):
            with pytest.raises(InvalidInput):
                await webhooks.create(good, types=types)  # type: ignore[arg-type]
        for options in ({"disable_after": 0.5}, {"disable_after": "x"}, {"description": "x" * 600}):
            with pytest.raises(InvalidInput, match=next(iter(options))):
                await webhooks.create(good, **options)
        assert await webhooks.list() == []
        made = await webhooks.create(good)
        for overlap in (-1, 1e9, "soon"):
            with pytest.raises(InvalidInput, match="overlap"):
                await webhooks.rotate(made.id, overlap=overlap)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="nothing to change"):
            await webhooks.update(made.id)
        for event in ("", "a b", "a.*", "*", 3):
            with pytest.raises(InvalidInput, match="event type"):
                await webhooks.send(event, 1)  # type: ignore[arg-type]
        for id in ("", "a.b", "a b", "x" * 151):
            with pytest.raises(InvalidInput, match="id of a webhook"):
                await webhooks.send("a", 1, id=id)
        with pytest.raises(UnknownEndpoint):
            await webhooks.send("a", 1, endpoints=["ep_none"])
        with pytest.raises(InvalidInput, match="webhook 'a'"):
            await webhooks.send("a", "x" * 300_000)
        with pytest.raises(InvalidInput, match="webhooks="):
            client.worker(webhooks="yes")  # type: ignore[arg-type]
        assert (await webhooks.deliveries()).runs == []


async def test_a_store_that_is_away_when_an_attempt_is_noted_sends_nothing_twice(
    client: Batuta, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from batuta.errors import StoreUnavailable
    from batuta.webhooks.manager import Webhooks

    await client.webhooks.create(receiver.url)
    receiver.answers = [(500, {})]
    really = Webhooks._do

    async def away(self: Any, id: str, rule: Any, act: Any) -> Any:
        found = await really(self, id, rule, act)
        if isinstance(found, str):
            raise StoreUnavailable("away")
        return found

    monkeypatch.setattr(Webhooks, "_do", away)
    with caplog.at_level(logging.WARNING, "batuta.webhooks"):
        [handle] = await client.webhooks.send("a", 1, retry=SOON)
        await handle.result()
    assert len(receiver.received) == 2
    assert "is not noted" in caplog.text


async def test_without_the_extra_a_worker_that_is_to_deliver_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpcore2", None)
    async with batuta.connect("memory://") as client:
        with pytest.raises(MissingExtra, match="webhooks"):
            client.worker(webhooks=True)


async def test_endpoints_outlive_the_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/hooks.db"
    async with batuta.connect(url) as client:
        made = await client.webhooks.create("https://example.com/", types=["a"], disable_after=3600)
    async with batuta.connect(url) as client:
        [kept] = await client.webhooks.list()
        assert (kept.id, kept.types, kept.disable_after) == (made.id, ["a"], 3600)
    async with batuta.connect(url, namespace="other") as client:
        assert await client.webhooks.list() == []
