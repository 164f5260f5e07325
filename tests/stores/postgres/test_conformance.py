"""The PostgreSQL store passes the shipped suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batuta.testing import conformance


@pytest.fixture
def postgres_url(emptied_postgres: Callable[[], str]) -> str:
    """These many tests use nothing but stores: they share a database."""
    return emptied_postgres()


globals().update(conformance.suite())
