"""The PostgreSQL store passes the shipped suite."""

from __future__ import annotations

from batuta.testing import conformance


class TestStart(conformance.StartConformance): ...


class TestClaim(conformance.ClaimConformance): ...


class TestCommitFence(conformance.CommitFenceConformance): ...


class TestLargeBatches(conformance.LargeBatchConformance): ...


class TestClose(conformance.CloseConformance): ...


class TestInbox(conformance.InboxConformance): ...


class TestLeaseReap(conformance.LeaseReapConformance): ...


class TestParking(conformance.ParkingConformance): ...


class TestPoison(conformance.PoisonConformance): ...


class TestReading(conformance.ReadingConformance): ...


class TestAttempts(conformance.AttemptsConformance): ...


class TestHints(conformance.HintsConformance): ...


class TestRaces(conformance.RacesConformance): ...
