"""The same code gives the same tape in every process; other code under the same name is noticed."""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from batuta import activity, workflow
from batuta.authoring.definitions import Workflow
from batuta.testing import Environment
from tests.engine.kit import parked, world

sides: dict[str, list[str]] = {}
done: list[tuple[str, ...]] = []


@activity
async def transfer(giver: str, taker: str) -> None:
    await asyncio.sleep(10)
    done.append((giver, taker))


@activity
async def tell(names: list[str]) -> None:
    await asyncio.sleep(10)
    done.append(tuple(names))


@workflow
async def pays() -> None:
    await transfer(*sides["now"])


@workflow
async def tells() -> None:
    await tell(sides["now"])


@pytest.mark.parametrize("code", [pays, tells], ids=["arguments", "a list"])
async def test_arguments_in_another_order_than_recorded_park_the_run(code: Workflow[[], None]) -> None:
    done.clear()
    async with Environment(workflows=[code], activities=[transfer, tell]) as env:
        sides["now"] = ["alice", "bob"]
        handle = await env.start(code)
        await env.settle()
        sides["now"] = ["bob", "alice"]
        await env.crash()
        reason = await parked(env, handle)
        await env.advance(60)
        assert '"alice","bob"' in reason
        assert '"bob","alice"' in reason
        assert not done


PROGRAM = """
import asyncio, sys
from batuta import RunState, activity, call, connect, workflow

@activity
async def number(things) -> int:
    return len(things)

@workflow
async def uses_sets() -> int:
    names = {"alpha", "beta", "gamma", "delta", "epsilon"}
    found = await number(names) + await call("number", [frozenset(names)], result=int)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return found + await number({name: {name, "x"} for name in sorted(names)})
    return 0

async def until_it_is(handle, *states):
    async with asyncio.timeout(20):
        while (await handle.describe()).state not in states:
            await asyncio.sleep(0.01)

async def main(url, phase):
    async with connect(url) as client, client.worker(workflows=[uses_sets], activities=[number]):
        if phase == "begin":
            await until_it_is(await client.start(uses_sets, id="sets"), RunState.WAITING)
            return
        handle = await client.get("sets", uses_sets)
        await handle.cancel()
        await until_it_is(handle, RunState.COMPLETED, RunState.NEEDS_CODE)
        print((await handle.describe()).reason or await handle.result())

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_set_as_an_argument_replays_in_a_process_that_orders_it_otherwise(tmp_path: Path, sqlite_url: str) -> None:
    program = tmp_path / "uses_sets.py"
    program.write_text(PROGRAM)
    said = [_python(program, sqlite_url, "begin", seed="1"), _python(program, sqlite_url, "end", seed="4242")]
    assert said == ["", "11\n"]


def _python(program: Path, *arguments: str, seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, str(program), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# -- unions


@dataclass
class Card:
    id: str


@dataclass
class Pix:
    id: str
    key: str


@dataclass
class Slip:
    id: str
    due: int = 30


Means = Card | Pix | Slip


@activity
async def choose(means: Means) -> Means:
    executed_with.append(means)
    return means


executed_with: list[Means] = []


@workflow
async def chooses(means: Means) -> Means:
    mine = await choose(means)
    await asyncio.sleep(3600)
    assert mine == means
    return await choose(mine)


@pytest.mark.parametrize("means", [Card("1"), Pix("1", "k"), Slip("1"), Slip("1", 5)], ids=repr)
async def test_a_union_of_dataclasses_comes_back_as_the_class_it_was(means: Means) -> None:
    executed_with.clear()
    async with world(chooses, choose) as env:
        handle = await env.start(chooses, means)
        await env.settle()
        assert executed_with == [means]
        await env.crash()
        assert await handle.result() == means
        again = await env.client.get(handle.id, chooses)
        assert await again.result() == means
        assert executed_with == [means, means]


# -- fingerprints

FLOWS = """
from batuta import workflow
from shop import prices
import library

@workflow
async def order() -> int:
    return prices.PRICE"""


FILES = {
    "shop/__init__.py": "",
    "shop/flows.py": FLOWS,
    "shop/prices.py": "PRICE = 1",
    "shop/unused.py": "X = 1",
    "library.py": "Y = 1",
}
PRINTS = """
import sys
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    from shop.flows import order
    print(order.fingerprint)
    for name in [name for name in sys.modules if name.startswith(("shop", "library"))]:
        del sys.modules[name]
"""


def test_the_fingerprint_of_an_installed_package_covers_its_own_imports_alone(tmp_path: Path) -> None:
    program = tmp_path / "prints.py"
    program.write_text(PRINTS)
    variants = ["", "shop/flows.py", "shop/prices.py", "shop/unused.py", "library.py"]
    folders = [_installed(tmp_path / str(number), changed) for number, changed in enumerate(variants)]
    prints = _python(program, *folders, seed="1").split()
    changed = {name for name, fingerprint in zip(variants, prints, strict=True) if fingerprint != prints[0]}
    assert changed == {"shop/flows.py", "shop/prices.py"}


def _installed(root: Path, changed: str) -> str:
    """A folder in which a package is installed, next to a library that it uses; one file differs."""
    folder = root / "site-packages"
    (folder / "shop").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(text + (" + 1" if name == changed else ""))
    return str(folder)
