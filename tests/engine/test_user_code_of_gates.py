"""Gates that raise whatever there is: the call that asked fails or goes on, and the worker goes on."""

from typing import Any

import pytest

from batuta import Refusal, Retry, RunFailed, activity, workflow
from batuta.authoring.gates import Gate, GateCall, Outcome
from batuta.errors import GateFailed, GateRefused
from batuta.resilience import breaker, partner_limit
from batuta.testing import Environment
from tests.engine.test_user_code import every_error

raising: dict[str, BaseException] = {}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    raising.clear()


def asked(place: str) -> None:
    if place in raising:
        raise raising[place]


class Odd(Gate):
    """Raises where the test wants, and counts calls that are inside."""

    inside = 0
    shut = False

    def enter(self, call: GateCall) -> object:
        asked("enter")
        if self.shut:
            return Refusal(5.0, "shut")
        self.inside += 1
        return None

    def leave(self, ticket: object, outcome: Outcome) -> None:
        self.inside -= 1
        asked("leave")

    def error(self, refusal: Refusal) -> GateRefused:
        asked("error")
        return super().error(refusal)


def key(*args: Any) -> str:
    asked("key")
    return "k"


def weight(*args: Any) -> int:
    asked("weight")
    return 1


def counts(error: BaseException) -> bool:
    asked("counts")
    return True


FIRST, CURT, BRIEF = Odd("first"), Odd("curt", on_refusal="fail"), Odd("brief", longest_wait=1)
ONCE = Retry(attempts=1)


@activity(gates=[FIRST, Odd("second")], retry=ONCE)
async def passes() -> str:
    return "passed"


@activity(gates=[CURT], retry=ONCE)
async def asks_the_curt() -> str:
    return "passed"


@activity(gates=[BRIEF], retry=ONCE)
async def asks_the_brief() -> str:
    return "passed"


@activity(gates=[partner_limit("bank", key=key, rate="1000/s", weight=weight)], retry=ONCE)
async def calls_the_bank() -> str:
    return "passed"


@activity(gates=[breaker("shop", failures=1, counts=counts)], retry=ONCE)
async def calls_the_shop() -> str:
    raise LookupError("shop")


ACTIVITIES = {one.name: one for one in (passes, asks_the_curt, asks_the_brief, calls_the_bank, calls_the_shop)}


@workflow
async def calls(name: str) -> str:
    return str(await ACTIVITIES[name]())


@pytest.fixture
async def env() -> Any:
    # One call at a time: a place that is not given back would stop the next one.
    async with Environment(workflows=[calls], activities=list(ACTIVITIES.values()), max_activities=1) as made:
        yield made


@every_error
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("passes", "enter"),
        ("asks_the_curt", "error"),
        ("asks_the_brief", "error"),
        ("calls_the_bank", "key"),
        ("calls_the_bank", "weight"),
    ],
)
async def test_a_gate_that_cannot_be_asked_fails_the_call_alone(
    env: Environment, name: str, place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    for gate in (CURT, BRIEF):
        monkeypatch.setattr(gate, "shut", place == "error")
    raising[place] = error
    with pytest.raises(RunFailed) as failed:
        await (await env.start(calls, name)).result()
    assert isinstance(failed.value.__cause__, GateFailed)
    raising.clear()
    assert await (await env.start(calls, "passes")).result() == "passed"


@every_error
async def test_a_gate_that_raises_at_the_end_changes_nothing_about_it(env: Environment, error: BaseException) -> None:
    raising["leave"] = error
    assert await (await env.start(calls, "passes")).result() == "passed"
    assert FIRST.inside == 0


@every_error
async def test_an_error_that_a_breaker_cannot_judge_does_not_count(env: Environment, error: BaseException) -> None:
    raising["counts"] = error
    for _ in range(2):
        with pytest.raises(RunFailed, match="shop"):
            await (await env.start(calls, "calls_the_shop")).result()
    assert await (await env.start(calls, "passes")).result() == "passed"
