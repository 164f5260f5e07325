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

_TOPICS = "commits kit limits operators runs"
pytest.register_assert_rewrite(*(f"{__name__}.{topic}" for topic in _TOPICS.split()))

from batuta.testing.conformance.commits.activity_transaction import TransactionsConformance  # noqa: E402
from batuta.testing.conformance.commits.batches import BatchesConformance  # noqa: E402
from batuta.testing.conformance.commits.clock import ClockConformance  # noqa: E402
from batuta.testing.conformance.commits.commit_fence import CommitFenceConformance  # noqa: E402
from batuta.testing.conformance.commits.hints import HintsConformance  # noqa: E402
from batuta.testing.conformance.commits.large_batches import LargeBatchConformance  # noqa: E402
from batuta.testing.conformance.commits.lease_reap import LeaseReapConformance  # noqa: E402
from batuta.testing.conformance.commits.races import RacesConformance  # noqa: E402
from batuta.testing.conformance.commits.slot_handover import HandingConformance  # noqa: E402
from batuta.testing.conformance.kit import MakeStore  # noqa: E402
from batuta.testing.conformance.limits.fairness import FairnessConformance  # noqa: E402
from batuta.testing.conformance.limits.partners import PartnersConformance  # noqa: E402
from batuta.testing.conformance.limits.queues import QueuesConformance  # noqa: E402
from batuta.testing.conformance.limits.quotas import QuotasConformance  # noqa: E402
from batuta.testing.conformance.limits.rates import RatesConformance  # noqa: E402
from batuta.testing.conformance.limits.schedules import (  # noqa: E402
    DueSchedulesConformance,
    FireConformance,
    SchedulesConformance,
)
from batuta.testing.conformance.operators.api_keys import ApiKeysConformance  # noqa: E402
from batuta.testing.conformance.operators.audit import AuditConformance  # noqa: E402
from batuta.testing.conformance.operators.bulk_operations import BulkConformance, PauseConformance, PausedConformance  # noqa: E402
from batuta.testing.conformance.operators.bus import BusConformance  # noqa: E402
from batuta.testing.conformance.operators.dead_letters import LettersConformance  # noqa: E402
from batuta.testing.conformance.operators.deleting import DeletingConformance  # noqa: E402
from batuta.testing.conformance.operators.documents import DocumentsConformance  # noqa: E402
from batuta.testing.conformance.operators.flows import EventsConformance, FlowsConformance, PlacedEventsConformance  # noqa: E402
from batuta.testing.conformance.operators.forks import ForksConformance  # noqa: E402
from batuta.testing.conformance.operators.marks import MarksConformance  # noqa: E402
from batuta.testing.conformance.operators.reencryption import RewritingConformance  # noqa: E402
from batuta.testing.conformance.operators.requests import RequestsConformance  # noqa: E402
from batuta.testing.conformance.operators.retention import PruningStepsConformance, RetentionConformance  # noqa: E402
from batuta.testing.conformance.runs.attempts import AttemptsConformance  # noqa: E402
from batuta.testing.conformance.runs.chains import ChainsConformance  # noqa: E402
from batuta.testing.conformance.runs.children import KinConformance  # noqa: E402
from batuta.testing.conformance.runs.claim import ClaimConformance  # noqa: E402
from batuta.testing.conformance.runs.close import CloseConformance  # noqa: E402
from batuta.testing.conformance.runs.foreign_relatives import ForeignRelativesConformance  # noqa: E402
from batuta.testing.conformance.runs.gauges import GaugesConformance  # noqa: E402
from batuta.testing.conformance.runs.inbox import InboxConformance  # noqa: E402
from batuta.testing.conformance.runs.namespaces import TenantsConformance  # noqa: E402
from batuta.testing.conformance.runs.outputs import OutputsConformance  # noqa: E402
from batuta.testing.conformance.runs.parking import ParkingConformance  # noqa: E402
from batuta.testing.conformance.runs.plain import PlainConformance  # noqa: E402
from batuta.testing.conformance.runs.poison import PoisonConformance  # noqa: E402
from batuta.testing.conformance.runs.reading import ReadingConformance  # noqa: E402
from batuta.testing.conformance.runs.sends import SendsConformance  # noqa: E402
from batuta.testing.conformance.runs.start import StartConformance  # noqa: E402
from batuta.testing.conformance.runs.unclaimed import (  # noqa: E402
    DebounceConformance,
    ExpiryConformance,
    RenewConformance,
)
from batuta.testing.conformance.runs.unread import UnreadConformance  # noqa: E402

__all__ = [
    "ApiKeysConformance",
    "AttemptsConformance",
    "AuditConformance",
    "BatchesConformance",
    "BulkConformance",
    "BusConformance",
    "ChainsConformance",
    "ClaimConformance",
    "ClockConformance",
    "CloseConformance",
    "CommitFenceConformance",
    "DebounceConformance",
    "DeletingConformance",
    "DocumentsConformance",
    "DueSchedulesConformance",
    "EventsConformance",
    "ExpiryConformance",
    "FairnessConformance",
    "FireConformance",
    "FlowsConformance",
    "ForeignRelativesConformance",
    "ForksConformance",
    "GaugesConformance",
    "HandingConformance",
    "HintsConformance",
    "InboxConformance",
    "KinConformance",
    "LargeBatchConformance",
    "LeaseReapConformance",
    "LettersConformance",
    "MakeStore",
    "MarksConformance",
    "OutputsConformance",
    "ParkingConformance",
    "PartnersConformance",
    "PauseConformance",
    "PausedConformance",
    "PlacedEventsConformance",
    "PlainConformance",
    "PoisonConformance",
    "PruningStepsConformance",
    "QueuesConformance",
    "QuotasConformance",
    "RacesConformance",
    "RatesConformance",
    "ReadingConformance",
    "RenewConformance",
    "RequestsConformance",
    "RetentionConformance",
    "RewritingConformance",
    "SchedulesConformance",
    "SendsConformance",
    "StartConformance",
    "TenantsConformance",
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
