"""Whether an error comes back as itself is decided when it is recorded, whatever is imported later."""

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest
from msgspec.structs import replace

from batuta import (
    ActivityFailed,
    CompleteLater,
    InvalidInput,
    NonRetryable,
    Retry,
    RunFailed,
    RunState,
    Signal,
    Update,
    UpdateFailed,
    activity,
    activity_info,
    job,
    run_child,
    side_effect,
    workflow,
)
from batuta.authoring.definitions import Activity
from batuta.authoring.failures.conversion import to_exception, to_failure
from batuta.authoring.failures.known_errors import KnownErrors
from batuta.errors import ErrorNotLoaded, Nondeterministic
from batuta.testing import Environment
from batuta.verify import verify
from tests.engine.arena import PATIENCE, Arena, until
from tests.engine.kit import jobs, journal_of, parked, replay, replay_all, world

ONE = Retry(attempts=1)
PARTNER = """
class PartnerError(Exception):
    def __init__(self, code):
        super().__init__(f"partner says {code}")
        self.code = code

class CardDeclined(PartnerError):
    pass
"""


@pytest.fixture
def partner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that can be imported, and is not."""
    name = "partner_of_this_test"
    (tmp_path / f"{name}.py").write_text(PARTNER)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def load(name: str) -> Any:
    importlib.invalidate_caches()
    return importlib.import_module(name)


@activity(retry=ONE)
async def imports_late(name: str) -> None:
    raise load(name).CardDeclined(51)


@activity(retry=ONE)
def imports_late_in_a_thread(name: str) -> None:
    raise load(name).CardDeclined(51)


@activity(retry=ONE, queue="elsewhere")
async def imports_late_elsewhere(name: str) -> None:
    raise load(name).CardDeclined(51)


CALLS = {"loop": imports_late, "thread": imports_late_in_a_thread, "routed": imports_late_elsewhere}


@activity
async def noted(word: str) -> str:
    return word


@workflow
async def tells_what_it_met(place: str, name: str) -> str:
    try:
        await CALLS[place](name)
    except Exception as error:  # noqa: BLE001 - the test asks which it is
        met = await noted(type(error).__name__)  # the code goes another way with another class
        await asyncio.sleep(3600)
        return f"{met}: {error}"
    return "nothing"


@pytest.mark.parametrize("place", CALLS)
@pytest.mark.parametrize("loaded", [False, True], ids=["gone", "there"])
async def test_an_error_of_a_module_imported_too_late_is_the_same_before_and_after_a_restart(
    place: str, loaded: bool, partner: str, caplog: pytest.LogCaptureFixture
) -> None:
    things = (tells_what_it_met, *CALLS.values(), noted)
    async with world(*things, queues=["default", "elsewhere"]) as env:
        handle = await env.start(tells_what_it_met, place, partner)
        await env.settle()
        if not loaded:
            del sys.modules[partner]
        await env.crash()
        assert await handle.result() == "ActivityFailed: partner says 51"
        met = (await handle.timeline()).steps[1].error
        assert met is not None
        assert met.type == f"{partner}:CardDeclined"
    said = [record.getMessage() for record in caplog.records if "imported after this worker opened" in record.msg]
    assert len(said) == 1
    assert "raises=[CardDeclined]" in said[0]


def loading(name: str, *, raises: str = "") -> tuple[Any, Any]:
    """A workflow and its activity, of an author who imports the partner's module at the top."""
    module = load(name)

    @activity(retry=ONE, raises=[getattr(module, raises)] if raises else [])
    async def pays(which: str) -> None:
        raise getattr(module, which)(51)

    @workflow
    async def catches(which: str) -> str:
        try:
            await pays(which)
        except Exception as error:  # noqa: BLE001 - as above
            met = await noted(f"{type(error).__name__} {getattr(error, 'code', None)}")
            await asyncio.sleep(3600)
            return met
        return "nothing"

    return catches, pays


async def test_a_class_that_was_known_and_is_gone_parks_the_run_which_goes_on_when_it_is_imported(partner: str) -> None:
    catches, pays = loading(partner)
    async with Environment(workflows=[catches], activities=[pays, noted]) as env:
        handle = await env.start(catches, "CardDeclined")
        await env.settle()
        del sys.modules[partner]
        await env.crash()
        await env.advance(3600)
        why = await parked(env, handle)
        assert f"{partner}:CardDeclined" in why
        assert f"import CardDeclined from {partner}" in why
        assert partner not in sys.modules  # nothing is imported because the database names it
        load(partner)
        await env.crash()
        await handle.retry()
        assert await handle.result() == "CardDeclined 51"


def test_a_class_that_was_renamed_is_found_under_its_old_name(partner: str) -> None:
    module = load(partner)
    failure = to_failure(module.CardDeclined(51))
    KnownErrors.now().decide(failure)
    module.CardRefused = type("CardRefused", (module.PartnerError,), {})
    module.CardDeclined = module.CardRefused
    assert repr(to_exception(failure, strict=True)) == "CardRefused('partner says 51')"


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_a_declared_error_stands_for_those_that_derive_from_it(place: str, partner: str, tmp_path: Path) -> None:
    base = load(partner).PartnerError
    (tmp_path / "late_part_of_partner.py").write_text(
        f"from {partner} import PartnerError\nclass Throttled(PartnerError): pass\n"
    )

    async def calls() -> None:
        raise load("late_part_of_partner").Throttled(429)

    def calls_in_thread() -> None:
        raise load("late_part_of_partner").Throttled(429)

    pays: Activity[[], None] = activity(name="pays", retry=ONE, raises=[base])(
        calls if place == "loop" else calls_in_thread
    )

    @workflow
    async def catches() -> str:
        try:
            await pays()
        except base as error:
            await asyncio.sleep(3600)
            return f"{type(error).__name__} {error} {error.code}"
        return "nothing"

    try:
        async with world(catches, pays) as env:
            handle = await env.start(catches)
            await env.settle()
            del sys.modules["late_part_of_partner"]
            await env.crash()
            assert await handle.result() == "PartnerError partner says 429 429"
    finally:
        sys.modules.pop("late_part_of_partner", None)


async def test_the_error_of_a_child_is_for_its_parent_what_was_recorded(partner: str) -> None:
    @workflow
    async def fails(name: str) -> None:
        raise load(name).CardDeclined(51)

    @workflow
    async def asks(name: str) -> str:
        try:
            await run_child(fails, name)
        except RunFailed as error:
            met = await noted(type(error.__cause__).__name__)
            await asyncio.sleep(3600)
            return met
        return "nothing"

    async with world(asks, fails, noted) as env:
        handle = await env.start(asks, partner)
        await env.settle()
        del sys.modules[partner]
        await env.crash()
        assert await handle.result() == "ActivityFailed"


async def test_an_error_given_from_outside_is_judged_by_the_worker(partner: str) -> None:
    tokens = []

    @activity(retry=ONE)
    async def asks() -> None:
        tokens.append(activity_info().token)
        raise CompleteLater

    @workflow
    async def waits() -> str:
        try:
            await asks()
        except Exception as error:  # noqa: BLE001 - as above
            met = await noted(type(error).__name__)
            await asyncio.sleep(3600)
            return met
        return "nothing"

    async with world(waits, asks, noted) as env:
        handle = await env.start(waits)
        await env.settle()
        await env.client.fail(tokens[0], load(partner).CardDeclined(51))
        await env.settle()
        del sys.modules[partner]
        await env.crash()
        assert await handle.result() == "ActivityFailed"


async def test_the_error_of_a_side_effect_is_what_was_recorded(partner: str) -> None:
    def looks() -> None:
        raise load(partner).CardDeclined(51)

    @workflow
    async def asks() -> str:
        try:
            await side_effect(looks)
        except Exception as error:  # noqa: BLE001 - as above
            met = await noted(type(error).__name__)
            await asyncio.sleep(3600)
            return met
        return "nothing"

    async with world(asks, noted) as env:
        handle = await env.start(asks)
        await env.settle()
        del sys.modules[partner]
        await env.crash()
        assert await handle.result() == "ActivityFailed"


async def test_a_side_effect_whose_error_is_gone_parks_the_run(partner: str) -> None:
    load(partner)

    def looks() -> None:
        raise load(partner).CardDeclined(51)

    @workflow
    async def asks() -> str:
        try:
            await side_effect(looks)
        except Exception as error:  # noqa: BLE001 - as above
            await asyncio.sleep(3600)
            return type(error).__name__
        return "nothing"

    async with Environment(workflows=[asks]) as env:
        handle = await env.start(asks)
        await env.settle()
        del sys.modules[partner]
        await env.crash()
        await env.advance(3600)
        assert f"import CardDeclined from {partner}" in await parked(env, handle)


async def test_it_is_the_same_on_every_store_after_a_worker_died(arena: Arena, partner: str) -> None:
    client = await arena.client()
    first = await arena.worker(client, meets_and_waits, imports_late, noted)
    handle = await client.start(meets_and_waits, partner)

    async def waits() -> bool:
        return len(await handle.journal()) == 3

    await until(waits)
    await arena.kill(client, first)
    del sys.modules[partner]
    await arena.worker(client, meets_and_waits, imports_late, noted)
    await handle.signal("go")
    assert await handle.result(PATIENCE) == "ActivityFailed"
    await replay_all(arena.store(client), {"meets_and_waits": meets_and_waits})


@workflow
async def meets_and_waits(name: str) -> str:
    try:
        await imports_late(name)
    except Exception as error:  # noqa: BLE001 - as above
        met = await noted(type(error).__name__)
        await Signal("go").wait()
        return met
    return "nothing"


PRICE = Update("price", str)


async def test_the_error_of_an_update_is_what_was_recorded_also_where_its_class_is_loaded(partner: str) -> None:
    @workflow
    async def sells(name: str) -> None:
        def price() -> str:
            raise load(name).CardDeclined(51)

        PRICE.handle(price)
        await asyncio.sleep(3600)

    async with Environment(workflows=[sells]) as env:
        handle = await env.start(sells, partner)
        await env.settle()
        with pytest.raises(UpdateFailed) as caught:
            await handle.update(PRICE, update_id="one")
        assert type(caught.value.__cause__) is ActivityFailed
        assert partner in sys.modules
        with pytest.raises(UpdateFailed) as again:
            await handle.update(PRICE, update_id="one")
        assert type(again.value.__cause__) is ActivityFailed


async def test_a_waiter_for_a_job_gets_the_recorded_error(partner: str) -> None:
    @job(retry=ONE)
    async def pays(name: str) -> None:
        raise load(name).CardDeclined(51)

    async with jobs(pays) as env:
        late = await env.enqueue(pays, partner)
        with pytest.raises(RunFailed) as caught:
            await late.result()
        assert type(caught.value.__cause__) is ActivityFailed
        await env.crash()
        early = await env.enqueue(pays, partner)  # to a worker that has it loaded
        with pytest.raises(RunFailed) as caught:
            await early.result()
        assert type(caught.value.__cause__).__name__ == "CardDeclined"
        del sys.modules[partner]
        with pytest.raises(
            RunFailed, match="CardDeclined: partner says 51"
        ) as caught:  # a client is not stopped by that
            await early.result()
        assert type(caught.value.__cause__) is ActivityFailed
        assert caught.value.__cause__.type == f"{partner}:CardDeclined"


async def test_jobs_and_routed_calls_are_rebuilt_and_verified_without_the_class_of_their_error(partner: str) -> None:
    module = load(partner)

    @job(retry=ONE)
    async def fails() -> None:
        raise module.CardDeclined(51)

    @activity(retry=ONE, queue="elsewhere")
    async def fails_elsewhere() -> None:
        raise module.CardDeclined(51)

    @workflow
    async def asks() -> None:
        await fails_elsewhere()

    async with Environment(
        workflows=[asks], activities=[fails_elsewhere], jobs=[fails], queues=["default", "elsewhere"]
    ) as env:
        handles = [await env.enqueue(fails), await env.start(asks)]
        await env.settle()
        assert [(await one.describe()).state for one in handles] == [RunState.FAILED] * 2
        del sys.modules[partner]
        report = await verify(env.store)
        assert not report.violations
        assert report.checked["I7"] == 2
        last = (await handles[0].journal())[-1].body
        assert last.error == last.commands[-1].error


async def test_a_replay_asks_no_module_for_attributes_which_may_import(partner: str) -> None:
    module = load(partner)
    lazy = ModuleType("lazy_partner")
    asked = []

    def look(name: str) -> Any:
        asked.append(name)
        return module.CardDeclined

    lazy.__getattr__ = look  # type: ignore[method-assign]  # as PEP 562 has it
    sys.modules["lazy_partner"] = lazy
    try:
        module.CardDeclined.__module__ = "lazy_partner"
        catches, pays = loading(partner)
        async with world(catches, pays, noted) as env:
            assert await env.run(catches, "CardDeclined") == "ActivityFailed None"
        assert asked == []
    finally:
        del sys.modules["lazy_partner"]


async def test_a_class_that_cannot_be_made_again_is_decided_on_once() -> None:
    @workflow
    async def catches() -> str:
        try:
            await needs_more()
        except Exception as error:  # noqa: BLE001 - as above
            await asyncio.sleep(3600)
            return type(error).__name__
        return "nothing"

    async with world(catches, needs_more) as env:
        handle = await env.start(catches)
        await env.settle()
        recorded: Any = (await handle.journal())[1].body.error
        assert (recorded.type, recorded.raised_as) == (f"{__name__}:Stubborn", "batuta.errors:ActivityFailed")
        assert await handle.result() == "ActivityFailed"


class Stubborn(Exception):
    """Wants more than its arguments."""

    def __new__(cls, *args: Any, secret: str) -> Self:
        return super().__new__(cls, *args)

    def __init__(self, *args: Any, secret: str) -> None:
        super().__init__(*args)


@activity(retry=ONE)
async def needs_more() -> None:
    raise Stubborn("x", secret="y")


async def test_an_entry_of_an_old_journal_is_raised_as_what_is_loaded(partner: str) -> None:
    catches, pays = loading(partner)
    async with Environment(workflows=[catches], activities=[pays, noted]) as env:
        handle = await env.start(catches, "CardDeclined")
        await env.settle()
        entries = await journal_of(env, handle)
    decided = f',"bases":["{partner}:PartnerError"],"raised_as":"{partner}:CardDeclined"'
    assert decided in entries[1].body
    old = [replace(entry, body=entry.body.replace(decided, "")) for entry in entries]
    replay(catches, old).tear_down()
    del sys.modules[partner]
    with pytest.raises(Nondeterministic):  # its code goes the way of an ActivityFailed
        replay(catches, old)
    with pytest.raises(ErrorNotLoaded):
        replay(catches, entries)


# -- declaring


@pytest.mark.parametrize(
    "raises",
    ["ValueError", ["ValueError"], [ValueError("x")], [int], [KeyboardInterrupt], [StopIteration], None, ValueError, 3],
    ids=repr,
)
@pytest.mark.parametrize("decorator", [activity, job], ids=["activity", "job"])
def test_raises_must_be_classes_of_errors(decorator: Any, raises: Any) -> None:
    with pytest.raises(InvalidInput, match=r"raises.*'pays'"):

        @decorator(raises=raises)
        async def pays() -> None: ...


async def test_a_declared_class_that_no_other_process_would_find_is_refused_by_the_worker() -> None:
    class Local(Exception):
        pass

    @activity(raises=[Local])
    async def pays() -> None: ...

    with pytest.raises(InvalidInput, match=r"activity 'pays' declares raises=\[Local\]"):
        async with Environment(activities=[pays]):
            pass


class Gateway:
    """Declares an error that stands inside of it."""

    class Declined(NonRetryable):
        pass

    @activity(raises=[Declined])
    async def charge(self) -> None:
        raise self.Declined("no")


async def test_a_class_inside_the_class_of_its_activity_can_be_declared() -> None:
    @workflow
    async def catches() -> str:
        try:
            await Gateway.charge()
        except Gateway.Declined as error:
            return str(error)
        return "nothing"

    async with world(catches, Gateway()) as env:
        assert await env.run(catches) == "no"


SCRIPT = """
import asyncio, sys
from dataclasses import dataclass
from batuta import RunState, Retry, Signal, activity, connect, workflow

go = Signal("go")

@dataclass
class Limit:
    cents: int

class Declined(Exception):
    def __init__(self, limit):
        super().__init__("too much")
        self.limit = limit

@activity(retry=Retry(attempts=1, never=[Declined]), process=PROCESS)
def charge() -> None:
    raise Declined(Limit(500))

@workflow
async def pay() -> str:
    try:
        await charge()
    except Declined as error:
        await go.wait()
        return f"{type(error.limit).__name__} {error.limit.cents}"
    return "paid"

async def main(command: str) -> None:
    async with connect("sqlite:///shop.db") as batuta, batuta.worker(workflows=[pay], activities=[charge]):
        handle = await batuta.start(pay, id="p-1")
        if command == "begin":
            while len(await handle.journal()) < 2:
                await asyncio.sleep(0.01)
            return
        await handle.signal(go)
        print(await handle.result(timeout=30))

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
"""
AS_SCRIPT, AS_PROGRAM = ["shop.py"], ["-m", "shop"]
AS_MODULE = ["-c", "import asyncio, shop, sys; asyncio.run(shop.main(sys.argv[1]))"]


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
@pytest.mark.parametrize(
    ("first", "second"),
    [(AS_SCRIPT, AS_MODULE), (AS_PROGRAM, AS_MODULE), (AS_MODULE, AS_SCRIPT), (AS_SCRIPT, AS_PROGRAM)],
    ids=["script-module", "program-module", "module-script", "script-program"],
)
def test_an_error_of_a_script_is_the_same_where_the_script_is_imported(
    first: list[str], second: list[str], process: bool, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SCRIPT.replace("PROCESS", str(process)))

    def run(how: list[str], command: str) -> str:
        call = [sys.executable, *how, command]
        return subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout

    run(first, "begin")
    assert run(second, "finish") == "Limit 500\n"
