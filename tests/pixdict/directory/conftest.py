"""A directory with two participants, for each test."""

from collections.abc import Iterator

import pytest

from pixdict.directory.service import Service
from tests.pixdict.directory.kit import A, B, Bank, service


@pytest.fixture
def directory() -> Iterator[Service]:
    made = service()
    yield made
    made.storage.close()


@pytest.fixture
def a(directory: Service) -> Bank:
    return Bank(directory, A)


@pytest.fixture
def b(directory: Service) -> Bank:
    return Bank(directory, B)
