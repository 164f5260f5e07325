"""Gates are asked before an attempt begins, and a refusal costs no attempt."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from batuta import ActivityTimeout, Middleware, Retry, RunFailed, RunState, activity, activity_info, job, workflow
from batuta.authoring.gates import Gate, GateCall, Outcome, Refusal
from batuta.errors import GateFailed, GateRefused, InvalidInput
from batuta.testing import Environment
from tests.engine.kit import jobs, world


class Door(Gate):
    """Shut until somebody opens it."""

    shut: float = 0.0
    """Seconds that it asks callers to wait; 0: open."""

    def __init__(self, name: str = "door", **options: Any) -> None:
        super().__init__(name, **options)
        self.inside = 0
        self.asked = self.lapses = 0
        self.outcomes: list[Outcome] = []

    def bind(self, host: Any) -> "Door":
        self.host = host
        return self

    def enter(self, call: GateCall) -> object:
        self.asked += 1
        if self.shut:
            return Refusal(self.shut, "it is shut")
        self.inside += 1
        return call.gate_arguments()[0]

    def leave(self, ticket: Any, outcome: Outcome) -> None:
        self.inside -= 1
        self.outcomes.append(outcome)

    def lapsed(self, ticket: Any) -> bool:
        self.lapses -= 1
        return self.lapses >= 0

    def open(self) -> None:
        self.shut = 0.0
        self.host.wake(self.name)


door, patient, curt, brief = Door(), Door("patient"), Door("curt", on_refusal="fail"), Door("brief", longest_wait=5)
ALL = (door, patient, curt, brief)
done: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()
    for one in ALL:
        one.shut, one.inside, one.asked, one.lapses, one.outcomes = 0.0, 0, 0, 0, []


@activity(gates=[patient, door])
async def call(what: str) -> str:
    done.append((what, activity_info().attempt))
    if what == "bad":
        raise LookupError(what)
    return what


@activity(gates=[door], once=True)
async def call_once(what: str) -> str:
    done.append((what, activity_info().attempt))
    return what


@activity(gates=[door])
def call_in_thread(what: str) -> str:
    done.append((what, 1))
    return what


@activity(gates=[door], transactional=True)
async def call_in_transaction(what: str) -> str:
    done.append((what, activity_info().attempt))
    return what


@workflow
async def calls(kind: str, what: str) -> str:
    if kind == "once":
        return await call_once(what)
    if kind == "thread":
        return await call_in_thread(what)
    if kind == "transaction":
        return await call_in_transaction(what)
    chosen = {"curt": [curt], "brief": [brief], "plain": [patient, door]}[kind]
    return await call.with_options(gates=chosen)(what)


@workflow
async def limited(what: str) -> str:
    return await call.with_options(total_timeout=10)(what)


@job(gates=[door])
async def send(what: str) -> str:
    done.append((what, activity_info().attempt))
    return what


def in_memory(env: Environment) -> int:
    assert env.worker.session is not None
    return len(env.worker.session.runs)


@pytest.mark.parametrize("kind", ["plain", "once", "thread"])
async def test_a_long_refusal_takes_the_run_out_of_memory_and_costs_no_attempt(kind: str) -> None:
    door.shut = 3600.0
    async with world(calls, call, call_once, call_in_thread, max_activities=1) as env:
        handles = [await env.start(calls, kind, f"{n}") for n in range(3)]
        await env.settle()
        assert in_memory(env) == 0
        found = await handles[0].describe()
        assert (found.state, found.reason) == (RunState.WAITING, "gate:door")
        assert found.wake_at is not None
        assert 3599 < (found.wake_at - env.now).total_seconds() <= 3600.1
        assert await handles[0].attempts() == []
        assert patient.inside == door.inside == 0, "a gate that let the call in before has it back"
        door.open()
        assert await env.store.wake_gate("door", 2) == 2
        assert [await handle.result(4000) for handle in handles] == ["0", "1", "2"]
        assert sorted(done) == [("0", 1), ("1", 1), ("2", 1)]


async def test_a_short_refusal_waits_in_memory_and_ends_early_when_the_gate_opens() -> None:
    door.shut = 20.0
    async with world(calls, call) as env:
        handle = await env.start(calls, "plain", "a")
        await env.settle()
        assert in_memory(env) == 1
        assert door.host.waiting("door") == 1
        began = env.now
        door.open()
        assert await handle.result(1) == "a"
        assert (env.now - began).total_seconds() < 1
        assert (door.asked, done) == (2, [("a", 1)])


@pytest.mark.parametrize("ends", ["let in", "out of memory", "cancelled", "failed"])
async def test_a_call_that_waits_no_more_is_forgotten_by_its_gates(ends: str) -> None:
    shut = brief if ends == "failed" else door
    shut.shut = 3600.0 if ends == "out of memory" else 20.0
    async with world(calls, call) as env:
        handle = await env.start(calls, "brief" if ends == "failed" else "plain", "a")
        await env.settle()
        waiting = shut.host._waiting
        assert bool(waiting) is (ends != "out of memory")
        if ends == "let in":
            await env.advance(21)
            assert [len(row) for row in waiting.values()] == [1], "it was refused again, and has its old place"
            door.shut = 0.0
            assert await handle.result(30) == "a"
        elif ends == "cancelled":
            await handle.cancel()
            await env.settle()
        elif ends == "failed":
            with pytest.raises(RunFailed):
                await handle.result(10)
        assert waiting == {}
        door.shut = 0.0
        await env.advance(3700)


async def test_a_job_waits_at_its_gate_like_a_workflow() -> None:
    door.shut = 60.0
    async with jobs(send) as env:
        handle = await env.client.enqueue(send, "a")
        await env.settle()
        assert in_memory(env) == 0
        found = await handle.describe()
        assert (found.state, found.reason) == (RunState.WAITING, "gate:door")
        door.shut = 0.0
        assert await handle.result(100) == "a"
        assert done == [("a", 1)]


async def test_a_gate_that_fails_calls_raises_its_error_at_once() -> None:
    curt.shut = 7.0
    async with world(calls, call) as env:
        with pytest.raises(RunFailed, match=r"gate 'curt' refused the call \(it is shut\): try again in 7 s"):
            await (await env.start(calls, "curt", "a")).result(1)
        assert done == []


async def test_a_bounded_wait_stays_in_memory_and_fails_when_it_is_over() -> None:
    brief.shut = 3600.0
    async with world(calls, call) as env:
        handle = await env.start(calls, "brief", "a")
        await env.settle()
        assert in_memory(env) == 1
        began = env.now
        with pytest.raises(RunFailed, match="gate 'brief' refused"):
            await handle.result(10)
        assert 4.9 < (env.now - began).total_seconds() < 5.5


async def test_the_time_limits_of_a_call_hold_while_it_waits_for_a_gate() -> None:
    door.shut = 3600.0
    async with world(limited, call) as env:
        handle = await env.start(limited, "a")
        with pytest.raises(RunFailed) as failed:
            await handle.result(11)
        assert isinstance(failed.value.__cause__, ActivityTimeout)
        assert done == []


async def test_a_gate_hears_how_each_attempt_ended() -> None:
    async with world(calls, call) as env:
        assert await (await env.start(calls, "plain", "good")).result(1) == "good"
        bad = await env.start(calls, "plain", "bad")
        await env.advance(2)
        await bad.cancel()
        await env.settle()
    first, second = door.outcomes[0], door.outcomes[1]
    assert (first.ran, first.error) == (True, None)
    assert second.ran
    assert isinstance(second.error, LookupError)
    assert door.inside == 0


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("kind", ["plain", "once", "thread", "transaction", "job"])
async def test_an_attempt_whose_gates_have_lapsed_before_its_code_begins_asks_them_again(
    kind: str, around: bool
) -> None:
    class Around(Middleware):
        async def activity(self, call: Any, proceed: Any) -> Any:
            return await proceed()

    door.lapses = 2
    middleware = [Around()] if around else []
    async with Environment(
        workflows=[calls], activities=[call, call_once, call_in_thread, call_in_transaction], jobs=[send],
        middleware=middleware, max_activities=1, threads=1,
    ) as env:  # fmt: skip
        handle = await (env.client.enqueue(send, "a") if kind == "job" else env.start(calls, kind, "a"))
        assert await handle.result(10) == "a"
        assert done == [("a", 3 if kind == "once" else 1)], "each start of a once activity is noted"
        assert (door.asked, door.inside) == (3, 0)
        assert [one.begun for one in door.outcomes] == [False, False, True]
        assert await (await env.start(calls, "plain", "next")).result(10) == "next", "its place is free"


@pytest.mark.parametrize("kind", ["plain", "once", "thread", "transaction"])
async def test_an_attempt_whose_gates_have_lapsed_may_have_to_wait_for_them(kind: str) -> None:
    class Closing(Door):
        def lapsed(self, ticket: Any) -> bool:
            self.shut = 3600.0 if self.asked == 1 else self.shut
            return self.asked == 1

    closing = Closing("closing")
    chosen = {"plain": call, "once": call_once, "thread": call_in_thread, "transaction": call_in_transaction}[kind]

    @workflow
    async def goes_through() -> str:
        return await chosen.with_options(gates=[closing])("a")

    async with world(goes_through, chosen, max_activities=1) as env:
        handle = await env.start(goes_through)
        while closing.asked < 2:
            await env.advance(0.01)
        await env.advance(60)
        assert (done, in_memory(env), closing.inside) == ([], 0, 0)
        assert (await handle.describe()).reason == "gate:closing"
        closing.open()
        assert await handle.result(4000) == "a"
        assert done == [("a", 2 if kind == "once" else 1)]


async def test_a_worker_that_stops_hands_back_what_waits_for_a_gate() -> None:
    door.shut = 20.0
    async with world(calls, call) as env:
        handle = await env.start(calls, "plain", "a")
        await env.settle()
        await env.take_over()
        door.shut = 0.0
        assert await handle.result(30) == "a"
        assert done == [("a", 1)]


class Broken(Gate):
    def enter(self, call: GateCall) -> object:
        raise KeyError("no such thing")


class Silly(Gate):
    def enter(self, call: GateCall) -> object:
        return Refusal(float("nan"))


@pytest.mark.parametrize("gate", [Broken("broken"), Silly("silly")])
async def test_a_gate_that_raises_fails_the_call_with_a_named_error(gate: Gate) -> None:
    @activity(gates=[door, gate])
    async def act() -> None: ...

    @workflow
    async def run() -> str:
        try:
            await act()
        except GateFailed as error:
            return str(error)
        return ""

    async with world(run, act) as env:
        assert f"'door, {gate.name}' could not be asked" in await (await env.start(run)).result(1)
    assert door.inside == 0


class Sour(Gate):
    """Lets all in, and is unwell when they leave."""

    def enter(self, call: GateCall) -> object:
        return None

    def leave(self, ticket: Any, outcome: Outcome) -> None:
        raise KeyError("no such ticket")


@pytest.mark.parametrize("act", [call, call_in_thread])
async def test_a_gate_that_raises_when_a_call_leaves_hurts_neither_the_call_nor_other_gates(
    act: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    async def run(what: str) -> str:
        return str(await act.with_options(gates=[door, Sour("sour"), patient], retry=Retry(attempts=1))(what))

    async with world(run, act, max_activities=1) as env:
        for what in ("a", "b"):
            assert await (await env.start(run, what)).result(5) == what
        if act is call:
            with pytest.raises(RunFailed, match="bad"):
                await (await env.start(run, "bad")).result(5)
    assert door.inside == patient.inside == 0
    assert "no such ticket" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"gates": door},
        {"gates": ["door"]},
        {"gates": 5},
    ],
)
def test_gates_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="gates="):
        activity(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "x" * 201},
        {"name": "a", "on_refusal": "cry"},
        {"name": "a", "longest_wait": -1},
        {"name": "a", "longest_wait": float("nan")},
        {"name": "a", "longest_wait": 5, "on_refusal": "fail"},
    ],
)
def test_a_gate_with_bad_options_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Door(**options)


def test_a_refusal_tells_programs_when_to_come_back() -> None:
    error = GateRefused("bank", "busy", 2.5)
    assert (error.gate, error.retry_after) == ("bank", 2.5)


class SubRefusal(Refusal, frozen=True):
    """A refusal with more in it."""

    detail: str = ""


async def test_a_refusal_of_a_class_of_its_own_refuses() -> None:
    class Wordy(Gate):
        shut = True

        def enter(self, call: GateCall) -> object:
            return SubRefusal(0.5, "it is shut", detail="more") if self.shut else None

    wordy = Wordy("wordy")

    @workflow
    async def run() -> str:
        return str(await call.with_options(gates=[wordy])("a"))

    async with world(run, call) as env:
        handle = await env.start(run)
        await env.advance(3)
        assert done == []
        wordy.shut = False
        assert await handle.result(2) == "a"


async def test_a_once_activity_passes_its_gate_only_when_it_has_a_place() -> None:
    @activity
    async def block() -> None:
        await asyncio.sleep(50)

    @workflow
    async def blocks() -> None:
        await block()

    async with world(calls, blocks, block, call_once, max_activities=1) as env:
        blocked = await env.start(blocks)
        await env.settle()
        handle = await env.start(calls, "once", "a")
        await env.advance(10)
        assert (door.asked, await handle.attempts()) == (0, []), "it has no place, and is not begun"
        door.shut = 5.0
        await env.advance(41)
        assert (door.asked > 0, await handle.attempts()) == (True, [])
        door.open()
        assert await handle.result(10) == "a"
        await blocked.result(5)
        assert (door.inside, done) == (0, [("a", 1)])


@pytest.mark.parametrize("ends", ["cancelled", "closed", "taken over"])
async def test_a_once_activity_whose_start_is_being_written_gives_its_place_back(ends: str) -> None:
    @workflow
    async def leaves(what: str) -> str:
        task = asyncio.ensure_future(call_once(what))
        await asyncio.sleep(0)
        if ends == "cancelled":
            task.cancel()
        return "left"

    async with world(leaves, calls, call_once, call, max_activities=1) as env:
        for number in range(3):
            handle = await env.start(leaves, str(number))
            if ends == "taken over":
                await env.take_over()
            assert await handle.result(10) == "left"
        await env.settle()
        assert door.inside == 0
        assert await (await env.start(calls, "once", "last")).result(10) == "last"
        assert await (await env.start(calls, "plain", "too")).result(10) == "too"


async def test_an_unused_gate_is_forgotten() -> None:
    gone: list[weakref.ref[Door]] = []

    @workflow
    async def run(number: int) -> str:
        fresh = Door(f"fresh-{number}")
        gone.append(weakref.ref(fresh))
        return str(await call.with_options(gates=[fresh])("a"))

    async with world(run, call, keep_in_memory=0.1) as env:
        for number in range(3):
            await (await env.start(run, number)).result(5)
            passing = Door("passing")
            gone.append(weakref.ref(passing))
            async with env.client.gates(passing):
                pass
            del passing
        await env.advance(5)
        gc.collect()
        assert len(gone) >= 6  # a run that is replayed makes its gate again
        assert {one() for one in gone} == {None}
