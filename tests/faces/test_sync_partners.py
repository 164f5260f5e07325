"""Breakers and limits towards partners, operated by blocking code."""

import threading
import time

import pytest

import batuta.sync
from batuta import BreakerOpen, GateFailed, InvalidInput, Rate, UnknownPartner, activity, workflow
from batuta.resilience import Bucket, breaker, partner_limit

PATIENCE = 20.0
bank = breaker("bank")
orders = partner_limit("orders", rate="500/min")


@activity(gates=[bank, orders])
def pay(amount: int) -> int:
    return amount


@workflow
async def pays(amount: int) -> int:
    return await pay(amount)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else str(request.getfixturevalue(f"{request.param}_url"))


def test_blocking_code_forces_breakers_and_changes_limits(url: str) -> None:
    with batuta.sync.connect(url) as client:
        breakers, limits = client.breakers, client.limits
        with client.worker(workflows=[pays], activities=[pay]):
            assert client.start(pays, 5).result(PATIENCE) == 5
            end = time.monotonic() + PATIENCE
            while not (breakers.list() and limits.list()):
                assert time.monotonic() < end, "the worker declared nothing"
                time.sleep(0.01)
            assert (breakers.open("bank", "maintenance").forced, breakers.get("bank").state) == ("open", "open")
            held = client.start(pays, 6)
            assert breakers.off("bank").forced == "off"
            assert held.result(PATIENCE) == 6
            assert breakers.close("bank").forced == ""
            assert limits.change("orders", rate="900/s", reason="a big day").rates == ["900/s"]
            assert client.start(pays, 7).result(PATIENCE) == 7
        limits.hold("orders", 600)
        assert limits.get("orders").keys[0].held_until is not None
        limits.release("orders")
        assert limits.get("orders").keys[0].held_until is None
        assert limits.reset("orders").rates == ["500/min"]
        assert limits.change("orders", bucket=Bucket(9, Rate(1, 3600))).capacity == 9
        limits.sync("orders", -4)
        assert limits.get("orders").keys[0].balance == -4
        breakers.forget("bank")
        limits.forget("orders")
        assert not breakers.list()
        assert not limits.list()


def test_blocking_code_passes_gates(url: str) -> None:
    curt = breaker("curt", failures=1, open_for=60, on_refusal="fail")
    single = partner_limit("single", concurrency=1, key=lambda bank: bank)
    inside = []

    def one(client: batuta.sync.Client) -> None:
        with client.gates(bank, single, args=["a"]):
            inside.append(1)
            assert len(inside) == 1
            inside.pop()

    with batuta.sync.connect(url) as client:
        threads = [threading.Thread(target=one, args=(client,)) for _ in range(5)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(PATIENCE)
        assert client.limits.get("single").keys[0].key == "a"
        with pytest.raises(ConnectionError, match="away"), client.gates(curt):
            raise ConnectionError("away")
        end = time.monotonic() + PATIENCE
        while client.breakers.get("curt").state != "open":
            assert time.monotonic() < end, "it was not told of the failure"
            time.sleep(0.01)
        with pytest.raises(BreakerOpen), client.gates(curt):
            raise AssertionError("it was let in")
        with pytest.raises(GateFailed), client.gates(single):
            raise AssertionError("it has no key")


def test_bad_input_is_refused_to_blocking_code() -> None:
    with batuta.sync.connect("memory://") as client:
        for operate in (client.breakers.get, client.breakers.close, client.limits.reset, client.limits.release):
            with pytest.raises(UnknownPartner, match="'nope'"):
                operate("nope")
        with pytest.raises(InvalidInput, match="would allow everything"):
            client.limits.change("orders")
        assert not client.limits.list()
