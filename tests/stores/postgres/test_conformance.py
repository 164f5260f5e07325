"""The PostgreSQL store passes the shipped suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batuta.testing import conformance


@pytest.fixture
def postgres_url(emptied_postgres: Callable[[], str]) -> str:
    """These many tests use nothing but stores: they share a database."""
    return emptied_postgres()


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


class TestSchedules(conformance.SchedulesConformance): ...


class TestDueSchedules(conformance.DueSchedulesConformance): ...


class TestFire(conformance.FireConformance): ...


class TestQueues(conformance.QueuesConformance): ...


class TestRates(conformance.RatesConformance): ...


class TestFairness(conformance.FairnessConformance): ...


class TestRenew(conformance.RenewConformance): ...


class TestExpiry(conformance.ExpiryConformance): ...


class TestDebounce(conformance.DebounceConformance): ...


class TestBatches(conformance.BatchesConformance): ...


class TestForks(conformance.ForksConformance): ...


class TestLetters(conformance.LettersConformance): ...


class TestAudit(conformance.AuditConformance): ...


class TestPause(conformance.PauseConformance): ...


class TestPaused(conformance.PausedConformance): ...


class TestBulk(conformance.BulkConformance): ...


class TestDeleting(conformance.DeletingConformance): ...


class TestRetention(conformance.RetentionConformance): ...


class TestRewriting(conformance.RewritingConformance): ...


class TestPruningSteps(conformance.PruningStepsConformance): ...


class TestTransactions(conformance.TransactionsConformance): ...
