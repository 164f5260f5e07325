"""The law for stores: a store is right when it passes all of these.

A test module gives two fixtures and inherits the classes:

    @pytest.fixture
    async def make_store(): ...   # async factory: make_store(namespace="default") gives a new Store object, opened
                                  # on the SAME database each time, as another process would have it
    @pytest.fixture
    async def store(make_store):
        return await make_store()

    globals().update(suite())     # or one by one: class TestStart(StartConformance): ...
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

_TOPICS = (
    "attempts audit batches chains claim close commit_fence deleting fairness forks hints holding inbox kin kit "
    "large_batches lease_reap letters outputs parking plain poison queues quotas races rates reading retention "
    "rewriting schedules sends start transactions unclaimed unread"
)
pytest.register_assert_rewrite(*(f"{__name__}.{topic}" for topic in _TOPICS.split()))

from batuta.testing.conformance.attempts import AttemptsConformance  # noqa: E402
from batuta.testing.conformance.audit import AuditConformance  # noqa: E402
from batuta.testing.conformance.batches import BatchesConformance  # noqa: E402
from batuta.testing.conformance.chains import ChainsConformance  # noqa: E402
from batuta.testing.conformance.claim import ClaimConformance  # noqa: E402
from batuta.testing.conformance.close import CloseConformance  # noqa: E402
from batuta.testing.conformance.commit_fence import CommitFenceConformance  # noqa: E402
from batuta.testing.conformance.deleting import DeletingConformance  # noqa: E402
from batuta.testing.conformance.fairness import FairnessConformance  # noqa: E402
from batuta.testing.conformance.forks import ForksConformance  # noqa: E402
from batuta.testing.conformance.handing import HandingConformance  # noqa: E402
from batuta.testing.conformance.hints import HintsConformance  # noqa: E402
from batuta.testing.conformance.holding import BulkConformance, PauseConformance, PausedConformance  # noqa: E402
from batuta.testing.conformance.inbox import InboxConformance  # noqa: E402
from batuta.testing.conformance.kin import KinConformance  # noqa: E402
from batuta.testing.conformance.kit import MakeStore  # noqa: E402
from batuta.testing.conformance.large_batches import LargeBatchConformance  # noqa: E402
from batuta.testing.conformance.lease_reap import LeaseReapConformance  # noqa: E402
from batuta.testing.conformance.letters import LettersConformance  # noqa: E402
from batuta.testing.conformance.outputs import OutputsConformance  # noqa: E402
from batuta.testing.conformance.parking import ParkingConformance  # noqa: E402
from batuta.testing.conformance.plain import PlainConformance  # noqa: E402
from batuta.testing.conformance.poison import PoisonConformance  # noqa: E402
from batuta.testing.conformance.queues import QueuesConformance  # noqa: E402
from batuta.testing.conformance.quotas import QuotasConformance  # noqa: E402
from batuta.testing.conformance.races import RacesConformance  # noqa: E402
from batuta.testing.conformance.rates import RatesConformance  # noqa: E402
from batuta.testing.conformance.reading import ReadingConformance  # noqa: E402
from batuta.testing.conformance.retention import PruningStepsConformance, RetentionConformance  # noqa: E402
from batuta.testing.conformance.rewriting import RewritingConformance  # noqa: E402
from batuta.testing.conformance.schedules import (  # noqa: E402
    DueSchedulesConformance,
    FireConformance,
    SchedulesConformance,
)
from batuta.testing.conformance.sends import SendsConformance  # noqa: E402
from batuta.testing.conformance.start import StartConformance  # noqa: E402
from batuta.testing.conformance.transactions import TransactionsConformance  # noqa: E402
from batuta.testing.conformance.unclaimed import (  # noqa: E402
    DebounceConformance,
    ExpiryConformance,
    RenewConformance,
)
from batuta.testing.conformance.unread import UnreadConformance  # noqa: E402

__all__ = [
    "AttemptsConformance",
    "AuditConformance",
    "BatchesConformance",
    "BulkConformance",
    "ChainsConformance",
    "ClaimConformance",
    "CloseConformance",
    "CommitFenceConformance",
    "DebounceConformance",
    "DeletingConformance",
    "DueSchedulesConformance",
    "ExpiryConformance",
    "FairnessConformance",
    "FireConformance",
    "ForksConformance",
    "HandingConformance",
    "HintsConformance",
    "InboxConformance",
    "KinConformance",
    "LargeBatchConformance",
    "LeaseReapConformance",
    "LettersConformance",
    "MakeStore",
    "OutputsConformance",
    "ParkingConformance",
    "PauseConformance",
    "PausedConformance",
    "PlainConformance",
    "PoisonConformance",
    "PruningStepsConformance",
    "QueuesConformance",
    "QuotasConformance",
    "RacesConformance",
    "RatesConformance",
    "ReadingConformance",
    "RenewConformance",
    "RetentionConformance",
    "RewritingConformance",
    "SchedulesConformance",
    "SendsConformance",
    "StartConformance",
    "TransactionsConformance",
    "UnreadConformance",
    "suite",
]


def suite(*before: type, without: Collection[type] = ()) -> dict[str, type]:
    """Every class by a name that pytest collects (``TestStart`` and so on), but for those ``without``.

    What the classes ``before`` have goes before what these have: fixtures, say.
    """
    laws = [globals()[name] for name in __all__ if name.endswith("Conformance")]
    names = {law: f"Test{law.__name__.removesuffix('Conformance')}" for law in laws if law not in without}
    return {name: type(name, (*before, law), {}) for law, name in names.items()}
