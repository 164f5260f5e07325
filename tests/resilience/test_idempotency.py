"""Requests with an idempotency key: one effect and one answer, also when their holder is killed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from starlette.requests import Request
from starlette.responses import StreamingResponse

import batuta
from batuta import InvalidInput, connect, workflow
from batuta.connect import store_for
from batuta.errors import IdempotencyInProgress, IdempotencyKeyReused
from batuta.journal.server.requests import KeptRequest
from batuta.journal.store import Store
from batuta.resilience.idempotency import Idempotency, canonical, idempotent
from batuta.resilience.idempotency_asgi import IdempotencyKeys
from batuta.telemetry import Event

# covers D-07, D-08, C-05


@workflow
async def order(number: int) -> int:
    return number


class Caller:
    """Sends requests to an ASGI application."""

    def __init__(self, app: Any, client: Any = None) -> None:
        self.app, self.state = app, {} if client is None else {"batuta": client}

    async def post(
        self, path: str = "/orders", body: bytes = b"{}", key: str | None = "k", method: str = "POST", query: str = ""
    ) -> tuple[int, dict[str, str], bytes]:
        headers = [(b"content-type", b"application/json")]
        if key is not None:
            headers.append((b"idempotency-key", key.encode("latin-1")))
        scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
        scope |= {"headers": headers, "state": dict(self.state), "extensions": {"http.response.pathsend": {}}}
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], found, sent[1]["body"]


class Shop:
    """A trivial application that counts what it did."""

    def __init__(self) -> None:
        self.done = 0
        self.status = 201
        self.body = b""
        self.gate = asyncio.Event()
        self.gate.set()
        self.keys: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.gate.wait()
        body = (await receive())["body"]
        self.done += 1
        self.keys.append(scope["state"].get("idempotency_key", ""))
        if body == b'"raise"':
            raise RuntimeError("a bug")
        headers = [(b"content-type", b"text/plain"), (b"x-number", str(self.done).encode())]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body or b"number %d" % self.done})


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else request.getfixturevalue(f"{request.param}_url")


async def test_a_path_and_a_caller_that_read_alike_are_no_duplicates() -> None:
    """A stranger whose path ends like the name of a user got the answer that was kept for the user."""
    shop, names = Shop(), {"now": ""}
    async with connect("memory://") as client:
        web = Caller(IdempotencyKeys(shop, caller=lambda _: names["now"]), client)
        for path, name in (("/orders", "bob"), ("/orders bob", ""), ("/orders%20bob", ""), ("/orders", "ann bob")):
            names["now"] = name
            status, headers, _ = await web.post(path)
            assert (status, "idempotency-replayed" in headers) == (201, False), (path, name)
        assert shop.done == 4
        names["now"] = "bob"
        assert "idempotency-replayed" in (await web.post("/orders"))[1]


async def test_a_cookie_is_given_once_and_kept_nowhere(url: str) -> None:
    async def signs_in(_: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"set-cookie", b"session=hush"), (b"x-number", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"in"})

    async with connect(url) as client:
        web = Caller(IdempotencyKeys(signs_in), client)
        first, again = [await web.post() for _ in range(2)]
        assert (first[1]["set-cookie"], first[1]["x-number"], first[2]) == ("session=hush", "1", b"in")
        assert ("set-cookie" in again[1], again[1]["x-number"], again[2]) == (False, "1", b"in")


async def test_a_scope_and_a_key_that_read_alike_are_two_requests() -> None:
    async def work() -> tuple[str, bool]:
        return "done", True

    async with connect("memory://") as client:
        idempotency = Idempotency(client.namespace.requests)
        for scope, key in (("app ann", "bob k"), ("app ann bob", "k"), ("app ann", "bob%20k")):
            assert await idempotency.once(scope, key, b"", work) == ("done", False)
        assert await idempotency.once("app ann", "bob k", b"", work) == ("done", True)


async def test_duplicates_get_the_first_answer(url: str) -> None:
    shop = Shop()
    async with connect(url) as client:
        told: list[Event] = []
        web = Caller(IdempotencyKeys(shop, lock=5, wait=10, tell=told.append), client)
        shop.gate.clear()
        tasks = [asyncio.ensure_future(web.post(body=b'{"a": 1, "b": 2}')) for _ in range(32)]
        tasks += [asyncio.ensure_future(web.post(body=b'{ "b": 2, "a": 1 }')) for _ in range(32)]
        await asyncio.sleep(0)
        shop.gate.set()
        answers = await asyncio.gather(*tasks)
        assert shop.done == 1
        assert shop.keys == ["k"]
        assert {(status, headers["x-number"], body) for status, headers, body in answers} == {(201, "1", b"number 1")}
        assert sum("idempotency-replayed" in headers for _, headers, _ in answers) == 63
        assert [one.fields()["route"] for one in told] == ["/orders"] * 63
        for path, key in (("/orders", "other"), ("/bills", "k"), ("/orders", None), ("/orders", None)):
            await web.post(path, key=key)
        assert shop.done == 5
        await web.post(method="GET", key="other")
        assert shop.done == 6
        kept = (await client.idempotency.list()).keys
        assert [(one.key, one.state) for one in kept] == [
            ("POST /bills k", "answered"),
            ("POST /orders k", "answered"),
            ("POST /orders other", "answered"),
        ]
        page = await client.idempotency.list(prefix="POST /o", limit=1)
        more = await client.idempotency.list(prefix="POST /o", limit=1, cursor=page.cursor)
        assert [one.key for one in (*page.keys, *more.keys)] == ["POST /orders k", "POST /orders other"]
        assert more.cursor is None
        assert await client.idempotency.delete("POST /orders k", reason="test")
        assert not await client.idempotency.delete("POST /orders k")
        assert (await web.post(body=b'{"a": 1, "b": 2}'))[2] == b"number 7"


async def test_an_answer_that_a_version_before_has_kept_is_given() -> None:
    async def work() -> tuple[str, bool]:
        raise AssertionError

    async with batuta.connect("memory://") as client:
        requests = client.namespace.requests
        digest = hashlib.sha256(b"scope" + b"\0" + b"asked").hexdigest()
        await requests.begin_request("scope k", digest, "o", 10**7, 10**9)
        await requests.finish_request("scope k", "o", "1")
        assert await Idempotency(requests).once("scope", "k", b"asked", work) == ("1", True)


async def test_another_request_with_the_key_is_a_conflict_and_a_slow_one_is_told_to_wait() -> None:
    shop = Shop()
    async with connect("memory://") as client:
        web = Caller(IdempotencyKeys(shop, client=client, wait=0.05))
        await web.post()
        more: dict[str, Any]
        for more in ({"body": b"[]"}, {"query": "a=1"}):
            status, headers, body = await web.post(**more)
            assert (status, json.loads(body)["code"]) == (409, "idempotency_key_reused")
        assert (await Caller(IdempotencyKeys(shop, client=client, conflict=422)).post(body=b"[]"))[0] == 422
        shop.gate.clear()
        slow = asyncio.ensure_future(web.post(key="slow"))
        await asyncio.sleep(0.01)
        status, headers, body = await web.post(key="slow")
        assert (status, json.loads(body)["code"], headers["retry-after"]) == (409, "idempotency_in_progress", "1")
        shop.gate.set()
        assert (await slow)[0] == 201
        assert shop.done == 2


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (b'{"a": 1, "b": 0.10}', b'{"b":0.1,"a":1}', True),
        (b'{"amount": 12345678901234567.89}', b'{"amount": 12345678901234567.90}', False),
        (b'{"amount": 18446744073709551616}', b'{"amount": 18446744073709551617}', False),
        (b'{"amount": 1e999}', b'{"amount": 2e999}', False),
        (b"[1e9999999999999999999]", b"[1e9999999999999999998]", False),
        (b"[" * 100_000, b"[" * 100_001, False),
    ],
)
def test_two_bodies_are_one_request_if_they_say_the_same(first: bytes, second: bytes, same: bool) -> None:
    assert (canonical(first, "application/json") == canonical(second, "application/json")) is same


async def test_only_what_will_not_change_is_kept() -> None:
    shop = Shop()
    async with connect("memory://") as client:
        web = Caller(IdempotencyKeys(shop, client=client, largest=1000))
        for status in (429, 503, 401, 403):
            shop.status = status
            assert (await web.post())[0] == status
        shop.status = 201
        assert (await web.post())[1]["x-number"] == "5"
        with pytest.raises(RuntimeError, match="a bug"):
            await web.post(body=b'"raise"', key="bug")
        assert (await web.post(key="bug"))[0] == 201
        shop.status = 500
        assert [(await web.post(key="500"))[2] for _ in range(2)] == [b"number 8"] * 2
        shop.status, shop.body = 200, b"\xff" * 2000
        assert (await web.post(key="large"))[2] == shop.body
        status, _, body = await web.post(key="large")
        assert (status, json.loads(body)["code"]) == (409, "idempotency_replayed")
        assert "status 200" in json.loads(body)["detail"]
        shop.body = b"\xff"
        assert [(await web.post(key="binary"))[2] for _ in range(2)] == [b"\xff"] * 2
        assert shop.done == 10


async def test_an_answer_that_comes_in_pieces_is_given_whole() -> None:
    """Frameworks listen for a caller that leaves while they send: the middleware says so only after the answer."""

    async def pieces() -> AsyncIterator[str]:
        for number in range(5):
            await asyncio.sleep(0)
            yield f"{number} "

    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        assert not scope["extensions"], "an answer by the path of a file cannot be kept"
        await Request(scope, receive).body()
        await StreamingResponse(pieces(), 201)(scope, receive, send)
        left.append((await receive())["type"])

    left: list[str] = []
    async with connect("memory://") as client:
        web = Caller(IdempotencyKeys(streaming, client=client))
        assert [(await web.post())[2] for _ in range(2)] == [b"0 1 2 3 4 "] * 2
        assert left == ["http.disconnect"]


async def test_what_an_application_does_after_its_answer_neither_delays_nor_undoes_it() -> None:
    """As background tasks of Starlette do."""
    answered, go, ended = asyncio.Event(), asyncio.Event(), 0

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal ended
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"first"})
        answered.set()
        await go.wait()
        ended += 1
        raise RuntimeError("a bug in what comes after the answer")

    async with connect("memory://") as client:
        web = Caller(IdempotencyKeys(application, client=client))
        first = asyncio.ensure_future(web.post())
        await answered.wait()
        assert (await web.post())[2] == b"first"
        assert not first.done()
        go.set()
        with pytest.raises(RuntimeError, match="after the answer"):
            await first
        assert (await web.post())[2] == b"first"
        assert ended == 1


async def test_an_answer_without_an_end_is_not_kept() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})

    async with connect("memory://") as client:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="gave no complete answer"):
                await Caller(IdempotencyKeys(application, client=client)).post()
        assert not (await client.idempotency.list()).keys


@pytest.mark.parametrize("status", [200, 503])
async def test_an_answer_without_an_end_is_passed_on_once_it_is_too_large_to_be_kept(status: int) -> None:
    """It is not collected: the application is never further ahead of the caller than what may be kept."""
    made = got = 0
    ahead: list[int] = []
    ends: list[str] = []

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal made
        while True:
            made += 1
            ahead.append(made - got)
            yield b"x" * 1000

    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        await StreamingResponse(pieces(), status, {"x-kind": "endless"})(scope, receive, send)
        ends.append("ended")

    async def receive() -> Any:
        if not asked:
            asked.append(True)
            return {"type": "http.request", "body": b"{}", "more_body": False}
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal got
        if message["type"] == "http.response.start":
            assert (message["status"], (b"x-kind", b"endless") in message["headers"]) == (status, True)
        else:
            got += 1
            assert len(message["body"]) == 1000
        if got == 5_000:
            enough.set()
        await asyncio.sleep(0)

    asked: list[bool] = []
    enough = asyncio.Event()
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "state": {}}
    scope["headers"] = [(b"idempotency-key", b"k")]
    async with connect("memory://") as client:
        middleware = IdempotencyKeys(streaming, client=client, largest=10_000)
        async with asyncio.timeout(60):
            await middleware(scope, receive, send)
        assert (got >= 5_000, ends) == (True, ["ended"])
        assert max(ahead) <= 45
        if status == 200:
            asked.clear()
            answers: list[Any] = []

            async def note(message: Any) -> None:
                answers.append(message)

            await middleware(scope, receive, note)
            assert answers[0]["status"] == 409
            assert json.loads(answers[1]["body"])["code"] == "idempotency_replayed"
        else:
            assert not (await client.idempotency.list()).keys


async def test_a_large_answer_whose_caller_has_left_ends_its_application() -> None:
    ended = False

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal ended
        try:
            await send({"type": "http.response.start", "status": 201, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"part", "more_body": True})
        finally:
            ended = True

    async def gone(message: Any) -> None:
        raise OSError("the caller has left")

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "state": {}}
    scope["headers"] = [(b"idempotency-key", b"k")]
    async with connect("memory://") as client:
        with pytest.raises(OSError, match="has left"):
            await IdempotencyKeys(application, client=client, largest=10)(scope, receive, gone)
        assert ended


async def test_a_request_that_is_cancelled_leaves_no_handler_behind() -> None:
    """As when a server stops: the next request with the key is carried out, and not beside the first."""
    began, ended = asyncio.Event(), False

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal ended
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    async with connect("memory://") as client:
        first = asyncio.ensure_future(Caller(IdempotencyKeys(application, client=client)).post())
        await began.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert ended
        assert not (await client.idempotency.list()).keys


async def test_bad_input_is_a_problem_and_not_a_hang() -> None:
    shop = Shop()
    async with connect("memory://") as client:
        web = Caller(IdempotencyKeys(shop, client=client, required=True, largest_body=100))
        for key in ("", "x" * 201, "é", None):
            status, _, body = await web.post(key=key)
            assert (status, json.loads(body)["code"]) == (400, "invalid_input")
        assert (await web.post(body=b"x" * 101))[0] == 413
        assert (await Caller(IdempotencyKeys(shop)).post())[0] == 400
    times: list[dict[str, Any]] = [{"lock": 0}, {"keep": -1}, {"wait": -1}]
    more: list[dict[str, Any]] = [{"conflict": 400}, {"methods": "POST"}, {"not_kept": 429}, {"not_kept": ["429"]}]
    for bad in (*times, *more):
        with pytest.raises(InvalidInput):
            IdempotencyKeys(shop, **bad)
    for bad in times:
        with pytest.raises(InvalidInput):
            idempotent(client, key="k", **bad)
    assert shop.done == 0


async def test_a_function_is_carried_out_once_for_each_key() -> None:
    calls: list[str] = []
    async with connect("memory://") as client:

        @idempotent(client, key="request_id", wait=0.05)
        async def claim(request_id: str, amount: int = 0) -> dict[str, int]:
            calls.append(request_id)
            if amount < 0:
                raise ValueError("no")
            await asyncio.sleep(0.2 if amount > 100 else 0)
            return {"amount": amount}

        assert await claim("a", 5) == await claim("a", amount=5) == {"amount": 5}
        with pytest.raises(IdempotencyKeyReused):
            await claim("a", 6)
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await claim("b", -1)
        slow = asyncio.ensure_future(claim("c", 101))
        await asyncio.sleep(0.01)
        with pytest.raises(IdempotencyInProgress):
            await claim("c", 101)
        await slow
        assert calls == ["a", "b", "b", "c"]
        with pytest.raises(InvalidInput, match="is no parameter"):
            idempotent(client, key="nothing")(claim)
        with pytest.raises(InvalidInput, match="async def"):
            idempotent(client, key="x")(lambda x: x)
        with pytest.raises(InvalidInput, match="must be a string"):
            await idempotent(client, key=lambda *_: 5)(claim)("x")  # type: ignore[arg-type]


async def test_a_living_holder_keeps_its_lock_and_a_stopped_one_is_fenced() -> None:
    store = batuta.connect("memory://")
    async with store as client:
        requests = client.namespace.requests
        first, second = (Idempotency(requests, lock=0.2, wait=5) for _ in range(2))
        effects: list[str] = []

        async def slow() -> tuple[str, bool]:
            effects.append("slow")
            await asyncio.sleep(1.5)
            return "slow", True

        async def quick() -> tuple[str, bool]:
            effects.append("quick")
            return "quick", True

        task = asyncio.ensure_future(first.once("", "k", b"", slow))
        await asyncio.sleep(0.05)
        assert await second.once("", "k", b"", quick) == ("slow", True)
        assert await task == ("slow", False)
        assert effects == ["slow"]
        first._renew = lambda *_: asyncio.sleep(9)  # type: ignore[method-assign]  # its loop is stuck
        task = asyncio.ensure_future(first.once("", "stuck", b"", slow))
        await asyncio.sleep(0.05)
        assert await second.once("", "stuck", b"", quick) == ("quick", False)
        assert await task == ("quick", True)  # the answer of the other, which has the key
        assert (first.counts.taken_over, first.counts.done, second.counts.replayed) == (1, 1, 1)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("site", ["idempotency.begun", "idempotency.done", "idempotency.kept"])
async def test_the_holder_is_killed(kind: str, site: str, request: pytest.FixtureRequest) -> None:
    """64 duplicates come meanwhile: one effect, one answer, and no key that is stuck for longer than its lock."""
    url: str = request.getfixturevalue(f"{kind}_url")
    async with connect(url) as client:
        await client.namespace.check()
        env = {**os.environ, "BATUTA_FAILPOINT": f"{site}:1:kill", "PYTHONPATH": os.getcwd()}
        holder = subprocess.Popen([sys.executable, str(Path(__file__).parent / "holder.py"), url, "o-1"], env=env)
        while not (await client.idempotency.list()).keys:
            await asyncio.sleep(0.01)
        once = Idempotency(client.namespace.requests, lock=1.0, wait=30)

        async def work() -> tuple[str, bool]:
            handle = await client.start(order, 1, id="o-1")
            return f'"{handle.run_id}"', True

        answers = await asyncio.gather(*(once.once("POST /orders", "o-1", b"1", work) for _ in range(64)))
        assert await asyncio.to_thread(holder.wait) == -9
        run = await client.get("o-1")
        assert {answer for answer, _ in answers} == {f'"{run.run_id}"'}
        assert await client.count() == 1
        assert once.counts.done == (0 if site == "idempotency.kept" else 1)


NUMBERS = count(1)


class Requests(RuleBasedStateMachine):
    """The verbs of a store against a model."""

    make: Any = None
    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.store: Store = self.make()
        self.runner.run(self.store.migrate())
        self.runner.run(self.store.open())
        self.number = next(NUMBERS)
        self.model: dict[str, KeptRequest] = {}
        self.shift = 0
        self.now = 0

    def teardown(self) -> None:
        self.runner.run(self.store.close())

    def ask(self, call: Any) -> Any:
        return self.runner.run(call)

    def live(self, key: str) -> KeptRequest | None:
        found = self.model.get(key)
        return None if found is None or found.expires_at <= self.now else found

    @rule(key=st.sampled_from("ab"), digest=st.sampled_from("xy"), owner=st.sampled_from("mn"))
    def begin(self, key: str, digest: str, owner: str) -> None:
        found = self.live(key)
        if found is None or (found.answer is None and found.digest == digest and found.locked_until <= self.now):
            self.model[key] = KeptRequest(
                key=key, digest=digest, owner=owner, locked_until=self.now + 100, expires_at=self.now + 1000
            )
        expected = self.model[key]
        got = self.ask(self.store.begin_request(f"{self.number}{key}", digest, owner, 100_000_000, 1000_000_000))
        assert (got.digest, got.owner, got.answer) == (expected.digest, expected.owner, expected.answer)

    @rule(key=st.sampled_from("ab"), owner=st.sampled_from("mn"))
    def finish(self, key: str, owner: str) -> None:
        found = self.model.get(key)
        mine = found is not None and found.owner == owner
        assert self.ask(self.store.finish_request(f"{self.number}{key}", owner, f'"{owner}"')) == mine or not self.live(
            key
        )
        if mine and found is not None:
            found.answer = f'"{owner}"'

    @rule(key=st.sampled_from("ab"), owner=st.sampled_from("mn"))
    def renew(self, key: str, owner: str) -> None:
        found = self.live(key)
        mine = found is not None and found.owner == owner and found.answer is None
        renewed = self.ask(self.store.renew_request(f"{self.number}{key}", owner, 100_000_000))
        assert renewed == mine or found is None
        if mine and found is not None:
            found.locked_until = self.now + 100

    @rule(key=st.sampled_from("ab"), owner=st.sampled_from("mn"))
    def drop(self, key: str, owner: str) -> None:
        found = self.live(key)
        mine = found is not None and found.owner == owner and found.answer is None
        assert self.ask(self.store.drop_request(f"{self.number}{key}", owner)) == mine or found is None
        if mine or found is None:
            self.model.pop(key, None)

    @rule(key=st.sampled_from("ab"))
    def clear(self, key: str) -> None:
        found = self.live(key)
        assert self.ask(self.store.clear_request(f"{self.number}{key}")) or found is None
        self.model.pop(key, None)

    @rule(key=st.sampled_from("ab"))
    def look(self, key: str) -> None:
        found, got = self.live(key), self.ask(self.store.find_request(f"{self.number}{key}"))
        assert (found is None) == (got is None)
        if found is not None:
            assert (got.owner, got.answer) == (found.owner, found.answer)
        listed = self.ask(self.store.list_requests("", 100, f"{self.number}"))
        assert {one.key for one in listed} >= {f"{self.number}{one}" for one in "ab" if self.live(one)}

    @rule(seconds=st.sampled_from([50, 101, 1001]))
    def pass_time(self, seconds: int) -> None:
        self.store.shift_clock(seconds)
        self.now += seconds


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_requests_do_what_a_model_does(kind: str, request: pytest.FixtureRequest) -> None:
    url = "memory://" if kind == "memory" else request.getfixturevalue(f"{kind}_url")
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        made = type("Made", (Requests,), {"make": lambda _: store_for(url), "runner": runner})
        run_state_machine_as_test(
            made,
            settings=settings(
                max_examples=25,
                stateful_step_count=20,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
