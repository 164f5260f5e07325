"""Stores whose payloads go through codecs pass the shipped suite, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batuta.codecs import Compression, Encryption, Keys
from batuta.journal.store import Store
from batuta.stores.coded import coded
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing import conformance
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import making

CODECS = [Compression(least=0), Encryption(Keys.new("k1"))]
"""Nothing that is not encrypted is read."""


@pytest.fixture(params=["memory", "sqlite"])
async def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    database = MemoryDatabase()

    def new(namespace: str) -> Store:
        if request.param == "memory":
            return coded(MemoryStore(database, namespace), CODECS)
        return coded(SqliteStore(tmp_path / "batuta.db", namespace), CODECS)

    async with making(new, migrate=True) as make:
        yield make


@pytest.fixture
async def store(make_store: MakeStore) -> Store:
    return await make_store()


class TestStart(conformance.StartConformance): ...


class TestClaim(conformance.ClaimConformance): ...


class TestCommitFence(conformance.CommitFenceConformance): ...


class TestLargeBatches(conformance.LargeBatchConformance): ...


class TestClose(conformance.CloseConformance): ...


class TestInbox(conformance.InboxConformance): ...


class TestLeaseReap(conformance.LeaseReapConformance): ...


class TestParking(conformance.ParkingConformance): ...


class TestPlain(conformance.PlainConformance): ...


class TestPoison(conformance.PoisonConformance): ...


class TestReading(conformance.ReadingConformance): ...


class TestAttempts(conformance.AttemptsConformance): ...


class TestHints(conformance.HintsConformance): ...


class TestRaces(conformance.RacesConformance): ...


class TestOutputs(conformance.OutputsConformance): ...


class TestSends(conformance.SendsConformance): ...


class TestUnread(conformance.UnreadConformance): ...


class TestKin(conformance.KinConformance): ...


class TestChains(conformance.ChainsConformance): ...


class TestQueues(conformance.QueuesConformance): ...


class TestRates(conformance.RatesConformance): ...


class TestFairness(conformance.FairnessConformance): ...


class TestRenew(conformance.RenewConformance): ...


class TestExpiry(conformance.ExpiryConformance): ...


class TestDebounce(conformance.DebounceConformance): ...


class TestBatches(conformance.BatchesConformance): ...


class TestSchedules(conformance.SchedulesConformance): ...


class TestDueSchedules(conformance.DueSchedulesConformance): ...


class TestFire(conformance.FireConformance): ...


class TestForks(conformance.ForksConformance): ...


class TestLetters(conformance.LettersConformance): ...


class TestAudit(conformance.AuditConformance): ...


class TestDeleting(conformance.DeletingConformance): ...


class TestRetention(conformance.RetentionConformance): ...


class TestPruningSteps(conformance.PruningStepsConformance): ...


class TestPause(conformance.PauseConformance): ...


class TestPaused(conformance.PausedConformance): ...


class TestBulk(conformance.BulkConformance): ...


class TestTransactions(conformance.TransactionsConformance): ...
