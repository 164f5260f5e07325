"""Fixtures for pytest. Opt in with `pytest_plugins = ["batuta.testing.pytest"]` in a conftest.py.

An async test that asks for `batuta_env` or `virtual_time` runs in virtual time. No plugin for asyncio is needed for it,
and where there is one, it leaves such a test alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVar

from batuta.app import App
from batuta.errors import InvalidInput, MissingExtra
from batuta.testing.environment import Environment
from batuta.testing.stores import AnyStoreName
from batuta.testing.virtualtime import in_virtual_time, run

try:
    import pytest
except ImportError as error:
    raise MissingExtra("batuta.testing.pytest", "testing") from error

T = TypeVar("T")

_OURS = {"batuta_env", "virtual_time"}
_SEEDS = "batuta_seeds"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{_SEEDS}(number): run it once for each seed, which batuta_env takes")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each seed of the marker."""
    marker = metafunc.definition.get_closest_marker(_SEEDS)
    if marker is None:
        return
    where = f"@pytest.mark.{_SEEDS} of {metafunc.definition.nodeid}"
    if "batuta_seed" not in metafunc.fixturenames:
        raise InvalidInput(f"{where} has no effect: let the test ask for batuta_env")
    given = marker.args[0] if len(marker.args) == 1 else None
    seeds = range(given) if isinstance(given, int) else given
    if not seeds:
        raise InvalidInput(f"{where} must say how many seeds, or which: {_SEEDS}(20)")
    metafunc.parametrize("batuta_seed", seeds, ids="seed-{}".format)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Make plain functions of our async tests, before a plugin for asyncio sees them."""
    made = yield
    for item in made if isinstance(made, list) else [made]:
        if isinstance(item, pytest.Function) and _asks_for_us(item):
            item.obj = in_virtual_time(item.obj)
    return made


def _asks_for_us(item: pytest.Function) -> bool:
    return inspect.iscoroutinefunction(item.obj) and not _OURS.isdisjoint(item.fixturenames)


@pytest.fixture
def virtual_time() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Runs a coroutine in virtual time, for tests that are plain functions: `virtual_time(main())`."""
    return run


@pytest.fixture
def batuta_app() -> App | None:
    """What `batuta_env` has unless told: to be overridden with a fixture of this name that returns your App."""
    return None


@pytest.fixture
def batuta_seed() -> int | None:
    """The seed that `batuta_env` gives its environments: that of the marker `batuta_seeds`, or None."""
    return None


@pytest.fixture
def batuta_store() -> AnyStoreName:
    """What `batuta_env` keeps its runs in unless told: to be overridden with a fixture of this name that returns
    "sqlite" or "postgres"."""
    return "memory"


@pytest.fixture
def batuta_postgres() -> Iterator[str]:
    """The address of a migrated PostgreSQL database for this test, for clients and connections in real time.

    It uses the server of BATUTA_TEST_POSTGRES_URL, or one that is started for the tests of this process.
    """
    from batuta.testing.postgres import fresh_database

    with fresh_database() as url:
        yield url


@pytest.fixture
def batuta_env(
    batuta_app: App | None, batuta_seed: int | None, batuta_store: AnyStoreName
) -> Callable[..., Environment]:
    """Makes environments: `async with batuta_env(workflows=[order]) as env`, with the keywords of `Environment`.

    Without workflows, activities and jobs it takes those of `batuta_app`; doubles are given by position:
    `batuta_env(double(charge, returns="ok"))`.
    """

    def make(*doubles: object, **keywords: Any) -> Environment:
        keywords.setdefault("seed", batuta_seed)
        keywords.setdefault("store", batuta_store)
        if {"workflows", "activities", "jobs"} & keywords.keys():
            return Environment(**keywords | {"activities": [*keywords.get("activities", ()), *doubles]})
        if batuta_app is None:
            raise InvalidInput(
                "batuta_env() is told nothing to run: give it workflows=, activities= or jobs=, or write a fixture "
                "batuta_app that returns your App"
            )
        return Environment.of(batuta_app, *doubles, **keywords)

    return make
