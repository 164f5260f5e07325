"""A circuit breaker holds calls back that would fail, and lets a few find out when the partner is back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pytest

from batuta import BreakerOpen, NonRetryable, Retry, RunFailed, RunState, activity, job, workflow
from batuta.authoring.gates import Outcome
from batuta.clock import SECOND
from batuta.errors import GateFailed, InvalidInput
from batuta.journal.resilience.partners import BREAKER, PartnerChange, PartnerDocs
from batuta.resilience import breaker
from batuta.resilience.answers import is_failure, pause_after
from batuta.resilience.breakers.rules import BreakerSettings, BreakerState, decode_breaker, new_breaker
from batuta.testing import Environment
from tests.engine.kit import jobs, world

ONCE = Retry(attempts=1)
bank = breaker("bank", failures=3, open_for=60, growth=2, longest_open=200)
curt = breaker("bank", on_refusal="fail")


class Partner:
    """Away when it is told to be."""

    def __init__(self) -> None:
        self.away = False
        self.calls = 0
        self.at_once = self.most = 0
        self.takes = 0.0
        self.error: Exception | None = None

    async def answer(self, what: str) -> str:
        self.calls += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            if self.takes:
                await asyncio.sleep(self.takes)
            if self.away:
                raise self.error or ConnectionError("away")
            return what
        finally:
            self.at_once -= 1


partner = Partner()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    partner.__init__()  # type: ignore[misc]


@activity(gates=[bank], retry=Retry(attempts=50, first=1, factor=1, jitter=0))
async def pay(what: str) -> str:
    return await partner.answer(what)


@workflow
async def pays(what: str) -> str:
    return await pay(what)


@workflow
async def pays_or_not(what: str) -> str:
    return await pay.with_options(gates=[curt], retry=ONCE)(what)


@job(gates=[bank], retry=Retry(attempts=50, first=1, factor=1, jitter=0))
async def pay_later(what: str) -> str:
    return await partner.answer(what)


@pytest.fixture
async def env() -> AsyncIterator[Environment]:
    async with world(pays, pays_or_not, pay) as env:
        yield env


async def state_of(env: Environment, name: str = "bank") -> BreakerState:
    docs = {one.name: one.doc for one in await env.store.partners() if one.kind == BREAKER}
    found = decode_breaker(docs[name])
    assert found is not None
    return found


async def opened(env: Environment) -> Any:
    """The breaker is open, and a run waits for it."""
    partner.away = True
    handle = await env.start(pays, "a")
    await env.advance(10)
    assert (await state_of(env)).state == "open"
    return handle


async def test_it_opens_after_failures_in_a_row_and_holds_runs_without_memory(env: Environment) -> None:
    handle = await opened(env)
    assert partner.calls == 3
    found = await handle.describe()
    assert (found.state, found.reason) == (RunState.WAITING, "gate:bank")
    assert len(await handle.attempts()) == 3, "a refusal is no attempt"
    others = [await env.start(pays, f"{n}") for n in range(50)]
    await env.settle()
    assert env.worker.session is not None
    assert not env.worker.session.runs
    assert partner.calls == 3
    partner.away = False
    results = [await one.result(300) for one in [handle, *others]]
    assert results == ["a", *map(str, range(50))]
    assert partner.calls == 3 + 51
    assert (await state_of(env)).state == "closed"


@pytest.mark.parametrize("when", ["closed", "half-open"])
async def test_a_function_that_cannot_tell_whether_an_error_counts_gives_no_verdict(when: str) -> None:
    @activity(gates=[breaker("puzzled", failures=1, counts=lambda error: error.code == 5)], retry=ONCE)  # type: ignore[attr-defined]
    async def ask(what: str) -> str:
        return await partner.answer(what)

    @workflow
    async def asks(what: str) -> str:
        return await ask(what)

    async with world(asks, ask, max_activities=1) as env:
        if when == "half-open":
            partner.away, partner.error = True, OSError("away")
            partner.error.code = 5  # type: ignore[attr-defined]
            with pytest.raises(RunFailed):
                await (await env.start(asks, "0")).result(5)
            await env.advance(61)
        partner.away, partner.error = True, LookupError("no code")
        with pytest.raises(RunFailed, match="no code"):
            await (await env.start(asks, "1")).result(5)
        await env.advance(1)
        found = await state_of(env, "puzzled")
        assert (found.state, found.probes) == (when, {})
        partner.away = False
        assert await (await env.start(asks, "2")).result(5) == "2"


async def test_a_breaker_that_is_deleted_while_open_begins_anew_in_all_workers(env: Environment) -> None:
    handle = await opened(env)
    partner.away = False
    await env.client.breakers.forget("bank")
    assert await handle.result(10) == "a"
    found = await state_of(env)
    assert (found.state, found.settings) == ("closed", bank.settings)


async def test_a_forgotten_one_that_another_worker_has_declared_again_is_closed_here_too(env: Environment) -> None:
    handle = await opened(env)
    partner.away = False

    def anew(docs: PartnerDocs) -> PartnerChange[None]:
        return PartnerChange(None, new_breaker(docs.now, bank.settings).encode(), tell=True)

    await env.store.change_partner(BREAKER, "bank", "", lambda _: PartnerChange(None, ""))
    await env.store.change_partner(BREAKER, "bank", "", anew)
    assert await handle.result(10) == "a"


async def test_by_default_five_failures_in_a_row_open_it_for_a_minute_and_a_few_probes_decide() -> None:  # covers D-03
    @activity(gates=[breaker("default", probes=3, successes=3)], retry=Retry(attempts=50, first=1, factor=1, jitter=0))
    async def ask(what: str) -> str:
        return await partner.answer(what)

    @workflow
    async def asks(what: str) -> str:
        return await ask(what)

    async with world(asks, ask) as env:
        partner.away = True
        first = await env.start(asks, "0")
        await env.advance(3.5)
        assert (partner.calls, (await state_of(env, "default")).state) == (4, "closed")
        await env.advance(1)
        found = await state_of(env, "default")
        assert (partner.calls, found.state, found.until - found.since) == (5, "open", 60_000_000)
        rest = [await env.start(asks, str(number)) for number in range(1, 20)]
        partner.away, partner.takes, partner.most = False, 5.0, 0
        await env.advance(55)
        assert partner.calls == 5, "it refuses for 60 s"
        await env.advance(9)
        assert (partner.calls, partner.most, (await state_of(env, "default")).state) == (8, 3, "half-open")
        assert [await one.result(300) for one in [first, *rest]] == [str(number) for number in range(20)]
        assert (await state_of(env, "default")).state == "closed"


async def test_when_it_closes_all_are_woken_long_before_their_time(env: Environment) -> None:
    handle = await opened(env)
    others = [await env.start(pays, f"{n}") for n in range(20)]
    await env.settle()
    partner.away = False
    assert await handle.result(70) == "a"
    before = env.now
    assert [await one.result(5) for one in others] == [str(n) for n in range(20)]
    assert (env.now - before).total_seconds() < 5


async def test_a_failed_probe_opens_it_again_for_longer(env: Environment) -> None:
    await opened(env)
    first = await state_of(env)
    assert (first.until - first.since) / 1e6 == 60
    await env.advance(75)
    second = await state_of(env)
    assert (second.state, second.reason, partner.calls) == ("open", "a probe failed", 4)
    assert (second.until - second.since) / 1e6 == 120
    for _ in range(3):
        await env.advance(400)
    assert (await state_of(env)).until - (await state_of(env)).since == 200_000_000


@pytest.mark.parametrize(
    ("open_for", "growth", "longest", "expected"),
    [
        (0.1, 2, 0.5, [0.1, 0.2, 0.4, 0.5, 0.5]),
        (0.5, 10, 60, [0.5, 5, 50, 60, 60]),
        (60, 1, 3600, [60, 60, 60]),
        (0.001, 100, 366 * 86_400, [0.001, 0.1, 10, 1_000, 100_000, 10_000_000, 366 * 86_400]),
    ],
)
def test_the_time_that_it_is_open_grows_up_to_the_longest(
    open_for: float, growth: float, longest: float, expected: list[float]
) -> None:
    now = 0
    times: list[float] = []
    state = BreakerState(settings=BreakerSettings(failures=1, open_for=open_for, growth=growth, longest_open=longest))
    state.report([-1], state.turn, now)
    while len(times) < len(expected):
        times.append((state.until - now) / SECOND)
        now = state.until
        [probe] = state.take_probes(["probe"], now)
        state.end_probe(probe, well=False, now=now)
    assert times == expected
    for _ in range(200):
        [probe] = state.take_probes(["probe"], now := state.until)
        state.end_probe(probe, well=False, now=now)
    assert (state.until - now) / SECOND == expected[-1]


async def test_one_probe_goes_at_a_time(env: Environment) -> None:
    handles = [await opened(env), *[await env.start(pays, f"{n}") for n in range(30)]]
    partner.away, partner.takes = False, 10.0
    before = partner.calls
    await env.advance(57)
    assert (await state_of(env)).state == "half-open"
    assert partner.calls - before == 1
    for handle in handles:
        await handle.result(300)
    assert (await state_of(env)).state == "closed"


async def test_calls_that_do_not_wait_fail_with_a_named_error(env: Environment) -> None:
    await opened(env)
    with pytest.raises(RunFailed) as failed:
        await (await env.start(pays_or_not, "b")).result(1)
    error = failed.value.__cause__
    assert isinstance(error, BreakerOpen)
    assert error.gate == "bank"
    assert 0 < error.retry_after <= 200


async def test_jobs_are_held_as_well() -> None:
    async with jobs(pay_later) as env:
        partner.away = True
        handles = [await env.client.enqueue(pay_later, f"{n}") for n in range(20)]
        await env.advance(10)
        assert (await state_of(env)).state == "open"
        seen = partner.calls
        assert {(await one.describe()).reason for one in handles} == {"gate:bank"}
        partner.away = False
        assert [await one.result(300) for one in handles] == [str(n) for n in range(20)]
        assert seen < 30


async def test_a_share_of_failures_opens_it_when_there_were_enough_calls() -> None:
    half = breaker("half", failure_rate=0.5, minimum=10, window=100)

    @activity(gates=[half], retry=ONCE)
    async def act(fails: bool) -> None:
        if fails:
            raise TimeoutError("slow")

    @workflow
    async def run(pattern: str) -> int:
        done = 0
        for letter in pattern:
            try:
                await act(letter == "x")
            except TimeoutError:
                pass
            done += 1
        return done

    async with world(run, act) as env:
        await (await env.start(run, "..x..x.")).result(10)
        await env.advance(1)
        assert (await state_of(env, "half")).state == "closed"
        handle = await env.start(run, "xxxxx")
        await env.advance(20)
        found = await state_of(env, "half")
        assert (found.state, found.reason) == ("open", "5 of 10 calls failed in 100 s")
        await handle.cancel()


async def test_slow_calls_count_as_failures() -> None:
    slow = breaker("slow", failures=2, slow=5)

    @activity(gates=[slow])
    async def act() -> None:
        await asyncio.sleep(6)

    @workflow
    async def run() -> None:
        await act()

    async with world(run, act) as env:
        for _ in range(2):
            await (await env.start(run)).result(20)
        await env.advance(1)
        assert (await state_of(env, "slow")).state == "open"


class Answered(Exception):
    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"{status}")
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (ConnectionRefusedError(), True),
        (TimeoutError(), True),
        (Answered(500), True),
        (Answered(503), True),
        (Answered(404), False),
        (Answered(429), False),
        (FileNotFoundError(), False),
        (KeyError("bug"), None),
        (NonRetryable("no"), None),
    ],
)
def test_errors_count_by_what_they_say_of_the_partner(error: Exception, counts: bool | None) -> None:
    assert is_failure(error) is counts


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("999999999", 60.0),
        ("Thu, 01 Jan 1970 00:00:40 GMT", 30.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", None),
        ("-5", None),
        ("0", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        ("1, 2", None),
        ("\x00\ud800", None),
    ],
)
def test_a_retry_after_is_obeyed_within_reason(said: str, seconds: float | None) -> None:
    assert pause_after(Answered(429, Retry_After=said), now=10.0, longest=60.0) == seconds


async def test_authors_name_errors_that_count_and_that_do_not() -> None:
    named = breaker("named", failures=1, counts=[KeyError], ignores=[ConnectionError])

    @activity(gates=[named], retry=ONCE)
    async def act(kind: str) -> None:
        raise {"key": KeyError("k"), "net": ConnectionError("n")}[kind]

    @workflow
    async def run(kind: str) -> None:
        await act(kind)

    async with world(run, act) as env:
        for kind, state in (("net", "closed"), ("key", "open")):
            with pytest.raises(RunFailed):
                await (await env.start(run, kind)).result(5)
            await env.advance(1)
            assert (await state_of(env, "named")).state == state


@pytest.mark.parametrize("counts", [KeyError, [KeyError], lambda error: isinstance(error, KeyError)])
def test_what_counts_is_a_class_several_or_a_function(counts: Any) -> None:
    named = breaker("named", counts=counts)
    assert named.verdict(Outcome(KeyError("k")), None) is False
    assert named.verdict(Outcome(Answered(404)), None) is True
    assert breaker("named", ignores=KeyError).verdict(Outcome(KeyError("k")), None) is None
    assert breaker("named", statuses=[HTTPStatus.NOT_FOUND]).verdict(Outcome(Answered(404)), None) is False


async def test_two_declarations_of_one_name_must_agree() -> None:
    other = breaker("bank", failures=7)

    @activity(gates=[bank, other])
    async def act() -> None: ...

    @workflow
    async def run() -> None:
        await act()

    async with world(run, act) as env:
        with pytest.raises(RunFailed) as failed:
            await (await env.start(run)).result(5)
        assert isinstance(failed.value.__cause__, GateFailed)
        assert "declared twice with other settings (failures" in str(failed.value)


@pytest.mark.parametrize(
    "options",
    [
        {"failures": 0},
        {"failures": -1},
        {"failures": True},
        {"failure_rate": 0},
        {"failure_rate": 1.5},
        {"failure_rate": float("nan")},
        {"open_for": -1},
        {"open_for": "long"},
        {"growth": 0.5},
        {"probes": 0},
        {"window": 0},
        {"minimum": 0},
        {"open_for": 10, "longest_open": 5},
        {"counts": [5]},
        {"counts": "KeyError"},
        {"ignores": [object]},
        {"ignores": KeyError("k")},
        {"statuses": 500},
        {"statuses": ["503"]},
        {"statuses": [5]},
        {"on_refusal": "maybe"},
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        breaker("bad", **options)


async def test_ignored_errors_neither_count_nor_end_a_row_of_failures() -> None:
    deaf = breaker("deaf", failures=3, ignores=[LookupError])

    @activity(gates=[deaf], retry=ONCE)
    async def act(kind: str) -> None:
        raise {"x": ConnectionError("away"), "i": KeyError("ignored")}[kind]

    @workflow
    async def run(pattern: str) -> None:
        for letter in pattern:
            with contextlib.suppress(ConnectionError, KeyError):
                await act(letter)

    async with world(run, act) as env:
        await (await env.start(run, "xixii")).result(5)
        await env.advance(1)
        assert (await state_of(env, "deaf")).streak == 2
        await (await env.start(run, "x")).result(5)
        await env.advance(1)
        assert (await state_of(env, "deaf")).state == "open"


async def test_an_ignored_error_tells_a_probe_nothing() -> None:
    deaf = breaker("deaf", failures=1, open_for=10, ignores=[KeyError])
    kinds = ["x", "i", "ok"]

    @activity(gates=[deaf], retry=Retry(attempts=9, first=0.1, factor=1, jitter=0))
    async def act() -> str:
        kind = kinds.pop(0)
        if kind != "ok":
            raise {"x": ConnectionError("away"), "i": KeyError("ignored")}[kind]
        return kind

    @workflow
    async def run() -> str:
        return await act()

    async with world(run, act) as env:
        handle = await env.start(run)
        await env.advance(2)
        assert (await state_of(env, "deaf")).state == "open"
        while len(kinds) > 1:
            await env.advance(1)
        assert (await state_of(env, "deaf")).state == "half-open"
        assert await handle.result(60) == "ok"
        assert (await state_of(env, "deaf")).state == "closed"


@pytest.mark.parametrize("when", ["at first", "while it is open"])
@pytest.mark.parametrize(
    "doc", ['"rubbish"', '{"state": 5}', '{"streak": "many"}', '{"x":' + "[" * 100_000 + "]" * 100_000 + "}"]
)
async def test_a_state_that_cannot_be_read_fails_calls_and_says_what_to_do(
    env: Environment, when: str, doc: str
) -> None:
    if when == "while it is open":
        await opened(env)
    await env.store.change_partner(BREAKER, "bank", "", lambda _: PartnerChange(None, doc, tell=True))
    if when == "while it is open":
        await env.advance(70)
    partner.away = False
    with pytest.raises(RunFailed, match="batuta partners delete breaker bank") as failed:
        await (await env.start(pays, "b")).result(130)
    assert isinstance(failed.value.__cause__, GateFailed)
    found = await env.client.breakers.get("bank")
    assert (found.state, "cannot be read" in found.reason) == ("damaged", True)
    await env.client.breakers.forget("bank")
    await env.advance(2)
    assert await (await env.start(pays, "c")).result(10) == "c"


async def test_a_breaker_that_is_not_asked_costs_nothing(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where hints are certain: a month in virtual time takes no longer with it."""
    assert await env.run(pays, "first") == "first"
    looks = 0
    partners = env.store.partners

    async def counted(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        return await partners(*given)

    monkeypatch.setattr(env.store, "partners", counted)
    await env.advance(30 * 86_400)
    assert looks <= 1
    partner.away = True
    handle = await env.start(pays, "second")
    await env.advance(30)
    partner.away = False
    await env.advance(120)
    assert await handle.result() == "second"
