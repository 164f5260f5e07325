"""The pytest fixtures, in a pytest of their own: with a plugin for asyncio beside them and without."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from batuta.testing.databases import DatabaseMaker
from batuta.testing.servers import URL_VARIABLE

CONFTEST = """
import pytest

pytest_plugins = ["batuta.testing.pytest"]


@pytest.fixture
def batuta_app():
    from tests.testing.shop import app

    return app
"""

TESTS = """
import asyncio

import pytest

from batuta import InvalidInput
from batuta.testing import double
from tests.testing.shop import approval, approve, order, reserve


async def test_an_app(batuta_env):
    async with batuta_env(double(reserve, returns="some")) as env:
        assert (await env.run(order, "tea")).startswith("some, ")


class TestInAClass:
    @pytest.mark.parametrize("answer", [True, False])
    async def test_some_workflows(self, batuta_env, answer, tmp_path):
        async with batuta_env(workflows=[approval], store="sqlite") as env:
            handle = await env.start(approval)
            await env.advance(30 * 86_400)
            await handle.signal(approve, answer)
            assert await handle.result() == ("approved" if answer else "declined")


@pytest.fixture
def batuta_store(request):
    return getattr(request, "param", "memory")


@pytest.mark.parametrize("batuta_store", ["sqlite", "postgres"], indirect=True)
async def test_a_store_of_ones_own(batuta_env, batuta_store):
    async with batuta_env(workflows=[approval]) as env:
        assert env.url.startswith(batuta_store)
        handle = await env.start(approval)
        await env.advance(30 * 86_400)
        await handle.signal(approve, True)
        assert await handle.result() == "approved"


def test_a_database_of_ones_own(batuta_postgres):
    from batuta import sync

    with sync.connect(batuta_postgres, migrate=False) as client:
        assert client.count() == 0


@pytest.mark.batuta_seeds(3)
async def test_some_seeds(batuta_env, batuta_seed):
    async with batuta_env() as env:
        assert (await env.run(order, "tea")).startswith("1 x tea")
        assert len({one.seconds for one in await env.happened()}) > 3
    assert batuta_seed in range(3)


@pytest.mark.batuta_seeds([17])
async def test_one_seed(batuta_env, batuta_seed):
    assert batuta_seed == 17


async def test_no_seed(batuta_env, batuta_seed):
    assert batuta_seed is None


async def test_virtual_time(virtual_time):
    await asyncio.sleep(1_000_000)


def test_a_plain_function(virtual_time):
    assert virtual_time(asyncio.sleep(1_000_000, "done")) == "done"


class TestWithoutAnApp:
    @pytest.fixture
    def batuta_app(self):
        return None

    def test_nothing_to_run(self, batuta_env):
        with pytest.raises(InvalidInput, match="batuta_app"):
            batuta_env()
"""


def outcome(folder: Path, *options: str, postgres: str = "") -> str:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-c", "/dev/null", *options, str(folder)]
    environment = os.environ | ({URL_VARIABLE: postgres} if postgres else {})
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False).stdout


@pytest.mark.parametrize("options", [["-p", "no:asyncio"], ["-o", "asyncio_mode=auto"]])
def test_async_tests_that_ask_for_a_fixture_run_in_virtual_time(
    tmp_path: Path, options: list[str], postgres_server: DatabaseMaker
) -> None:
    """One of them starts a server of its own, the other uses one that is there."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_shop.py").write_text(TESTS)
    said = outcome(tmp_path, *options, postgres=postgres_server.url if "-o" in options else "")
    assert "14 passed" in said, said
    assert "test_some_seeds[seed-2]" in said


def test_a_marker_for_seeds_that_says_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number, (marker, asks_for) in enumerate(
        [("batuta_seeds(3)", ""), ("batuta_seeds", "batuta_env"), ("batuta_seeds(0)", "batuta_env")]
    ):
        text = f"import pytest\n@pytest.mark.{marker}\ndef test_it({asks_for}): pass\n"
        (tmp_path / f"test_{number}.py").write_text(text)
    said = outcome(tmp_path)
    for number, told in enumerate(["has no effect", "must say how many seeds", "must say how many seeds"]):
        assert re.search(rf"InvalidInput: .*test_{number}\.py.* {told}", said), said


def test_the_example_is_a_file_for_pytest() -> None:
    said = outcome(Path(__file__).parents[2] / "examples" / "test_order.py")
    assert "3 passed" in said, said


def test_without_pytest_the_missing_extra_is_named() -> None:
    program = "import sys; sys.modules['pytest'] = None; import batuta.testing; import batuta.testing.pytest"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert "MissingExtra" in said.stderr
    assert "batuta[testing]" in said.stderr


def test_the_kit_itself_does_not_need_pytest() -> None:
    program = "import sys; import batuta.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=50, check=False).returncode == 0
