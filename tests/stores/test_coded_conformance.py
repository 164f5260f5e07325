"""A store whose payloads go through codecs passes the shipped suite, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batuta.codecs import Compression, Encryption, Keys
from batuta.journal.store import Store
from batuta.stores.coded import coded
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing import conformance
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import making

CODECS = [Compression(least=0), Encryption(Keys.new("k1"))]
"""Nothing that is not encrypted is read."""


@pytest.fixture
async def make_store(tmp_path: Path) -> AsyncIterator[MakeStore]:
    """What is around a store does not depend on it: one that writes bytes is enough."""

    def new(namespace: str) -> Store:
        return coded(SqliteStore(tmp_path / "batuta.db", namespace), CODECS)

    async with making(new, migrate=True) as make:
        yield make


@pytest.fixture
async def store(make_store: MakeStore) -> Store:
    return await make_store()


# What is written anew goes past the codecs, to the store behind them.
globals().update(conformance.suite(without=[conformance.RewritingConformance]))
