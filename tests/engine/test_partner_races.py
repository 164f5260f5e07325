"""What a limit does in one process while the store's answer is under way, or another process changes it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from batuta import Rate
from batuta.authoring.gates import Outcome, Refusal
from batuta.journal.resilience.partners import LIMIT
from batuta.resilience import partner_limit
from batuta.resilience.limits.rules import LimitDoc, LimitSettings
from batuta.resilience.partners import Partners
from batuta.testing import Environment
from tests.engine.test_partner_limits import TooMany


class Slow:
    """A store whose answers to changes of partners take as long as a test wants."""

    def __init__(self, store: Any) -> None:
        self._store, self.gate = store, asyncio.Event()
        self.gate.set()
        self.waiting = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def change_partner(self, *args: Any) -> Any:
        answer = await self._store.change_partner(*args)
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        return answer


class Host:
    """What a limit has in a process, with calls that wait by themselves."""

    def __init__(self, store: Any) -> None:
        self.store, self.namespace = Slow(store), "default"
        self.tasks: set[asyncio.Task[None]] = set()
        self.rows = 0
        self.woken: list[str] = []
        self.services: dict[Any, Any] = {}

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wake(self, topic: str, most: int | None = None) -> None:
        self.woken.append(topic)

    def waiting(self, topic: str) -> int:
        return self.rows

    def service(self, kind: Any) -> Any:
        if kind not in self.services:
            self.services[kind] = kind(self)
        return self.services[kind]

    def spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def call_later(self, seconds: float, act: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    def report(self, event: Any) -> None: ...

    async def settle(self) -> None:
        """Until nothing is under way, or the store is slow."""
        for _ in range(200):
            await asyncio.sleep(0)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with Environment() as env:
        yield Host(env.store)


CALL: Any = None


async def entered(host: Host, keeper: Any) -> Any:
    """A call is let in."""
    while isinstance(ticket := keeper.enter(CALL), Refusal):
        await host.settle()
    return ticket


async def test_a_permit_that_comes_free_while_more_are_asked_for_counts_once(host: Host) -> None:
    keeper: Any = partner_limit("two", concurrency=2).bind(host)  # type: ignore[arg-type]
    first, _second = await entered(host, keeper), await entered(host, keeper)
    host.store.gate.clear()
    keeper.enter(CALL)  # it asks the store for more
    await host.settle()
    keeper.leave(first, Outcome())
    inside = 1 + sum(not isinstance(keeper.enter(CALL), Refusal) for _ in range(3))
    host.store.gate.set()
    await host.settle()
    inside += sum(not isinstance(keeper.enter(CALL), Refusal) for _ in range(3))
    assert inside <= 2


@pytest.mark.parametrize("change", ["lowered", "held", "asked for a pause"])
async def test_what_is_granted_while_a_limit_changes_is_not_used(host: Host, change: str) -> None:
    gate = partner_limit("many", rate="1000/s")
    keeper: Any = gate.bind(host)  # type: ignore[arg-type]
    ticket = await entered(host, keeper)
    await asyncio.sleep(2)
    slow = host.store.gate
    slow.clear()
    assert isinstance(keeper.enter(CALL), Refusal)
    await host.settle()
    assert host.store.waiting == 1, "the grant is under way"
    if change == "asked for a pause":
        keeper.leave(ticket, Outcome(TooMany("600")))
    else:
        doc = LimitDoc(declared=gate.settings, turn=10**17)
        if change == "lowered":
            doc.changed = LimitSettings(rates=[Rate(1, 3600)])
        else:
            doc.hold("*", 10**17, 0)
        host.services[Partners]._shared[LIMIT, "many"].learn_doc(doc.encode())
    slow.set()
    for _ in range(10):
        await asyncio.sleep(0)
        assert isinstance(keeper.enter(CALL), Refusal) or host.store.waiting == 0
        pool = host.services[Partners]._shared[LIMIT, "many"]._pools["*"]
        assert pool.free == 0


async def test_concurrency_that_another_process_gives_back_is_asked_for_at_once(host: Host) -> None:
    gates = partner_limit("one", concurrency=1), partner_limit("one", concurrency=1)
    other = Host(host.store._store)
    mine, theirs = gates[0].bind(host), gates[1].bind(other)  # type: ignore[arg-type]
    ticket = await entered(host, mine)
    await other.settle()
    for _ in range(3):
        assert isinstance(theirs.enter(CALL), Refusal)
        await other.settle()
    other.rows, other.woken[:] = 1, []
    mine.leave(ticket, Outcome())
    await asyncio.sleep(0.5)
    assert "one/*" in other.woken
    assert not isinstance(theirs.enter(CALL), Refusal)


@pytest.mark.parametrize("rate", [None, "1000/s"])
async def test_concurrency_is_shared_with_a_process_that_waits_for_it(host: Host, rate: str | None) -> None:
    """However many calls wait in the one that has it."""
    gates = [partner_limit("four", rate=rate, concurrency=4) for _ in range(2)]
    other = Host(host.store._store)
    mine, theirs = gates[0].bind(host), gates[1].bind(other)  # type: ignore[arg-type]
    inside = [await entered(host, mine) for _ in range(4)]
    host.rows, other.rows = 50, 2
    got: list[Any] = []

    async def both_ask() -> None:
        for who, keeper, found in ((host, mine, inside), (other, theirs, got)):
            ticket = keeper.enter(CALL)
            await who.settle()
            if not isinstance(ticket, Refusal):
                found.append(ticket)
            assert len(inside) + len(got) <= 4

    for _ in range(20):
        await both_ask()
        await asyncio.sleep(1)
        mine.leave(inside.pop(), Outcome())
        await host.settle()
        await both_ask()
    assert (len(inside), len(got)) == (2, 2)
    other.rows = 0
    for ticket in got:
        theirs.leave(ticket, Outcome())
    got.clear()
    await asyncio.sleep(5)
    for _ in range(4):
        await both_ask()
        if got:
            theirs.leave(got.pop(), Outcome())
        await asyncio.sleep(1)
    assert len(inside) >= 3, "nobody waits: it may have what is free"
